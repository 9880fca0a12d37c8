"""Writing deltas: what has changed, block by block, beside its manifest; visible once all ranks' are whole.

Base and new tensors are read once, side by side, and digested in the same pass; a block of each is held at a
time. A delta is staged under ``deltas/``.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
from wsm.strategies.delta._published import chain_to, content_digests
from wsm.strategies.digest import running_digest
from wsm.strategies.errors import ManifestError, StorageError, VersionExistsError
from wsm.strategies.files.atomic_file import write_all, write_new
from wsm.strategies.files.snapshot_names import DELTA_MANIFEST, DELTAS_DIRECTORY, VERSIONS_DIRECTORY
from wsm.strategies.offer import OfferedTensor
from wsm.strategies.tensor import ITEM_BYTES, TensorSpec
from wsm.strategies.trainer.retention import Retention, retire, take_away
from wsm.strategies.trainer.staged_directory import StagedDirectory


@dataclass(frozen=True)
class DeltaPlan:
    """Whose delta is written, and how.

    Parameters
    ----------
    version, base_version : str
        From which version to which it leads.
    rank, world_size : int
        Whose it is, of how many.
    publication : str
        What marks every file of this publication.
    block_bytes : int
        Bytes of a tensor that one block stands for.
    durable : bool
        Whether the files must survive a power cut once the call has returned.
    finite : bool
        Whether new tensors that hold NaN or infinity are refused, here and by every load.
    """

    version: str
    base_version: str
    rank: int
    world_size: int
    publication: str
    block_bytes: int = BLOCK_BYTES
    durable: bool = True
    finite: bool = False


def write_delta(
    directory: Path,
    specs: Sequence[TensorSpec],
    tensors: Iterable[OfferedTensor],
    base: Mapping[str, OfferedTensor],
    plan: DeltaPlan,
) -> DeltaShard:
    """Write the blocks of one rank's delta, then its manifest, into `directory`. Blocks.

    Nothing is written before base and new version are seen to be of one model.

    Parameters
    ----------
    directory : path
        Where no reader looks yet; it must exist and hold no delta of this rank.
    specs : sequence of TensorSpec
        What `tensors` will be, known before the first of them is there.
    tensors : iterable of OfferedTensor
        The new tensors.
    base : mapping of str to OfferedTensor
        The tensors of the base, by name.
    plan : DeltaPlan
        Whose delta it is.

    Raises
    ------
    BadInputError
        If base and new version have other tensors, dtypes or shapes.
    BadInputError
        If there is no tensor, or the plan is none.
    BadInputError
        If a tensor was promised by a digest, and is another one.
    TrainerTensorError
        If one is not finite although it is to be.
    StorageError
        If the file system refuses.
    RefusedError
        If what compresses is not installed.
    """
    _check_plan(specs, plan)
    _check_model(specs, base, plan.rank)
    path = directory / blocks_name(plan.rank)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            rows = tuple(_write(descriptor, tensor, base[tensor.spec.name], plan) for tensor in tensors)
            if plan.durable:
                os.fsync(descriptor)
            nbytes = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        shard = DeltaShard(
            version=plan.version,
            base_version=plan.base_version,
            rank=plan.rank,
            world_size=plan.world_size,
            publication=plan.publication,
            block_bytes=plan.block_bytes,
            nbytes=nbytes,
            tensors=rows,
            finite=plan.finite,
        )
        write_new(directory / rank_manifest_name(plan.rank), shard.encode(), durable=plan.durable)
    except OSError as error:
        raise StorageError(path=path, error=error) from error
    return shard


def _check_plan(specs: Sequence[TensorSpec], plan: DeltaPlan) -> None:
    problem = None
    if plan.version == plan.base_version:
        problem = "it cannot be its own base"
    elif not MIN_BLOCK_BYTES <= plan.block_bytes <= MAX_BLOCK_BYTES or plan.block_bytes % MIN_BLOCK_BYTES:
        problem = f"a block cannot stand for {plan.block_bytes} bytes"
    elif not specs:
        problem = f"the state dict of rank {plan.rank} is empty"
    if problem:
        raise strategies_errors.incomplete_publication(version=plan.version, problem=problem)


def _check_model(specs: Sequence[TensorSpec], base: Mapping[str, OfferedTensor], rank: int) -> None:
    ours, theirs = {spec.name: spec for spec in specs}, {name: row.spec for name, row in base.items()}
    different = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
    if different:
        raise delta_errors.delta_of_other_model(rank=rank, tensors=different)


def _write(descriptor: int, tensor: OfferedTensor, base: OfferedTensor, plan: DeltaPlan) -> DeltaTensor:
    try:
        from wsm.strategies.delta import _codec as codec  # noqa: PLC0415 - needs an optional package
    except ImportError as error:
        raise delta_errors.zstandard_missing() from error
    spec = tensor.spec
    old = memoryview(bytearray(min(plan.block_bytes, spec.nbytes)))
    new = memoryview(bytearray(min(plan.block_bytes, spec.nbytes)))
    before, after, stored = running_digest(), running_digest(), running_digest()
    blocks: list[Block] = []
    for begin in range(0, spec.nbytes, plan.block_bytes):
        length = min(plan.block_bytes, spec.nbytes - begin)
        base.read_into(begin, old[:length])
        tensor.read_into(begin, new[:length])
        before.update(old[:length])
        after.update(new[:length])
        if plan.finite:
            check_finite(spec, new[:length], begin)
        block, data = codec.encode(old[:length], new[:length], ITEM_BYTES[spec.dtype])
        stored.update(data)
        write_all(descriptor, data)
        blocks.append(block)
    _check(base, before.hexdigest())
    _check(tensor, after.hexdigest())
    changed = any(block.kind is not BlockKind.SAME for block in blocks)
    return DeltaTensor(
        spec, before.hexdigest(), after.hexdigest(), stored.hexdigest(), tuple(blocks) if changed else ()
    )


def _check(tensor: OfferedTensor, digest: str) -> None:
    if tensor.digest is not None and tensor.digest != digest:
        raise delta_errors.bad_delta(
            file=tensor.origin,
            tensor=tensor.spec.name,
            problem=f"digest {digest} instead of {tensor.digest}",
        )


@dataclass(frozen=True)
class PublishedDelta:
    """The manifests of a delta: the one of all ranks, and each rank's."""

    manifest: DeltaManifest
    shards: tuple[DeltaShard, ...]

    @classmethod
    def of(cls, shards: Sequence[DeltaShard], *, ordinal: int = 0) -> PublishedDelta:
        """Return what the shards of one publication are together, given in rank order."""
        return cls(DeltaManifest.of(shards, ordinal=ordinal), tuple(shards))

    def lacks(self, wanted: PublishedDelta) -> tuple[str, ...] | None:
        """Return what `wanted` promises and this one does not; None if it leads from or to other tensors."""
        if not self.manifest.same_content(wanted.manifest):
            return None
        pairs = zip(self.shards, wanted.shards, strict=True)
        return ("that all is finite",) if any(w.finite and not o.finite for o, w in pairs) else ()


def standing_delta(path: Path) -> PublishedDelta | None:
    """Return what is published in `path`; None if there is nothing, or nothing that is whole."""
    file = path / DELTA_MANIFEST
    try:
        manifest = DeltaManifest.decode(file.read_bytes(), file=str(file))
        shards = tuple(_shard(path, rank) for rank in range(manifest.world_size))
        sizes = [(path / blocks_name(shard.rank)).stat().st_size for shard in shards]
    except (OSError, ManifestError):
        return None
    whole = sizes == [shard.nbytes for shard in shards]
    listed = [shard.digest for shard in shards] == [entry.digest for entry in manifest.shards]
    return PublishedDelta(manifest, shards) if whole and listed else None


def _shard(path: Path, rank: int) -> DeltaShard:
    file = path / rank_manifest_name(rank)
    return DeltaShard.decode(file.read_bytes(), file=str(file))


_MAX_KEPT_CHAIN = 1 << 10


class StagedDelta(StagedDirectory):
    """A delta that is being written.

    Parameters
    ----------
    directory, version, durable : path or str, str or int, bool
        As for every publication; see the base class, also for attributes and errors. The version is the one
        that it leads to.
    """

    def __init__(self, directory: Path | str, version: str | int, *, durable: bool = True) -> None:
        super().__init__(directory, DELTAS_DIRECTORY, version, durable=durable)

    def commit(
        self, shards: Sequence[DeltaShard], *, announce: bool, replace: bool, retain: Retention
    ) -> tuple[DeltaManifest, tuple[str, ...]]:
        """Make the delta visible, then remove those that are no longer kept. Blocks.

        Parameters
        ----------
        shards : sequence of DeltaShard
            What was written, in rank order.
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
        staged = PublishedDelta.of(shards, ordinal=self._ordinal)
        with self._storage():
            write_new(self.path / DELTA_MANIFEST, staged.manifest.encode(), durable=self._durable)
            standing = standing_delta(self.final)
            lacking = None if standing is None else standing.lacks(staged)
            if standing is not None and lacking == ():
                staged = standing  # a publisher that died before the announcement is simply run again
            else:
                self._check_vacant(replace=replace, lacking=lacking)
                self._check_whole(shards)
                self._show()
            if announce:
                self._announce()
        needed = chain_to(self._directory, self.version, _MAX_KEPT_CHAIN)
        kept = dataclasses.replace(retain, protect={*retain.protect, *needed})
        return staged.manifest, retire(self._place, self.version, kept)

    def may_stay(self, shards: Sequence[DeltaShard], *, replace: bool) -> bool:
        """Whether what is there leads to these tensors and promises as much as the whole. Blocks.

        Raises
        ------
        VersionExistsError
            If it does not, and `replace` is false.
        """
        standing = standing_delta(self.final)
        lacking = None if standing is None else standing.lacks(PublishedDelta.of(shards))
        if lacking != ():
            self._check_vacant(replace=replace, lacking=lacking)
        return lacking == ()

    def take_away_standing(self) -> None:
        """Take the delta away that stands there, if any, in one step. Blocks; raises OSError."""
        take_away(self.final)

    def _check_whole(self, shards: Sequence[DeltaShard]) -> None:
        """Refuse a label under which other tensors are published whole: it may mean one content only."""
        whole = content_digests(self._directory, self.version, deltas=False)
        if whole not in (None, tuple(shard.content_digest for shard in shards)):
            raise VersionExistsError(version=self.version, path=str(self._directory / VERSIONS_DIRECTORY))
