"""Time as a value that can be handed in.

Pure code never asks what time it is; the shells ask a clock of this protocol once per turn and
pass the answer on. Tests hand in :class:`ManualClock` and decide themselves how time passes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

#: How far the clocks of this process are ahead of the host's, as in a container with clocks of its own.
_OFFSETS = Path("/proc/self/timens_offsets")


def _ahead_ns() -> int:
    """Return by how many ns the monotonic clock of this process is ahead of the host's; 0 where none says."""
    with suppress(OSError, ValueError):
        for line in _OFFSETS.read_text().splitlines():
            name, seconds, nanoseconds = line.split()
            if name in ("monotonic", "1"):
                return int(seconds) * 1_000_000_000 + int(nanoseconds)
    return 0


def _of_the_host() -> Callable[[], int]:
    ahead_ns = _ahead_ns()  # once: a process stays in its time namespace
    return (lambda: time.monotonic_ns() - ahead_ns) if ahead_ns else time.monotonic_ns


#: The host's ``CLOCK_MONOTONIC`` in ns, in every time namespace: what stands in words, records and journals.
monotonic_ns = _of_the_host()


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

    Monotonic times are comparable between the processes of one boot, those in other time namespaces included.
    """

    monotonic_ns = staticmethod(monotonic_ns)
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
