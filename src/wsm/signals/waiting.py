"""Reading a group's words, waiting until one of them is no longer what it was, and waking those that wait.

:class:`ViewReader` reads every word once, in one order, into a view; a word that is what it was the last time
is not unpacked again. It knows no states.

There are three ways to wait, best first: one kernel call that watches all words (``futex_waitv``); a futex
on the first word with a 1 ms cap, so that a change of another word is seen then; short sleeps where the
kernel has no futex for us. All three return at once if a word has changed already: the kernel itself compares
before it sleeps, so a wake-up between looking and sleeping is not lost.

A futex compares 32 bits. Which half of a word changes with what a process waits for is said in
:mod:`wsm.states.words`; the writer wakes that half.

The kernel's futex calls on an address, through libc. Knows addresses and 32-bit values only.

None of them carries the PRIVATE flag: the memory is a shared file mapping, and waiter and waker are
different processes. Every wait has a timeout. A wait returns for any reason; the caller looks again.

A futex word of this process alone: one thread wakes another that waits for words of a segment.

What happens outside the segment (a process died, a caller gave up) reaches a waiting thread through it at
once. A count, not a flag: the process that waits says what it has heard, so that no ring is lost between
looking and falling asleep.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
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
    """One reading.

    Parameters
    ----------
    view : View
        What was read.
    command : int
        The command word as it stands in memory, for a later wait for a change.
    steps, statuses : tuple of int
        The step words and the status words, likewise.
    """

    view: View
    command: int
    steps: tuple[int, ...]
    statuses: tuple[int, ...]


class ViewReader:
    """Reads one segment. Safe for threads.

    Parameters
    ----------
    segment : Segment
        Attached; must stay open.
    """

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
        """Read every word once, one after the other.

        Raises
        ------
        wsm.states.errors.WordFormatError
            If a word is damaged.
        """
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


_FUTEX_NUMBER = {"x86_64": 202, "aarch64": 98}.get(os.uname().machine)
_FUTEX_WAITV_NUMBER = 449  # Linux 5.16, the same on every architecture
_FUTEX_WAIT = 0
_FUTEX_WAKE = 1
_FUTEX_32 = 2
_EVERYBODY = 2**31 - 1

#: Most words that one call of :func:`wait_any` takes.
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
def has_futex() -> bool:
    """Whether the kernel lets this process use futexes."""
    cell = ctypes.c_uint32()
    return _FUTEX_NUMBER is not None and wake_all(ctypes.addressof(cell)) == 0


@functools.cache
def has_wait_any() -> bool:
    """Whether the kernel has ``futex_waitv`` and lets this process use it."""
    if _FUTEX_NUMBER is None:
        return False
    # No waiters is an invalid argument to a kernel that knows the call.
    _libc.syscall(ctypes.c_long(_FUTEX_WAITV_NUMBER), None, 0, 0, None, 0)
    return ctypes.get_errno() == errno.EINVAL


def wait_one(address: int, value: int, timeout_s: float) -> None:
    """Sleep while the 32 bits at `address` are `value`, until woken, for `timeout_s` seconds at most."""
    timeout = _timespec(timeout_s)
    _libc.syscall(
        ctypes.c_long(_FUTEX_NUMBER or 0),
        ctypes.c_void_p(address),
        ctypes.c_int(_FUTEX_WAIT),
        ctypes.c_uint32(value),
        ctypes.byref(timeout),
        None,
        0,
    )


def wait_any(expected: Sequence[tuple[int, int]], timeout_s: float) -> None:
    """Sleep while every 32 bits are as expected, until woken on any, for `timeout_s` seconds at most.

    Parameters
    ----------
    expected : sequence of (int, int)
        Address and value of 1 to 128 words.
    timeout_s : float
        Seconds.
    """
    waiters = (_Waiter * len(expected))(
        *[_Waiter(value, address, _FUTEX_32, 0) for address, value in expected]
    )
    # This call takes a point in time, not a span.
    until = _timespec(time.monotonic() + timeout_s)
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
        ctypes.c_int(_EVERYBODY),
        None,
        None,
        0,
    )
    return woken


def _timespec(seconds: float) -> _Timespec:
    whole = int(seconds)
    return _Timespec(whole, int((seconds - whole) * 1e9))


_MASK = 0xFFFFFFFF


class Alarm:
    """Rings; every ring is counted. Safe for threads.

    Attributes
    ----------
    rings : int
        How often it rang, modulo 2**32.
    address : int
        Where the same count lies for the kernel.
    """

    def __init__(self) -> None:
        self.rings = 0
        self._cell = ctypes.c_uint32()
        self.address = ctypes.addressof(self._cell)
        self._counting = threading.Lock()

    def ring(self) -> None:
        """Wake the process that waits."""
        with self._counting:
            self.rings = (self.rings + 1) & _MASK
            self._cell.value = self.rings
        wake_all(self.address)


class AlarmClock:
    """A descriptor that becomes readable some time after it was set; no thread runs before that.

    Where the kernel refuses such descriptors it is readable at once.

    Raises
    ------
    OSError
        If no descriptor is left for it.
    """

    def __init__(self) -> None:
        flags = os.O_CLOEXEC | os.O_NONBLOCK
        self._fd: int = _libc.timerfd_create(time.CLOCK_MONOTONIC, flags)
        self._has_timer = self._fd >= 0
        if not self._has_timer:
            self._fd = os.eventfd(0, flags)

    def fileno(self) -> int:
        """The descriptor; it stays the same."""
        return self._fd

    def set(self, seconds: float) -> None:
        """Let it be readable after `seconds`; what was set before does not count."""
        if self._has_timer:
            once = (_Timespec * 2)(_timespec(0.0), _timespec(max(seconds, 1e-9)))  # struct itimerspec
            _libc.timerfd_settime(self._fd, 0, ctypes.byref(once), None)
        else:
            os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        """Make it unreadable."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._fd, 8)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._fd)


_CAP_S = 0.001
_SHORTEST_SLEEP_S = 0.00005
_HALF_BYTES = 4
_HALF_BITS = 32
_HALF_MASK = (1 << _HALF_BITS) - 1
_LOW_HALF_COMES_FIRST = sys.byteorder == "little"


class WaitMode(enum.Enum):
    """How :func:`wait` sleeps."""

    ANY = "any"  # one call watches all words
    FIRST = "first"  # one call watches the first word, 1 ms at a time
    SLEEP = "sleep"  # looks every 0.05 to 1 ms


@dataclass(frozen=True)
class Watch:
    """A word that was read as `seen`, all 64 bits; `high` says which half its writer wakes."""

    index: int
    high: bool
    seen: int


@functools.cache
def best_mode() -> WaitMode:
    """The best way to wait that this kernel allows; found out once per process."""
    if has_wait_any():
        return WaitMode.ANY
    return WaitMode.FIRST if has_futex() else WaitMode.SLEEP


def wait(
    segment: Segment,
    watches: Sequence[Watch],
    timeout_s: float,
    *,
    mode: WaitMode | None = None,
    cancelled: Callable[[], bool] = bool,
    alarm: Alarm | None = None,
    heard: int = 0,
) -> bool:
    """Block until a word differs from what was seen, or until the time is up.

    Parameters
    ----------
    segment : Segment
        Whose words.
    watches : sequence of Watch
        What was read. The more urgent first: where the kernel can watch one word only, it is that.
    timeout_s : float
        Seconds; 0 looks once.
    mode : WaitMode or None
        None for the best one.
    cancelled : callable
        Asked after every wake-up, with or without a change; true ends the wait.
    alarm : Alarm or None
        Ends the wait too, once it has rung more often than `heard`.
    heard : int
        How often it had rung before the words were read.

    Returns
    -------
    bool
        True if a word differs now, in any of its 64 bits, or the alarm rang; False if the time was up or it
        was cancelled.

    Raises
    ------
    SegmentClosedError
        If the segment is closed, or gets closed by another thread meanwhile.
    SegmentTruncatedError
        If another process has cut its file short.
    """
    how = mode or best_mode()
    # Where the kernel does not watch all of the words, the words have to be looked at again.
    waiters = len(watches) + (alarm is not None)
    watches_all = how is WaitMode.ANY and 0 < waiters <= MAX_WAITERS
    cap = math.inf if watches_all else _CAP_S
    pause = _SHORTEST_SLEEP_S
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
            if how is WaitMode.SLEEP or not watches:
                time.sleep(min(pause, left))  # this kernel wakes no thread, or there is no word to watch
                pause = min(pause * 2, cap)
            elif how is WaitMode.ANY:
                wait_any(expected, min(left, cap))
            else:
                wait_one(*expected[0], min(left, cap))
    except ValueError:
        if segment.is_closed:
            raise SegmentClosedError(path=str(segment.path)) from None
        raise


def wake(segment: Segment, index: int, high: bool = False) -> int:
    """Wake those who wait for the word at `index`; to be called after its store. One system call.

    Parameters
    ----------
    segment : Segment
        Whose word.
    index : int
        Index into ``segment.words``.
    high : bool
        Which half they watch.

    Returns
    -------
    int
        How many were woken; 0 where they sleep without the kernel's help.
    """
    return max(wake_all(_address_of(segment, index, high)), 0)


def _expected(
    segment: Segment, watches: Sequence[Watch], alarm: Alarm | None, heard: int
) -> list[tuple[int, int]]:
    """Return what the kernel is to compare, address and value, as many as it takes: words, then the alarm."""
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

    A daemon thread waits for the word and rings. It holds no lock and touches nothing but the word, so
    it hides no hang of the loop that it serves. A segment that was created anew rings once, too.

    Parameters
    ----------
    segment : Segment
        Close the bell before the segment.
    seen : int or None
        The command word that the loop has dealt with; another one that is there already rings at once. None
        takes what is there.
    on_ring : callable
        Called in the bell's thread after each ring.
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
        """Make the descriptor unreadable; return whether it was readable.

        Clear first and read the word after, so that no ring is lost.
        """
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
