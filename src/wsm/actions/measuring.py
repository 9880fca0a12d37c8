"""What counts as proof that memory is free.

A release is believed when the resident bytes fell, not when a call returned (slime#579, miles#86).
This module does arithmetic on measurements; it takes none, and knows no engine.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MemoryDrop:
    """How much the measured memory must fall for a release to be believed.

    Parameters
    ----------
    share : float
        Of the bytes that were said to be let go, 0 to 1. Below 1 because memory that was reserved and
        never written is let go without ever having been resident.
    noise_bytes : int
        What a process allocates for itself meanwhile. A release smaller than this cannot be measured,
        and the receipt then says so instead of claiming a proof.
    """

    share: float = 0.5
    noise_bytes: int = 32 * 1024 * 1024


class MemoryProof:
    """Judges measurements of one process, and does not forget a release that was not believed.

    Repeating a clear that failed finds nothing left to release; without this memory it would measure
    nothing, and call memory free that somebody still holds.

    Parameters
    ----------
    drop : MemoryDrop
        What counts as free.
    """

    def __init__(self, drop: MemoryDrop) -> None:
        self._drop = drop
        self._ceiling: int | None = None

    def ceiling(self, before: int, released: int) -> int | None:
        """Return the most that may be resident now, in bytes; None where nothing can be measured."""
        wanted = int(self._drop.share * released) - self._drop.noise_bytes
        ceilings = [self._ceiling] if self._ceiling is not None else []
        if wanted > 0:
            ceilings.append(before - wanted)
        return min(ceilings, default=None)

    def refuted(self, ceiling: int) -> None:
        """Remember that more than `ceiling` bytes were resident."""
        self._ceiling = ceiling

    def proven(self) -> None:
        """Forget earlier failures: the memory is free."""
        self._ceiling = None
