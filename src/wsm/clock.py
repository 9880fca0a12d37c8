"""Time as a value that can be handed in.

Pure code never asks what time it is; the shells ask a clock of this protocol once per turn and pass it on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol, runtime_checkable

#: How far the clocks of this process are ahead of the host's, as in a container with clocks of its own.
_OFFSETS = Path("/proc/self/timens_offsets")


def _of_the_host() -> Callable[[], int]:
    ahead_ns = 0  # once: a process stays in its time namespace
    with suppress(OSError, ValueError):
        for line in _OFFSETS.read_text().splitlines():
            name, seconds, nanoseconds = line.split()
            if name in ("monotonic", "1"):
                ahead_ns = int(seconds) * 1_000_000_000 + int(nanoseconds)
    return (lambda: time.monotonic_ns() - ahead_ns) if ahead_ns else time.monotonic_ns


#: The host's ``CLOCK_MONOTONIC`` in ns, in every time namespace: what stands in words, records and journals.
monotonic_ns = _of_the_host()


@runtime_checkable
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
    """A clock that stands still until a test moves it; both readings begin at one second."""

    def __init__(self) -> None:
        self._now_ns = 1_000_000_000
        self._moving = threading.Lock()

    def monotonic_ns(self) -> int:
        """Return the time that the test has set, in ns."""
        return self._now_ns

    def wall_ns(self) -> int:
        """Return the same reading; a manual world has one time."""
        return self._now_ns

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass; ValueError if they are negative."""
        if seconds < 0:
            raise ValueError(f"monotonic time does not go backwards: advance({seconds})")
        with self._moving:
            self._now_ns += int(seconds * 1e9)
