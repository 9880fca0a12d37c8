"""A futex word of this process alone: one thread wakes another that waits for words of a segment.

What happens outside the segment (a process died, somebody gave up) reaches a waiting thread through it at
once. A count, not a flag: whoever waits says what it has heard, so that no ring is lost between looking
and falling asleep.
"""

from __future__ import annotations

import ctypes
import threading

from wsm.signals import futex

_MASK = 0xFFFFFFFF


class Alarm:
    """Rings; every ring is counted. Safe for threads."""

    def __init__(self) -> None:
        self._cell = ctypes.c_uint32()
        self._counting = threading.Lock()

    @property
    def rings(self) -> int:
        """How often it rang, modulo 2**32."""
        return self._cell.value

    @property
    def address(self) -> int:
        """Where the count lies, for the kernel."""
        return ctypes.addressof(self._cell)

    def ring(self) -> None:
        """Wake whoever waits."""
        with self._counting:
            self._cell.value = (self._cell.value + 1) & _MASK
        futex.wake_all(self.address)
