"""Publishing a version as a change of an earlier one: the trainer's side in one call.

Where a delta would not pay, because most of it has changed or too many deltas would lie on top of each other,
the whole version is published instead, and the report says so. :func:`delta_between` is for a directory whose
publisher knows no deltas: what it publishes whole is made smaller for those who come from the version before.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from wsm.clock import Clock, SystemClock
from wsm.errors import RefusedError
from wsm.labels import checked_version
from wsm.strategies import errors as strategies_errors
from wsm.strategies.delta._blocks import BLOCK_BYTES
from wsm.strategies.delta._manifest import DeltaShard
from wsm.strategies.delta._published import chain_to, content_digests, delta_manifest, whole_manifest
from wsm.strategies.delta._route import places, whole_offer
from wsm.strategies.delta._writer import StagedDelta
from wsm.strategies.delta.errors import delta_not_found
from wsm.strategies.delta.source import MAX_CHAIN, DeltaSource
from wsm.strategies.delta.strategy import published_tensors
from wsm.strategies.files.snapshot_names import VERSIONS_DIRECTORY
from wsm.strategies.offer import OfferedTensor
from wsm.strategies.snapshot.publish import Published, StagedVersion
from wsm.strategies.snapshot.store import shards_in
from wsm.strategies.tensor import TensorSpec
from wsm.strategies.trainer.retention import KEEP_TWO, Retention
from wsm.strategies.trainer.tensors import TrainerTensors, bytes_of, specs_of
from wsm.typed import Count, typed


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
        for rank, device_id in devices.items():
            source = DeltaSource(
                directory, rank, device_id=device_id, world_size=len(states), max_chain=max_chain
            )
            with ExitStack() as stack:
                if base is None:
                    before = published_tensors(source, base_version, stack)
                else:
                    before = {spec.name: _from_trainer(base[rank], spec) for spec in specs_of(base[rank])}
                specs = specs_of(states[rank])
                staged.write(specs, (_from_trainer(states[rank], spec) for spec in specs), before)
        _check_published(directory, base_version, staged.shards)
        whole = None if _is_small(staged.shards, crossover) else "size"
        if whole is None and len(chain_to(directory, base_version, max_chain)) >= max_chain:
            whole = "chain"
        if whole is None:
            manifest, retired = staged.commit(announce=True, replace=replace, retain=retain)
            path, digest = str(staged.final), manifest.group_digest
        else:
            published = _publish_whole(
                staged, states, devices, replace=replace, retain=retain, finite=finite, durable=durable
            )
            path, digest, retired = published.path, published.manifest.group_digest, published.retired
    return _report(
        staged.shards, begun, clock, path=path, whole=whole, manifest_digest=digest, retired=retired
    )


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
            path, whole = str(staged.final), None
            if _is_small(staged.shards, crossover):
                manifest, retired = staged.commit(announce=False, replace=replace, retain=retain)
                digest: str = manifest.group_digest
            else:
                path, whole = f"{directory}/{VERSIONS_DIRECTORY}/{version}", "size"
                digest, retired = offers[0].manifest_digest or "", ()
    return _report(
        staged.shards, begun, clock, path=path, whole=whole, manifest_digest=digest, retired=retired
    )


def _publish_whole(
    staged: StagedDelta,
    states: Mapping[int, TrainerTensors],
    devices: Mapping[int, int],
    *,
    replace: bool,
    retain: Retention,
    finite: bool,
    durable: bool,
) -> Published:
    """Publish the whole version instead of a delta that was staged."""
    # What leads elsewhere goes once the whole is there, and other publishers are kept out meanwhile.
    clears = staged.standing(replace=replace) is None
    shutil.rmtree(staged.path, ignore_errors=True)  # it is not needed, and the whole needs room
    with StagedVersion(
        staged.final.parents[1], staged.version, world_size=len(states), durable=durable, within=staged
    ) as instead:
        for rank, tensors in states.items():
            instead.plan(rank, device_id=devices[rank], finite=finite).write(tensors)
        return instead.commit(
            replace=replace,
            retain=retain,
            before_announcing=staged.take_away_standing if clears else None,
        )


def _from_trainer(tensors: TrainerTensors, spec: TensorSpec) -> OfferedTensor:
    return OfferedTensor.of_bytes(spec, "the trainer", bytes_of(tensors, spec))


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


def _report(
    shards: Sequence[DeltaShard],
    begun_ns: int,
    clock: Clock,
    *,
    path: str,
    whole: str | None,
    manifest_digest: str,
    retired: tuple[str, ...],
) -> DeltaReport:
    """Count what was written for all ranks."""
    rows = [row for shard in shards for row in shard.tensors]
    unchanged, full = sum(not row.blocks for row in rows), sum(row.is_full for row in rows)
    return DeltaReport(
        version=shards[0].version,
        base_version=shards[0].base_version,
        path=path,
        whole=whole,
        manifest_digest=manifest_digest,
        digests={shard.rank: shard.content_digest for shard in shards},
        bytes=sum(shard.nbytes for shard in shards),
        whole_bytes=sum(row.spec.nbytes for row in rows),
        unchanged=unchanged,
        changed=len(rows) - unchanged - full,
        full=full,
        seconds=(clock.monotonic_ns() - begun_ns) / 1e9,
        retired=retired,
    )
