"""Asking the kernel for the bytes that a load will need next, while it applies those that it has.

The kernel's own readahead sees one file at a time and looks a few hundred KiB ahead; a load knows the order
of all its parts. What is in the page cache already costs a system call for every half a window and nothing
else. Knows no tensors.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import accumulate


class Readahead:
    """A window that goes ahead of a load through several files, one behind the other. Any thread may call it.

    Parameters
    ----------
    sizes : sequence of int
        Sizes of the files, in the order in which they are read.
    window_bytes : int
        How far ahead; at most so much is asked for that was not read yet.
    advise : callable
        ``advise(file, offset, length)`` asks for a stretch of the file at that position of `sizes`.
    """

    def __init__(
        self, sizes: Sequence[int], window_bytes: int, advise: Callable[[int, int, int], None]
    ) -> None:
        self._begins = [0, *accumulate(sizes)]
        self._window = window_bytes
        self._advise = advise
        self._asked = 0
        self._lock = threading.Lock()

    def reached(self, file: int, offset: int) -> None:
        """Take in that `file` is about to be read at `offset`; ask for what comes within the window."""
        position = self._begins[file] + offset
        # Half a window at a time: asking for every chunk anew would cost more than it gains.
        if position + self._window // 2 < self._asked or self._asked >= self._begins[-1]:
            return
        with self._lock:
            begin = max(self._asked, position)
            self._asked = end = max(begin, min(position + self._window, self._begins[-1]))
        while begin < end:
            index = bisect_right(self._begins, begin) - 1
            until = min(end, self._begins[index + 1])
            self._advise(index, begin - self._begins[index], until - begin)
            begin = until


def advise_needed(descriptor: int, offset: int, length: int) -> None:
    """Ask the kernel to bring a stretch of an open file into the page cache; does not wait for it."""
    with suppress(OSError):  # some file systems have no such call; reading works without
        os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_WILLNEED)
