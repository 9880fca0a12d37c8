"""In which pieces a publisher's memory is read. Pure.

Small tensors lie beside each other, so that one read brings many; large ones are cut.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, overload

from wsm.strategies.promise import Count


class MemoryRegion(NamedTuple):
    """Memory that the publisher's engine lets us read: address and bytes."""

    address: Count
    nbytes: Count


@dataclass(frozen=True)
class Span:
    """One read: from this address, so many bytes."""

    address: int
    nbytes: int


class ReadPlan:
    """The reads that bring a layout, in the order of its regions.

    Parameters
    ----------
    regions : sequence of MemoryRegion
        What is read, one behind the other.
    span_bytes : int
        The longest read.

    Attributes
    ----------
    spans : sequence of Span
        The reads; each is made when it is asked for, since a peer may claim any number of bytes.
    """

    def __init__(self, regions: Sequence[MemoryRegion], span_bytes: int) -> None:
        self._span_bytes = span_bytes
        self._first = [0, *accumulate(-(-region.nbytes // span_bytes) for region in regions)]
        self.spans: Sequence[Span] = _Spans(regions, self._first, span_bytes)

    def where(self, region: int, offset: int) -> tuple[int, int]:
        """Return the index of the span that brings a byte of a region, and the byte's place in it."""
        return self._first[region] + offset // self._span_bytes, offset % self._span_bytes


class _Spans(Sequence[Span]):
    """The reads of a plan, of which only the regions are kept."""

    def __init__(self, regions: Sequence[MemoryRegion], first: Sequence[int], span_bytes: int) -> None:
        self._regions = regions
        self._first = first
        self._span_bytes = span_bytes

    def __len__(self) -> int:
        return self._first[-1]

    @overload
    def __getitem__(self, index: int) -> Span: ...

    @overload
    def __getitem__(self, index: slice) -> list[Span]: ...

    def __getitem__(self, index: int | slice) -> Span | list[Span]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = bisect_right(self._first, index) - 1
        region, begin = self._regions[number], (index - self._first[number]) * self._span_bytes
        return Span(region.address + begin, min(self._span_bytes, region.nbytes - begin))
