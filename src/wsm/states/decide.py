"""The controller's side of a command: one decision, and when it is over.

A command is open from the moment it is written until every participant is terminal for it and, if it
was committed, the committed-version word says so. The decision is written over the operation in the
command word, once, and is final.
"""

from __future__ import annotations

from wsm.states.errors import CommandOpenError
from wsm.states.view import View
from wsm.states.words import CommandWord, CommittedWord, Operation, StatusCode, StatusWord

_ABORT_OF = {
    Operation.CLEAR: Operation.ABORT,
    Operation.UPDATE: Operation.ABORT,
    Operation.HOT_UPDATE: Operation.HOT_ABORT,
}
_COMMIT_OF = {Operation.UPDATE: Operation.COMMIT, Operation.HOT_UPDATE: Operation.HOT_COMMIT}


def decision(view: View, *, agree: bool, give_up: bool) -> Operation | None:
    """Decide the open command, if it can be decided now.

    Parameters
    ----------
    view : View
        What was read, the command word included.
    agree : bool
        Whether the reports of all PREPARED participants name the same version and manifest; looked at
        only when all are PREPARED.
    give_up : bool
        Whether a deadline has passed, a participant died, or the caller gave up.

    Returns
    -------
    Operation or None
        What to write over the operation; None: nothing yet, or it is decided, or (a clear that every
        participant has finished) there is nothing to decide.
    """
    operation = view.command.operation
    if operation not in _ABORT_OF:
        return None
    statuses = [view.of_command(index) for index in range(len(view.statuses))]
    if operation is Operation.CLEAR and all(status and status.code.is_terminal for status in statuses):
        return None
    if operation in _COMMIT_OF and all_prepared(view):
        return _COMMIT_OF[operation] if agree else _ABORT_OF[operation]
    if give_up or any(status and status.code.is_failure for status in statuses):
        return _ABORT_OF[operation]
    return None


def all_prepared(view: View) -> bool:
    """Whether every participant says PREPARED for the command of the view."""
    return all(
        (status := view.of_command(index)) is not None and status.code is StatusCode.PREPARED
        for index in range(len(view.statuses))
    )


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


def next_command(view: View, operation: Operation) -> CommandWord:
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
    return CommandWord(view.command.epoch, view.command.sequence + 1, operation)


def _silence(command: CommandWord) -> str:
    return "has not joined the group" if command.operation is Operation.NONE else "has not answered"


def decided(view: View, operation: Operation) -> CommandWord:
    """Return the command word with the decision in it."""
    return view.command._replace(operation=operation)


def committed(view: View, version: int | None) -> CommittedWord:
    """Return the committed-version word that belongs to a decided commit; to be written before it is over.

    `version` is None only where no version was ever committed, and the commit brings none.
    """
    return CommittedWord(view.command.sequence, version)
