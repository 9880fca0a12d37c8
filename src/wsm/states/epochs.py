"""Epochs: how a group gets a new incarnation when a rank was lost.

Only the controller raises the epoch, once per death, after the old process is killed and reaped. The
new epoch begins with no command; what restores the group is an ordinary first command in it.

What is to be restored has to outlive whoever raises the epoch, and a second death before it is restored. So
it stands in the committed word: a version if the group is to serve it again, none if it is to stay CLEARED.
"""

from __future__ import annotations

from collections.abc import Collection

from wsm.states.decide import is_over
from wsm.states.view import View
from wsm.states.vocabulary import KVState, WeightState
from wsm.states.words import CommandWord, CommittedWord, Operation, StatusCode, StepKind, StepWord

_PREPARED = (StatusCode.PREPARED, StatusCode.DONE_COMMITTED)


def ended_by(view: View, dead: Collection[int]) -> list[int]:
    """Return the participants because of whom this epoch must end; none: it goes on.

    Parameters
    ----------
    view : View
        What was read.
    dead : collection of int
        Participants without a living process.

    Returns
    -------
    list of int
        Whoever is dead after it had joined this epoch, even if it got no further than its step word, and
        every rank whose step broke. Whoever died before it joined may be replaced in the same epoch.
    """
    epoch = view.command.epoch
    return [
        index
        for index, status in enumerate(view.statuses)
        if (index in dead and epoch in (status.epoch, _step(view, index).epoch))
        or (_step(view, index).epoch == epoch and _step(view, index).kind is StepKind.BROKEN)
    ]


def completed_commit(view: View, version: int) -> CommittedWord | None:
    """Return the committed-version word that must be written before the epoch may be raised.

    A commit that was decided is final even if the deciding epoch ends: without this the recovery
    would load the version before it.
    """
    if view.command.operation.is_commit and view.committed.sequence != view.command.sequence:
        return CommittedWord(view.command.sequence, version)
    return None


def restored_version(view: View, *, asked: int | None, served: bool | None) -> int | None:
    """Return the version that the group must serve again once the epoch of `view` has ended.

    It is the last commanded state: what was decided, else what the group was before the command that its
    end cut short.

    Parameters
    ----------
    view : View
        What was read; what was undecided has been decided, as a successor does it (:mod:`.takeover`).
    asked : int or None
        The version that the last command brings; looked at if that is decided and not stored yet.
    served : bool or None
        Whether all ranks served when the last command was admitted; None if its arguments are gone, and then
        a rank that still holds weights says so.

    Returns
    -------
    int or None
        None: the group stays CLEARED. Its memory belongs to whoever cleared it; so it does where only one
        half of it was cleared.
    """
    command, committed = view.command, view.committed
    if command.operation is Operation.NONE:
        return committed.version
    if command.operation.is_commit:
        if not _commit_serves(view):
            return None
        return committed.version if committed.sequence == command.sequence else asked
    if command.operation is Operation.CLEAR:
        return None
    holds = any(
        status.weights == WeightState.NORMAL and status.kv != KVState.CLEARED for status in view.statuses
    )
    return committed.version if (holds if is_over(view) or served is None else served) else None


def _commit_serves(view: View) -> bool:
    """Whether who has prepared or finished the committed command lacks nothing that a step needs."""
    words = [view.of_command(index) for index in range(len(view.statuses))]
    reached = [word for word in words if word is not None and word.code in _PREPARED]
    return all(word.weights != WeightState.CLEARED and word.kv != KVState.CLEARED for word in reached)


def goal_word(view: View, goal: int | None) -> CommittedWord | None:
    """Return the committed word that makes `goal` outlive the epoch, if it says something else now.

    Written after :func:`completed_commit` and before the epoch is raised; the same goal is found again by
    a successor of whoever dies in between.
    """
    if goal is None and view.committed.version is not None:
        return CommittedWord(view.command.sequence, None)
    return None


#: Operations of a last command after which an epoch may still owe what it is to restore.
OWING = (Operation.NONE, Operation.ABORT, Operation.CLEAR)


def unrestored(view: View, *, restores: bool = False) -> int | None:
    """Return the version that the epoch of `view` is to restore, while no other command has been given in it.

    Whoever raised the epoch keeps the controller role until it is restored, or could not be. Others may then
    command a group that holds nothing, and is owed what it served; so they may if that process dies.

    Parameters
    ----------
    view : View
        What was read.
    restores : bool
        Whether the last command was the update that was to restore it, or a clear that repaired a rank for
        that. An aborted one leaves the debt, and so does a clear.
    """
    owing = OWING if restores else (Operation.NONE,)
    return view.committed.version if view.command.operation in owing else None


def next_epoch(view: View) -> CommandWord:
    """Return the command word that begins the next epoch; sequences go on, steps begin at 0 again."""
    return CommandWord(view.command.epoch + 1, view.command.sequence, Operation.NONE)


def first_epoch() -> CommandWord:
    """Return the command word of a new segment; zero words mean "never written", so epochs begin at 1."""
    return CommandWord(1, 0, Operation.NONE)


def _step(view: View, participant: int) -> StepWord:
    """Return a participant's step word; a helper has none, and a zero word says nothing."""
    return view.steps[participant] if participant < len(view.steps) else StepWord.unpack(0)
