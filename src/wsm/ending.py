"""The signals that ask a process to end: Ctrl-C, SIGTERM, and the SIGHUP of a terminal that closes.

Work that may stop at any line lets a signal raise where it stands (:func:`signals_raise`). Work that would
leave something half made there, a group that starts or ends above all, only learns of it (:class:`Ending`).
Handlers are the process's: both are for the main thread of a program, never for an embedded library.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import FrameType
from typing import Final, TypeVar

_BASE: Final = 128

#: Longest time between two looks at whether the terminal is still there, in seconds.
_LOOK_S = 0.5

#: Longest time in which a waiting main thread does not look for signals, in seconds.
_PART_S = 0.2

_PR_SET_PDEATHSIG: Final = 1

_Result = TypeVar("_Result")


class SignalReceived(BaseException):
    """A signal that asks this process to end; `exit_code` as a shell counts: 129, 130 or 143.

    No KeyboardInterrupt: libraries swallow that one, or print for it on a terminal that is gone.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = _BASE + number


class Ending:
    """Whether this process was asked to end (`number`: by which signal first). Any thread may ask."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._is_hastened = False
        self._raises = False
        self._in_haste: list[Callable[[], object]] = []
        # Neither an Event nor a lock: a handler runs between any two lines, those of their own included.
        self._heard: queue.SimpleQueue[None] = queue.SimpleQueue()

    @contextlib.contextmanager
    def heeded(self) -> Iterator[None]:
        """Take in signals inside: note the first, make haste at the second. In the main thread.

        It raises SignalReceived inside :meth:`interrupting` alone, and at the first signal alone.
        """
        with _handled_by(self._receive), _terminal_watched(self):
            yield

    @property
    def exit_code(self) -> int:
        """What the process is to end with for the first signal; 0 while there was none."""
        return 0 if self.number is None else _BASE + self.number

    def wait(self, timeout_s: float) -> bool:
        """Wait for the first signal; blocks up to `timeout_s` seconds; return whether there was one.

        Only one thread sleeps here: others would sleep on.
        """
        if self.number is None:
            with contextlib.suppress(queue.Empty):
                self._heard.get(timeout=timeout_s)
        return self.number is not None

    def check(self) -> None:
        """Raise SignalReceived if the process was asked to end."""
        if self.number is not None:
            raise SignalReceived(self.number)

    @contextlib.contextmanager
    def interrupting(self) -> Iterator[None]:
        """Let the first signal raise SignalReceived inside, wherever the main thread stands, or at once.

        What is inside leaves nothing behind when it is cut short.
        """
        self._raises = True
        try:
            self.check()
            yield
        finally:
            self._raises = False

    @contextlib.contextmanager
    def hastened_by(self, kill: Callable[[], object]) -> Iterator[None]:
        """Call `kill` at the second signal inside, in the main thread wherever that stands."""
        self._in_haste.append(kill)
        try:
            if self._is_hastened:
                kill()
            yield
        finally:
            self._in_haste.remove(kill)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if self.number is not None:
            if number != signal.SIGHUP:  # kernel and shell each send one for the same terminal
                self._is_hastened = True
                for kill in list(self._in_haste):
                    kill()
            return
        self.number = number
        self._heard.put(None)
        if self._raises:
            raise SignalReceived(number)


def result_of(future: Future[_Result], timeout_s: float | None = None) -> _Result:
    """Wait for a future, as its ``result`` does; in the main thread no signal waits for it. Blocks.

    Python runs handlers between two steps of the main thread. A signal that comes behind the last step and
    before the kernel has put the thread to sleep, or that another thread was handed, ends no sleep. So the
    wait has parts. Raises TimeoutError if `timeout_s` seconds are over first, or what the future ended with.
    """
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        left_s = _PART_S if deadline_s is None else min(_PART_S, max(deadline_s - time.monotonic(), 0.0))
        try:
            return future.result(left_s)
        except TimeoutError:
            if future.done():  # just now, or its own error is one of these
                return future.result()
            if deadline_s is not None and time.monotonic() >= deadline_s:
                raise


@contextlib.contextmanager
def signals_raise() -> Iterator[None]:
    """Let every signal raise SignalReceived inside, wherever the main thread stands; nothing in others."""

    def receive(number: int, _frame: FrameType | None) -> None:
        raise SignalReceived(number)

    with _handled_by(receive):
        yield


@contextlib.contextmanager
def _terminal_watched(ending: Ending) -> Iterator[None]:
    """Let a terminal that closes count as SIGHUP, which the kernel gives to the session's leader alone.

    A shell hands it on to its jobs; ``make``, or what else leads the session, waits for its child instead.
    """
    terminal = next((number for number in (1, 2, 0) if os.isatty(number)), None)
    if terminal is None:
        yield
        return
    closing = threading.Event()
    thread = threading.Thread(
        target=_watch, args=(terminal, ending, closing), name="wsm-terminal", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        closing.set()
        thread.join()


def _watch(terminal: int, ending: Ending, closing: threading.Event) -> None:
    poll = select.poll()
    poll.register(terminal, 0)
    while ending.number is None and not closing.wait(_LOOK_S):
        if poll.poll(0):
            os.kill(os.getpid(), signal.SIGHUP)
            return


@contextlib.contextmanager
def _handled_by(receive: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Install a handler where this thread can: another one's signals go to the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # else ``nohup`` started this process
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, receive) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_with(supervisor: int) -> None:
    """Ask the kernel to kill this process when the thread that started it ends, with or without its process.

    Returns only where the supervisor lives; otherwise this process exits.

    Parameters
    ----------
    supervisor : int
        Pid of the process that started this one.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:
        sys.exit("the supervisor died before this process began")
