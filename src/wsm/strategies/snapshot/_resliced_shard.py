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
from dataclasses import dataclass, replace
from typing import TypeAlias

from wsm import log
from wsm.errors import BadInputError, InternalError
from wsm.strategies import errors
from wsm.strategies.byte_copy import CHUNK_BYTES
from wsm.strategies.digest import RunningDigest, running_digest
from wsm.strategies.errors import DigestMismatchError, VersionMismatchError, listed
from wsm.strategies.files.part_file import PartFile
from wsm.strategies.files.snapshot_directory import SnapshotDirectory
from wsm.strategies.files.snapshot_names import VERSION_MANIFEST
from wsm.strategies.offer import ManifestScope, Offer, OfferedTensor
from wsm.strategies.promise import PromisedTensor
from wsm.strategies.snapshot.manifest import ShardManifest, VersionManifest
from wsm.strategies.snapshot.placement import AxisRun, Placement, Shape, Split, local_shape, runs, whole_shape
from wsm.strategies.snapshot.slice_digests import slice_promise
from wsm.strategies.snapshot.source import SnapshotSource
from wsm.strategies.snapshot.store import FoundVersion, check_parts, open_parts, read_ahead
from wsm.strategies.tensor import ITEM_BYTES, TensorSpec


@dataclass(frozen=True)
class SlicePiece:
    """A stretch of the split axis that is taken from one shard's tensor.

    Parameters
    ----------
    rank : int
        Whose shard, of the ranks that the version was written for.
    begin : int
        Where it begins in that rank's tensor.
    length : int
        How long it is.
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
    pieces : tuple of Piece
        In the order in which they lie in the tensor.
    sources : mapping of int to PromisedTensor
        The tensors that they are taken from, by rank.
    """

    spec: TensorSpec
    axis: int
    pieces: tuple[SlicePiece, ...]
    sources: Mapping[int, PromisedTensor]

    @property
    def whole_from(self) -> int | None:
        """The rank whose tensor it is unchanged, if it is one."""
        rank = self.pieces[0].rank
        whole = len(self.sources) == 1 and self.sources[rank].spec == self.spec
        return rank if whole and self._in_order() else None

    @property
    def read_bytes(self) -> int:
        """Bytes that are read for it: all of each source, because a digest proves a tensor or nothing."""
        return sum(entry.spec.nbytes for entry in self.sources.values())

    def _in_order(self) -> bool:
        position = 0
        for piece in self.pieces:
            if piece.begin != position:
                return False
            position += piece.length
        return True


_Key: TypeAlias = tuple[Placement, Shape]
_Cut: TypeAlias = tuple[int, tuple[SlicePiece, ...]]


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
    held = _by_name(shards)
    _require_placements(held, len(shards), ranks, where)
    whole = _whole_shapes(held, shards, where)
    cuts: dict[_Key, _Cut | None] = {}
    assemblies = []
    for name, entries in held.items():
        first = next(iter(entries.values()))
        placement = first.placement
        if placement is None:  # checked above; here for the type checker
            continue
        shape = whole[name]
        key = (placement, shape)
        if key not in cuts:
            cuts[key] = _cut(name, placement, shape, found=len(shards), rank=rank, ranks=ranks)
        cut = cuts[key]
        local = local_shape(name, placement, shape, rank, ranks)
        if cut is None or local is None:
            continue
        axis, pieces = cut
        sources = {piece.rank: entries[piece.rank] for piece in pieces}
        assemblies.append(Assembly(replace(first.spec, shape=local), axis, pieces, sources))
    return assemblies


def _by_name(shards: Sequence[ShardManifest]) -> dict[str, dict[int, PromisedTensor]]:
    held: dict[str, dict[int, PromisedTensor]] = {}
    for rank, shard in enumerate(shards):
        for entry in shard.tensors:
            held.setdefault(entry.spec.name, {})[rank] = entry
    return held


def _require_placements(
    held: Mapping[str, Mapping[int, PromisedTensor]], found: int, wanted: int, where: str
) -> None:
    missing = [
        name for name, entries in held.items() if any(entry.placement is None for entry in entries.values())
    ]
    if len(missing) == len(held):
        raise errors.shard_identity(file=where, field="world size", expected=wanted, found=found)
    if missing:
        raise BadInputError(
            f"{where} was written for {found} ranks and does not say how {len(missing)} of its tensors are "
            f"divided ({listed([repr(name) for name in missing])}), so it cannot be read for {wanted}; "
            "publish with placements for all tensors, or for the number of ranks that load",
            code="placement-missing",
            where=where,
            found=found,
            wanted=wanted,
            unfit=True,
            tensors=tuple(missing),
        )


def _whole_shapes(
    held: Mapping[str, Mapping[int, PromisedTensor]], shards: Sequence[ShardManifest], where: str
) -> dict[str, Shape]:
    """Return the whole shape of every tensor; an error if the shards do not agree on what they hold."""
    found: dict[str, Shape] = {}
    problems: list[tuple[str, str]] = []
    seen: dict[_Key, tuple[tuple[AxisRun, ...], ...]] = {}
    for name, entries in held.items():
        kinds = {
            (
                entry.spec.dtype,
                entry.placement,
                whole_shape(name, entry.placement, entry.spec.shape, rank, len(shards)),
            )
            for rank, entry in entries.items()
            if entry.placement is not None
        }
        if len(kinds) > 1:
            problems.append((name, "is placed otherwise, or of another dtype, on another rank"))
            continue
        _, placement, shape = next(iter(kinds))
        key = (placement, shape)
        if key not in seen:
            seen[key] = tuple(runs(name, placement, shape, rank, len(shards)) for rank in range(len(shards)))
        problem = _holders_problem(entries, seen[key])
        if problem:
            problems.append((name, problem))
        found[name] = shape
    if problems:
        details = listed([f"{tensor!r} {problem}" for tensor, problem in problems])
        raise BadInputError(
            f"the shards in {where} do not fit together: {details}; publish the version again",
            code="bad-slices",
            where=where,
            unfit=True,
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
    wanted = runs(name, placement, shape, rank, ranks)
    if not wanted:
        return None
    # Its namesake first, so that ranks which read the same version spread over copies of the same slice.
    order = sorted(range(found), key=lambda source: (source - rank) % found)
    held = [(source, runs(name, placement, shape, source, found)) for source in order]
    pieces: list[SlicePiece] = []
    for run in wanted:
        position, end = run.begin, run.begin + run.length
        while position < end:
            pieces.append(_piece_at(name, held, position, end))
            position += pieces[-1].length
    if not pieces:  # an extent of 0: any holder stands for it
        pieces.append(SlicePiece(next(source for source, stretches in held if stretches), 0, 0))
    return (placement.axis if isinstance(placement, Split) else 0), tuple(pieces)


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
    shards = [found.promise_of(rank) for rank in range(publication.world_size)]
    assemblies = plan(shards, source.rank, ranks, where=where)
    needed = sorted({rank for assembly in assemblies for rank in assembly.sources})
    parts = {rank: _open_rank(found.directory, shards[rank], stack, where) for rank in needed}
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


def _open_rank(
    directory: SnapshotDirectory, promise: ShardManifest, stack: ExitStack, where: str
) -> tuple[PartFile, ...]:
    names = [part.file for part in promise.parts]
    parts, identity = open_parts(directory, names, promise, stack)
    if identity is not None and (identity.rank, identity.world_size) != (promise.rank, promise.world_size):
        raise errors.differs_from_manifest(
            file=where, problem=f"the parts are of rank {identity.rank}, not of rank {promise.rank}"
        )
    check_parts(parts, promise, identity, where=where)
    return parts


def _offered(
    assembly: Assembly, readers: dict[int, dict[str, _Reader]], promised: str | None, *, finite: bool
) -> tuple[OfferedTensor, int]:
    """Offer one tensor; return how many bytes are read for it, too."""
    spec = assembly.spec
    if assembly.whole_from is not None or not spec.nbytes:
        rank = assembly.pieces[0].rank
        origin, read_into = readers[rank][spec.name]
        # A tensor without bytes has the digest of no bytes, whatever it was cut from.
        digest = assembly.sources[rank].digest
        return OfferedTensor(spec, origin, read_into, digest, finite=finite), assembly.read_bytes
    # Bytes of one index of the split axis; what lies before that axis are rows.
    unit = math.prod(spec.shape[assembly.axis + 1 :]) * ITEM_BYTES[spec.dtype]
    order = list(assembly.sources)
    sources = []
    for rank in order:
        origin, read_into = readers[rank][spec.name]
        entry = assembly.sources[rank]
        row_bytes = entry.spec.shape[assembly.axis] * unit
        sources.append(SourceTensor(origin, entry.spec.nbytes, row_bytes, entry.digest, read_into))
    slices = [
        Slice(order.index(piece.rank), piece.begin * unit, piece.length * unit) for piece in assembly.pieces
    ]
    origin = ", ".join(each.origin for each in sources)
    if promised is not None and min(piece.length for piece in slices) >= LEAST_SLICE:
        stretches = Stretches(slices, sources)
        return OfferedTensor(spec, origin, stretches.read_into, promised, finite=finite), spec.nbytes
    reader = SliceReader(spec.name, sources, slices)
    return OfferedTensor(
        spec,
        origin,
        reader.read_into,
        piece_bytes=reader.piece_bytes,
        check_chunk=reader.check_chunk,
        finite=finite,
    ), assembly.read_bytes
