"""Samples and what is said about them. Knows nothing of what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Distribution:
    """Percentiles of a set of samples, in the unit of the samples."""

    p50: float
    p90: float
    p99: float
    least: float
    most: float
    samples: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Distribution:
        """Sum up at least one sample; percentiles are samples (nearest rank), not interpolations."""
        ordered = sorted(values)
        p50, p90, p99 = (_nearest(ordered, percent) for percent in (50, 90, 99))
        return cls(p50, p90, p99, ordered[0], ordered[-1], len(ordered))

    def as_mapping(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return asdict(self)


def _nearest(ordered: Sequence[float], percent: int) -> float:
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]
