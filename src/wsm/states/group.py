"""A group as a controller judges it: what its participants hold, whether a command may begin, or has no work.

Pure: functions of a view and of what is asked.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from wsm.states.joint import serving
from wsm.states.view import View
from wsm.states.vocabulary import ALL_TAGS, KVState, Tag, WeightState
from wsm.states.words import Operation


class Resident(NamedTuple):
    """Where the weights and the KV cache of one rank are, or of all of them.

    Parameters
    ----------
    weights : WeightState
        The weights.
    kv : KVState
        The KV cache.
    """

    weights: WeightState
    kv: KVState

    def __str__(self) -> str:
        return f"{self.weights.name}, KV cache {self.kv.name}"

    @property
    def serving(self) -> bool:
        """Whether a rank that holds this may step."""
        return serving(self.weights, self.kv)

    @property
    def missing(self) -> frozenset[Tag]:
        """What is not there, or not whole."""
        there = {Tag.WEIGHTS: self.weights is WeightState.NORMAL, Tag.KV_CACHE: self.kv is KVState.NORMAL}
        return frozenset(tag for tag, holds in there.items() if not holds)

    @property
    def as_whole(self) -> WeightState:
        """What one word says of both: NORMAL if it serves, CLEARED if it does not and all is at rest.

        FastDeploy's weights word is that word: an engine sends requests while it is NORMAL, and asks for
        UPDATING while it is CLEARED. So a half must not be NORMAL there.
        """
        halves = self.missing and self.weights is WeightState.NORMAL
        return WeightState.CLEARED if halves else self.weights


def resident_on_each(view: View) -> list[Resident]:
    """Return what each participant holds, by its status word."""
    return [Resident(WeightState(status.weights), KVState(status.kv)) for status in view.statuses]


def resident_on_all(each: Iterable[Resident]) -> Resident | None:
    """Return what every participant holds; None if they differ."""
    found = set(each)
    return found.pop() if len(found) == 1 else None


def resident_for(view: View, operation: Operation, tags: frozenset[Tag]) -> Resident | None:
    """Return what the participants hold, as a command finds it; None: they differ, and it has no one meaning.

    Participants that differ, and FAULTED ones, can only be cleared, of both halves; FAULTED counts most then,
    and NORMAL more than CLEARED.

    Parameters
    ----------
    view : View
        What was read; no command is open.
    operation : Operation
        What is to be commanded.
    tags : frozenset of Tag
        Which halves it names.
    """
    found = resident_on_each(view)
    one = resident_on_all(found)
    weights = {each.weights for each in found}
    if one is not None and WeightState.FAULTED not in weights:
        return one
    if operation is not Operation.CLEAR or tags != ALL_TAGS:
        return None
    return Resident(
        WeightState.FAULTED if WeightState.FAULTED in weights else max(weights),
        KVState.CLEARED if all(each.kv is KVState.CLEARED for each in found) else KVState.NORMAL,
    )


def needs_no_work(
    held: Resident,
    operation: Operation,
    tags: frozenset[Tag],
    *,
    version: int | None,
    committed: int | None,
    owed: int | None,
) -> bool:
    """Whether the end of a command is reached before it begins.

    Parameters
    ----------
    held : Resident
        What all participants hold.
    operation, tags : Operation, frozenset of Tag
        What is asked.
    version : int or None
        The version that need not be loaded again where it is committed; None: any has to be.
    committed : int or None
        The committed version.
    owed : int or None
        The version that the group waits to be restored to: a clear of it is a command like any other, since
        it ends the waiting.
    """
    if operation is Operation.CLEAR:
        return held.weights is not WeightState.FAULTED and owed is None and tags <= held.missing
    if tags & held.missing:
        return False
    return Tag.WEIGHTS not in tags or (version is not None and version == committed)


def state_before(held: Resident, owed: int | None) -> WeightState:
    """Return what the group is to be again if a rank is lost in the command that is admitted now.

    That is NORMAL if it serves, or, in an epoch that was not restored yet, if it served before.
    """
    waits = held.weights is WeightState.CLEARED and owed is not None
    return WeightState.NORMAL if waits else held.as_whole
