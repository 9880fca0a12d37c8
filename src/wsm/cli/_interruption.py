"""Ctrl-C, SIGTERM and SIGHUP while a group is being commanded: take the command back, then end.

A process that dies with a command undecided leaves it to the group, which commits what all ranks have
prepared by then and aborts anything else. So the first signal asks for ABORT, waits for the group to settle
and says what came of it; only a second one leaves at once. That signals raise is the entry point's doing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from wsm.cli._base import CommandEndedError, tell
from wsm.controller import Pending
from wsm.controller.errors import CommandTimeoutError
from wsm.ending import SignalReceived, result_of
from wsm.errors import WsmError
from wsm.receipt import Receipt


class Wish:
    """Whether a command is still wanted when it is its turn. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_granted = False
        self._is_withdrawn = False

    def holds(self) -> bool:
        """Ask, right before the command is written; a yes is final."""
        with self._lock:
            self._is_granted = not self._is_withdrawn
            return self._is_granted

    def withdraw(self) -> bool:
        """Take the wish back; return whether that was in time, so that nothing will be written."""
        with self._lock:
            self._is_withdrawn = True
            return not self._is_granted


def receipt_of(begin: Callable[[Callable[[], bool]], Pending], held_now: Callable[[], str]) -> Receipt:
    """Begin a command and wait for its receipt; a signal takes the command back. Blocks.

    Parameters
    ----------
    begin : callable
        ``begin(still_wanted)`` writes the command; may wait for another controller before.
    held_now : callable
        Says what the group holds, for the last line.

    Raises
    ------
    CommandEndedError
        If a signal came; the command is over then, or was never written.
    wsm.errors.WsmError
        As the command.
    """
    wish = Wish()
    begun: Future[Pending] = Future()
    # In a thread of its own: a signal must not hit between writing the command and having a hold on it.
    thread = threading.Thread(target=_begin, args=(begin, wish, begun), name="wsm-begin", daemon=True)
    try:
        thread.start()
        return result_of(begun).result()
    except SignalReceived as received:
        nothing_was_asked = "interrupted; nothing was asked of the group"
        message = nothing_was_asked if wish.withdraw() else _taken_back(begun, held_now)
        raise CommandEndedError(message, exit_code=received.exit_code) from None


def _begin(begin: Callable[[Callable[[], bool]], Pending], wish: Wish, begun: Future[Pending]) -> None:
    try:
        begun.set_result(begin(wish.holds))
    except BaseException as error:  # noqa: BLE001 - the waiting thread gets it, whatever it is
        begun.set_exception(error)


def _taken_back(begun: Future[Pending], held_now: Callable[[], str]) -> str:
    try:
        pending = result_of(begun)
        pending.give_up()
        tell("taking the command back; a second signal leaves at once", err=True)
        receipt = pending.result()
    except SignalReceived:
        return "interrupted twice; the command is still open, and the group decides it within a second"
    except CommandTimeoutError:
        return f"interrupted; the command was taken back: {held_now()}"
    except WsmError as error:
        return f"interrupted; {error}"
    return f"interrupted too late, it was decided: the group {receipt.sentence()}"
