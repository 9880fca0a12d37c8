"""Publishing a version: staged under ``versions/`` shard by shard, then sealed for all ranks.

:func:`publish_snapshot` is one call for a process that holds the shards of all ranks; with
:class:`StagedVersion` each process of a trainer publishes its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from pathlib import Path

from wsm.clock import Clock, SystemClock
from wsm.labels import checked_version
from wsm.strategies import errors
from wsm.strategies.errors import ManifestError
from wsm.strategies.files import snapshot_names
from wsm.strategies.files.atomic_file import write_new
from wsm.strategies.files.snapshot_names import VERSION_MANIFEST
from wsm.strategies.files.version_file import write_version
from wsm.strategies.promise import ShardIdentity
from wsm.strategies.snapshot._shard_writer import PART_BYTES, ShardPlan
from wsm.strategies.snapshot.manifest import ShardEntry, ShardManifest, VersionManifest
from wsm.strategies.snapshot.placement import Placement
from wsm.strategies.trainer.retention import KEEP_TWO, Retention, retire
from wsm.strategies.trainer.staged_directory import StagedDirectory
from wsm.strategies.trainer.tensors import TrainerReport, TrainerTensors, check_ranks
from wsm.typed import Count, typed, typed_calls


@dataclass(frozen=True)
class Published:
    """A whole version in its directory: its manifests, and what was removed for it."""

    path: str
    manifest: VersionManifest
    shards: tuple[ShardManifest, ...]
    retired: tuple[str, ...] = ()

    def lacks(self, wanted: Published) -> tuple[str, ...] | None:
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


def standing_publication(path: Path) -> Published | None:
    """Return what is published in `path`; None if there is nothing, or nothing that is whole."""
    file = path / VERSION_MANIFEST
    try:
        manifest = VersionManifest.decode(file.read_bytes(), file=str(file))
        files = [path / shard.manifest for shard in manifest.shards]
        shards = tuple(ShardManifest.decode(each.read_bytes(), file=str(each)) for each in files)
        parts = [part for shard in shards for part in shard.parts]
        whole = all((path / part.file).stat().st_size == part.nbytes for part in parts)
    except (OSError, ManifestError):
        return None
    return Published(str(path), manifest, shards) if whole else None


def _other_placements(ours: ShardManifest, theirs: ShardManifest) -> bool:
    placed = {entry.spec.name: entry.placement for entry in ours.tensors}
    return any(
        entry.placement is not None and entry.placement != placed[entry.spec.name] for entry in theirs.tensors
    )


@typed_calls
class StagedVersion(StagedDirectory):
    """A whole version that is being written.

    Trainers with several processes let one of them stage and commit. It sends each of the others the
    :meth:`plan` of its rank, which writes that process's own shard.

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
        world_size: Count,
        durable: bool = True,
        within: StagedDirectory | None = None,
    ) -> None:
        place = snapshot_names.VERSIONS_DIRECTORY
        super().__init__(directory, place, version, durable=durable, within=within)
        self.world_size = world_size
        self._sealed: Published | None = None

    def plan(
        self,
        rank: int,
        *,
        device_id: int | None = None,
        part_bytes: Count = PART_BYTES,
        placements: Mapping[str, Placement] | None = None,
        finite: bool = False,
    ) -> ShardPlan:
        """Return what writes the shard of `rank`, in any process of this host or its file system.

        It can be pickled. ``plan.write(state_dict)`` blocks, digests each tensor as it writes it, and shows
        nothing to readers: :meth:`commit` does, once all ranks' shards are there.
        """
        identity = ShardIdentity(
            version=self.version, rank=rank, world_size=self.world_size, publication=self.publication
        )
        device_id = rank if device_id is None else device_id
        return ShardPlan(
            self.path.absolute(), identity, device_id, part_bytes, self._durable, placements or {}, finite
        )

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
            staged = self.sealed()
            standing = standing_publication(self.final)
            lacking = None if standing is None else standing.lacks(staged)
            if keep_standing and standing is not None and lacking == ():
                staged = standing
            else:
                self._check_vacant(replace=replace, lacking=lacking)
                self._show()
            if before_announcing is not None:
                before_announcing()
            self._announce()
        retired = retire(self._place, self.version, retain)
        return replace_fields(staged, retired=retired)

    def sealed(self) -> Published:
        """Write the manifest of all ranks, if that was not done yet, and return all manifests. Blocks.

        Raises
        ------
        BadInputError
            If the shards are not one per rank.
        StorageError
            If the file system refuses.
        """
        if self._sealed is None:
            with self._storage():
                shards = self._shards()
                self._sealed = Published(str(self.final), self._seal(shards), shards)
        return self._sealed

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
                manifest=snapshot_names.shard_manifest_name(
                    snapshot_names.shard_base(shard.rank, shard.device_id)
                ),
                seal=shard.seal,
                content_digest=shard.content_digest,
                placed_digest=None if shard.placed_digest == shard.content_digest else shard.placed_digest,
            )
            for shard in shards
        )
        manifest = VersionManifest(
            version=self.version, publication=self.publication, shards=entries, ordinal=self._ordinal
        )
        write_new(self.path / snapshot_names.VERSION_MANIFEST, manifest.encode(), durable=self._durable)
        write_version(self.path, self.version, durable=self._durable)
        return manifest


@dataclass(frozen=True, kw_only=True)
class PublishReport(TrainerReport):
    """What was published; its other parameters are those of every version that is handed over.

    Parameters
    ----------
    path : str
        Its directory.
    files : int
        Number of all parts; `bytes` is their size.
    retired : tuple of str
        Older versions that were removed.
    """

    path: str
    files: int
    retired: tuple[str, ...]


@typed
def publish_snapshot(
    directory: Path | str,
    version: str | int,
    shards: Mapping[int, TrainerTensors],
    *,
    device_ids: Mapping[int, int] | None = None,
    part_bytes: Count = PART_BYTES,
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
            staged.plan(
                rank, device_id=device_id, part_bytes=part_bytes, placements=placements, finite=finite
            ).write(tensors)
        published = staged.commit(replace=replace, retain=retain)
    return PublishReport(
        version=version,
        path=published.path,
        manifest_digest=published.manifest.group_digest,
        digests={rank: entry.content_digest for rank, entry in enumerate(published.manifest.shards)},
        bytes=sum(part.nbytes for shard in published.shards for part in shard.parts),
        files=sum(len(shard.parts) for shard in published.shards),
        seconds=(clock.monotonic_ns() - begun) / 1_000_000_000,
        retired=published.retired,
    )
