"""Where a rank's tensors lie in a publisher's memory, and in which pieces they are read. Pure.

A layout is worth keeping: as long as a trainer publishes the same buffers it stays the same, and with it the
plan. Small tensors lie beside each other, so that one read brings many; large ones are cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wsm.strategies.documents.sealed_json import content_digest
from wsm.strategies.tensor import TensorSpec


@dataclass(frozen=True)
class Region:
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
class Layout:
    """All tensors of one rank, in memory of one publisher.

    Parameters
    ----------
    regions : tuple of Region
        What is registered.
    tensors : tuple of Placed
        Every tensor.
    """

    regions: tuple[Region, ...]
    tensors: tuple[Placed, ...]

    def digest(self) -> str:
        """Return the digest of the layout: equal ones have the same names, dtypes, shapes and addresses."""
        return content_digest(
            {
                "regions": [[region.address, region.nbytes] for region in self.regions],
                "tensors": [
                    [t.spec.name, t.spec.dtype, list(t.spec.shape), t.region, t.offset] for t in self.tensors
                ],
            }
        )


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
    spans : tuple of Span
        The reads.
    """

    def __init__(self, regions: Sequence[Region], span_bytes: int) -> None:
        self._span_bytes = span_bytes
        self._first: list[int] = []
        spans: list[Span] = []
        for region in regions:
            self._first.append(len(spans))
            spans += [
                Span(region.address + begin, min(span_bytes, region.nbytes - begin))
                for begin in range(0, region.nbytes, span_bytes)
            ]
        self.spans = tuple(spans)

    def where(self, region: int, offset: int) -> tuple[int, int]:
        """Return the index of the span that brings a byte of a region, and the byte's place in it."""
        return self._first[region] + offset // self._span_bytes, offset % self._span_bytes


def in_reading_order(tensors: Sequence[Placed]) -> list[int]:
    """Return the indices of `tensors` in the order in which their bytes arrive."""
    return sorted(range(len(tensors)), key=lambda index: (tensors[index].region, tensors[index].offset))
