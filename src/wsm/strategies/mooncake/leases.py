"""Who is reading a published version, and until when it may rely on it. Pure: it is told what time it is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class _Lease:
    rank: int
    until_s: float


class Leases:
    """The leases of one publisher.

    Parameters
    ----------
    lease_s : float
        How long one holds without being renewed.
    """

    def __init__(self, lease_s: float) -> None:
        self.lease_s = lease_s
        self._leases: dict[int, _Lease] = {}
        self._last = 0

    def grant(self, rank: int, now_s: float) -> int:
        """Return a new lease."""
        self._last += 1
        self._leases[self._last] = _Lease(rank, now_s + self.lease_s)
        return self._last

    def renew(self, lease: int, now_s: float) -> bool:
        """Prolong a lease; False if it is over, which it stays."""
        if not self.holds(lease, now_s):
            return False
        self._leases[lease].until_s = now_s + self.lease_s
        return True

    def holds(self, lease: int, now_s: float) -> bool:
        """Whether a lease holds; one that ran out is forgotten."""
        found = self._leases.get(lease)
        if found is None:
            return False
        if found.until_s < now_s:
            del self._leases[lease]
            return False
        return True

    def release(self, lease: int) -> None:
        """End a lease. Idempotent."""
        self._leases.pop(lease, None)

    def revoke(self) -> list[int]:
        """End all leases; returns them."""
        ended = list(self._leases)
        self._leases.clear()
        return ended

    def ranks(self, now_s: float) -> list[int]:
        """Ranks that read now."""
        return sorted({self._leases[lease].rank for lease in list(self._leases) if self.holds(lease, now_s)})
