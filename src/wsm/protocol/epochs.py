"""Epochs: how a group gets a new incarnation when a rank was lost.

Only the controller raises the epoch, once per death, after the old process is killed and reaped. The
new epoch begins with no command; what restores the group is an ordinary first command in it.
"""

from __future__ import annotations

from wsm.protocol.view import View
from wsm.signals.word import CommandWord, CommittedWord, Operation


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
