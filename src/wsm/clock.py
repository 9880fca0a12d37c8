"""Time as a value that can be handed in.

Pure code never asks what time it is; the shells ask a clock of this protocol once per turn and
pass the answer on. Tests hand in :class:`ManualClock` and decide themselves how time passes.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the shells need to know about time."""

    def monotonic_ns(self) -> int:
        """Nanoseconds since an arbitrary point, never going backwards, shared by all processes of a host."""
        ...

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch, for people and for other hosts."""
        ...


class SystemClock:
    """The clock of this host (``CLOCK_MONOTONIC`` and ``CLOCK_REALTIME``).

    Monotonic times are comparable between the processes of one boot.
    """

    monotonic_ns = staticmethod(time.monotonic_ns)
    wall_ns = staticmethod(time.time_ns)


class ManualClock:
    """A clock that stands still until a test moves it.

    Parameters
    ----------
    start_ns : int
        First value of both readings, in ns.
    """

    def __init__(self, start_ns: int = 1_000_000_000) -> None:
        self._now_ns = start_ns

    def monotonic_ns(self) -> int:
        """Return the time that the test has set, in ns."""
        return self._now_ns

    def wall_ns(self) -> int:
        """Return the same reading; a manual world has one time."""
        return self._now_ns

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass.

        Raises
        ------
        ValueError
            If `seconds` is negative: monotonic time never goes backwards.
        """
        if seconds < 0:
            raise ValueError(f"monotonic time does not go backwards: advance({seconds})")
        self._now_ns += int(seconds * 1e9)
