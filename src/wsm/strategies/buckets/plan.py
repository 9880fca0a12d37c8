"""How tensors are cut into buckets, and where their bytes pass: pure functions that both sides call.

Nothing of a layout is sent. A bucket has at most one size; a tensor that fits lies in one bucket whole, a
larger one begins a bucket and goes on in the next ones, each piece as large as a bucket. Order is kept. All
pieces together are one stream of bytes, and a piece's place is where it begins in it. The stream passes
through a window: memory where its byte ``p`` lies at ``p % window_bytes`` for as long as the rank needs it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from wsm.strategies.tensor import BEGIN_IN_PAGE, TensorSpec

#: What the name of a window's memory begins with. Nothing else is taken for such memory, whichever
#: peer names it.
SEGMENT_PREFIX = "wsm-buckets."
#: Where a piece may begin in the stream; sizes of buckets and windows are multiples of it.
ALIGNMENT = 64
#: Buckets that a version may take, beyond one for each tensor. A rank keeps some 400 bytes for each while it
#: loads, so this is 50 MiB of them at most; and 8 TiB per rank in buckets of 64 MiB.
MAX_BUCKETS = 1 << 17

# What one side has just written or read stays in its core's own cache until it is digested.
_LONGEST_STEP = 1 << 19


def fewest_bytes(specs: Iterable[TensorSpec]) -> int:
    """Return the smallest size of buckets that so many bytes may be cut into."""
    total = sum(spec.nbytes for spec in specs)
    return max(-(-total // (MAX_BUCKETS * ALIGNMENT)), 1) * ALIGNMENT


@dataclass(frozen=True)
class Piece:
    """Bytes ``begin`` to ``end`` of a tensor (its position in the list), at ``place`` in the stream."""

    tensor: int
    begin: int
    end: int
    place: int

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
    begun = place = 0
    for index, spec in enumerate(specs):
        begin = 0
        while begin < spec.nbytes:
            rest = spec.nbytes - begin
            if pieces and place - begun + rest > bucket_bytes:
                buckets.append(tuple(pieces))
                pieces, begun = [], place
            length = min(rest, bucket_bytes)
            pieces.append(Piece(index, begin, begin + length, place))
            place += -(-length // ALIGNMENT) * ALIGNMENT
            begin += length
    if pieces:
        buckets.append(tuple(pieces))
    return tuple(buckets)


def stream_bytes(buckets: tuple[tuple[Piece, ...], ...]) -> int:
    """Return where the stream ends that consists of these buckets."""
    return buckets[-1][-1].place + buckets[-1][-1].nbytes if buckets else 0


def step_bytes(window_bytes: int) -> int:
    """Return how much is written or read at a time: one side works on that while the other does on more."""
    return max(min(window_bytes // 4, _LONGEST_STEP) // ALIGNMENT, 1) * ALIGNMENT


def segment_bytes(window_bytes: int) -> int:
    """Return the size of the memory that a window lies in, with the marks before it."""
    return BEGIN_IN_PAGE + window_bytes


def window_in(nbytes: int) -> int:
    """Return how large a window lies in so much memory."""
    return nbytes - BEGIN_IN_PAGE


def window_at(place: int, window_bytes: int) -> tuple[int, int]:
    """Return where in that memory a byte of the stream lies, and how many bytes lie there in a row."""
    begin = place % window_bytes
    return BEGIN_IN_PAGE + begin, window_bytes - begin
