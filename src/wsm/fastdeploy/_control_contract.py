"""What a control request of FastDeploy's does, from what group and rank hold. Tables and pure functions.

The commands of one request change the weights, the KV cache or both: each half by :data:`GIVES`. Whether the
runner sleeps behind it follows from what this rank holds, never from what was asked.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from wsm.states.decide import Resident
from wsm.states.engine_words import Given
from wsm.states.vocabulary import ALL_TAGS, KVState, Tag, WeightState

#: Which method was called, and whether all ranks hold the half that it is about (None: some do, or a teardown
#: failed): what is given for it. Over weights that serve, ``update_weights`` loads them all the same.
GIVES: dict[tuple[str, bool | None], Given] = {
    ("sleep", True): Given.CLEAR,
    ("sleep", False): Given.NOTHING,
    ("sleep", None): Given.CLEAR,
    ("wakeup", True): Given.NOTHING,
    ("wakeup", False): Given.UPDATE,
    ("wakeup", None): Given.UPDATE,
    ("update_weights", True): Given.UPDATE,
    ("update_weights", False): Given.UPDATE,
    ("update_weights", None): Given.UPDATE,
}


class ControlCommand(NamedTuple):
    """The one command of a control request.

    Parameters
    ----------
    given : Given
        Which.
    tags : frozenset of Tag
        The halves that it changes.
    """

    given: Given
    tags: frozenset[Tag] = frozenset()


def command_of(method: str, tags: Collection[Tag], held: Collection[Resident]) -> ControlCommand:
    """Say which command a request gives: of the halves that it names, those that are not as it wants them.

    Ranks that differ, and one whose teardown failed, can be cleared of both halves alone: a ``sleep`` that
    names both clears both then, and repairs them.

    Parameters
    ----------
    method : str
        The model runner's.
    tags : collection of Tag
        What the request names.
    held : collection of Resident
        What each rank holds.
    """
    for given in (Given.CLEAR, Given.UPDATE):
        halves = frozenset(tag for tag in tags if GIVES[method, held_by_all(tag, held)] is given)
        if halves:
            if given is Given.CLEAR and any(held_by_all(tag, held) is None for tag in halves):
                halves = frozenset(tags)
            return ControlCommand(given, halves)
    return ControlCommand(Given.NOTHING)


def held_by_all(tag: Tag, held: Collection[Resident]) -> bool | None:
    """Return whether all ranks hold a half; None where they differ, or one of them is between the two."""
    if not any(tag in each.missing for each in held):
        return True
    away = (
        (each.weights is WeightState.CLEARED if tag is Tag.WEIGHTS else each.kv is KVState.CLEARED)
        for each in held
    )
    return False if all(away) else None


def sleeping(weights: WeightState, kv: KVState, *, kv_found: bool, peer_gone: bool = False) -> frozenset[Tag]:
    """Say which halves the runner is to call asleep: all that this rank does not hold whole.

    Parameters
    ----------
    weights, kv : WeightState, KVState
        This rank's.
    kv_found : bool
        Whether the KV cache that FastDeploy built at start counts as there already; until then it is awake.
    peer_gone : bool
        Whether another rank has no process: a step would wait for it for ever, so all is asleep.
    """
    if peer_gone:
        return ALL_TAGS
    awake = set()
    if weights is WeightState.NORMAL:
        awake.add(Tag.WEIGHTS)
    if kv is KVState.NORMAL or not kv_found:
        awake.add(Tag.KV_CACHE)
    return ALL_TAGS - awake


def settles(weights: WeightState, *, entered: bool, peer_gone: bool = False) -> bool:
    """Say whether the end of a request settles what the runner is; else another command goes on here.

    Parameters
    ----------
    weights : WeightState
        This rank's.
    entered : bool
        Whether FastDeploy's method was begun in the request's command.
    peer_gone : bool
        Whether another rank has no process, and so every command is over.
    """
    return entered or peer_gone or weights in (WeightState.NORMAL, WeightState.CLEARED)


def keeps_from_polling(asleep: Collection[Tag], method: str | None = None) -> str:
    """Say why a loop with the second line looks at no command of another process; empty if it looks.

    Parameters
    ----------
    asleep : collection of Tag
        The halves that the runner calls asleep.
    method : str or None
        The request that is open; None behind it.
    """
    if method is not None:
        return f"{method} has been asked for and may let it sleep"
    return "it sleeps: ask for wakeup" if asleep else ""
