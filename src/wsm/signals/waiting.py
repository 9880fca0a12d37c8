"""Waiting until one of several words is no longer what it was, and waking those who wait.

Three ways, best first: one kernel call that watches all words (``futex_waitv``); a futex on the first
word with a 1 ms cap, so that a change of another word is seen then; short sleeps where the kernel has
no futex for us. All three return at once if a word has changed already: the kernel itself compares
before it sleeps, so a wake-up between looking and sleeping is not lost.

A futex compares 32 bits. Which half of a word changes with whatever somebody waits for is said in
:mod:`wsm.states.words`; the writer wakes that half.
"""

from __future__ import annotations

import enum
import functools
import math
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wsm.signals import futex
from wsm.signals.alarm import Alarm
from wsm.signals.errors import SegmentClosedError
from wsm.signals.layout import WORD_BYTES
from wsm.signals.segment import Segment

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
    if futex.has_wait_any():
        return WaitMode.ANY
    return WaitMode.FIRST if futex.has_futex() else WaitMode.SLEEP


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
        If somebody has cut its file short.
    """
    how = mode or best_mode()
    # Where the kernel does not watch all of the words, somebody has to look again.
    waiters = len(watches) + (alarm is not None)
    watches_all = how is WaitMode.ANY and 0 < waiters <= futex.MAX_WAITERS
    cap = math.inf if watches_all else _CAP_S
    pause = _SHORTEST_SLEEP_S
    also = [] if alarm is None else [(alarm.address, heard)]
    deadline = time.monotonic() + timeout_s
    try:
        words = segment.words
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
                time.sleep(min(pause, left))  # this kernel wakes nobody, or there is no word to watch
                pause = min(pause * 2, cap)
            else:
                _sleep_on_words(segment, watches, min(left, cap), how, also)
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
    return max(futex.wake_all(_address_of(segment, index, high)), 0)


def _sleep_on_words(
    segment: Segment,
    watches: Sequence[Watch],
    timeout_s: float,
    mode: WaitMode,
    also: Sequence[tuple[int, int]],
) -> None:
    count = futex.MAX_WAITERS if mode is WaitMode.ANY else 1
    expected = list(also) if mode is WaitMode.ANY else []
    expected += [
        (
            _address_of(segment, watch.index, watch.high),
            watch.seen >> _HALF_BITS if watch.high else watch.seen & _HALF_MASK,
        )
        for watch in watches[: count - len(expected)]
    ]
    if mode is WaitMode.ANY:
        futex.wait_any(expected, timeout_s)
    else:
        futex.wait_one(*expected[0], timeout_s)


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
