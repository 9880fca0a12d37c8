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
from pathlib import Path
from typing import Annotated, NamedTuple

from msgspec import Meta

from wsm.clock import Clock, SystemClock
from wsm.errors import BadInputError, RefusedError
from wsm.labels import checked_version
from wsm.strategies import errors as strategies_errors
from wsm.strategies.applier.finite import check_finite
from wsm.strategies.delta import errors as delta_errors
from wsm.strategies.delta._blocks import BLOCK_BYTES, MAX_BLOCK_BYTES, MIN_BLOCK_BYTES, Block, BlockKind
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
from wsm.strategies.delta._route import places, whole_offer
from wsm.strategies.delta.errors import delta_not_found
from wsm.strategies.delta.source import MAX_CHAIN, DeltaSource, codec
from wsm.strategies.delta.strategy import published_tensors
from wsm.strategies.digest import running_digest
from wsm.strategies.errors import ManifestError, VersionExistsError, listed
from wsm.strategies.files.atomic_file import write_all, write_new
from wsm.strategies.files.snapshot_names import DELTA_MANIFEST, DELTAS_DIRECTORY, VERSIONS_DIRECTORY
from wsm.strategies.offer import OfferedTensor
from wsm.strategies.snapshot.publish import SnapshotPublisher, StagedVersion
from wsm.strategies.snapshot.store import shards_in
from wsm.strategies.tensor import ITEM_BYTES, TensorSpec
from wsm.strategies.trainer.retention import KEEP_TWO, Retention, retire, take_away
from wsm.strategies.trainer.staged_directory import StagedDirectory
from wsm.strategies.trainer.tensors import TrainerTensors, bytes_of, specs_of
from wsm.typed import Count, typed

_MAX_KEPT_CHAIN = 1 << 10


class Shown(NamedTuple):
    """What readers find of a version: where, the digest of its publication, and what was removed for it."""

    path: str
    manifest_digest: str
    retired: tuple[str, ...]


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

    Attributes
    ----------
    shards : list of DeltaShard
        What was written, in rank order.

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
        TrainerTensorError
            If one is not finite although it is to be.
        StorageError
            If the file system refuses.
        RefusedError
            If what compresses is not installed.
        """
        rank = len(self.shards)
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
        self.shards.append(shard)

    def commit(self, *, announce: bool, replace: bool, retain: Retention) -> Shown:
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
        Shown
            What stands there now; removed were the deltas to older versions.

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
                    manifest = DeltaManifest.of(self.shards, ordinal=self._ordinal, whole=whole)
                write_new(self.path / DELTA_MANIFEST, manifest.encode(), durable=self._durable)
                self._show()
            if announce:
                self._announce()
        needed = chain_to(self._directory, self.version, _MAX_KEPT_CHAIN)
        kept = dataclasses.replace(retain, protect={*retain.protect, *needed})
        retired = retire(self._place, self.version, kept)
        return Shown(str(self.final), manifest.group_digest, retired)

    def standing(self, *, replace: bool) -> DeltaManifest | None:
        """Return what is there, if it leads to these tensors and promises as much as was written. Blocks.

        Raises
        ------
        VersionExistsError
            If something else is there, and `replace` is false.
        """
        manifest, lacking = self._standing(), None
        if manifest is not None and manifest[0].same_content(self._manifest()):
            if all(old.finite or not new.finite for old, new in zip(manifest[1], self.shards, strict=True)):
                return manifest[0]
            lacking = ("that all is finite",)
        self._check_vacant(replace=replace, lacking=lacking)
        return None

    def take_away_standing(self) -> None:
        """Take the delta away that stands there, if any, in one step. Blocks; raises OSError."""
        take_away(self.final)

    def _manifest(self) -> DeltaManifest:
        return DeltaManifest.of(self.shards, ordinal=self._ordinal)

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


@dataclass(frozen=True)
class DeltaReport:
    """What was published, and whether it is a delta at all.

    Parameters
    ----------
    version, base_version : str
        From which version to which it leads.
    path : str
        Its directory.
    whole : str or None
        Why the whole version was published instead: ``size`` or ``chain``; None: it is a delta.
    manifest_digest : str
        Digest of the manifest; what every rank's load reports.
    digests : mapping of int to str
        Digest of the tensors of each rank.
    bytes, whole_bytes : int
        Bytes of all blocks, and of all tensors.
    unchanged, changed, full : int
        Tensors of all ranks that have not changed, that are there as changes, that are there in full.
    seconds : float
        From the first byte to the announcement.
    retired : tuple of str
        Versions whose deltas (or, if `whole`, whose files) were removed.
    """

    version: str
    base_version: str
    path: str
    whole: str | None
    manifest_digest: str
    digests: Mapping[int, str]
    bytes: int
    whole_bytes: int
    unchanged: int
    changed: int
    full: int
    seconds: float
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
    device_ids: Mapping[int, int] | None = None,
    block_bytes: Count = BLOCK_BYTES,
    retain: Retention = KEEP_TWO,
    replace: bool = False,
    durable: bool = True,
    finite: bool = False,
    clock: Clock | None = None,
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
    device_ids : mapping of int to int, optional
        Per rank, the device id in the names of whole files; the rank itself where not given.
    block_bytes : int
        Bytes of a tensor that are compressed together: a multiple of 4096 up to 2**24.
    retain : Retention
        Which older deltas stay, apart from those that lead from a whole version to this one.
    replace : bool
        Whether a version of this label may be replaced that has other content, or promises less.
    durable : bool
        Whether it must survive a power cut once the call has returned.
    finite : bool
        Refuse NaN and infinity in the new version here, and have every load refuse them.
    clock : Clock, optional
        For the seconds in the report.

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
    BadInputError, TrainerTensorError
        If what was handed over is no version. Nothing became visible.
    """
    version, base_version = checked_version(version), checked_version(base_version)
    ranks = sorted(states)
    if not ranks or ranks != list(range(len(ranks))) or (base is not None and sorted(base) != ranks):
        bases = "" if base is None else f", bases for ranks {sorted(base)}"
        raise strategies_errors.incomplete_publication(
            version=version, problem=f"states were given for ranks {ranks}{bases}"
        )
    clock = clock or SystemClock()
    begun = clock.monotonic_ns()
    directory = Path(directory)
    devices = {rank: (device_ids or {}).get(rank, rank) for rank in ranks}
    with StagedDelta(
        directory,
        version,
        base_version,
        world_size=len(states),
        block_bytes=block_bytes,
        durable=durable,
        finite=finite,
    ) as staged:
        for rank in ranks:
            source = DeltaSource(
                directory, rank, device_id=devices[rank], world_size=len(states), max_chain=max_chain
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
        if whole is None:
            shown = staged.commit(announce=True, replace=replace, retain=retain)
        else:
            shown = _shown_whole(
                staged, states, devices, replace=replace, retain=retain, finite=finite, durable=durable
            )
    return _report(staged.shards, shown, whole, seconds=(clock.monotonic_ns() - begun) / 1e9)


@typed
def delta_between(
    directory: Path | str,
    base_version: str | int,
    version: str | int,
    *,
    crossover: Annotated[float, Meta(ge=0)] = CROSSOVER,
    block_bytes: Count = BLOCK_BYTES,
    retain: Retention = KEEP_TWO,
    replace: bool = False,
    durable: bool = True,
    clock: Clock | None = None,
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
    block_bytes, retain, replace, durable, clock
        As for :func:`wsm.strategies.publish_delta`.

    Returns
    -------
    DeltaReport
        Its ``whole`` is ``size`` if nothing was written.

    Raises
    ------
    wsm.errors.WsmError
        As a load of either version, and as :func:`wsm.strategies.publish_delta`. Nothing became visible.
    """
    clock = clock or SystemClock()
    begun = clock.monotonic_ns()
    version, base_version = checked_version(version), checked_version(base_version)
    directory = Path(directory)
    shards = shards_in(directory, version)
    sources = [DeltaSource(directory, rank, device_id=device) for rank, device in shards]
    with ExitStack() as stack:
        offers = []
        for source in sources:
            offer = whole_offer(source, version, stack)
            if offer is None:
                raise delta_not_found(
                    version=version, rank=source.rank, looked_at=places(source, version)[1:]
                )
            offers.append(offer)
        with StagedDelta(
            directory,
            version,
            base_version,
            world_size=len(sources),
            block_bytes=block_bytes,
            durable=durable,
            # What was promised of the whole version is promised of what leads to it.
            finite=all(tensor.finite for offer in offers for tensor in offer.tensors),
        ) as staged:
            for source, offer in zip(sources, offers, strict=True):
                tensors = tuple(offer.tensors)
                with ExitStack() as base:
                    before = published_tensors(source, base_version, base)
                    staged.write([tensor.spec for tensor in tensors], tensors, before)
            whole = None if _is_small(staged.shards, crossover) else "size"
            if whole is None:
                shown = staged.commit(announce=False, replace=replace, retain=retain)
            else:
                path = f"{directory}/{VERSIONS_DIRECTORY}/{version}"
                shown = Shown(path, offers[0].manifest_digest or "", ())
    return _report(staged.shards, shown, whole, seconds=(clock.monotonic_ns() - begun) / 1e9)


def _shown_whole(
    staged: StagedDelta,
    states: Mapping[int, TrainerTensors],
    devices: Mapping[int, int],
    *,
    replace: bool,
    retain: Retention,
    finite: bool,
    durable: bool,
) -> Shown:
    """Publish the whole version instead of a delta that was staged."""
    # What leads elsewhere goes once the whole is there, and other publishers are kept out meanwhile.
    clears = staged.standing(replace=replace) is None
    shutil.rmtree(staged.path, ignore_errors=True)  # it is not needed, and the whole needs room
    publisher = SnapshotPublisher(
        staged.final.parents[1],
        world_size=len(states),
        device_ids=devices,
        finite=finite,
        retain=retain,
        replace=replace,
        durable=durable,
    )
    with StagedVersion(publisher, staged.version, within=staged) as instead:
        published = instead.seal(
            {rank: instead.put(rank, tensors) for rank, tensors in states.items()},
            before_announcing=staged.take_away_standing if clears else None,
        )
    return Shown(published.path, published.manifest_digest, published.retired)


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


def _report(shards: Sequence[DeltaShard], shown: Shown, whole: str | None, *, seconds: float) -> DeltaReport:
    """Count what was written for all ranks."""
    rows = [row for shard in shards for row in shard.tensors]
    unchanged, full = sum(not row.blocks for row in rows), sum(row.is_full for row in rows)
    return DeltaReport(
        version=shards[0].version,
        base_version=shards[0].base_version,
        whole=whole,
        digests={shard.rank: shard.content_digest for shard in shards},
        bytes=sum(shard.nbytes for shard in shards),
        whole_bytes=sum(row.spec.nbytes for row in rows),
        unchanged=unchanged,
        changed=len(rows) - unchanged - full,
        full=full,
        seconds=seconds,
        **shown._asdict(),
    )
