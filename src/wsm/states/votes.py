"""Votes: who is ready for a collective action, who never will be, who has stopped after an ABORT.

A vote that was given shows in every later word of the same sequence (``ready``), so one reading of
the present words is enough, however late it comes.
"""

from __future__ import annotations

from wsm.states.view import View
from wsm.states.words import StatusCode

#: Codes after an ABORT that say "this rank's weights are not the old ones any more".
_TOUCHED = frozenset((StatusCode.STOPPED_TOUCHED, StatusCode.DONE_CLEARED, StatusCode.DONE_FAULTED))

#: Codes that a rank reaches only after it has accepted; a hot update, which stages first, aside.
_ACCEPTED = frozenset((StatusCode.ACCEPTED, StatusCode.RUNNING, StatusCode.PREPARED, StatusCode.DONE_CLEARED))


def all_ready(view: View, action: int) -> bool:
    """Whether every rank has voted for entering collective action number `action`.

    A participant without steps is in no communicator: nobody waits for it inside.
    """
    return all(
        (status := view.of_command(index)) is not None and status.ready > action
        for index in range(len(view.steps))
    )


def never_ready(view: View, action: int) -> list[int]:
    """Return the ranks that have said that they will never enter `action`."""
    return [
        index
        for index in range(len(view.steps))
        if (status := view.of_command(index)) is not None
        and status.code >= StatusCode.FAILED
        and status.ready <= action
    ]


def all_stopped(view: View) -> bool:
    """Whether every participant has stopped for the aborted command."""
    return all(
        (status := view.of_command(index)) is not None and status.code >= StatusCode.STOPPED_UNTOUCHED
        for index in range(len(view.statuses))
    )


def any_accepted(view: View) -> bool:
    """Whether some rank has accepted the command, which it does only where all ranks stand."""
    return any(
        (status := view.of_command(index)) is not None and (status.ready or status.code in _ACCEPTED)
        for index in range(len(view.steps))
    )


def any_committed(view: View) -> bool:
    """Whether some rank serves the command's version; a hot update brings that only where all stand."""
    return any(
        (status := view.of_command(index)) is not None and status.code is StatusCode.DONE_COMMITTED
        for index in range(len(view.steps))
    )


def any_touched(view: View) -> bool:
    """Whether any participant's weights are not whole; asked once :func:`all_stopped` holds."""
    return any(
        (status := view.of_command(index)) is not None and status.code in _TOUCHED
        for index in range(len(view.statuses))
    )
