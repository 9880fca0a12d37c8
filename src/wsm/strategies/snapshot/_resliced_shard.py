"""One rank's tensors out of a version that was written for another number of ranks.

All manifests of the version are read; of the parts, those of the ranks that hold something of this one's.
Applies nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeAlias

from wsm import log
from wsm.strategies import errors
from wsm.strategies.errors import VersionMismatchError
from wsm.strategies.files import snapshot_names
from wsm.strategies.files.part_file import PartFile
from wsm.strategies.offer import OfferedTensor
from wsm.strategies.snapshot import _reslice_plan as reslice_plan
from wsm.strategies.snapshot._reslice_plan import Assembly
from wsm.strategies.snapshot._shard_reader import check_content, common_metadata, open_parts, read_ahead
from wsm.strategies.snapshot._slice_reader import Slice, SliceReader, SourceTensor
from wsm.strategies.snapshot.lookup import FoundVersion
from wsm.strategies.snapshot.manifest import ShardManifest
from wsm.strategies.snapshot.source import SnapshotSource
from wsm.strategies.snapshot.version_manifest import VersionManifest, read_shard_manifest, require_listed
from wsm.strategies.tensor import ITEM_BYTES

_log = log.logger("strategies")

_Reader: TypeAlias = tuple[str, Callable[[int, memoryview], None]]


@dataclass(frozen=True)
class ReslicedShard:
    """What one rank loads of a version for other ranks.

    Parameters
    ----------
    tensors : tuple of OfferedTensor
        Its tensors.
    files : tuple of str
        Where they come from.
    read_bytes : int
        Bytes that are read for them.
    """

    tensors: tuple[OfferedTensor, ...]
    files: tuple[str, ...]
    read_bytes: int


def open_resliced(
    published: FoundVersion, whole: VersionManifest, source: SnapshotSource, ranks: int, stack: ExitStack
) -> ReslicedShard:
    """Open what the source's rank, of `ranks`, needs of a version. Blocks on metadata only.

    Parameters
    ----------
    published : Published
        Where the version lies.
    whole : VersionManifest
        Its manifest.
    source : SnapshotSource
        Whose tensors are wanted.
    ranks : int
        Of how many ranks.
    stack : ExitStack
        Closes the files.

    Raises
    ------
    wsm.strategies.errors.BadInputError
        If manifests and files do not fit together, or the version cannot be divided by so many ranks
        (:mod:`wsm.strategies.snapshot.errors`). Nothing was changed.
    """
    file = published.directory.locate(snapshot_names.VERSION_MANIFEST)
    if published.expected is not None and whole.version != published.expected:
        raise VersionMismatchError(requested=published.expected, found=whole.version, where=file)
    shards = [_manifest(published, whole, rank) for rank in range(whole.world_size)]
    assemblies = reslice_plan.plan(shards, source.rank, ranks, where=file)
    needed = sorted({rank for assembly in assemblies for rank in assembly.sources})
    parts = {rank: _open_rank(published, whole.shards[rank].manifest, shards[rank], stack) for rank in needed}
    for files in parts.values():  # side by side: each window has its own way through its rank's files
        read_ahead(files, source.readahead_bytes // len(needed))
    readers = {rank: _readers(files) for rank, files in parts.items()}
    read_bytes = sum(assembly.read_bytes for assembly in assemblies)
    _log.info(
        log.SNAPSHOT_RESLICED,
        version=whole.version,
        written_for=whole.world_size,
        read_for=ranks,
        rank=source.rank,
        kept_bytes=sum(assembly.spec.nbytes for assembly in assemblies),
        read_bytes=read_bytes,
    )
    finite = all(shards[rank].finite for rank in needed)
    tensors = tuple(_offered(assembly, readers, finite=finite) for assembly in assemblies)
    return ReslicedShard(tensors, tuple(part.path for files in parts.values() for part in files), read_bytes)


def _manifest(published: FoundVersion, whole: VersionManifest, rank: int) -> ShardManifest:
    file = published.directory.locate(snapshot_names.VERSION_MANIFEST)
    name = whole.shards[rank].manifest
    manifest = require_listed(whole, rank, read_shard_manifest(published.directory, name), file=file)
    if manifest.rank != rank:
        raise errors.differs_from_manifest(
            file=file, problem=f"{name} is of rank {manifest.rank}, not of rank {rank}"
        )
    return manifest


def _open_rank(
    published: FoundVersion, name: str, manifest: ShardManifest, stack: ExitStack
) -> tuple[PartFile, ...]:
    file = published.directory.locate(name)
    parts = open_parts(published.directory, [part.file for part in manifest.parts], manifest, stack)
    metadata = common_metadata(parts)
    if metadata is not None and (metadata.rank, metadata.world_size) != (manifest.rank, manifest.world_size):
        raise errors.differs_from_manifest(file=file, problem=f"the parts are of rank {metadata.rank}")
    check_content(file, manifest, metadata, parts)
    return parts


def _readers(parts: Iterable[PartFile]) -> dict[str, _Reader]:
    return {spec.name: (part.path, read_into) for part in parts for spec, read_into in part.readers()}


def _offered(assembly: Assembly, readers: dict[int, dict[str, _Reader]], *, finite: bool) -> OfferedTensor:
    spec = assembly.spec
    whole_from = assembly.whole_from
    if whole_from is not None or not spec.nbytes:
        rank = assembly.pieces[0].rank
        origin, read_into = readers[rank][spec.name]
        # A tensor without bytes has the digest of no bytes, whatever it was cut from.
        return OfferedTensor(spec, origin, read_into, assembly.sources[rank].digest, finite=finite)
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
    reader = SliceReader(spec.name, sources, slices)
    return OfferedTensor(
        spec,
        ", ".join(origin.origin for origin in sources),
        reader.read_into,
        piece_bytes=reader.piece_bytes,
        check_chunk=reader.check_chunk,
        finite=finite,
    )
