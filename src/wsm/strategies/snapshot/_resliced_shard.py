"""One rank's tensors out of a version that was written for another number of ranks.

First which pieces of which shards make them up: all manifests are compared, and every tensor must be placed,
alike in every shard that holds it, and held by just the ranks that its placement says.

All manifests of the version are read; of the parts, those of the ranks that hold something of this one's.
Where the version says what this rank's slices must be, they alone are read; else every tensor that they are
cut from, because a digest proves a whole tensor. Applies nothing.

Each source tensor is read from its first byte to its last, once and in order; what is not wanted passes
through a staging buffer and is digested there. Slices along the first axis go straight into the destination;
along another one rows are read in blocks and their columns picked out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, TypeAlias

from wsm import log
from wsm.errors import InternalError, UnfitError
from wsm.strategies import errors
from wsm.strategies.byte_copy import CHUNK_BYTES
from wsm.strategies.digest import RunningDigest, running_digest
from wsm.strategies.errors import DigestMismatchError, VersionMismatchError, listed
from wsm.strategies.files.snapshot_names import VERSION_MANIFEST
from wsm.strategies.offer import ManifestScope, Offer, OfferedTensor
from wsm.strategies.promise import PromisedTensor
from wsm.strategies.snapshot.manifest import ShardManifest, VersionManifest
from wsm.strategies.snapshot.placement import AxisRun, Placement, Shape, Split, local_shape, runs, whole_shape
from wsm.strategies.snapshot.slice_digests import slice_promise
from wsm.strategies.snapshot.source import SnapshotSource
from wsm.strategies.snapshot.store import FoundVersion, open_parts, read_ahead, read_sealed
from wsm.strategies.tensor import ITEM_BYTES, TensorSpec


class SlicePiece(NamedTuple):
    """A stretch of a row that is taken from one shard's tensor: whose, where it begins there, how long it is.

    Begin and length count elements of the split axis, or bytes of a row.
    """

    rank: int
    begin: int
    length: int


@dataclass(frozen=True)
class Assembly:
    """How one tensor is put together.

    Parameters
    ----------
    spec : TensorSpec
        The tensor, as the loading rank holds it.
    axis : int
        The axis along which the pieces lie.
    pieces : tuple of SlicePiece
        In the order in which they lie in the tensor.
    sources : mapping of int to PromisedTensor
        The tensors that they are taken from, by rank.
    """

    spec: TensorSpec
    axis: int
    pieces: tuple[SlicePiece, ...]
    sources: Mapping[int, PromisedTensor]

    @property
    def is_whole(self) -> bool:
        """Whether it is one rank's tensor unchanged."""
        begins = [0, *accumulate(piece.length for piece in self.pieces)]
        in_order = all(piece.begin == begin for piece, begin in zip(self.pieces, begins, strict=False))
        return in_order and [entry.spec for entry in self.sources.values()] == [self.spec]

    @property
    def read_bytes(self) -> int:
        """Bytes that are read for it: all of each source, because a digest proves a tensor or nothing."""
        return sum(entry.spec.nbytes for entry in self.sources.values())


_Key: TypeAlias = tuple[Placement, Shape]
_Cut: TypeAlias = tuple[Shape, int, tuple[SlicePiece, ...]]


def plan(shards: Sequence[ShardManifest], rank: int, ranks: int, *, where: str) -> list[Assembly]:
    """Say how every tensor of `rank` of `ranks` is put together.

    Parameters
    ----------
    shards : sequence of ShardManifest
        Of all ranks that the version was written for, in their order.
    rank, ranks : int
        Which of how many ranks loads.
    where : str
        What the manifests describe, for messages.

    Raises
    ------
    BadInputError
        If no tensor at all is placed: the version is for its own number of ranks alone. Or if there is no
        such rank.
    BadInputError
        If some tensors are not placed.
    BadInputError (``placement``)
        If one cannot be divided by so many ranks.
    BadInputError
        If the shards do not fit together.
    """
    if rank >= ranks:
        raise errors.shard_identity(file=where, field="world size", expected=rank + 1, found=ranks)
    held: dict[str, dict[int, PromisedTensor]] = {}
    for source, shard in enumerate(shards):
        for entry in shard.tensors:
            held.setdefault(entry.spec.name, {})[source] = entry
    _require_placements(held, len(shards), ranks, where)
    cuts: dict[_Key, _Cut | None] = {}
    assemblies = []
    for name, key in _whole_shapes(held, len(shards), where).items():
        if key not in cuts:
            cuts[key] = _cut(name, *key, found=len(shards), rank=rank, ranks=ranks)
        if (cut := cuts[key]) is not None:
            (local, axis, pieces), entries = cut, held[name]
            sources = {piece.rank: entries[piece.rank] for piece in pieces}
            spec = TensorSpec(name, entries[pieces[0].rank].spec.dtype, local)
            assemblies.append(Assembly(spec, axis, pieces, sources))
    return assemblies


def _require_placements(
    held: Mapping[str, Mapping[int, PromisedTensor]], found: int, wanted: int, where: str
) -> None:
    missing = [
        name for name, entries in held.items() if any(entry.placement is None for entry in entries.values())
    ]
    if len(missing) == len(held):
        raise errors.shard_identity(file=where, field="world size", expected=wanted, found=found)
    if missing:
        raise UnfitError(
            f"{where} was written for {found} ranks and does not say how {len(missing)} of its tensors are "
            f"divided ({listed([repr(name) for name in missing])}), so it cannot be read for {wanted}; "
            "publish with placements for all tensors, or for the number of ranks that load",
            code="placement-missing",
            where=where,
            found=found,
            wanted=wanted,
            tensors=tuple(missing),
        )


def _whole_shapes(
    held: Mapping[str, Mapping[int, PromisedTensor]], ranks: int, where: str
) -> dict[str, _Key]:
    """Return placement and whole shape of every tensor; an error if the shards do not agree on them."""
    found: dict[str, _Key] = {}
    problems: list[tuple[str, str]] = []
    seen: dict[_Key, tuple[tuple[AxisRun, ...], ...]] = {}
    for name, entries in held.items():
        kinds = {
            (
                entry.spec.dtype,
                entry.placement,
                whole_shape(name, entry.placement, entry.spec.shape, rank, ranks),
            )
            for rank, entry in entries.items()
            if entry.placement is not None
        }
        if len(kinds) > 1:
            problems.append((name, "is placed otherwise, or of another dtype, on another rank"))
            continue
        [(_, placement, shape)] = kinds
        found[name] = key = placement, shape
        if key not in seen:
            seen[key] = tuple(runs(name, placement, shape, rank, ranks) for rank in range(ranks))
        problem = _holders_problem(entries, seen[key])
        if problem:
            problems.append((name, problem))
    if problems:
        details = listed([f"{tensor!r} {problem}" for tensor, problem in problems])
        raise UnfitError(
            f"the shards in {where} do not fit together: {details}; publish the version again",
            code="bad-slices",
            where=where,
            problems=tuple(problems),
        )
    return found


def _holders_problem(
    entries: Mapping[int, PromisedTensor], expected: Sequence[tuple[AxisRun, ...]]
) -> str | None:
    holders = [rank for rank, held in enumerate(expected) if held]
    missing = [rank for rank in holders if rank not in entries]
    if missing:
        return f"is missing on rank {missing[0]}, which holds a slice of it"
    strangers = [rank for rank in entries if rank not in holders]
    if strangers:
        return f"overlaps: rank {strangers[0]} has it, which holds no slice of it"
    first: dict[tuple[AxisRun, ...], int] = {}
    for rank in holders:
        twin = first.setdefault(expected[rank], rank)
        if entries[twin].digest != entries[rank].digest:
            return f"overlaps: ranks {twin} and {rank} hold the same slice with other bytes"
    return None


def _cut(name: str, placement: Placement, shape: Shape, *, found: int, rank: int, ranks: int) -> _Cut | None:
    """Find the pieces of what `rank` of `ranks` holds in what `found` ranks hold."""
    local = local_shape(name, placement, shape, rank, ranks)
    if local is None:
        return None
    # Its namesake first, so that ranks which read the same version spread over copies of the same slice.
    order = sorted(range(found), key=lambda source: (source - rank) % found)
    held = [(source, runs(name, placement, shape, source, found)) for source in order]
    pieces: list[SlicePiece] = []
    for run in runs(name, placement, shape, rank, ranks):
        position, end = run.begin, run.begin + run.length
        while position < end:
            pieces.append(_piece_at(name, held, position, end))
            position += pieces[-1].length
    if not pieces:  # an extent of 0: any holder stands for it
        pieces.append(SlicePiece(next(source for source, stretches in held if stretches), 0, 0))
    return local, placement.axis if isinstance(placement, Split) else 0, tuple(pieces)


def _piece_at(
    name: str, held: Sequence[tuple[int, tuple[AxisRun, ...]]], position: int, end: int
) -> SlicePiece:
    for source, stretches in held:
        local = 0
        for run in stretches:
            if run.begin <= position < run.begin + run.length:
                length = min(end, run.begin + run.length) - position
                return SlicePiece(source, local + position - run.begin, length)
            local += run.length
    raise InternalError(
        f"no rank holds {name!r} at {position}, though its placement was checked", tensor=name
    )


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


class Stretches:
    """The bytes of one tensor where its slices lie, and none between them; whole rows are not proven by it.

    Parameters
    ----------
    pieces : sequence of SlicePiece
        What makes up one row, in order, in bytes.
    sources : mapping of int to SourceTensor
        What they are taken from, by rank; all of them have as many rows as the tensor.
    """

    def __init__(self, pieces: Sequence[SlicePiece], sources: Mapping[int, SourceTensor]) -> None:
        self._pieces = pieces
        self._sources = sources
        self._row_bytes = sum(piece.length for piece in pieces)

    def read_into(self, offset: int, destination: memoryview) -> None:
        """Fill `destination` from `offset` on, in any order. Blocks; raises as reading the files does."""
        for rank, position, stretch in self._over(offset, destination):
            self._sources[rank].read_into(position, stretch)

    def _over(self, offset: int, destination: memoryview) -> Iterator[tuple[int, int, memoryview]]:
        """Iterate over the stretches of `destination`: of which source each is, and where in it."""
        row, column = divmod(offset, self._row_bytes)
        filled = 0
        while filled < len(destination):
            at = 0
            for piece in self._pieces:
                skipped = min(max(column - at, 0), piece.length)
                length = min(piece.length - skipped, len(destination) - filled)
                at += piece.length
                if length:
                    position = row * self._sources[piece.rank].row_bytes + piece.begin + skipped
                    yield piece.rank, position, destination[filled : filled + length]
                    filled += length
            row, column = row + 1, 0


class SliceReader(Stretches):
    """The bytes of one tensor, read front to back by one thread at a time; reading at 0 begins anew.

    Slices of one source go forward in it, which is read whole, and proven.

    Parameters
    ----------
    tensor : str
        Its name, for messages.
    pieces, sources
        As for :class:`Stretches`.
    """

    def __init__(
        self, tensor: str, pieces: Sequence[SlicePiece], sources: Mapping[int, SourceTensor]
    ) -> None:
        super().__init__(pieces, sources)
        self._tensor = tensor
        self._streams: dict[int, _Stream] = {}
        self._position = 0
        first = next(iter(sources.values()))
        self._nbytes = self._row_bytes * (first.nbytes // first.row_bytes)
        whole_rows = self._row_bytes < self._nbytes and self._row_bytes <= CHUNK_BYTES
        longest = max(source.row_bytes for source in sources.values())
        self._rows_per_block = STAGING_BYTES // longest if whole_rows else 0
        #: Whole rows that are read together, in bytes; 0 where rows are too long for that.
        self.piece_bytes = CHUNK_BYTES // self._row_bytes * self._row_bytes if self._rows_per_block else 0

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
            longest = max(source.nbytes for source in self._sources.values())
            staging = memoryview(bytearray(min(longest, STAGING_BYTES)))
            self._streams = {rank: _Stream(source, staging) for rank, source in self._sources.items()}
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
            for rank, position, stretch in self._over(offset, destination):
                self._streams[rank].read(position, stretch)

    def check_chunk(self, done: int, _digest: RunningDigest) -> None:
        """Prove the sources once the tensor is complete: read what is left of them, compare their digests.

        Raises
        ------
        DigestMismatchError
            If one is not what its manifest promised.
        """
        if done < self._nbytes:
            return
        for stream in self._streams.values():
            stream.finish(self._tensor)
        self._streams = {}

    def _read_rows(self, destination: memoryview) -> None:
        import numpy as np  # noqa: PLC0415 - most loads do without, and commands start faster without it

        rows = len(destination) // self._row_bytes
        target = np.frombuffer(destination, np.uint8).reshape(rows, self._row_bytes)
        for rank, stream in self._streams.items():
            block = np.frombuffer(stream.next(rows * stream.source.row_bytes), np.uint8)
            block = block.reshape(rows, stream.source.row_bytes)
            at = 0
            for piece in self._pieces:
                if piece.rank == rank:
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


_log = log.logger("strategies")

_Reader: TypeAlias = tuple[str, Callable[[int, memoryview], None]]


def open_resliced(
    found: FoundVersion, publication: VersionManifest, source: SnapshotSource, stack: ExitStack
) -> Offer:
    """Offer what the source's rank needs of a version for another number of ranks. Blocks on metadata only.

    Raises
    ------
    wsm.strategies.errors.BadInputError
        If manifests and files do not fit together, or the version cannot be divided by so many ranks
        (:mod:`wsm.strategies.snapshot.placement`). Nothing was changed.
    """
    ranks = source.world_size or 1
    where = found.directory.locate(VERSION_MANIFEST)
    if found.expected not in (None, publication.version):
        raise VersionMismatchError(requested=str(found.expected), found=publication.version, where=where)
    promises = [read_sealed(found.directory, each.manifest, ShardManifest) for each in publication.shards]
    directory = found.directory.path
    shards = [publication.listed(rank, each, directory=directory) for rank, each in enumerate(promises)]
    assemblies = plan(shards, source.rank, ranks, where=where)
    needed = sorted({rank for assembly in assemblies for rank in assembly.sources})
    parts = {}
    for rank in needed:
        names = [part.file for part in shards[rank].parts]
        parts[rank], _ = open_parts(found.directory, names, shards[rank], stack, where=where)
    for files in (
        parts.values() if source.readahead_bytes else ()
    ):  # side by side: each window has its own way through its rank's files
        read_ahead(files, source.readahead_bytes // len(needed))
    readers = {
        rank: {spec.name: (part.path, read_into) for part in files for spec, read_into in part.readers()}
        for rank, files in parts.items()
    }
    promised = slice_promise(found, publication, source.rank, ranks) if publication.world_size == 1 else {}
    finite = all(shards[rank].finite for rank in needed)
    tensors, read_bytes = [], 0
    for assembly in assemblies:
        tensor, nbytes = _offered(assembly, readers, promised.get(assembly.spec), finite=finite)
        tensors.append(tensor)
        read_bytes += nbytes
    _log.info(
        "snapshot.resliced",
        version=publication.version,
        written_for=publication.world_size,
        read_for=ranks,
        rank=source.rank,
        kept_bytes=sum(assembly.spec.nbytes for assembly in assemblies),
        read_bytes=read_bytes,
        proven_by="slices" if promised else "whole tensors",
    )
    return Offer(
        version=publication.version,
        tensors=tuple(tensors),
        files=tuple(part.path for files in parts.values() for part in files),
        manifest_digest=publication.group_digest,
        manifest_scope=ManifestScope.GROUP,
        publication=publication.publication,
        thread_bytes=STAGING_BYTES,
        parallel=True,
        read_bytes=read_bytes,
    )


def _offered(
    assembly: Assembly, readers: dict[int, dict[str, _Reader]], promised: str | None, *, finite: bool
) -> tuple[OfferedTensor, int]:
    """Offer one tensor; return how many bytes are read for it, too."""
    spec, pieces = assembly.spec, assembly.pieces
    if assembly.is_whole or not spec.nbytes:
        rank = pieces[0].rank
        origin, read_into = readers[rank][spec.name]
        # A tensor without bytes has the digest of no bytes, whatever it was cut from.
        digest = assembly.sources[rank].digest
        return OfferedTensor(spec, origin, read_into, digest, finite=finite), assembly.read_bytes
    # Bytes of one index of the split axis; what lies before that axis are rows.
    unit = math.prod(spec.shape[assembly.axis + 1 :]) * ITEM_BYTES[spec.dtype]
    sources = {}
    for rank, entry in assembly.sources.items():
        origin, read_into = readers[rank][spec.name]
        row_bytes = entry.spec.shape[assembly.axis] * unit
        sources[rank] = SourceTensor(origin, entry.spec.nbytes, row_bytes, entry.digest, read_into)
    slices = [SlicePiece(piece.rank, piece.begin * unit, piece.length * unit) for piece in pieces]
    origin = ", ".join(each.origin for each in sources.values())
    if promised is not None and min(piece.length for piece in slices) >= LEAST_SLICE:
        read_into = Stretches(slices, sources).read_into
        return OfferedTensor(spec, origin, read_into, promised, finite=finite), spec.nbytes
    reader = SliceReader(spec.name, slices, sources)
    offered = OfferedTensor(
        spec,
        origin,
        reader.read_into,
        piece_bytes=reader.piece_bytes,
        check_chunk=reader.check_chunk,
        finite=finite,
    )
    return offered, assembly.read_bytes
