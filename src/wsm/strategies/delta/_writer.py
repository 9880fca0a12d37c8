"""Writing deltas: what has changed, block by block, beside its manifest; visible once all ranks' are whole.

Base and new tensors are read once, side by side, and digested in the same pass; a block of each is held at a
time. A delta is staged under ``deltas/``.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from wsm.errors import BadInputError
from wsm.strategies import errors as strategies_errors
from wsm.strategies.applier.finite import check_finite
from wsm.strategies.delta import errors as delta_errors
from wsm.strategies.delta._blocks import BLOCK_BYTES, MAX_BLOCK_BYTES, MIN_BLOCK_BYTES, Block, BlockKind
from wsm.strategies.delta._manifest import (
    DeltaManifest,
    DeltaShard,
    DeltaTensor,
    blocks_name,
    rank_manifest_name,
)
from wsm.strategies.delta._published import chain_to, content_digests, whole_manifest
from wsm.strategies.delta.source import codec
from wsm.strategies.digest import running_digest
from wsm.strategies.errors import ManifestError, VersionExistsError, listed
from wsm.strategies.files.atomic_file import write_all, write_new
from wsm.strategies.files.snapshot_names import DELTA_MANIFEST, DELTAS_DIRECTORY, VERSIONS_DIRECTORY
from wsm.strategies.offer import OfferedTensor
from wsm.strategies.tensor import ITEM_BYTES, TensorSpec
from wsm.strategies.trainer.retention import Retention, retire, take_away
from wsm.strategies.trainer.staged_directory import StagedDirectory

_MAX_KEPT_CHAIN = 1 << 10


class StagedDelta(StagedDirectory):
    """A delta that is being written.

    Parameters
    ----------
    directory, version, durable : path or str, str or int, bool
        As for every publication; see the base class, also for attributes and errors. The version is the one
        that it leads to.
    base_version : str
        The version that it leads from.
    world_size : int
        Number of ranks that it is for.
    block_bytes : int
        Bytes of a tensor that one block stands for.
    finite : bool
        Whether new tensors that hold NaN or infinity are refused, here and by every load.

    Raises
    ------
    BadInputError
        If no such delta can be.
    """

    def __init__(
        self,
        directory: Path | str,
        version: str | int,
        base_version: str,
        *,
        world_size: int,
        block_bytes: int = BLOCK_BYTES,
        durable: bool = True,
        finite: bool = False,
    ) -> None:
        problem = None
        if version == base_version:
            problem = "it cannot be its own base"
        elif not MIN_BLOCK_BYTES <= block_bytes <= MAX_BLOCK_BYTES or block_bytes % MIN_BLOCK_BYTES:
            problem = f"a block cannot stand for {block_bytes} bytes"
        if problem is not None:
            raise strategies_errors.incomplete_publication(version=str(version), problem=problem)
        super().__init__(directory, DELTAS_DIRECTORY, version, durable=durable)
        self._base_version, self._world_size = base_version, world_size
        self._block_bytes, self._finite = block_bytes, finite
        self._shards: list[DeltaShard] = []

    @property
    def shards(self) -> Sequence[DeltaShard]:
        """What was written, in rank order."""
        return self._shards

    def write(
        self,
        specs: Sequence[TensorSpec],
        tensors: Iterable[OfferedTensor],
        base: Mapping[str, OfferedTensor],
    ) -> None:
        """Write the blocks of the next rank's delta, then its manifest. Blocks.

        Nothing is written before base and new version are seen to be of one model.

        Parameters
        ----------
        specs : sequence of TensorSpec
            What `tensors` will be, known before the first of them is there.
        tensors : iterable of OfferedTensor
            The new tensors.
        base : mapping of str to OfferedTensor
            The tensors of the base, by name.

        Raises
        ------
        BadInputError
            If there is no tensor, or base and new version have other tensors, dtypes or shapes, or a tensor
            is not what was promised by a digest.
        TrainerTensorError
            If one is not finite although it is to be.
        StorageError
            If the file system refuses.
        RefusedError
            If what compresses is not installed.
        """
        rank = len(self._shards)
        if not specs:
            raise strategies_errors.incomplete_publication(
                version=self.version, problem=f"the state dict of rank {rank} is empty"
            )
        _check_model(specs, base, rank)
        codec()
        path = self.path / blocks_name(rank)
        with self._storage(), path.open("xb", buffering=0) as file:
            rows = tuple(self._write(file.fileno(), each, base[each.spec.name]) for each in tensors)
            if self._durable:
                os.fsync(file.fileno())
            shard = DeltaShard(
                version=self.version,
                base_version=self._base_version,
                rank=rank,
                world_size=self._world_size,
                publication=self.publication,
                block_bytes=self._block_bytes,
                nbytes=sum(row.stored for row in rows),
                tensors=rows,
                finite=self._finite,
            )
            write_new(self.path / rank_manifest_name(rank), shard.encode(), durable=self._durable)
        self._shards.append(shard)

    def commit(
        self, *, announce: bool, replace: bool, retain: Retention
    ) -> tuple[DeltaManifest, tuple[str, ...]]:
        """Make the delta visible, then remove those that are no longer kept. Blocks.

        Parameters
        ----------
        announce : bool
            Whether ``version.yaml`` names the version from now on.
        replace : bool
            Whether another delta to the same version may be replaced.
        retain : Retention
            Which older deltas stay, apart from those that lead to this one.

        Returns
        -------
        tuple of DeltaManifest and tuple of str
            What stands there now, and the versions whose deltas were removed.

        Raises
        ------
        VersionExistsError
            If another delta leads to the version, or one that promises less, and `replace` is false; or the
            whole version is there and holds other tensors.
        StorageError
            If the file system refuses.
        """
        manifest, standing = self._manifest(), self.standing(replace=replace)
        if standing is not None:
            manifest = standing  # a publisher that died before the announcement is simply run again
        with self._storage():
            if standing is None:
                whole = whole_manifest(self._directory, self.version)
                if whole is not None:
                    if content_digests(whole) != content_digests(manifest):
                        path = str(self._directory / VERSIONS_DIRECTORY)
                        raise VersionExistsError(version=self.version, path=path)
                    manifest = DeltaManifest.of(self._shards, ordinal=self._ordinal, whole=whole)
                write_new(self.path / DELTA_MANIFEST, manifest.encode(), durable=self._durable)
                self._show()
            if announce:
                self._announce()
        needed = chain_to(self._directory, self.version, _MAX_KEPT_CHAIN)
        kept = dataclasses.replace(retain, protect={*retain.protect, *needed})
        return manifest, retire(self._place, self.version, kept)

    def standing(self, *, replace: bool) -> DeltaManifest | None:
        """Return what is there, if it leads to these tensors and promises as much as was written. Blocks.

        Raises
        ------
        VersionExistsError
            If something else is there, and `replace` is false.
        """
        found, lacking = self._standing(), None
        if found is not None and found[0].same_content(self._manifest()):
            promised = all(
                old.finite or not new.finite for old, new in zip(found[1], self._shards, strict=True)
            )
            if promised:
                return found[0]
            lacking = ("that all is finite",)
        self._check_vacant(replace=replace, lacking=lacking)
        return None

    def take_away_standing(self) -> None:
        """Take the delta away that stands there, if any, in one step. Blocks; raises OSError."""
        take_away(self.final)

    def _manifest(self) -> DeltaManifest:
        return DeltaManifest.of(self._shards, ordinal=self._ordinal)

    def _standing(self) -> tuple[DeltaManifest, list[DeltaShard]] | None:
        """Return the manifests that stand there; None if there is nothing, or nothing that is whole."""
        file = self.final / DELTA_MANIFEST
        try:
            manifest = DeltaManifest.decode(file.read_bytes(), file=str(file))
            files = [self.final / rank_manifest_name(rank) for rank in range(manifest.world_size)]
            shards = [DeltaShard.decode(each.read_bytes(), file=str(each)) for each in files]
            sizes = [(self.final / blocks_name(shard.rank)).stat().st_size for shard in shards]
        except (OSError, ManifestError):
            return None
        listed_seals = [entry.seal for entry in manifest.shards]
        whole = sizes == [shard.nbytes for shard in shards]
        return (manifest, shards) if whole and [shard.seal for shard in shards] == listed_seals else None

    def _write(self, descriptor: int, tensor: OfferedTensor, base: OfferedTensor) -> DeltaTensor:
        spec, block_bytes = tensor.spec, self._block_bytes
        old = memoryview(bytearray(min(block_bytes, spec.nbytes)))
        new = memoryview(bytearray(min(block_bytes, spec.nbytes)))
        before, after, stored = running_digest(), running_digest(), running_digest()
        blocks: list[Block] = []
        for begin in range(0, spec.nbytes, block_bytes):
            length = min(block_bytes, spec.nbytes - begin)
            base.read_into(begin, old[:length])
            tensor.read_into(begin, new[:length])
            before.update(old[:length])
            after.update(new[:length])
            if self._finite:
                check_finite(spec, new[:length], begin)
            block, data = codec().encode(old[:length], new[:length], ITEM_BYTES[spec.dtype])
            stored.update(data)
            write_all(descriptor, data)
            blocks.append(block)
        _check(base, before.hexdigest())
        _check(tensor, after.hexdigest())
        changed = any(block.kind is not BlockKind.SAME for block in blocks)
        return DeltaTensor(
            name=spec.name,
            dtype=spec.dtype,
            shape=spec.shape,
            base_digest=before.hexdigest(),
            digest=after.hexdigest(),
            stored_digest=stored.hexdigest(),
            blocks=tuple(blocks) if changed else (),
        )


def _check_model(specs: Sequence[TensorSpec], base: Mapping[str, OfferedTensor], rank: int) -> None:
    ours, theirs = {spec.name: spec for spec in specs}, {name: row.spec for name, row in base.items()}
    different = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
    if different:
        raise BadInputError(
            f"rank {rank} has other tensors, dtypes or shapes than the base version: "
            f"{listed([repr(name) for name in different])}; publish a full version",
            code="delta-of-other-model",
            unfit=True,
            rank=rank,
            tensors=tuple(different),
        )


def _check(tensor: OfferedTensor, digest: str) -> None:
    if tensor.digest is not None and tensor.digest != digest:
        raise delta_errors.bad_delta(
            file=tensor.origin,
            tensor=tensor.spec.name,
            problem=f"digest {digest} instead of {tensor.digest}",
        )
