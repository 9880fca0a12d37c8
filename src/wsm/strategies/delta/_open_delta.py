"""One delta of a rank, opened, checked against all that is written about it, and put on top of its base.

:meth:`OpenDelta.verify` reads its blocks once against their digests, so that a damaged file is known before
the first byte of a target changes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from wsm.errors import InternalError
from wsm.strategies import errors as strategies_errors
from wsm.strategies.delta import errors as delta_errors
from wsm.strategies.delta._blocks import BlockKind
from wsm.strategies.delta._manifest import (
    DeltaManifest,
    DeltaShard,
    DeltaTensor,
    blocks_name,
    rank_manifest_name,
)
from wsm.strategies.delta.source import DeltaSource, codec
from wsm.strategies.digest import running_digest
from wsm.strategies.errors import VersionMismatchError
from wsm.strategies.files.atomic_file import read_all
from wsm.strategies.files.snapshot_directory import SnapshotDirectory, open_held
from wsm.strategies.files.snapshot_names import DELTA_MANIFEST, DELTAS_DIRECTORY
from wsm.strategies.observer import LoadObserver
from wsm.strategies.offer import OfferedTensor
from wsm.strategies.snapshot.store import read_sealed
from wsm.strategies.tensor import ITEM_BYTES

_READ_BYTES = 1 << 20


@dataclass(eq=False)
class OpenDelta:
    """A delta whose files are open and agree.

    Parameters
    ----------
    shard : DeltaShard
        This rank's manifest.
    manifest : DeltaManifest
        The manifest of all ranks.
    path : str
        The file with the blocks, for messages.
    descriptor : int
        That file, open for reading; owned by this object from now on.
    """

    shard: DeltaShard
    manifest: DeltaManifest
    path: str
    descriptor: int

    def verify(self, observer: LoadObserver) -> None:
        """Read all blocks and compare them with their digests. Blocks, as long as a read of them takes.

        Parameters
        ----------
        observer : LoadObserver
            Asked for cancellation.

        Raises
        ------
        BadInputError
            If a tensor's blocks are not those that were written.
        LoadCancelledError
            If the observer says so; nothing was touched.
        BadInputError, UnreadableFileError
            If the file shrank meanwhile, or cannot be read.
        """
        buffer = memoryview(bytearray(_READ_BYTES))
        for row in self.shard.tensors:
            begin, end = self._where[row.name][0], self._where[row.name][-1]
            digest = running_digest()
            while begin < end:
                observer.stop_if_cancelled(len(self.shard.tensors))
                piece = buffer[: min(_READ_BYTES, end - begin)]
                self._read(begin, piece)
                digest.update(piece)
                begin += len(piece)
            if digest.hexdigest() != row.stored_digest:
                raise delta_errors.bad_delta(
                    file=self.path,
                    tensor=row.name,
                    problem=f"digest {digest.hexdigest()} instead of {row.stored_digest}",
                )

    def over(self, base: Iterable[OfferedTensor]) -> list[OfferedTensor]:
        """Return the tensors of the version, each read as the base's with its blocks on top.

        Without those of a base they can only be looked at. Reading one raises what reading the base does, and
        BadInputError or UnreadableFileError if the blocks are not what they were when they were verified.
        """
        begun = {tensor.spec.name: tensor for tensor in base}
        return [self._on(begun.get(row.name), row) for row in self.shard.tensors]

    def _on(self, base: OfferedTensor | None, row: DeltaTensor) -> OfferedTensor:
        def read_into(offset: int, destination: memoryview) -> None:
            if not self._replaces(row, offset, len(destination)):
                if base is None:
                    raise InternalError(f"{row.name!r} was only to be looked at and is read")
                base.read_into(offset, destination)
            self._patch(row, offset, destination)

        return OfferedTensor(
            row.spec,
            self.path,
            read_into,
            row.digest,
            piece_bytes=self.shard.block_bytes,
            stands=base is not None and base.stands and not row.blocks,
            finite=self.shard.finite,
        )

    def _replaces(self, row: DeltaTensor, offset: int, length: int) -> bool:
        """Whether every byte of a range is in the delta, so that the base's need not be read."""
        blocks, size = row.blocks, self.shard.block_bytes
        return bool(blocks) and all(
            block.kind is BlockKind.FULL for block in blocks[offset // size : -(-(offset + length) // size)]
        )

    def _patch(self, row: DeltaTensor, offset: int, destination: memoryview) -> None:
        """Turn bytes of the base into those of the version. Several threads may do so."""
        size, end = self.shard.block_bytes, offset + len(destination)
        for index in range(offset // size, -(-end // size)) if row.blocks else ():
            if row.blocks[index].kind is not BlockKind.SAME:
                low, high = max(offset, index * size), min(end, (index + 1) * size)
                self._patch_block(row, index, low - index * size, destination[low - offset : high - offset])

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _patch_block(self, row: DeltaTensor, index: int, begin: int, destination: memoryview) -> None:
        block, position = row.blocks[index], self._where[row.name][index]
        if block.kind is BlockKind.FULL:
            self._read(position + begin, destination)
            return
        data = memoryview(bytearray(block.stored))
        self._read(position, data)
        size = self.shard.block_bytes
        length = min(size, row.spec.nbytes - index * size)
        blocks = codec()
        try:
            patch = blocks.decode(block, data, length=length, item=ITEM_BYTES[row.dtype])
        except blocks.BlockError as error:
            raise delta_errors.bad_delta(
                file=self.path,
                tensor=row.name,
                problem=f"block {index}: {error}",
            ) from error
        patch.apply(destination, begin)

    @cached_property
    def _where(self) -> dict[str, tuple[int, ...]]:
        """Where each block of each tensor begins in the file; the last number is where the tensor ends."""
        found = {}
        begin = 0
        for row in self.shard.tensors:
            found[row.name] = tuple(accumulate((block.stored for block in row.blocks), initial=begin))
            begin += row.stored
        return found

    def _read(self, position: int, destination: memoryview) -> None:
        read_all(self.descriptor, position, destination, file=self.path, expected=self.shard.nbytes)


def ranks_of(source: DeltaSource, manifest: DeltaManifest) -> int:
    """Return the number of ranks that a delta must be for."""
    return source.world_size or max(manifest.world_size, source.rank + 1)


def open_delta(source: DeltaSource, version: str, stack: ExitStack) -> OpenDelta | None:
    """Open what leads the source's rank to `version`; None if there is none for so many ranks.

    Blocks on metadata only.

    Parameters
    ----------
    source : DeltaSource
        Where to look, and whose it must be.
    version : str
        The version that it must lead to.
    stack : ExitStack
        Closes directory and file.

    Raises
    ------
    RefusedError
        If there is one, and what reads it is not installed.
    wsm.strategies.errors.BadInputError
        Of the type that fits what is wrong. Nothing was changed.
    """
    root, rank = str(source.directory), source.rank
    directory = open_held(f"{root}/{DELTAS_DIRECTORY}/{version}", boundary=root, stack=stack)
    if directory is None:
        return None
    where = directory.locate(DELTA_MANIFEST)
    manifest = read_sealed(directory, DELTA_MANIFEST, DeltaManifest)
    if manifest is None:
        raise strategies_errors.differs_from_manifest(
            file=directory.path, problem=f"{DELTA_MANIFEST} is missing"
        )
    if manifest.version != version:
        raise VersionMismatchError(requested=version, found=manifest.version, where=where)
    wanted = ranks_of(source, manifest)
    if manifest.world_size != wanted:
        return None
    if rank >= wanted:
        raise strategies_errors.shard_identity(
            file=where, field="world size", expected=rank + 1, found=wanted
        )
    shard, path = _shard_of(directory, manifest, rank), directory.locate(blocks_name(rank))
    try:
        descriptor = directory.open(blocks_name(rank))
    except FileNotFoundError as error:
        problem = f"{blocks_name(rank)} is missing"
        raise strategies_errors.differs_from_manifest(file=where, problem=problem) from error
    opened = stack.enter_context(closing(OpenDelta(shard, manifest, path, descriptor)))
    size = os.fstat(descriptor).st_size
    if size != shard.nbytes:
        raise strategies_errors.bad_file_size(file=path, expected=shard.nbytes, actual=size)
    codec()
    return opened


def _shard_of(directory: SnapshotDirectory, manifest: DeltaManifest, rank: int) -> DeltaShard:
    """Return the manifest of a rank's delta, if it is the one that the manifest of all lists."""
    name = rank_manifest_name(rank)
    shard = read_sealed(directory, name, DeltaShard)
    if shard is not None:
        shard.require(None, rank, None, where=directory.locate(name))
    shard = manifest.listed(rank, shard, directory=directory.path)
    if shard.base_version != manifest.base_version:
        problem = f"{name} has another base"
        raise strategies_errors.differs_from_manifest(file=directory.locate(DELTA_MANIFEST), problem=problem)
    if not shard.tensors:
        raise strategies_errors.empty_snapshot(where=directory.locate(name))
    return shard
