"""Publishing a version as a change of an earlier one: the trainer's side in one call.

Where a delta would not pay, because most of it has changed or too many deltas would lie on top of each other,
the whole version is published instead, and the report says so. :func:`delta_between` is for a directory whose
publisher knows no deltas: what it publishes whole is made smaller for those who come from the version before.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, structs

from wsm.errors import RefusedError, UnfitError
from wsm.labels import checked_version
from wsm.strategies import errors as strategies_errors
from wsm.strategies.delta._blocks import BLOCK_BYTES, Block, BlockBytes, BlockKind
from wsm.strategies.delta._manifest import (
    DeltaManifest,
    DeltaShard,
    DeltaTensor,
    blocks_name,
    chain_to,
    content_digests,
    delta_manifest,
    rank_manifest_name,
    whole_manifest,
)
from wsm.strategies.delta.source import MAX_CHAIN, DeltaSource, bad_delta, codec, delta_not_found
from wsm.strategies.delta.strategy import places, published_tensors, whole_offer
from wsm.strategies.digest import running_digest
from wsm.strategies.errors import VersionExistsError, listed
from wsm.strategies.files.atomic_file import write_all, write_new
from wsm.strategies.files.snapshot_names import DELTAS_DIRECTORY, VERSIONS_DIRECTORY
from wsm.strategies.finite import check_finite
from wsm.strategies.offer import OfferedTensor
from wsm.strategies.snapshot.publish import (
    Published,
    SnapshotPublisher,
    StagedVersion,
    standing_publication,
)
from wsm.strategies.snapshot.store import shards_in
from wsm.strategies.tensor import ITEM_BYTES, TensorSpec
from wsm.strategies.trainer.retention import Retention, take_away
from wsm.strategies.trainer.tensors import TrainerReport, TrainerTensors, bytes_of, check_ranks, specs_of
from wsm.typed import Count, typed

_MAX_KEPT_CHAIN = 1 << 10


class StagedDelta(StagedVersion):
    """A delta that is being written.

    Parameters
    ----------
    publisher : SnapshotPublisher
        Where and how.
    version, base_version : str
        The version that it leads to, and the one that it leads from.
    block_bytes : int
        Bytes of a tensor that one block stands for.

    Attributes
    ----------
    shards : list of DeltaShard
        What was written, in rank order.

    Raises
    ------
    BadInputError
        If no such delta can be.
    """

    _place_name = DELTAS_DIRECTORY
    _kind = DeltaManifest

    def __init__(
        self, publisher: SnapshotPublisher, version: str, base_version: str, *, block_bytes: int = BLOCK_BYTES
    ) -> None:
        if version == base_version:
            problem = "it cannot be its own base"
            raise strategies_errors.incomplete_publication(version=version, problem=problem)
        super().__init__(publisher, version)
        self._base_version, self._block_bytes = base_version, block_bytes
        self.shards: list[DeltaShard] = []

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
        BadInputError (``trainer-tensor``)
            If one is not finite although it is to be.
        StorageError
            If the file system refuses.
        RefusedError
            If what compresses is not installed.
        """
        rank = len(self.shards)
        if not specs:
            raise self._incomplete(f"the state dict of rank {rank} is empty")
        different = sorted({spec.name for spec in {*specs} ^ {row.spec for row in base.values()}})
        if different:
            raise UnfitError(
                f"rank {rank} has other tensors, dtypes or shapes than the base version: "
                f"{listed([repr(name) for name in different])}; publish a full version",
                code="delta-of-other-model",
                rank=rank,
                tensors=tuple(different),
            )
        codec()
        with self.shard(rank) as directory:
            with (directory / blocks_name(rank)).open("xb", buffering=0) as file:
                rows = tuple(self._write(file.fileno(), each, base[each.spec.name]) for each in tensors)
                if self._durable:
                    os.fsync(file.fileno())
            shard = DeltaShard(
                **structs.asdict(self.identity(rank)),
                base_version=self._base_version,
                block_bytes=self._block_bytes,
                nbytes=sum(row.stored for row in rows),
                tensors=rows,
                finite=self._publisher.finite,
            )
            write_new(directory / rank_manifest_name(rank), shard.encode(), durable=self._durable)
        self.shards.append(shard)

    def publish(self, *, announce: bool) -> DeltaReport:
        """Make the delta visible, then remove those that lead neither to it nor are kept. Blocks.

        Raises
        ------
        VersionExistsError
            If another delta leads to the version, or one that promises less, and may not be replaced; or the
            whole version is there and holds other tensors.
        StorageError
            If the file system refuses.
        """
        shown = self.seal({shard.rank: shard.seal for shard in self.shards}, announce=announce)
        return self.report(None, shown.path, shown.manifest_digest, shown.retired)

    def publish_whole(self, states: Mapping[int, TrainerTensors], why: str) -> DeltaReport:
        """Publish the whole version instead, and say `why`. Blocks; raises as :meth:`publish`.

        What leads elsewhere goes once the whole is there, and other publishers are kept out meanwhile.
        """
        standing = standing_publication(self.final, DeltaManifest)
        stays = self._is_as_good(standing, Published(DeltaManifest.of(self.shards), tuple(self.shards)))
        for rank in states:  # it is not needed, and the whole needs room
            shutil.rmtree(self._shard_directory(rank), ignore_errors=True)
        with StagedVersion(self._publisher, self.version, lock=self._lock) as whole:
            shown = whole.seal(
                {rank: whole.put(rank, tensors) for rank, tensors in states.items()},
                before_announcing=None if stays else partial(take_away, self.final),
            )
        return self.report(why, shown.path, shown.manifest_digest, shown.retired)

    def report(
        self, whole: str | None, path: str, manifest_digest: str, retired: tuple[str, ...] = ()
    ) -> DeltaReport:
        """Count what was written for all ranks."""
        rows = [row for shard in self.shards for row in shard.tensors]
        unchanged = sum(not row.blocks for row in rows)
        full = sum({block.kind for block in row.blocks} == {BlockKind.FULL} for row in rows)
        return DeltaReport(
            version=self.version,
            base_version=self._base_version,
            path=path,
            whole=whole,
            manifest_digest=manifest_digest,
            digests={shard.rank: shard.content_digest for shard in self.shards},
            bytes=sum(shard.nbytes for shard in self.shards),
            whole_bytes=sum(row.spec.nbytes for row in rows),
            unchanged=unchanged,
            changed=len(rows) - unchanged - full,
            full=full,
            seconds=self._seconds(),
            retired=retired,
        )

    def _manifest_of(self, shards: Sequence[DeltaShard]) -> DeltaManifest:
        whole = whole_manifest(self._directory, self.version)
        manifest = DeltaManifest.of(shards, ordinal=self._ordinal, whole=whole)
        if whole is not None and content_digests(whole) != content_digests(manifest):
            path = str(self._directory / VERSIONS_DIRECTORY)
            raise VersionExistsError(version=self.version, path=path)
        return manifest

    def _retention(self) -> Retention:
        needed = chain_to(self._directory, self.version, _MAX_KEPT_CHAIN)
        retain = self._publisher.retain
        return dataclasses.replace(retain, protect={*retain.protect, *needed})

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
            if self._publisher.finite:
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


def _check(tensor: OfferedTensor, digest: str) -> None:
    if tensor.digest is not None and tensor.digest != digest:
        problem = f"digest {digest} instead of {tensor.digest}"
        raise bad_delta(file=tensor.origin, tensor=tensor.spec.name, problem=problem)


@dataclass(frozen=True, kw_only=True)
class DeltaReport(TrainerReport):
    """What was published, and whether it is a delta at all; its other parameters are those of every version.

    Parameters
    ----------
    base_version : str
        The version that it leads from.
    path : str
        Its directory.
    whole : str or None
        Why the whole version was published instead: ``size`` or ``chain``; None: it is a delta.
    whole_bytes : int
        Bytes of all tensors; `bytes` is the size of all blocks.
    unchanged, changed, full : int
        Tensors of all ranks that have not changed, that are there as changes, that are there in full.
    retired : tuple of str
        Versions whose deltas (or, if `whole`, whose files) were removed.
    """

    base_version: str
    path: str
    whole: str | None
    whole_bytes: int
    unchanged: int
    changed: int
    full: int
    retired: tuple[str, ...]

    @property
    def ratio(self) -> float:
        """Bytes of the delta as a part of those of the whole version."""
        return self.bytes / self.whole_bytes if self.whole_bytes else 0.0


#: A delta that is larger than this part of the whole version is not published.
CROSSOVER = 0.6


@typed
def publish_delta(
    directory: Path | str,
    version: str | int,
    base_version: str | int,
    states: Mapping[int, TrainerTensors],
    *,
    base: Mapping[int, TrainerTensors] | None = None,
    crossover: Annotated[float, Meta(ge=0)] = CROSSOVER,
    max_chain: Count = MAX_CHAIN,
    block_bytes: BlockBytes = BLOCK_BYTES,
    **options: Any,
) -> DeltaReport:
    """Publish what turns `base_version` into `version`, and announce the version. Blocks.

    Parameters
    ----------
    directory : path or str
        Where versions are published, whole ones by :func:`wsm.strategies.publish_snapshot`.
    version, base_version : str or int
        From which version to which it leads.
    states : mapping of int to mapping
        Per rank 0..world size - 1, its new state dict (:mod:`wsm.strategies.trainer.tensors`).
    base : mapping of int to mapping, optional
        Per rank, the state dict of the base version, which the trainer has kept. Without it, it is read from
        the directory.
    crossover : float
        The whole version is published if the delta is larger than this part of it.
    max_chain : int
        The whole version is published if more deltas would follow each other: a rank that was replaced has to
        read them all.
    block_bytes : int
        Bytes of a tensor that are compressed together: a multiple of 4096 up to 2**24.
    **options
        As for :class:`wsm.strategies.SnapshotPublisher`: `device_ids`, `finite`, `retain`, `replace`,
        `durable`. Deltas that lead from a whole version to this one stay besides those of `retain`.

    Raises
    ------
    BadInputError
        If base and new version have other tensors, dtypes or shapes. Nothing became visible.
    RefusedError
        If `base` is not what is published as `base_version`. Nothing became visible.
    BadInputError
        If the base was to be read from the directory and is not there.
    VersionExistsError, PublisherBusyError, StorageError, RefusedError
        If it cannot be published now. Nothing became visible.
    BadInputError
        If what was handed over is no version. Nothing became visible.
    """
    version, base_version = checked_version(version), checked_version(base_version)
    check_ranks(version, states)
    if base is not None and base.keys() != states.keys():
        problem = f"bases for ranks {sorted(base)} were given, and states for ranks {sorted(states)}"
        raise strategies_errors.incomplete_publication(version=version, problem=problem)
    directory = Path(directory)
    publisher = SnapshotPublisher(directory, len(states), **options)
    with StagedDelta(publisher, version, base_version, block_bytes=block_bytes) as staged:
        for rank in range(len(states)):
            device = (publisher.device_ids or {}).get(rank, rank)
            source = DeltaSource(
                directory, rank, device_id=device, world_size=len(states), max_chain=max_chain
            )
            with ExitStack() as stack:
                if base is None:
                    before = published_tensors(source, base_version, stack)
                else:
                    before = {tensor.spec.name: tensor for tensor in _from_trainer(base[rank])}
                staged.write(specs_of(states[rank]), _from_trainer(states[rank]), before)
        _check_published(directory, base_version, staged.shards)
        whole = None if _is_small(staged.shards, crossover) else "size"
        if whole is None and len(chain_to(directory, base_version, max_chain)) >= max_chain:
            whole = "chain"
        return staged.publish(announce=True) if whole is None else staged.publish_whole(states, whole)


@typed
def delta_between(
    directory: Path | str,
    base_version: str | int,
    version: str | int,
    *,
    crossover: Annotated[float, Meta(ge=0)] = CROSSOVER,
    block_bytes: BlockBytes = BLOCK_BYTES,
    **options: Any,
) -> DeltaReport:
    """Put the delta from `base_version` to `version` beside them. Blocks; announces nothing.

    Parameters
    ----------
    directory : path or str
        Holds `version` whole, and `base_version` whole or as deltas on a whole one.
    base_version, version : str or int
        From which version to which it leads.
    crossover : float
        Nothing is written if the delta would be larger than this part of the whole version.
    block_bytes, **options
        As for :func:`wsm.strategies.publish_delta`; what was promised to be finite is so in the delta.

    Returns
    -------
    DeltaReport
        Its ``whole`` is ``size`` if nothing was written.

    Raises
    ------
    wsm.errors.WsmError
        As a load of either version, and as :func:`wsm.strategies.publish_delta`. Nothing became visible.
    """
    version, base_version = checked_version(version), checked_version(base_version)
    directory = Path(directory)
    shards = shards_in(directory, version)
    sources = [DeltaSource(directory, rank, device_id=device) for rank, device in shards]
    with ExitStack() as stack:
        offers = []
        for source in sources:
            if (offer := whole_offer(source, version, stack)) is None:
                looked_at = places(source, version)[1:]
                raise delta_not_found(version=version, rank=source.rank, looked_at=looked_at)
            offers.append(offer)
        finite = all(tensor.finite for offer in offers for tensor in offer.tensors)
        publisher = SnapshotPublisher(directory, len(sources), finite=finite, **options)
        with StagedDelta(publisher, version, base_version, block_bytes=block_bytes) as staged:
            for source, offer in zip(sources, offers, strict=True):
                tensors = tuple(offer.tensors)
                with ExitStack() as base:
                    before = published_tensors(source, base_version, base)
                    staged.write([tensor.spec for tensor in tensors], tensors, before)
            if _is_small(staged.shards, crossover):
                return staged.publish(announce=False)
            path = f"{directory}/{VERSIONS_DIRECTORY}/{version}"
            return staged.report("size", path, offers[0].manifest_digest or "")


def _from_trainer(tensors: TrainerTensors) -> Iterator[OfferedTensor]:
    for spec in specs_of(tensors):
        yield OfferedTensor.of_bytes(spec, "the trainer", bytes_of(tensors, spec))


def _is_small(shards: Sequence[DeltaShard], crossover: float) -> bool:
    whole = sum(row.spec.nbytes for shard in shards for row in shard.tensors)
    return sum(shard.nbytes for shard in shards) <= crossover * whole


def _check_published(directory: Path, base_version: str, shards: Sequence[DeltaShard]) -> None:
    """Refuse a base that readers would never hold, since something else is published under its number."""
    published = whole_manifest(directory, base_version) or delta_manifest(directory, base_version)
    for shard, expected in zip(shards, content_digests(published) if published else (), strict=False):
        if shard.base_digest != expected:
            raise RefusedError(
                f"the base that was handed over for rank {shard.rank} has digest {shard.base_digest}, but "
                f"version {base_version} was published in {directory} with digest {expected}; hand over that "
                "version's tensors, leave the base out to have it read from there, or publish a full version",
                code="delta-base-not-published",
                unfit=True,
                base_version=base_version,
                rank=shard.rank,
                expected=expected,
                actual=shard.base_digest,
                where=str(directory),
            )
