"""Where a rank's tensors lie in a publisher's memory, and in which pieces they are read. Pure.

A layout is worth keeping: as long as a trainer publishes the same buffers it stays the same, and with it the
plan. Small tensors lie beside each other, so that one read brings many; large ones are cut.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import overload

from wsm.strategies.tensor import TensorSpec


@dataclass(frozen=True)
class MemoryRegion:
    """Memory that the publisher's engine lets us read: address and bytes."""

    address: int
    nbytes: int


@dataclass(frozen=True)
class Placed:
    """One tensor, and where it begins: in which region, at which byte."""

    spec: TensorSpec
    region: int
    offset: int


@dataclass(frozen=True)
class TransferLayout:
    """All tensors of one rank, in memory of one publisher.

    Parameters
    ----------
    regions : tuple of Region
        What is registered.
    tensors : tuple of Placed
        Every tensor.
    """

    regions: tuple[MemoryRegion, ...]
    tensors: tuple[Placed, ...]


@dataclass(frozen=True)
class Span:
    """One read: from this address, so many bytes."""

    address: int
    nbytes: int


class ReadPlan:
    """The reads that bring a layout, in the order of its regions.

    Parameters
    ----------
    regions : sequence of Region
        As in the layout.
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


def in_reading_order(tensors: Sequence[Placed]) -> list[int]:
    """Return the indices of `tensors` in the order in which their bytes arrive."""
    return sorted(range(len(tensors)), key=lambda index: (tensors[index].region, tensors[index].offset))
