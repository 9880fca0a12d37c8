"""What the conditions of :mod:`.group` mean for one command: may it begin, be committed, and is it over.

Theory of operation
-------------------
**A group as a controller judges it** (:class:`Resident`): what its participants hold, whether a command may
begin, or has no work.

**One decision.** A command is open from the moment it is written until every participant is terminal for it
and, if it was committed, the committed-version word says so. The decision is written over the operation in
the command word, once, and is final. What it is, and which process writes it, says :mod:`.group`.

**A decision that is not the controller's** is marked in the command word (:class:`.words.Decider`). A
caller's COMMIT needs that caller's word, and every successor says ABORT: the caller may have aborted
elsewhere already. A caller may hold it by a lease, with no process in the role (:func:`is_held`).

Pure: functions of a view and of what is asked.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple

from wsm.labels import version_id
from wsm.states.errors import CommandOpenError
from wsm.states.joint import serving
from wsm.states.view import View
from wsm.states.vocabulary import ALL_TAGS, KVState, Tag, WeightState
from wsm.states.words import CommandWord, CommittedWord, Decider, Operation, StatusCode, StatusWord


class Resident(NamedTuple):
    """Where the weights and the KV cache of one rank are, or of all of them."""

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
        weights = {Tag.WEIGHTS} if self.weights is not WeightState.NORMAL else set()
        return frozenset(weights | ({Tag.KV_CACHE} if self.kv is not KVState.NORMAL else set()))

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


def missing_anywhere(view: View) -> frozenset[Tag]:
    """Return what is not there, or not whole, on some participant."""
    return frozenset().union(*map(attrgetter("missing"), resident_on_each(view)))


def resident_on_all(each: Iterable[Resident]) -> Resident | None:
    """Return what every participant holds; None if they differ."""
    found = set(each)
    return found.pop() if len(found) == 1 else None


def resident_for(view: View, operation: Operation, tags: frozenset[Tag]) -> Resident | None:
    """Return what the participants hold, as a command finds it that names `tags`; None: no single thing.

    Participants that differ, and FAULTED ones, can only be cleared, of both halves; FAULTED counts most then,
    and NORMAL more than CLEARED. No command is open in the view.
    """
    found = resident_on_each(view)
    one = resident_on_all(found)
    if one is not None and one.weights is not WeightState.FAULTED:
        return one
    if operation is not Operation.CLEAR or tags != ALL_TAGS:
        return None
    weights = {each.weights for each in found}
    return Resident(
        WeightState.FAULTED if WeightState.FAULTED in weights else max(weights),
        KVState.CLEARED if all(each.kv is KVState.CLEARED for each in found) else KVState.NORMAL,
    )


def needs_no_work(
    held: Resident,
    operation: Operation,
    tags: frozenset[Tag],
    *,
    version: str | None,
    committed: str | None,
    owed: bool,
) -> bool:
    """Whether the end of a command is reached before it begins.

    A `version` that is `committed` need not be loaded again; None: any has to be. A clear of a group that is
    `owed` its version is a command like any other, since it ends the waiting.
    """
    if operation is Operation.CLEAR:
        return held.weights is not WeightState.FAULTED and not owed and tags <= held.missing
    if tags & held.missing:
        return False
    return Tag.WEIGHTS not in tags or (version is not None and version == committed)


def state_before(held: Resident, *, owed: bool) -> WeightState:
    """Return what the group is to be again if a rank is lost in the command that is admitted now.

    That is NORMAL if it serves, or is owed the version that it served before.
    """
    return WeightState.NORMAL if owed else held.as_whole


def before_admission(each: Iterable[Resident], *, owed: bool) -> tuple[WeightState, bool]:
    """Return :func:`state_before` for a hold or a release, and whether the group is owed its version.

    Such a command is legal whatever the participants hold, and takes nothing of that away: what they are owed
    they are owed behind it, too.
    """
    found = list(each)
    one = resident_on_all(found)
    waits = owed and not any(resident.serving for resident in found)
    if waits:
        return WeightState.NORMAL, True
    return (WeightState.CLEARED if one is None else one.as_whole), False


def is_held(view: View, *, leased: bool = False) -> bool:
    """Whether the open command waits for a decision that no other process may make now.

    `leased`: whether its caller holds it by a lease that is not over, counted from all PREPARED.
    """
    return leased and view.command.decider is Decider.CALLER and is_prepared(view)


def is_prepared(view: View) -> bool:
    """Whether the open command can be committed: there is a COMMIT of it, and all are PREPARED."""
    operation = view.command.operation
    return operation.is_open and operation is not Operation.CLEAR and all_prepared(view)


def any_failed(view: View) -> bool:
    """Whether a participant will never be PREPARED for the command of the view."""
    return any(word is not None and word.code.is_failure for word in view.of_all())


def all_prepared(view: View) -> bool:
    """Whether every participant says PREPARED for the command of the view."""
    return all(word is not None and word.code is StatusCode.PREPARED for word in view.of_all())


def is_over(view: View) -> bool:
    """Whether the last command is over, so that the next one may be written."""
    return not (view.unstored or waiting_on(view))


def waiting_on(view: View) -> dict[int, StatusWord | None]:
    """Return the participants that are not terminal for the command, with what they say about it.

    In an epoch without a command yet: those that have not joined it.
    """
    if view.command.operation is Operation.NONE:
        # Zero words are equal too, but say nothing: the owner has not begun the first epoch yet.
        joined = view.command.epoch or None
        return {index: None for index, word in enumerate(view.statuses) if word.epoch != joined}
    words = enumerate(view.of_all())
    return {index: word for index, word in words if word is None or not word.code.is_terminal}


def next_command(view: View, operation: Operation, decider: Decider = Decider.CONTROLLER) -> CommandWord:
    """Return the word that opens the next command.

    Raises
    ------
    CommandOpenError
        If the last one is not over; it names who is still working on what.
    """
    if not is_over(view):
        command = view.command
        begins = command.operation is Operation.NONE
        silent = "has not joined the group" if begins else "has not answered"
        raise CommandOpenError(
            epoch=command.epoch,
            sequence=command.sequence,
            operation=command.operation.name,
            waiting={
                rank: silent if status is None else status.code.name
                for rank, status in waiting_on(view).items()
            },
        )
    return CommandWord(view.command.epoch, view.command.sequence + 1, operation, decider)


def decided(view: View, *, commit: bool) -> CommandWord:
    """Return the command word with its decision in it; only the commit of an update ends what is owed."""
    command = view.command
    hot, moves_memory = command.operation.is_hot, not command.operation.is_of_admission
    word = Operation.HOT_COMMIT if hot else Operation.COMMIT
    if not commit:
        word = Operation.HOT_ABORT if hot else Operation.ABORT
    return command._replace(operation=word, owes=command.owes and not (commit and moves_memory))


def committed(view: View, version: str | None, *, held: bool | None = None) -> CommittedWord:
    """Return the committed word that belongs to a decided commit; to be written before it is over.

    `version` is None only where no version was ever committed, and the commit brings none. `held`: whether
    the group is held behind it (:func:`wsm.states.holding.held_after`); None: as before.
    """
    named = None if version is None else version_id(version)
    return CommittedWord(view.command.sequence, named, view.committed.held if held is None else held)


class Objection(enum.Enum):
    """Why what no process drives cannot be committed, or aborted, by the one who asks for that."""

    OTHER = "the last command of the group is another one"
    MINE = "its controller decides the last command of the group"
    OTHERWISE = "it was decided otherwise"
    GONE = "the process that held its decision is gone, and the group aborts it"
    EARLY = "not every rank has prepared it"


def objection(view: View, *, commit: bool, leased: bool, asked: bool) -> Objection | None:
    """Say why the last command cannot be decided by a process that has taken the free role to do so.

    It asks to commit it, or else to abort it. `leased`: whether its arguments say that a lease holds it; the
    lease ends by a process that counts it. `asked`: whether it is the request that is meant.
    """
    operation, decider = view.command.operation, view.command.decider
    if not asked or operation is Operation.NONE:
        return Objection.OTHER
    if decider is Decider.CONTROLLER:
        return Objection.MINE
    if operation.is_decision:
        return None if operation.is_commit is commit else Objection.OTHERWISE
    if not commit or (leased and is_held(view, leased=True)):
        return None
    return Objection.EARLY if leased else Objection.GONE


#: Seconds in which a controller that goes on has stored the word that its command waits for.
CONTROLLER_GRACE_S = 5.0


class Role(enum.Enum):
    """What can be known of the controller role from outside."""

    OWN = "own"  # this process has it
    FREE = "free"  # no process has it: the controller that gave the open command is gone, or gave it up
    KEPT = "kept"  # by a process that goes on, and will decide
    STALLED = "stalled"  # by a process that is stopped, or that let the command's deadline pass


def lacks_a_word(view: View) -> bool:
    """Whether the command at hand needs a controller's word still: a decision, or the committed version."""
    return view.unstored or (view.command.operation.is_open and not is_over(view))
