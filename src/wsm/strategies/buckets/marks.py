"""How far trainer and rank are in the stream: a mark of each, before the window of its bytes.

The trainer marks the place up to which it has written, the rank the place before which it needs nothing any
more; between the two lie the bytes in flight. Marks are read and written by system calls, not through a
mapping: memory that another process cuts short gives an error then instead of a signal, and each call orders
the bytes before it. A mark that is torn, left by another stream, or never set is none, which its reader takes
for no news; the digests of buckets tell whether bytes are what they should be. Knows neither buckets nor
tensors.
"""

from __future__ import annotations

import struct
from typing import Protocol

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
