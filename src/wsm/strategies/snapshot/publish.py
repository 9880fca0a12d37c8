"""Publishing a version from one process that holds the shards of all ranks: the trainer's side in one call.

Trainers with several processes use :class:`wsm.strategies.snapshot.staged_version.StagedVersion` themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from wsm.clock import Clock, SystemClock
from wsm.labels import checked_version
from wsm.strategies.snapshot.placement import Placement
from wsm.strategies.snapshot.shard_writer import PART_BYTES
from wsm.strategies.snapshot.staged_version import StagedVersion
from wsm.strategies.trainer.retention import KEEP_TWO, Retention
from wsm.strategies.trainer.tensors import TrainerTensors, check_ranks


@dataclass(frozen=True)
class PublishReport:
    """What was published.

    Parameters
    ----------
    version : str
        The version.
    path : str
        Its directory.
    manifest_digest : str
        Digest of the version's manifest; what every rank's load reports.
    digests : mapping of int to str
        Digest of the tensors of each rank.
    bytes, files : int
        Size and number of all parts.
    seconds : float
        From the first byte to the announcement.
    retired : tuple of str
        Older versions that were removed.
    """

    version: str
    path: str
    manifest_digest: str
    digests: Mapping[int, str]
    bytes: int
    files: int
    seconds: float
    retired: tuple[str, ...]


def publish_snapshot(
    directory: Path | str,
    version: str | int,
    shards: Mapping[int, TrainerTensors],
    *,
    device_ids: Mapping[int, int] | None = None,
    part_bytes: int = PART_BYTES,
    placements: Mapping[str, Placement] | None = None,
    finite: bool = False,
    retain: Retention = KEEP_TWO,
    replace: bool = False,
    durable: bool = True,
    clock: Clock | None = None,
) -> PublishReport:
    """Publish one version from one process that holds the shards of all ranks. Blocks.

    Parameters
    ----------
    directory : path or str
        Created if it does not exist.
    version : str or int
        Its label; 7 is ``"7"``.
    shards : mapping of int to mapping
        Per rank 0..world size - 1, its state dict (:mod:`wsm.strategies.trainer.tensors`).
    device_ids : mapping of int to int, optional
        Per rank, the device id in its file names; the rank itself where not given.
    part_bytes : int
        Bytes of tensors in one part, unless a single tensor is larger.
    placements : mapping of str to Placement, optional
        How each tensor lies on the ranks (:mod:`wsm.strategies.snapshot.placement`). With it, groups of
        another number of ranks can load the version; without it, only groups of as many ranks as there are
        shards.
    finite : bool
        Whether NaN and infinity are refused: here, before anything became visible, and by every load.
    retain : Retention
        Which older versions stay.
    replace : bool
        Whether a version of this label may be replaced that has other content, or promises less.
    durable : bool
        Whether the version must survive a power cut once the call has returned.
    clock : Clock, optional
        For the seconds in the report.

    Raises
    ------
    VersionExistsError, PublisherBusyError, StorageError
        If it cannot be published now. Nothing became visible.
    BadInputError, TrainerTensorError, PlacementError
        If what was handed over is no version. Nothing became visible.
    """
    version = checked_version(version)
    check_ranks(version, shards)
    clock = clock or SystemClock()
    begun = clock.monotonic_ns()
    with StagedVersion(directory, version, world_size=len(shards), durable=durable) as staged:
        for rank, tensors in shards.items():
            device_id = rank if device_ids is None else device_ids.get(rank, rank)
            staged.write_shard(
                rank,
                tensors,
                device_id=device_id,
                part_bytes=part_bytes,
                placements=placements,
                finite=finite,
            )
        published = staged.commit(replace=replace, retain=retain)
    return PublishReport(
        version=version,
        path=published.path,
        manifest_digest=published.manifest.digest,
        digests={rank: entry.content_digest for rank, entry in enumerate(published.manifest.shards)},
        bytes=sum(part.nbytes for shard in published.shards for part in shard.parts),
        files=sum(len(shard.parts) for shard in published.shards),
        seconds=(clock.monotonic_ns() - begun) / 1_000_000_000,
        retired=published.retired,
    )
