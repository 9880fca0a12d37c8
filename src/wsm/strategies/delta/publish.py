"""Publishing a version as a change of an earlier one: the trainer's side in one call.

Where a delta would not pay, because most of it has changed or too many deltas would lie on top of each other,
the whole version is published instead, and the report says so.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from wsm.clock import Clock, SystemClock
from wsm.labels import checked_version
from wsm.strategies import errors as strategies_errors
from wsm.strategies.delta import errors as delta_errors
from wsm.strategies.delta._blocks import BLOCK_BYTES
from wsm.strategies.delta._manifest import DeltaShard
from wsm.strategies.delta._published import chain_to, content_digests
from wsm.strategies.delta._writer import DeltaPlan, StagedDelta, write_delta
from wsm.strategies.delta.source import MAX_CHAIN, DeltaSource
from wsm.strategies.delta.strategy import published_tensors
from wsm.strategies.files.snapshot_names import DELTAS_DIRECTORY
from wsm.strategies.offer import OfferedTensor
from wsm.strategies.snapshot.publish import StagedVersion
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

    @classmethod
    def of(
        cls,
        shards: Sequence[DeltaShard],
        *,
        path: str,
        whole: str | None,
        manifest_digest: str,
        seconds: float,
        retired: tuple[str, ...],
    ) -> DeltaReport:
        """Count what was written for all ranks."""
        rows = [row for shard in shards for row in shard.tensors]
        unchanged, full = sum(not row.blocks for row in rows), sum(row.is_full for row in rows)
        return cls(
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
            seconds=seconds,
            retired=retired,
        )


#: A delta that is larger than this part of the whole version is not published.
CROSSOVER = 0.6

_NANOSECONDS = 1_000_000_000


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
    _check_ranks(version, states, base)
    clock = clock or SystemClock()
    begun = clock.monotonic_ns()
    devices = {rank: (device_ids or {}).get(rank, rank) for rank in sorted(states)}
    sources = _sources(directory, devices, max_chain)
    with StagedDelta(directory, version, durable=durable) as staged:
        plan = DeltaPlan(
            version=version,
            base_version=base_version,
            rank=0,
            world_size=len(states),
            publication=staged.publication,
            block_bytes=block_bytes,
            durable=durable,
            finite=finite,
        )
        shards = [_write(staged.path, plan, states, base, source) for source in sources]
        _check_published(directory, base_version, shards)
        whole = _whole_instead(directory, base_version, shards, crossover, max_chain)
        if whole is None:
            manifest, retired = staged.commit(shards, announce=True, replace=replace, retain=retain)
            path, digest = f"{directory}/{DELTAS_DIRECTORY}/{version}", manifest.digest
        else:
            # What leads elsewhere goes once the whole is there, and other publishers are kept out meanwhile.
            clears = not staged.may_stay(shards, replace=replace)
            shutil.rmtree(staged.path, ignore_errors=True)  # it is not needed, and the whole needs room
            with StagedVersion(
                directory, version, world_size=len(states), durable=durable, within=staged
            ) as instead:
                for rank, tensors in states.items():
                    instead.plan(rank, device_id=devices[rank], finite=finite).write(tensors)
                published = instead.commit(
                    replace=replace,
                    retain=retain,
                    before_announcing=staged.take_away_standing if clears else None,
                )
            path, digest, retired = published.path, published.manifest.group_digest, published.retired
    return DeltaReport.of(
        shards,
        path=path,
        whole=whole,
        manifest_digest=digest,
        seconds=(clock.monotonic_ns() - begun) / _NANOSECONDS,
        retired=retired,
    )


def _check_ranks(
    version: str, states: Mapping[int, TrainerTensors], base: Mapping[int, TrainerTensors] | None
) -> None:
    ranks = sorted(states)
    if not ranks or ranks != list(range(len(ranks))) or (base is not None and sorted(base) != ranks):
        bases = "" if base is None else f", bases for ranks {sorted(base)}"
        raise strategies_errors.incomplete_publication(
            version=version, problem=f"states were given for ranks {ranks}{bases}"
        )


def _sources(directory: Path | str, devices: Mapping[int, int], max_chain: int) -> list[DeltaSource]:
    """Return where each rank would load from: the base is read there, unless the trainer has kept it."""
    return [
        DeltaSource(directory, rank, device_id=device, world_size=len(devices), max_chain=max_chain)
        for rank, device in devices.items()
    ]


def _write(
    path: Path,
    plan: DeltaPlan,
    states: Mapping[int, TrainerTensors],
    base: Mapping[int, TrainerTensors] | None,
    source: DeltaSource,
) -> DeltaShard:
    """Write the delta of the rank of `source`, against what the trainer has kept or what is published."""
    rank = source.rank
    with ExitStack() as stack:
        if base is None:
            before = published_tensors(source, plan.base_version, stack)
        else:
            before = {spec.name: _from_trainer(base[rank], spec) for spec in specs_of(base[rank])}
        specs = specs_of(states[rank])
        offered = (_from_trainer(states[rank], spec) for spec in specs)
        return write_delta(path, specs, offered, before, dataclasses.replace(plan, rank=rank))


def _from_trainer(tensors: TrainerTensors, spec: TensorSpec) -> OfferedTensor:
    return OfferedTensor.of_bytes(spec, "the trainer", bytes_of(tensors, spec))


def _check_published(directory: Path | str, base_version: str, shards: list[DeltaShard]) -> None:
    """Refuse a base that readers would never hold, since something else is published under its number."""
    published = content_digests(directory, base_version)
    if published is None:
        return
    for shard, expected in zip(shards, published, strict=False):
        if shard.base_digest != expected:
            raise delta_errors.delta_base_not_published(
                base_version=base_version,
                rank=shard.rank,
                expected=expected,
                actual=shard.base_digest,
                where=str(directory),
            )


def _whole_instead(
    directory: Path | str, base_version: str, shards: list[DeltaShard], crossover: float, max_chain: int
) -> str | None:
    whole = sum(row.spec.nbytes for shard in shards for row in shard.tensors)
    if sum(shard.nbytes for shard in shards) > crossover * whole:
        return "size"
    return "chain" if len(chain_to(directory, base_version, max_chain)) >= max_chain else None
