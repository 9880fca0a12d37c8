"""How long a rank could not serve: from the transition that stopped it to its commit. Knows a clock."""

from __future__ import annotations

from wsm.clock import Clock


class Pause:
    """The present pause of one rank, if there is one.

    Parameters
    ----------
    clock : Clock
        What it is measured by.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_ns: int | None = None

    def begin(self) -> None:
        """The rank serves no more."""
        self._since_ns = self._clock.monotonic_ns()

    def so_far(self) -> float:
        """Return the seconds since the rank last could serve; 0 if it can, or never could."""
        since_ns = self._since_ns
        return 0.0 if since_ns is None else (self._clock.monotonic_ns() - since_ns) / 1e9

    def end(self) -> float:
        """The rank serves again; return the seconds since it last did, 0 if it never had."""
        seconds, self._since_ns = self.so_far(), None
        return seconds
