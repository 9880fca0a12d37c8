"""Epochs: how a group gets a new incarnation when a rank was lost.

Only the controller raises the epoch, once per death, after the old process is killed and reaped. The
new epoch begins with no command; what restores the group is an ordinary first command in it.
"""

from __future__ import annotations

from collections.abc import Collection

from wsm.protocol.view import View
from wsm.signals.word import CommandWord, CommittedWord, Operation, StepKind, StepWord


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


def next_epoch(view: View) -> CommandWord:
    """Return the command word that begins the next epoch; sequences go on, steps begin at 0 again."""
    return CommandWord(view.command.epoch + 1, view.command.sequence, Operation.NONE)


def first_epoch() -> CommandWord:
    """Return the command word of a new segment; zero words mean "never written", so epochs begin at 1."""
    return CommandWord(1, 0, Operation.NONE)


def _step(view: View, participant: int) -> StepWord:
    """Return a participant's step word; a helper has none, and a zero word says nothing."""
    return view.steps[participant] if participant < len(view.steps) else StepWord.unpack(0)
