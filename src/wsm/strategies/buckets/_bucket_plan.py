"""How tensors are cut into buckets, where their bytes pass, and how far both sides are: what both sides call.

Nothing of a layout is sent. A bucket has at most one size; a tensor that fits lies in one bucket whole, a
larger one begins a bucket and goes on in the next ones, each piece as large as a bucket. Order is kept. All
pieces together are one stream of bytes, and a piece's place is where it begins in it. The stream passes
through a window: memory where its byte ``p`` lies at ``p % window_bytes`` for as long as the rank needs it.

Before the window stands a mark of each side. The trainer marks the place up to which it has written, the rank
the place before which it needs nothing any more; between the two lie the bytes in flight. Marks are read and
written by system calls, not through a mapping: memory that another process cuts short gives an error then
instead of a signal, and each call orders the bytes before it. A mark that is torn, left by another stream, or
never set is none, which its reader takes for no news; the digests of buckets tell whether bytes are what they
should be.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

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


# A place in the stream, and the same mixed with the stream's number.
_MARK = struct.Struct("<QQ")
# Each on a cache line of its own, before where the window begins.
_WRITTEN_AT = 0
_TAKEN_AT = 64
# The numbers of the streams that this memory was offered to last, mixed too: any process may ask for it.
_OFFERS_AT = 128
_OFFER = struct.Struct("<Q")
_OFFERS = 112
# So that zeros are no mark, whatever the stream's number.
_SALT = 0x77736D2D6D61726B


class SharedBytes(Protocol):
    """The memory, as its own file."""

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """Return bytes of it; fewer where it ends."""
        ...

    def write_at(self, offset: int, data: bytes) -> None:
        """Write bytes of it."""
        ...


class Marks:
    """Both marks of one stream.

    Parameters
    ----------
    memory : SharedBytes
        What the stream passes through.
    session : int
        The stream's number, below 2**64.
    """

    def __init__(self, memory: SharedBytes, session: int) -> None:
        self._memory = memory
        self._mix = session ^ _SALT

    def offer(self, number: int) -> None:
        """Say that this memory is offered to the stream, as the `number`-th; it stands for 112 offers."""
        self._memory.write_at(_OFFERS_AT + _OFFER.size * (number % _OFFERS), _OFFER.pack(self._mix))

    def offered(self) -> bool:
        """Whether this memory was offered to the stream: only its owner can say so here."""
        data = self._memory.read_at(_OFFERS_AT, _OFFER.size * _OFFERS)
        whole = len(data) - len(data) % _OFFER.size
        return (self._mix,) in _OFFER.iter_unpack(data[:whole])

    def set_written(self, place: int) -> None:
        """Say that all bytes before `place` are written."""
        self._memory.write_at(_WRITTEN_AT, _MARK.pack(place, place ^ self._mix))

    def set_taken(self, place: int) -> None:
        """Say that no byte before `place` is needed any more."""
        self._memory.write_at(_TAKEN_AT, _MARK.pack(place, place ^ self._mix))

    def written(self) -> int | None:
        """Return how far the trainer says it is; None if it has not said so in this stream."""
        return self._place(_WRITTEN_AT)

    def taken(self) -> int | None:
        """Return how far the rank says it is; None if it has not said so in this stream."""
        return self._place(_TAKEN_AT)

    def _place(self, at: int) -> int | None:
        data = self._memory.read_at(at, _MARK.size)
        if len(data) < _MARK.size:
            return None
        place, mixed = _MARK.unpack(data)
        return int(place) if place ^ mixed == self._mix else None
