"""Ctrl-C, SIGTERM and SIGHUP while a group is being commanded: take the command back, then end.

A process that dies with a command undecided leaves it to the group, which commits what all ranks have
prepared by then and aborts anything else. So the first signal asks for ABORT, waits for the group to settle
and says what came of it; only a second one leaves at once. That signals raise is the entry point's doing.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator

from wsm.cli._base import CommandEndedError, tell
from wsm.controller import Pending
from wsm.controller.errors import CommandTimeoutError, CommandWithdrawnError
from wsm.ending import SignalReceived
from wsm.errors import WsmError
from wsm.receipt import Receipt

_NOTHING_ASKED = "interrupted; nothing was asked of the group"
_TAKING_BACK = (
    "taking the command back; this waits until the ranks have stopped, and, if weights were overwritten, "
    "until the version before is loaded again (--restore-deadline at most); a second signal leaves at once, "
    "and then a supervisor alone restores it"
)
_LEFT_OPEN = (
    "interrupted twice; a command is still open: the group decides it within a second, and each rank ends it "
    "once the action that it is in has ended; 'wsm status' says what the group holds then"
)


def receipt_of(begin: Callable[[], Pending], held_now: Callable[[], str] | None) -> Receipt:
    """Begin a command and wait for its receipt; a signal takes the command back. Blocks.

    Parameters
    ----------
    begin : callable
        Begins the command; must not wait.
    held_now : callable or None
        Says what the group holds, for the last line; None: a server carries the command out, and goes on.

    Raises
    ------
    CommandEndedError
        If a signal came; the command is over then, or was never written, or goes on at its server.
    wsm.errors.WsmError
        As the command.
    """
    pending: Pending | None = None
    try:
        with _signals_held():
            pending = begin()
        return pending.result()
    except SignalReceived as received:
        message = _NOTHING_ASKED if pending is None else _taken_back(pending, held_now)
        raise CommandEndedError(message, exit_code=received.exit_code) from None


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Let no signal come between the beginning of a command and having a hold on it; it comes behind that."""
    ending = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ending)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _taken_back(pending: Pending, held_now: Callable[[], str] | None) -> str:
    if held_now is None:
        return "interrupted; the server goes on with the command"
    try:
        pending.give_up()
        tell(_TAKING_BACK, err=True)
        receipt = pending.result()
    except SignalReceived:
        return _LEFT_OPEN
    except CommandWithdrawnError:
        return _NOTHING_ASKED
    except CommandTimeoutError:
        return f"interrupted; the command was taken back: {held_now()}"
    except WsmError as error:
        return f"interrupted; {error}"
    return f"interrupted too late, it was decided: the group {receipt.sentence()}"
