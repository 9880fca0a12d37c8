"""Reading a group's words, waiting until one of them is no longer what it was, and waking those that wait.

A wait is one kernel call on all words (``futex_waitv``, Linux 5.16); elsewhere it looks again after pauses of
0.05 to 1 ms. The kernel compares before it sleeps, so no wake-up is lost. A futex compares 32 bits:
:mod:`wsm.states.words` says which half of a word changes with what a process waits for, and the writer wakes
that half. No call carries the PRIVATE flag, since waiter and waker are different processes. A wait returns
for any reason; the caller looks again.

What happens outside of the segment (a process died, a caller gave up) wakes a waiting thread by an
:class:`Alarm`, whose rings are counted: the waiting thread says how many it has heard, so none is lost.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import math
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

from wsm.signals.errors import SegmentClosedError
from wsm.signals.layout import WORD_BYTES
from wsm.signals.segment import Segment
from wsm.states.view import View
from wsm.states.words import CommandWord, CommittedWord, StatusWord, StepWord


class WordsRead(NamedTuple):
    """One reading: the view, and the words as they stand in memory, for a later wait for a change."""

    view: View
    command: int
    steps: tuple[int, ...]
    statuses: tuple[int, ...]


class ViewReader:
    """Reads one segment, which must stay open. Safe for threads; unpacks only words that have changed."""

    def __init__(self, segment: Segment) -> None:
        layout = segment.layout
        steps, statuses = layout.step[: segment.world_size], layout.status
        self._segment = segment
        self._first_status = 1 + len(steps)
        self._load: Callable[[memoryview[int]], tuple[int, ...]]
        self._load = itemgetter(*[layout.command, *steps, *statuses, layout.committed])
        self._unpack = (
            CommandWord.unpack,
            *(StepWord.unpack for _ in steps),
            *(StatusWord.unpack for _ in statuses),
            CommittedWord.unpack,
        )
        self._last: tuple[tuple[int, ...], tuple[Any, ...], WordsRead] | None = None

    def read(self) -> WordsRead:
        """Read every word once, one after the other; a damaged one is a WordFormatError."""
        raw = self._load(self._segment.words)
        last = self._last
        if last is not None and last[0] == raw:
            return last[2]
        words: tuple[Any, ...]
        if last is None:
            words = tuple(unpack(word) for unpack, word in zip(self._unpack, raw, strict=True))
        else:
            known = zip(self._unpack, raw, last[0], last[1], strict=True)
            words = tuple([same if word == before else unpack(word) for unpack, word, before, same in known])
        middle = self._first_status
        command, committed = words[0], words[-1]
        view = View(command, words[1:middle], words[middle:-1], committed)
        found = WordsRead(view, raw[0], raw[1:middle], raw[middle:-1])
        self._last = raw, words, found
        return found


#: Linux's ``futex`` by processor; ``futex_waitv`` has the same number on all of them.
_FUTEX_NUMBER = {"x86_64": 202, "aarch64": 98}.get(os.uname().machine)
_FUTEX_WAITV_NUMBER = 449
_FUTEX_WAKE = 1
_FUTEX_32 = 2
_ALL_WAITERS = 2**31 - 1

#: Most words that the kernel watches in one call.
MAX_WAITERS = 128

_libc = ctypes.CDLL(None, use_errno=True)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Waiter(ctypes.Structure):
    """``struct futex_waitv`` of linux/futex.h."""

    _fields_ = (
        ("value", ctypes.c_uint64),
        ("address", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    )


@functools.cache
def has_wait_any() -> bool:
    """Whether the kernel has ``futex_waitv`` and lets this process use it."""
    if _FUTEX_NUMBER is None:
        return False
    # No waiters is an invalid argument to a kernel that knows the call.
    _libc.syscall(ctypes.c_long(_FUTEX_WAITV_NUMBER), None, 0, 0, None, 0)
    return ctypes.get_errno() == errno.EINVAL


def wait_any(expected: Sequence[tuple[int, int]], timeout_s: float) -> None:
    """Sleep while the 32 bits at 1 to 128 addresses are as expected, until woken on any or the time is up."""
    waiters = (_Waiter * len(expected))()
    for waiter, (address, value) in zip(waiters, expected, strict=True):
        waiter.address, waiter.value, waiter.flags = address, value, _FUTEX_32
    # This call takes a point in time, not a span.
    until = _Timespec(*divmod(time.monotonic_ns() + int(timeout_s * 1e9), 1_000_000_000))
    _libc.syscall(
        ctypes.c_long(_FUTEX_WAITV_NUMBER),
        ctypes.byref(waiters),
        ctypes.c_uint(len(expected)),
        ctypes.c_uint(0),
        ctypes.byref(until),
        ctypes.c_int(time.CLOCK_MONOTONIC),
    )


def wake_all(address: int) -> int:
    """Wake every thread that waits on the 32 bits at `address`; return how many, -1 if the kernel refused."""
    woken: int = _libc.syscall(
        ctypes.c_long(_FUTEX_NUMBER or 0),
        ctypes.c_void_p(address),
        ctypes.c_int(_FUTEX_WAKE),
        ctypes.c_int(_ALL_WAITERS),
        None,
        None,
        0,
    )
    return woken


class Alarm:
    """Rings; every ring is counted, modulo 2**32, here and at an address for the kernel. Safe for threads."""

    def __init__(self) -> None:
        self.rings = 0
        self._cell = ctypes.c_uint32()
        self.address = ctypes.addressof(self._cell)
        self._counting = threading.Lock()

    def ring(self) -> None:
        """Wake the thread that waits."""
        with self._counting:
            self.rings = (self.rings + 1) & 0xFFFFFFFF
            self._cell.value = self.rings
        wake_all(self.address)


class AlarmClock:
    """A descriptor that becomes readable some time after it was set; no thread runs before that.

    Raises OSError if no descriptor is left for it.
    """

    def __init__(self) -> None:
        self._fd: int = _libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_CLOEXEC | os.O_NONBLOCK)
        if self._fd < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def fileno(self) -> int:
        """The descriptor; it stays the same."""
        return self._fd

    def set(self, seconds: float) -> None:
        """Let it be readable after `seconds`; what was set before does not count."""
        after = divmod(max(int(seconds * 1e9), 1), 1_000_000_000)
        once = (_Timespec * 2)(_Timespec(), _Timespec(*after))  # struct itimerspec
        _libc.timerfd_settime(self._fd, 0, ctypes.byref(once), None)

    def clear(self) -> None:
        """Make it unreadable."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._fd, 8)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._fd)


_CAP_S = 0.001
_SHORTEST_PAUSE_S = 0.00005
_HALF_BYTES = 4
_HALF_BITS = 32
_HALF_MASK = (1 << _HALF_BITS) - 1
_LOW_HALF_COMES_FIRST = sys.byteorder == "little"


@dataclass(frozen=True)
class Watch:
    """A word that was read as `seen`, all 64 bits; `high` says which half its writer wakes."""

    index: int
    high: bool
    seen: int


def wait(
    segment: Segment,
    watches: Sequence[Watch],
    timeout_s: float,
    *,
    cancelled: Callable[[], bool] = bool,
    alarm: Alarm | None = None,
    heard: int = 0,
) -> bool:
    """Block until a word differs from what was seen, in any of its 64 bits, or until the time is up.

    Parameters
    ----------
    timeout_s : float
        Seconds; 0 looks once.
    cancelled : callable
        Asked after every wake-up, with or without a change; true ends the wait.
    alarm : Alarm or None
        Ends the wait too, once it has rung more often than `heard`, its rings before the words were read.

    Returns
    -------
    bool
        False if the time was up, or it was cancelled.

    Raises
    ------
    SegmentClosedError, SegmentTruncatedError
        If another thread closes the segment, or another process has cut its file short.
    """
    sleeps = not watches or not has_wait_any()
    # Words that the kernel does not watch have to be looked at again.
    cap = _CAP_S if sleeps or len(watches) + (alarm is not None) > MAX_WAITERS else math.inf
    pause = _SHORTEST_PAUSE_S
    deadline = time.monotonic() + timeout_s
    try:
        words, expected = segment.words, _expected(segment, watches, alarm, heard)
        while True:
            segment.require_whole()
            for watch in watches:
                if words[watch.index] != watch.seen:
                    return True
            if alarm is not None and alarm.rings != heard:
                return True
            left = deadline - time.monotonic()
            if left <= 0 or cancelled():
                return False
            if sleeps:
                time.sleep(min(pause, left))
                pause = min(pause * 2, cap)
            else:
                wait_any(expected, min(left, cap))
    except ValueError:
        if segment.is_closed:
            raise SegmentClosedError(path=str(segment.path)) from None
        raise


def wake(segment: Segment, index: int, high: bool = False) -> int:
    """Wake those who wait for one half of the word at `index`, after its store, by one system call.

    Returns how many the kernel has woken.
    """
    return max(wake_all(_address_of(segment, index, high)), 0)


def _expected(
    segment: Segment, watches: Sequence[Watch], alarm: Alarm | None, heard: int
) -> list[tuple[int, int]]:
    expected: list[tuple[int, int]] = []
    for watch in watches[: MAX_WAITERS - (alarm is not None)]:
        half = watch.seen >> _HALF_BITS if watch.high else watch.seen & _HALF_MASK
        expected.append((_address_of(segment, watch.index, watch.high), half))
    return expected if alarm is None else [*expected, (alarm.address, heard)]


def _address_of(segment: Segment, index: int, high: bool) -> int:
    base = segment.address
    if base == 0:
        raise SegmentClosedError(path=str(segment.path))
    return base + index * WORD_BYTES + (_HALF_BYTES if high == _LOW_HALF_COMES_FIRST else 0)


class Bell:
    """A descriptor that becomes readable when the command word changes, for loops that wait in a selector.

    A daemon thread waits for the word, rings and calls `on_ring`. It holds no lock and touches nothing but
    the word, so it hides no hang of the loop. A segment that was created anew rings once, too. `seen` is the
    command word that the loop has dealt with; None takes what is there. Close the bell before the segment.
    """

    _PATIENCE_S = 0.25

    def __init__(
        self, segment: Segment, *, seen: int | None = None, on_ring: Callable[[], object] = bool
    ) -> None:
        self._segment = segment
        self._on_ring = on_ring
        self._seen = segment.words[segment.layout.command] if seen is None else seen
        self._closing = False
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._watch, name=f"wsm-bell-{segment.name}", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """The descriptor; it stays the same."""
        return self._fd

    def is_ringing(self) -> bool:
        """Whether the descriptor is readable now."""
        return bool(select.select([self._fd], [], [], 0)[0])

    def clear(self) -> bool:
        """Make the descriptor unreadable, before the word is read; return whether it was readable."""
        try:
            os.eventfd_read(self._fd)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """End the thread and close the descriptor. Does nothing the second time."""
        if self._closing:
            return
        self._closing = True
        while self._thread.is_alive():
            # Again and again, because the thread may just be about to fall asleep.
            if not self._segment.is_closed:
                wake(self._segment, self._segment.layout.command)
            self._thread.join(_CAP_S)
        os.close(self._fd)

    def _watch(self) -> None:
        command = self._segment.layout.command
        told_of_replacement = False
        try:
            while not self._closing:
                unchanged = [Watch(command, False, self._seen)]
                changed = wait(self._segment, unchanged, self._PATIENCE_S, cancelled=lambda: self._closing)
                if changed:
                    self._seen = self._segment.words[command]
                elif not told_of_replacement and self._segment.inode_changed():
                    changed = told_of_replacement = True
                if changed and not self._closing:
                    os.eventfd_write(self._fd, 1)
                    self._on_ring()
        except (SegmentClosedError, ValueError):
            if not self._segment.is_closed:
                raise
