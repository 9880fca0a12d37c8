"""How tensors are cut into buckets: a pure function that both sides call, so that no layout is sent.

A bucket has one size; a tensor that fits lies in one bucket whole, a larger one begins a bucket and goes on
in the next ones, each piece as large as a bucket. Order is kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from wsm.strategies.tensor import BEGIN_IN_PAGE, TensorSpec

#: Where a piece may begin in its bucket; a bucket's size is a multiple of it.
ALIGNMENT = 64
#: Buckets that a version may take, beyond one for each tensor. A rank keeps some 400 bytes for each while it
#: loads, so this is 50 MiB of them at most; and half a TiB per rank in buckets of 4 MiB.
MAX_BUCKETS = 1 << 17


def segment_bytes(slots: int, bucket_bytes: int) -> int:
    """Return the size of the memory that so many buckets lie in."""
    return BEGIN_IN_PAGE + slots * bucket_bytes


def slots_in(nbytes: int, bucket_bytes: int) -> int:
    """Return how many buckets lie in so much memory."""
    return (nbytes - BEGIN_IN_PAGE) // bucket_bytes


def bucket_begin(bucket: int, slots: int, bucket_bytes: int) -> int:
    """Return where in that memory a bucket begins; those that share a slot follow one another."""
    return BEGIN_IN_PAGE + (bucket % slots) * bucket_bytes


def fewest_bytes(specs: Iterable[TensorSpec]) -> int:
    """Return the smallest size of buckets that so many bytes may be cut into."""
    total = sum(spec.nbytes for spec in specs)
    return max(-(-total // (MAX_BUCKETS * ALIGNMENT)), 1) * ALIGNMENT


@dataclass(frozen=True)
class Piece:
    """Bytes ``begin`` to ``end`` of a tensor (its position in the list), at ``offset`` in their bucket."""

    tensor: int
    begin: int
    end: int
    offset: int

    @property
    def nbytes(self) -> int:
        """How long it is."""
        return self.end - self.begin


def plan_buckets(specs: Iterable[TensorSpec], bucket_bytes: int) -> tuple[tuple[Piece, ...], ...]:
    """Cut tensors into buckets.

    Parameters
    ----------
    specs : iterable of TensorSpec
        In the order in which they are sent; tensors without bytes are in no bucket.
    bucket_bytes : int
        Size of a bucket, a positive multiple of :data:`ALIGNMENT`.

    Returns
    -------
    tuple of tuple of Piece
        The pieces of each bucket.
    """
    buckets: list[tuple[Piece, ...]] = []
    pieces: list[Piece] = []
    used = 0
    for index, spec in enumerate(specs):
        begin = 0
        while begin < spec.nbytes:
            rest = spec.nbytes - begin
            if pieces and used + rest > bucket_bytes:
                buckets.append(tuple(pieces))
                pieces, used = [], 0
            length = min(rest, bucket_bytes)
            pieces.append(Piece(index, begin, begin + length, used))
            used += -(-length // ALIGNMENT) * ALIGNMENT
            begin += length
    if pieces:
        buckets.append(tuple(pieces))
    return tuple(buckets)
