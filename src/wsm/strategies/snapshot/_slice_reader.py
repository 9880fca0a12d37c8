"""Reading one tensor out of slices of several files, every file's tensor proven by its own digest.

A digest proves a whole tensor, so each source tensor is read from its first byte to its last, once and in
order; what is not wanted passes through a staging buffer and is digested there. Slices along the first axis
go straight into the destination; along another one rows are read in blocks and their columns picked out.
Knows no manifests and no targets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from wsm.errors import InternalError
from wsm.strategies.byte_copy import CHUNK_BYTES
from wsm.strategies.digest import RunningDigest, running_digest
from wsm.strategies.errors import DigestMismatchError

#: Slices shorter than that are not read one by one: what lies between them costs less than the calls.
LEAST_SLICE = 1 << 12

#: Bytes that pass through memory at a time, for each tensor that is being read: they stay in a core's cache.
STAGING_BYTES = 1 << 19


@dataclass(frozen=True)
class SourceTensor:
    """One tensor of a file, of which slices are wanted.

    Parameters
    ----------
    origin : str
        The file, for messages.
    nbytes : int
        Bytes of the tensor.
    row_bytes : int
        Bytes of it for one index of the axes before the split one.
    digest : str
        What its bytes must come to.
    read_into : callable
        ``read_into(offset, destination)``.
    """

    origin: str
    nbytes: int
    row_bytes: int
    digest: str
    read_into: Callable[[int, memoryview], None]


@dataclass(frozen=True)
class Slice:
    """Bytes of every row of a source tensor: which source, where in its row, how many."""

    source: int
    begin: int
    length: int


class Stretches:
    """The bytes of one tensor where its slices lie, and none between them; whole rows are not proven by it.

    Parameters
    ----------
    slices : sequence of Slice
        What makes up one row, in order.
    sources : sequence of SourceTensor
        What they are taken from.
    """

    def __init__(self, slices: Sequence[Slice], sources: Sequence[SourceTensor]) -> None:
        self._slices = slices
        self._sources = sources
        self.row_bytes = sum(piece.length for piece in slices)

    def read_into(self, offset: int, destination: memoryview) -> None:
        """Fill `destination` from `offset` on, in any order. Blocks; raises as reading the files does."""
        for source, position, stretch in self.over(offset, destination):
            self._sources[source].read_into(position, stretch)

    def over(self, offset: int, destination: memoryview) -> Iterator[tuple[int, int, memoryview]]:
        """Iterate over the stretches of `destination`: of which source each is, and where in it."""
        row, column = divmod(offset, self.row_bytes)
        filled = 0
        while filled < len(destination):
            at = 0
            for piece in self._slices:
                skipped = min(max(column - at, 0), piece.length)
                length = min(piece.length - skipped, len(destination) - filled)
                at += piece.length
                if length:
                    position = row * self._sources[piece.source].row_bytes + piece.begin + skipped
                    yield piece.source, position, destination[filled : filled + length]
                    filled += length
            row, column = row + 1, 0


class SliceReader:
    """The bytes of one tensor, read front to back by one thread at a time; reading at 0 begins anew.

    Parameters
    ----------
    tensor : str
        Its name, for messages.
    sources : sequence of SourceTensor
        What its slices are taken from; all of them have as many rows as the tensor.
    slices : sequence of Slice
        What makes up one row, in order. Slices of one source go forward in it.
    """

    def __init__(self, tensor: str, sources: Sequence[SourceTensor], slices: Sequence[Slice]) -> None:
        self._tensor = tensor
        self._sources = sources
        self._slices = slices
        self._stretches = Stretches(slices, sources)
        self._row_bytes = self._stretches.row_bytes
        self._rows = sources[0].nbytes // sources[0].row_bytes
        self._streams: list[_Stream] = []
        self._position = 0

    @property
    def piece_bytes(self) -> int:
        """Whole rows that are read together, in bytes; 0 where rows are too long for that."""
        if not self._rows_per_block:
            return 0
        return CHUNK_BYTES // self._row_bytes * self._row_bytes

    @property
    def _rows_per_block(self) -> int:
        if self._rows == 1 or self._row_bytes > CHUNK_BYTES:
            return 0
        return STAGING_BYTES // max(source.row_bytes for source in self._sources)

    def read_into(self, offset: int, destination: memoryview) -> None:
        """Fill `destination` from `offset` on, which is where the last call ended, or 0. Blocks.

        Raises
        ------
        wsm.errors.BadInputError
            As reading the files does.
        InternalError
            If it is called out of order.
        """
        if offset == 0:
            longest = max(source.nbytes for source in self._sources)
            staging = memoryview(bytearray(min(longest, STAGING_BYTES)))
            self._streams = [_Stream(source, staging) for source in self._sources]
        elif offset != self._position:
            raise InternalError(
                f"slices of {self._tensor!r} were asked for out of order", tensor=self._tensor
            )
        self._position = offset + len(destination)
        rows = self._rows_per_block
        if rows and offset % self._row_bytes == 0 and len(destination) % self._row_bytes == 0:
            for begin in range(0, len(destination), rows * self._row_bytes):
                self._read_rows(destination[begin : begin + rows * self._row_bytes])
        else:
            for source, position, stretch in self._stretches.over(offset, destination):
                self._streams[source].read(position, stretch)

    def check_chunk(self, done: int, _digest: RunningDigest) -> None:
        """Prove the sources once the tensor is complete: read what is left of them, compare their digests.

        Raises
        ------
        DigestMismatchError
            If one is not what its manifest promised.
        """
        if done < self._row_bytes * self._rows:
            return
        for stream in self._streams:
            stream.finish(self._tensor)
        self._streams = []

    def _read_rows(self, destination: memoryview) -> None:
        import numpy as np  # noqa: PLC0415 - most loads do without, and commands start faster without it

        rows = len(destination) // self._row_bytes
        target = np.frombuffer(destination, np.uint8).reshape(rows, self._row_bytes)
        for index, stream in enumerate(self._streams):
            block = np.frombuffer(stream.next(rows * stream.source.row_bytes), np.uint8)
            block = block.reshape(rows, stream.source.row_bytes)
            at = 0
            for piece in self._slices:
                if piece.source == index:
                    target[:, at : at + piece.length] = block[:, piece.begin : piece.begin + piece.length]
                at += piece.length


class _Stream:
    """One source tensor on its way, from its first byte to its last."""

    def __init__(self, source: SourceTensor, staging: memoryview) -> None:
        self.source = source
        self._staging = staging
        self._position = 0
        self._digest = running_digest()

    def next(self, length: int) -> memoryview:
        """Read the next bytes into the staging buffer, where they stay until something else is read."""
        staged = self._staging[:length]
        self._take(staged)
        return staged

    def read(self, position: int, destination: memoryview) -> None:
        """Read what lies at `position`, and on the way to it what lies before."""
        self._skip_to(position)
        for begin in range(0, len(destination), STAGING_BYTES):
            self._take(destination[begin : begin + STAGING_BYTES])

    def finish(self, tensor: str) -> None:
        self._skip_to(self.source.nbytes)
        actual = self._digest.hexdigest()
        if actual != self.source.digest:
            raise DigestMismatchError(
                tensor=tensor, origin=self.source.origin, expected=self.source.digest, actual=actual
            )

    def _skip_to(self, position: int) -> None:
        while self._position < position:
            self._take(self._staging[: position - self._position])

    def _take(self, destination: memoryview) -> None:
        self.source.read_into(self._position, destination)
        self._digest.update(destination)
        self._position += len(destination)
