"""The controller's side of a command: may it begin, its one decision, when it is over, and who completes it.

Theory of operation
-------------------
**A group as a controller judges it** (:class:`Resident`): what its participants hold, whether a command may
begin, or has no work.

**One decision.** A command is open from the moment it is written until every participant is terminal for it
and, if it was committed, the committed-version word says so. The decision is written over the operation in
the command word, once, and is final.

**A controller that does not come back** is followed by a successor, or by the group itself (:func:`duty`). A
successor holds the role's kernel lock, which proves that the controller before it is gone; a timeout
never does. All that the dead one knew is lost, the words are not, and they are enough: a decision that stands
in the command word is completed, an undecided command is decided: an update is committed where all are
PREPARED, a hold or a release is always aborted.

A controller that is only stopped still has the role, and may write its next word at any moment. Which word
that is, is known once a participant has failed: no participant that failed is PREPARED later, so the only
decision left is ABORT, and a rank that writes it first writes what the controller would write itself. While
all are PREPARED it may be about to write COMMIT, and nothing is decided in its place.

**A decision that is not the controller's** is marked in the command word (:class:`.words.Decider`). A
caller's COMMIT needs that caller's word, and every successor says ABORT: the caller may have aborted
elsewhere already. A caller may hold it by a lease, with no process in the role (:func:`is_held`). What is
decided outside is decided by no process here once all are PREPARED, since that was told outside, and may be
COMMIT there.

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
    """Return what the participants hold, as a command finds it; None: that is no single thing.

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

    Parameters
    ----------
    held : Resident
        What all participants hold.
    operation, tags : Operation, frozenset of Tag
        What is asked.
    version : str or None
        The version that need not be loaded again where it is committed; None: any has to be.
    committed : str or None
        The committed version.
    owed : bool
        Whether the group waits to be restored: a clear of it is a command like any other, since it ends the
        waiting.
    """
    if operation is Operation.CLEAR:
        return held.weights is not WeightState.FAULTED and not owed and tags <= held.missing
    if tags & held.missing:
        return False
    return Tag.WEIGHTS not in tags or (version is not None and version == committed)


def state_before(held: Resident, *, owed: bool) -> WeightState:
    """Return what the group is to be again if a rank is lost in the command that is admitted now.

    That is NORMAL if it serves, or, in an epoch that was not restored yet, if it served before.
    """
    waits = held.weights is WeightState.CLEARED and owed
    return WeightState.NORMAL if waits else held.as_whole


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


_ABORT_OF = {
    Operation.CLEAR: Operation.ABORT,
    Operation.UPDATE: Operation.ABORT,
    Operation.HOT_UPDATE: Operation.HOT_ABORT,
    Operation.HOLD: Operation.ABORT,
    Operation.RELEASE: Operation.ABORT,
}
_COMMIT_OF = {
    Operation.UPDATE: Operation.COMMIT,
    Operation.HOT_UPDATE: Operation.HOT_COMMIT,
    Operation.HOLD: Operation.COMMIT,
    Operation.RELEASE: Operation.COMMIT,
}


def decision(view: View, *, agree: bool, give_up: bool, verdict: bool | None = None) -> Operation | None:
    """Decide the open command, if it can be decided now.

    Parameters
    ----------
    view : View
        What was read, the command word included.
    agree : bool
        Whether the reports of all PREPARED participants name the same version and manifest; looked at
        only when all are PREPARED.
    give_up : bool
        Whether a deadline or a lease has passed, a participant died, or the caller gave up.
    verdict : bool or None
        What was said by the one that decides, of a command that its controller does not decide: whether it is
        to be committed; None: nothing yet, or it is not known, as a successor of a caller never knows it.

    Returns
    -------
    Operation or None
        What to write over the operation; None: nothing yet, or it is decided, or (a clear that every
        participant has finished) there is nothing to decide.
    """
    operation = view.command.operation
    if operation not in _ABORT_OF:
        return None
    if operation is Operation.CLEAR and not waiting_on(view):
        return None
    if operation.is_of_admission and give_up and view.command.decider is Decider.CONTROLLER:
        return _ABORT_OF[operation]  # who asked has no receipt, and must not find the group held, or open
    if operation in _COMMIT_OF and all_prepared(view):
        commits = _commits(view.command.decider, agree=agree, give_up=give_up, verdict=verdict)
        return None if commits is None else _COMMIT_OF[operation] if commits else _ABORT_OF[operation]
    aborts = give_up or verdict is False
    for index in range(len(view.statuses)):
        status = view.of_command(index)
        aborts = aborts or (status is not None and status.code.is_failure)
    return _ABORT_OF[operation] if aborts else None


def _commits(decider: Decider, *, agree: bool, give_up: bool, verdict: bool | None) -> bool | None:
    """Whether a command is committed for which all are PREPARED; None: that is not decided yet."""
    if decider is Decider.OUTSIDE:
        return verdict  # that all agree was looked at before it was told outside
    if decider is Decider.CONTROLLER or not agree:
        return agree
    return False if give_up and verdict is None else verdict


def is_held(view: View, *, leased: bool = False) -> bool:
    """Whether the open command waits for a decision that no other process may make now.

    Parameters
    ----------
    view : View
        What was read.
    leased : bool
        Whether its caller holds it by a lease that is not over. It counts from the moment all are PREPARED.
    """
    if view.command.operation not in _COMMIT_OF or not all_prepared(view):
        return False
    decider = view.command.decider
    return decider is Decider.OUTSIDE or (decider is Decider.CALLER and leased)


def all_prepared(view: View) -> bool:
    """Whether every participant says PREPARED for the command of the view."""
    for index in range(len(view.statuses)):
        status = view.of_command(index)
        if status is None or status.code is not StatusCode.PREPARED:
            return False
    return True


def is_over(view: View) -> bool:
    """Whether the last command is over, so that the next one may be written."""
    command = view.command
    if command.operation.is_commit and view.committed.sequence != command.sequence:
        return False
    return not waiting_on(view)


def waiting_on(view: View) -> dict[int, StatusWord | None]:
    """Return the participants that are not terminal for the command, with what they say about it.

    In an epoch without a command yet: those that have not joined it.
    """
    found: dict[int, StatusWord | None] = {}
    for index, word in enumerate(view.statuses):
        if view.command.operation is Operation.NONE:
            # Zero words are equal too, but say nothing: the owner has not begun the first epoch yet.
            if word.epoch == 0 or word.epoch != view.command.epoch:
                found[index] = None
            continue
        status = view.of_command(index)
        if status is None or not status.code.is_terminal:
            found[index] = status
    return found


def next_command(view: View, operation: Operation, decider: Decider = Decider.CONTROLLER) -> CommandWord:
    """Return the word that opens the next command.

    Raises
    ------
    CommandOpenError
        If the last one is not over; it names who is still working on what.
    """
    if not is_over(view):
        command = view.command
        raise CommandOpenError(
            epoch=command.epoch,
            sequence=command.sequence,
            operation=command.operation.name,
            waiting={
                rank: _silence(command) if status is None else status.code.name
                for rank, status in waiting_on(view).items()
            },
        )
    return CommandWord(view.command.epoch, view.command.sequence + 1, operation, decider)


def _silence(command: CommandWord) -> str:
    return "has not joined the group" if command.operation is Operation.NONE else "has not answered"


def decided(view: View, operation: Operation) -> CommandWord:
    """Return the command word with the decision in it; only the commit of an update ends what is owed."""
    command = view.command
    brings = operation.is_commit and not command.operation.is_of_admission
    return command._replace(operation=operation, owes=command.owes and not brings)


def committed(view: View, version: str | None, *, held: bool | None = None) -> CommittedWord:
    """Return the committed word that belongs to a decided commit; to be written before it is over.

    `version` is None only where no version was ever committed, and the commit brings none. `held`: whether
    the group is held behind it (:func:`wsm.states.holding.held_after`); None: as before.
    """
    named = None if version is None else version_id(version)
    return CommittedWord(view.command.sequence, named, view.committed.held if held is None else held)


class Inheritance(enum.Enum):
    """What a successor finds."""

    NOTHING = "nothing"  # the last command is over
    COMPLETE = "complete"  # decided: write the committed version if it is missing, wait until it is over
    DECIDE = "decide"  # undecided: an update of its own that all have PREPARED is committed, all else aborted
    HELD = "held"  # undecided, and its decision belongs to another than a successor


class Objection(enum.Enum):
    """Why what no process drives cannot be committed, or aborted, by the one who asks for that."""

    OTHER = "the last command of the group is another one"
    MINE = "its controller decides the last command of the group"
    OTHERWISE = "it was decided otherwise"
    OUTSIDE = "its decision is made outside, and only that can commit it"
    GONE = "the process that held its decision is gone, and the group aborts it"
    EARLY = "not every rank has prepared it"


def objection(view: View, *, commit: bool, leased: bool, asked: bool) -> Objection | None:
    """Say why the last command cannot be decided by a process that has taken the free role to do so.

    Parameters
    ----------
    view : View
        What was read with the role.
    commit : bool
        What is asked for; else to abort it.
    leased : bool
        Whether its arguments say that a lease holds it; the lease ends by a process that counts it.
    asked : bool
        Whether it is the request that is meant.
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
    if decider is Decider.OUTSIDE:
        return Objection.OUTSIDE
    return Objection.EARLY if leased else Objection.GONE


class Role(enum.Enum):
    """What can be known of the controller role from outside."""

    FREE = "free"  # no process has it: the controller that gave the open command is gone, or gave it up
    KEPT = "kept"  # by a process that goes on, and will decide
    STALLED = "stalled"  # by a process that is stopped, or that let the command's deadline pass


class Duty(enum.Enum):
    """What a group's keeper, or one of its ranks, must do about the command at hand."""

    NOTHING = "nothing"  # it is over, or its participants end it alone, or its controller will
    TAKE_ROLE = "take the role"  # take it without waiting, look again, write what is missing, give it back
    FAIL = "fail"  # its deadline has passed: every participant that still may says FAILED
    ABORT = "abort"  # write the only decision that is left, in the controller's place
    NAME = "name"  # all are PREPARED, or it is decided: say who must be ended, and decide nothing


def inherited(view: View, *, leased: bool = False) -> Inheritance:
    """Say what must be done before a new command may be written; `leased` as :func:`is_held`."""
    if is_over(view):
        return Inheritance.NOTHING
    if view.command.operation.is_decision:
        return Inheritance.COMPLETE
    if is_held(view, leased=leased):
        return Inheritance.HELD
    return Inheritance.DECIDE if decision(view, agree=True, give_up=True) else Inheritance.COMPLETE


def lacks_a_word(view: View) -> bool:
    """Whether the command at hand needs a controller's word still: a decision, or the committed version."""
    command = view.command
    if command.operation.is_commit:
        return view.committed.sequence != command.sequence
    return command.operation is not Operation.NONE and inherited(view) in _UNDECIDED


_UNDECIDED = (Inheritance.DECIDE, Inheritance.HELD)


def duty(view: View, role: Role, *, expired: bool, leased: bool = False) -> Duty:
    """Say what a group's keeper, or one of its ranks, must do about its command now.

    Parameters
    ----------
    view : View
        What was read.
    role : Role
        What was found out about the controller role, after the view was read.
    expired : bool
        Whether the deadline of the command has passed.
    leased : bool
        As :func:`is_held`. It is to be asked again with the role: all may be PREPARED since.
    """
    if role is Role.KEPT or not lacks_a_word(view):
        return Duty.NOTHING
    if role is Role.FREE:
        return Duty.NOTHING if is_held(view, leased=leased) else Duty.TAKE_ROLE
    operation = view.command.operation
    if operation.is_decision or (operation in _COMMIT_OF and all_prepared(view)):
        return Duty.NAME
    due = decision(view, agree=True, give_up=False)
    if due is None:
        return Duty.FAIL if expired else Duty.NOTHING
    return Duty.ABORT if due.is_abort else Duty.NAME
