"""Samples, what is said about them, and why there are none. Knows nothing of what was measured."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from errno import EDQUOT, ENOMEM, ENOSPC
from typing import Any

from wsm import WsmError


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


class CannotRunError(Exception):
    """What a measurement needs is not on this machine; the message says what, and how to get it."""


#: What says that a machine lacks something. Anything else that a measurement raises is a fault.
_LACKING = (
    CannotRunError,
    ImportError,
    MemoryError,
)
_LACKING_CODES = ("atomics-unavailable", "mooncake-missing", "paddle-missing", "shared-memory-full")
_NO_ROOM = (EDQUOT, ENOMEM, ENOSPC)


@dataclass(frozen=True)
class Unmeasured:
    """Why there is no measurement.

    Attributes
    ----------
    reason : str
        One line.
    failed : bool
        Whether it is a fault; otherwise this machine lacks something.
    """

    reason: str
    failed: bool

    @classmethod
    def of(cls, error: Exception) -> Unmeasured:
        """Say what an exception means; the traceback of a fault goes to the standard error output."""
        lacking = any(
            isinstance(each, _LACKING)
            or (isinstance(each, WsmError) and each.code in _LACKING_CODES)
            or (isinstance(each, OSError) and each.errno in _NO_ROOM)
            for each in _causes(error)
        )
        if not lacking:
            traceback.print_exception(error)
        kind = "" if isinstance(error, CannotRunError | WsmError) else f"{type(error).__name__}: "
        return cls(" ".join(f"{kind}{error}".split()), not lacking)

    @property
    def verdict(self) -> str:
        """How a table says it."""
        return "failed" if self.failed else "cannot run"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _nearest(ordered: Sequence[float], percent: int) -> float:
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]
