"""Ctrl-C, SIGTERM and SIGHUP while a group is being commanded: take the command back, then end.

A process that dies with a command undecided leaves the ranks waiting until the next controller comes.
So the first signal asks for ABORT and waits for the group to settle; only a second one leaves at once.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

import click

from wsm.cli.failures import CommandEndedError
from wsm.controller import Pending
from wsm.controller.errors import CommandTimeoutError
from wsm.errors import WsmError
from wsm.receipt import Receipt

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_BASE = 128


class SignalReceived(KeyboardInterrupt):
    """A signal that asks this process to end.

    Parameters
    ----------
    number : int
        Which.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = _BASE + number


def receipt_of(begin: Callable[[], Pending], held_now: Callable[[], str]) -> Receipt:
    """Begin a command and wait for its receipt; a signal takes the command back. Blocks.

    Parameters
    ----------
    begin : callable
        Writes the command; may wait for another controller, and a signal ends that wait.
    held_now : callable
        Says what the group holds, for the last line.

    Raises
    ------
    CommandEndedError
        If a signal came, once the command is over.
    wsm.errors.WsmError
        As the command.
    """
    with _signals_raise():
        try:
            pending = begin()
        except SignalReceived as received:
            raise CommandEndedError(
                "interrupted; nothing was asked of the group", exit_code=received.exit_code
            ) from None
        try:
            return pending.result()
        except SignalReceived as received:
            click.echo("taking the command back; a second signal leaves it to the next controller", err=True)
            raise CommandEndedError(_taken_back(pending, held_now), exit_code=received.exit_code) from None


def _taken_back(pending: Pending, held_now: Callable[[], str]) -> str:
    pending.give_up()
    try:
        receipt = pending.result()
    except SignalReceived:
        return "interrupted twice; the command is still open, and the next 'wsm' command decides it"
    except CommandTimeoutError:
        return f"interrupted; the command was taken back: {held_now()}"
    except WsmError as error:
        return f"interrupted; {error}"
    return f"interrupted too late, it was decided: the group {receipt.sentence()}"


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    def receive(number: int, _frame: FrameType | None) -> None:
        raise SignalReceived(number)

    before = {number: signal.signal(number, receive) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
