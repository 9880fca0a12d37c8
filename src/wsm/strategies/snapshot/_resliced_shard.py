"""One rank's tensors out of a version that was written for another number of ranks.

All manifests of the version are read; of the parts, those of the ranks that hold something of this one's.
Where the version says what this rank's slices must be, they alone are read; else every tensor that they are
cut from, because a digest proves a whole tensor. Applies nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from typing import TypeAlias

from wsm import log
from wsm.strategies import errors
from wsm.strategies.errors import VersionMismatchError
from wsm.strategies.files.part_file import PartFile
from wsm.strategies.files.snapshot_directory import SnapshotDirectory
from wsm.strategies.files.snapshot_names import VERSION_MANIFEST
from wsm.strategies.offer import ManifestScope, Offer, OfferedTensor
from wsm.strategies.snapshot import _reslice_plan as reslice_plan
from wsm.strategies.snapshot._reslice_plan import Assembly
from wsm.strategies.snapshot._shard_parts import check_parts, open_parts, read_ahead
from wsm.strategies.snapshot._slice_reader import (
    LEAST_SLICE,
    STAGING_BYTES,
    Slice,
    SliceReader,
    SourceTensor,
    Stretches,
)
from wsm.strategies.snapshot.manifest import ShardManifest, VersionManifest
from wsm.strategies.snapshot.slice_digests import slice_promise
from wsm.strategies.snapshot.source import SnapshotSource
from wsm.strategies.snapshot.store import FoundVersion
from wsm.strategies.tensor import ITEM_BYTES

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
    assemblies = reslice_plan.plan(shards, source.rank, ranks, where=where)
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
