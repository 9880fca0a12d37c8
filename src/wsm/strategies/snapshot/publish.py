"""Publishing a version: staged under ``versions/`` shard by shard, then sealed for all ranks.

:func:`publish_snapshot` is one call for a process that holds the shards of all ranks; trainers with several
processes use :class:`StagedVersion` themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from wsm.clock import Clock, SystemClock
from wsm.labels import checked_version
from wsm.strategies import errors
from wsm.strategies.errors import ManifestError
from wsm.strategies.files import snapshot_names
from wsm.strategies.files.atomic_file import write_new
from wsm.strategies.files.snapshot_names import VERSION_MANIFEST
from wsm.strategies.files.version_file import write_version
from wsm.strategies.snapshot._shard_writer import PART_BYTES, ShardPlan, write_shard
from wsm.strategies.snapshot.manifest import PartMetadata, ShardManifest
from wsm.strategies.snapshot.placement import Placement
from wsm.strategies.snapshot.version_manifest import ShardEntry, VersionManifest
from wsm.strategies.trainer.retention import KEEP_TWO, Retention, retire
from wsm.strategies.trainer.staged_directory import StagedDirectory
from wsm.strategies.trainer.tensors import TrainerTensors, check_ranks


@dataclass(frozen=True)
class Publication:
    """The manifests of a whole version: the one of all ranks, and each rank's."""

    manifest: VersionManifest
    shards: tuple[ShardManifest, ...]

    def lacks(self, wanted: Publication) -> tuple[str, ...] | None:
        """Return what `wanted` promises and this one does not; None if it holds other tensors.

        Fewer promises may be wanted than are made: a promise is never taken back silently.
        """
        if not self.manifest.same_content(wanted.manifest):
            return None
        lacking = set()
        for ours, theirs in zip(self.shards, wanted.shards, strict=True):
            if theirs.finite and not ours.finite:
                lacking.add("that all is finite")
            if theirs.device_id != ours.device_id:
                lacking.add(f"the name for device {theirs.device_id}")
            if _other_placements(ours, theirs):
                lacking.add("where each tensor lies")
        return tuple(sorted(lacking))


def standing_publication(path: Path) -> Publication | None:
    """Return what is published in `path`; None if there is nothing, or nothing that is whole."""
    file = path / VERSION_MANIFEST
    try:
        manifest = VersionManifest.decode(file.read_bytes(), file=str(file))
        shards = _shards(path, manifest)
        parts = [part for shard in shards for part in shard.parts]
        whole = all((path / part.file).stat().st_size == part.nbytes for part in parts)
    except (OSError, ManifestError):
        return None
    return Publication(manifest, tuple(shards)) if whole else None


def _shards(path: Path, manifest: VersionManifest) -> Sequence[ShardManifest]:
    files = [path / shard.manifest for shard in manifest.shards]
    return [ShardManifest.decode(file.read_bytes(), file=str(file)) for file in files]


def _other_placements(ours: ShardManifest, theirs: ShardManifest) -> bool:
    placed = {entry.spec.name: entry.placement for entry in ours.tensors}
    return any(
        entry.placement is not None and entry.placement != placed[entry.spec.name] for entry in theirs.tensors
    )


@dataclass(frozen=True)
class Published:
    """A version that is visible: where, its manifest, its shards, and what was removed for it."""

    path: str
    manifest: VersionManifest
    shards: tuple[ShardManifest, ...]
    retired: tuple[str, ...]


class StagedVersion(StagedDirectory):
    """A whole version that is being written.

    Trainers with several processes let one of them stage and commit; the others write their shards into
    :attr:`path` with :func:`wsm.strategies.snapshot._shard_writer.write_shard` and :meth:`plan`.

    Parameters
    ----------
    directory, version, durable : path or str, str or int, bool
        As for every publication; see the base class, also for attributes and errors.
    world_size : int
        Number of ranks that it is for.
    within : StagedDirectory, optional
        Another publication into the same directory, which keeps other publishers out for both.
    """

    def __init__(
        self,
        directory: Path | str,
        version: str | int,
        *,
        world_size: int,
        durable: bool = True,
        within: StagedDirectory | None = None,
    ) -> None:
        place = snapshot_names.VERSIONS_DIRECTORY
        super().__init__(directory, place, version, durable=durable, within=within)
        self.world_size = world_size

    def plan(
        self,
        rank: int,
        *,
        device_id: int | None = None,
        part_bytes: int = PART_BYTES,
        placements: Mapping[str, Placement] | None = None,
        finite: bool = False,
    ) -> ShardPlan:
        """Return what :func:`write_shard` needs to know to write the shard of `rank`."""
        metadata = PartMetadata(self.version, rank, self.world_size, self.publication)
        device_id = rank if device_id is None else device_id
        return ShardPlan(metadata, device_id, part_bytes, self._durable, placements or {}, finite)

    def write_shard(
        self,
        rank: int,
        tensors: TrainerTensors,
        *,
        device_id: int | None = None,
        part_bytes: int = PART_BYTES,
        placements: Mapping[str, Placement] | None = None,
        finite: bool = False,
    ) -> ShardManifest:
        """Write the shard of `rank`, as :func:`write_shard` does. Blocks."""
        plan = self.plan(
            rank, device_id=device_id, part_bytes=part_bytes, placements=placements, finite=finite
        )
        return write_shard(self.path, tensors, plan)

    def commit(
        self,
        *,
        replace: bool = False,
        keep_standing: bool = True,
        retain: Retention = KEEP_TWO,
        before_announcing: Callable[[], None] | None = None,
    ) -> Published:
        """Make the version visible, announce it, then remove versions that are no longer kept. Blocks.

        A version that is there already with the very same tensors, and promises at least as much, is
        announced as it stands: a publisher that died between the rename and the announcement is simply run
        again.

        Parameters
        ----------
        replace : bool
            Whether a version of this label may be replaced that has other content, or promises less.
        keep_standing : bool
            Whether one with the very same tensors stays as it stands; not where another process may have
            written into its files since.
        retain : Retention
            Which older versions stay.
        before_announcing : callable, optional
            Called once the version is visible and before ``version.yaml`` names it.

        Raises
        ------
        BadInputError
            If the shards are not one per rank.
        VersionExistsError
            If the version exists with other content, or promises less, and `replace` is false.
        StorageError
            If the file system refuses.
        """
        with self._storage():
            shards = self._shards()
            staged = Publication(self._seal(shards), shards)
            standing = standing_publication(self.final)
            lacking = None if standing is None else standing.lacks(staged)
            if keep_standing and standing is not None and lacking == ():
                staged = standing
            else:
                self._check_vacant(replace=replace, lacking=lacking)
                self._show()
            if before_announcing is not None:
                before_announcing()
            write_version(self._directory, self.version, durable=self._durable)
        retired = retire(self._place, self.version, retain)
        return Published(str(self.final), staged.manifest, staged.shards, retired)

    def _shards(self) -> tuple[ShardManifest, ...]:
        by_rank: dict[int, ShardManifest] = {}
        for path in sorted(self.path.glob("model_state.tp*.manifest.json")):
            shard = ShardManifest.decode(path.read_bytes(), file=str(path))
            if shard.rank in by_rank or shard.publication != self.publication:
                raise errors.incomplete_publication(
                    version=self.version,
                    problem=f"{path.name} is a second shard of rank {shard.rank} or a foreign one",
                )
            by_rank[shard.rank] = shard
        if sorted(by_rank) != list(range(self.world_size)):
            raise errors.incomplete_publication(
                version=self.version,
                problem=f"ranks {sorted(by_rank)} have a shard, the world size is {self.world_size}",
            )
        return tuple(by_rank[rank] for rank in range(self.world_size))

    def _seal(self, shards: tuple[ShardManifest, ...]) -> VersionManifest:
        entries = tuple(
            ShardEntry(
                snapshot_names.shard_manifest_name(snapshot_names.shard_base(shard.rank, shard.device_id)),
                shard.digest,
                shard.content_digest,
            )
            for shard in shards
        )
        manifest = VersionManifest(self.version, self.publication, entries, ordinal=self._ordinal)
        write_new(self.path / snapshot_names.VERSION_MANIFEST, manifest.encode(), durable=self._durable)
        write_version(self.path, self.version, durable=self._durable)
        return manifest


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
