"""Publishing a version: each rank's shard is put under ``versions/`` unseen, then one process seals them all.

Each process of a trainer puts its own shards through a :class:`SnapshotPublisher`, and hands the digests to
the one that seals. :func:`publish_snapshot` is one call for a process that holds the shards of all ranks. A
shard is written into a directory of its own and takes its name once it is whole, so a seal, which links the
files of all of them together, finds a whole one or none.

Each tensor is digested in the pass that writes it. At most one tensor's bytes are held at a time, and only
if the trainer's own are not contiguous.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from wsm.errors import RefusedError
from wsm.labels import Label, checked_version
from wsm.own_descriptor import OwnDescriptor
from wsm.shared_directory import FileLock, is_at
from wsm.strategies import errors
from wsm.strategies.errors import ManifestError, PublisherBusyError, StorageError, VersionExistsError
from wsm.strategies.files import snapshot_names
from wsm.strategies.files.atomic_file import replace_file, sync_directory, write_new
from wsm.strategies.files.safetensors import file_order, write_safetensors
from wsm.strategies.files.snapshot_names import VERSION_FILE, VERSIONS_DIRECTORY
from wsm.strategies.files.version_file import version_bytes, write_version
from wsm.strategies.promise import PromisedTensor, RankShard, ShardIdentity
from wsm.strategies.snapshot.manifest import (
    ManifestOfAll,
    PartEntry,
    ShardEntry,
    ShardManifest,
    VersionManifest,
    part_metadata,
)
from wsm.strategies.snapshot.placement import Placement, bad_placement, whole_shape
from wsm.strategies.tensor import TensorSpec
from wsm.strategies.trainer import retention
from wsm.strategies.trainer.publications import label_in, next_ordinal, published_last
from wsm.strategies.trainer.retention import Retention
from wsm.strategies.trainer.tensors import (
    PutVersion,
    TrainerReport,
    TrainerTensors,
    bytes_of,
    check_ranks,
    specs_of,
)
from wsm.typed import Count, CountFrom0, typed, typed_calls

#: Bytes of tensors in one part, unless a single tensor is larger.
PART_BYTES = 1 << 30


def cut_into_parts(specs: Sequence[TensorSpec], part_bytes: int) -> list[list[TensorSpec]]:
    """Group tensors, in their order, into parts of at most `part_bytes`; a larger tensor gets its own."""
    parts: list[list[TensorSpec]] = []
    room = 0
    for spec in specs:
        if not parts or spec.nbytes > room:
            parts.append([])
            room = part_bytes
        parts[-1].append(spec)
        room -= spec.nbytes
    return [file_order(part) for part in parts]


_STAGING_PREFIX = ".staging-"
#: What becomes visible, in a staging directory; and the file whose first byte its processes share.
_WHOLE, _MEMBERS = "whole", "members.lock"
# Each further attempt takes a publisher that removed the directory of dead processes as we entered it.
_ATTEMPTS = 64


@dataclass(frozen=True)
class Published:
    """A publication in its directory: its manifests, that of all ranks and that of each."""

    manifest: ManifestOfAll
    shards: tuple[Any, ...]

    def lacks(self, wanted: Published) -> tuple[str, ...] | None:
        """Return what `wanted` promises and this one does not; None if it holds other tensors.

        Fewer promises may be wanted than are made: a promise is never taken back silently.
        """
        if not self.manifest.same_content(wanted.manifest):
            return None
        pairs = zip(self.shards, wanted.shards, strict=True)
        return tuple(sorted({promise for ours, theirs in pairs for promise in ours.lacks(theirs)}))


def standing_publication(path: Path, kind: type[ManifestOfAll] = VersionManifest) -> Published | None:
    """Return what is published in `path`; None if there is nothing of this kind, or nothing that is whole."""
    file = path / kind.FILE
    try:
        manifest = kind.decode(file.read_bytes(), file=str(file))
        files = [path / manifest.shard_file(rank) for rank in range(manifest.world_size)]
        shards = tuple(kind.SHARD.decode(each.read_bytes(), file=str(each)) for each in files)
        whole = all(_is_whole(path, shard) for shard in shards)
    except (OSError, ManifestError):
        return None
    whole = whole and [shard.seal for shard in shards] == [entry.seal for entry in manifest.shards]
    return Published(manifest, shards) if whole else None


def _is_whole(path: Path, shard: RankShard) -> bool:
    return all((path / name).stat().st_size == nbytes for name, nbytes in shard.files())


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


@typed_calls
@dataclass(frozen=True)
class SnapshotPublisher:
    """How a process of a trainer publishes into a directory, version by version.

    Parameters
    ----------
    directory : path or str
        Created if it does not exist.
    world_size : int
        Number of ranks that a version is for.
    job : str, optional
        What all processes of one trainer share and no other trainer has: drawn anew at each start of the
        trainer, and the same in all of its processes. A job publishes a label once. Without one, this process
        puts the shards of all ranks, and keeps other publishers out meanwhile.
    device_ids : mapping of int to int, optional
        Per rank, the device id in its file names; the rank itself where not given.
    part_bytes : int
        Bytes of tensors in one part, unless a single tensor is larger.
    placements : mapping of str to Placement, optional
        How each tensor lies on the ranks (:mod:`wsm.strategies.snapshot.placement`). With it, groups of
        another number of ranks can load the version; without it, only groups of as many ranks as there are
        shards. Those of the tensors of other ranks may be among them.
    finite : bool
        Whether NaN and infinity are refused: here, before anything became visible, and by every load.
    retain : Retention
        Which older versions stay.
    replace : bool
        Whether a version of this label may be replaced that has other content, or promises less.
    durable : bool
        Whether a version must survive a power cut once it is sealed.
    """

    directory: Path | str
    world_size: Count = 1
    job: Label | None = None
    device_ids: Mapping[int, int] | None = None
    part_bytes: Count = PART_BYTES
    placements: Mapping[str, Placement] | None = None
    finite: bool = False
    retain: Retention = retention.KEEP_TWO
    replace: bool = False
    durable: bool = True

    def version(self, label: str | int) -> StagedVersion:
        """Begin a version, or enter it where another process of the job has begun it. Does not wait.

        Use it in ``with``. What was put stays while a process is in there; the last one to leave removes what
        was not sealed.

        Raises
        ------
        PublisherBusyError
            If another process publishes into the directory, and there is no job.
        StorageError
            If the file system refuses.
        BadInputError
            If `label` is none.
        """
        return StagedVersion(self, label)


@typed_calls
class StagedVersion(PutVersion[PublishReport]):
    """A version that the processes of a job put their shards into; see :meth:`SnapshotPublisher.version`.

    It is written under ``.staging-...``, which readers do not look at, and renamed to its label once it is
    complete. Several processes may write into one together: each of them shares a kernel lock on it, which
    dies with the process: without a lock it is a dead publisher's, and the next publisher removes it.
    One process at a time makes a version visible, under the lock of all publishers into the directory.

    Parameters
    ----------
    publisher : SnapshotPublisher
        Where and how.
    version : str or int
        Its label.
    lock : FileLock, optional
        That of all publishers into the directory, where the caller has it already.

    Attributes
    ----------
    path : Path
        What becomes visible is written here; readers do not look there.
    final : Path
        Where readers will find it.

    Raises
    ------
    PublisherBusyError
        If another process publishes into the directory.
    StorageError
        If the file system refuses.
    BadInputError
        If `version` is none.
    """

    _place_name = VERSIONS_DIRECTORY
    _kind: type[ManifestOfAll] = VersionManifest

    def __init__(
        self, publisher: SnapshotPublisher, version: str | int, *, lock: FileLock | None = None
    ) -> None:
        super().__init__(version, publisher.world_size, publisher.job)
        self._publisher = publisher
        self._directory = Path(publisher.directory)
        self._place = self._directory / self._place_name
        self._durable = publisher.durable
        self._stage = self._place / f"{_STAGING_PREFIX}{self.version}-{self.publication}"
        self.path = self._stage / _WHOLE
        self.final = self._place / self.version
        self._visible: str | None = None
        self._lent = lock is not None
        self._lock = self._take_lock() if lock is None and self._job is None else lock
        try:
            with self._storage():
                self._place.mkdir(parents=True, exist_ok=True)
                if self._lock is not None:
                    self._tidy()
                elif any(_is_dead(stage) for stage in self._stages()):
                    with suppress(PublisherBusyError), self._alone():
                        pass  # who has the lock tidies
                self._membership = self._entered()
                if self._job is None:
                    self.path.mkdir()
        except BaseException:
            self._release()
            raise

    def discard(self) -> None:
        """Leave what was staged, and let other publishers in. Idempotent.

        The last process to leave removes it. In a forked child it does nothing: what was staged is its
        parent's.
        """
        if self._membership.is_open:
            _remove_dead(self._stage, self._membership)
            self._release()

    def __exit__(self, *_: object) -> None:
        self.discard()

    def put(self, rank: CountFrom0, tensors: TrainerTensors) -> str:
        """Write the shard of a rank, which no reader sees before the seal. Blocks.

        Where the rank was put before, by whichever process, this one counts once it is whole.

        Parameters
        ----------
        rank : int
            Whose.
        tensors : mapping
            The rank's state dict (:mod:`wsm.strategies.trainer.tensors`).

        Returns
        -------
        str
            The digest of the shard's manifest, for :meth:`seal`.

        Raises
        ------
        RefusedError
            If the version is sealed (``already-sealed``).
        BadInputError
            If there is no such rank, or what was handed over is no shard.
        StorageError
            If the file system refuses.
        """
        publisher, identity = self._publisher, self.identity(rank)
        device_id = (publisher.device_ids or {}).get(rank, rank)
        base = snapshot_names.shard_base(rank, device_id)
        parts: list[PartEntry] = []
        entries: list[PromisedTensor] = []
        with self.shard(rank) as directory:
            specs = specs_of(tensors)
            if not specs:
                raise self._incomplete(f"the state dict of rank {rank} is empty")
            placements = self._placements_of(specs, rank)
            for index, group in enumerate(cut_into_parts(specs, publisher.part_bytes)):
                path = directory / snapshot_names.part_name(base, index)
                data = (bytes_of(tensors, spec, finite=publisher.finite, rank=rank) for spec in group)
                metadata = part_metadata(identity)
                nbytes, digests = write_safetensors(path, group, data, metadata, durable=self._durable)
                parts.append(PartEntry(path.name, nbytes, len(group)))
                entries += [
                    PromisedTensor(spec, digest, placements.get(spec.name))
                    for spec, digest in zip(group, digests, strict=True)
                ]
            shard = ShardManifest.with_tensors(
                entries,
                **msgspec.structs.asdict(identity),
                device_id=device_id,
                parts=tuple(parts),
                finite=publisher.finite,
            )
            write_new(directory / shard.name, shard.encode(), durable=self._durable)
        return shard.seal

    def _placements_of(self, specs: Sequence[TensorSpec], rank: int) -> Mapping[str, Placement]:
        """Return the placements, which must be those of all tensors of the rank, or none."""
        placements = self._publisher.placements or {}
        for spec in specs if placements else ():
            if spec.name not in placements:
                raise bad_placement(tensor=spec.name, problem="has no placement, although others have one")
            whole_shape(spec.name, placements[spec.name], spec.shape, rank, self._world_size)
        return placements

    def identity(self, rank: int) -> ShardIdentity:
        """Return whose the shard of a rank is."""
        return ShardIdentity(
            version=self.version,
            rank=rank,
            world_size=self._world_size,
            publication=self.publication,
        )

    @contextmanager
    def shard(self, rank: int) -> Iterator[Path]:
        """Yield a directory for the files of a rank's shard, which count as put once the context has ended.

        Raises
        ------
        RefusedError, BadInputError, StorageError
            As :meth:`put`.
        """
        self._require_rank(rank)
        self._require_unsealed()
        with self._storage():
            half = self._stage / f"half-{rank}-{secrets.token_hex(4)}"
            half.mkdir()
            try:
                yield half
                retention.bring_in(half, self._shard_directory(rank))
            except BaseException:
                shutil.rmtree(half, ignore_errors=True)
                raise
        self._require_unsealed()

    def seal(
        self,
        digests: Mapping[int, str],
        *,
        keep_standing: bool = True,
        announce: bool = True,
        before_showing: Callable[[Path, Any], None] | None = None,
        before_announcing: Callable[[], None] | None = None,
    ) -> PublishReport:
        """Make the version visible, announce it, then remove versions that are no longer kept. Blocks.

        One process does so, for all. It waits for none: what was not put, or is not what was heard, is
        refused. A second seal of the same digests answers the same, in whichever process.

        A version that is there already with the very same tensors, and promises at least as much, is
        announced as it stands: a publisher that died between the rename and the announcement is simply run
        again.

        Parameters
        ----------
        digests : mapping of int to str
            What :meth:`put` has returned for each rank.
        keep_standing : bool
            Whether one with the very same tensors stays as it stands; not where another process may have
            written into its files since.
        announce : bool
            Whether ``version.yaml`` names the version from now on.
        before_showing : callable, optional
            Called with the directory and the manifest of what is about to become visible.
        before_announcing : callable, optional
            Called once the version is visible and before ``version.yaml`` names it.

        Raises
        ------
        BadInputError
            If a rank is missing, or put as something else than was heard, or for another number of ranks
            (``incomplete-publication``).
        RefusedError
            If it was sealed with other digests (``already-sealed``).
        VersionExistsError
            If the version exists with other content, or promises less, and may not be replaced.
        PublisherBusyError
            If another process publishes into the directory now.
        StorageError
            If the file system refuses.
        """
        if (before := self._sealed_before(digests)) is not None:
            return before
        with self._storage(), self._alone():
            published = standing = standing_publication(self.final, self._kind)
            again = standing is not None and standing.manifest.publication == self.publication
            if published is not None and again:
                sealed = {rank: entry.seal for rank, entry in enumerate(published.manifest.shards)}
                self._require_same(sealed, digests)
            else:
                published = self._gather(digests)
                if self._is_as_good(standing, published, enough=keep_standing):
                    published = standing or published
                else:
                    if before_showing is not None:
                        before_showing(self.path, published.manifest)
                    if self._durable:
                        sync_directory(self.path)
                    retention.bring_in(self.path, self.final)
                    self._visible = self.version
                    if self._durable:
                        sync_directory(self._place)
            if before_announcing is not None:
                before_announcing()
            if announce and (not again or published_last(self._directory, deltas=True) == self.version):
                self._visible = self.version
                path = self._directory / VERSION_FILE
                replace_file(path, version_bytes(self.version), durable=self._durable, alone=True)
            retired = retention.retire(self._place, self.version, self._retention())
        files = [file for shard in published.shards for file in shard.files()]
        report = PublishReport(
            version=self.version,
            path=str(self.final),
            manifest_digest=published.manifest.group_digest,
            digests={rank: entry.content_digest for rank, entry in enumerate(published.manifest.shards)},
            bytes=sum(nbytes for _, nbytes in files),
            files=len(files),
            seconds=self._seconds(),
            retired=retired,
        )
        self._sealed = dict(digests), report
        return report

    def _retention(self) -> Retention:
        return self._publisher.retain

    def _is_as_good(self, standing: Published | None, wanted: Published, *, enough: bool = True) -> bool:
        """Whether what stands there holds the tensors of `wanted` and promises as much, and that is enough.

        VersionExistsError if it is not, and may not be replaced; RefusedError if the directory is that of
        another label.
        """
        lacking = None if standing is None else standing.lacks(wanted)
        if enough and lacking == ():
            return True
        there = label_in(self.final)
        if there not in (None, self.version):
            raise RefusedError(
                f"version {self.version} cannot be published: {self.final} holds version {there}, as happens "
                "where the file system does not tell upper from lower case; publish under a label that "
                "differs in more than case",
                code="directory-of-other",
                version=self.version,
                there=there,
                path=str(self.final),
            )
        if self.final.exists() and not self._publisher.replace:
            raise VersionExistsError(version=self.version, path=str(self.final), lacking=lacking or ())
        return False

    @contextmanager
    def _storage(self) -> Iterator[None]:
        """Turn what the file system refuses within into a StorageError."""
        try:
            yield
        except OSError as error:
            raise StorageError(path=self.path, error=error, visible=self._visible) from error

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other publishers out within, and remove what dead ones staged first."""
        if self._lock is not None:
            yield
            return
        self._lock = self._take_lock()
        try:
            self._tidy()
            yield
        finally:
            self._release()
            self._lock = None

    def _take_lock(self) -> FileLock:
        return retention.take_publisher_lock(self._directory / VERSIONS_DIRECTORY, directory=self._directory)

    def _release(self) -> None:
        if not self._lent and self._lock is not None:
            self._lock.release()

    def _stages(self) -> Iterator[Path]:
        return self._place.glob(f"{_STAGING_PREFIX}*")

    def _tidy(self) -> None:
        retention.finish_removals(self._place)
        self._ordinal = next_ordinal(self._directory)
        for stage in self._stages():
            with suppress(OSError):
                _remove_dead(stage, _members_of(stage))

    def _entered(self) -> OwnDescriptor:
        """Make the staging directory, or enter that of the job; it stays while what is returned is open."""
        for _ in range(_ATTEMPTS):
            with suppress(FileNotFoundError):  # removed between two of our calls
                self._stage.mkdir(exist_ok=True)
                members = _members_of(self._stage)
                try:
                    if members.try_lock_byte(0, shared=True) and is_at(
                        self._stage / _MEMBERS, os.fstat(members.number)
                    ):
                        return members
                except BaseException:
                    members.close()
                    raise
                members.close()
        raise PublisherBusyError(directory=str(self._directory))

    def _shard_directory(self, rank: int) -> Path:
        return self._stage / f"rank-{rank}"

    def _require_unsealed(self) -> None:
        standing = None if self._job is None else standing_publication(self.final, self._kind)
        if self._sealed is not None or (
            standing is not None and standing.manifest.publication == self.publication
        ):
            raise errors.already_sealed(version=self.version, problem="no shard can be put any more")

    def _gather(self, digests: Mapping[int, str]) -> Published:
        """Link the files of all shards into one directory, with the manifest of all ranks."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir()
        shards = tuple(self._link(rank, digest) for rank, digest in sorted(digests.items()))
        manifest = self._manifest_of(shards)
        write_new(self.path / manifest.FILE, manifest.encode(), durable=self._durable)
        if isinstance(manifest, VersionManifest):
            write_version(self.path, self.version, durable=self._durable)
        return Published(manifest, shards)

    def _manifest_of(self, shards: Sequence[Any]) -> ManifestOfAll:
        entries = tuple(
            ShardEntry(
                manifest=shard.name,
                seal=shard.seal,
                content_digest=shard.content_digest,
                placed_digest=None if shard.placed_digest == shard.content_digest else shard.placed_digest,
            )
            for shard in shards
        )
        return VersionManifest(
            version=self.version, publication=self.publication, shards=entries, ordinal=self._ordinal
        )

    def _link(self, rank: int, digest: str) -> RankShard:
        """Link the files of a rank's shard, if it is the one that was heard of."""
        try:
            directory = os.open(self._shard_directory(rank), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise self._incomplete(f"nothing was put for rank {rank}") from None
        try:
            # By the descriptor: a shard that is put meanwhile is another directory under this name.
            names = os.listdir(directory)  # noqa: PTH208 - a Path cannot list a descriptor
            for name in names:
                _link_or_move(name, directory, self.path / name)
            [file] = (self.path / name for name in names if name.endswith(snapshot_names.MANIFEST_SUFFIX))
            shard = self._kind.SHARD.decode(file.read_bytes(), file=str(file))
            whole = _is_whole(self.path, shard)
        except (FileNotFoundError, ValueError):
            whole = False
        finally:
            os.close(directory)
        if not whole:
            raise self._incomplete(f"rank {rank} was put anew meanwhile, or was sealed in part")
        self._require_heard(rank, shard, digest)
        return shard


def _members_of(stage: Path) -> OwnDescriptor:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return OwnDescriptor(partial(os.open, stage / _MEMBERS, flags, 0o666))


def _is_dead(stage: Path) -> bool:
    """Whether no process is in a staging directory; false where that cannot be known."""
    with suppress(OSError):
        members = _members_of(stage)
        try:
            return not members.is_byte_locked(0)
        finally:
            members.close()
    return False


def _remove_dead(stage: Path, members: OwnDescriptor) -> None:
    """Remove a staging directory if no other process is in it, and close `members`."""
    try:
        with suppress(OSError):
            # A publisher that died as it replaced a version may have left the old one there, with readers.
            if members.try_lock_byte(0) and retention.remove_unless_read(stage / _WHOLE):
                retention.take_away(stage)
    finally:
        members.close()


def _link_or_move(name: str, directory: int, to: Path) -> None:
    try:
        os.link(name, to, src_dir_fd=directory)
    except OSError:  # a file system without hard links: what is sealed in part there cannot be sealed again
        os.rename(name, to, src_dir_fd=directory)


@typed
def publish_snapshot(
    directory: Path | str,
    version: str | int,
    shards: Mapping[int, TrainerTensors],
    **options: Any,
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
    **options
        As for :class:`SnapshotPublisher`: `device_ids`, `part_bytes`, `placements`, `finite`, `retain`,
        `replace`, `durable`.

    Raises
    ------
    VersionExistsError, PublisherBusyError, StorageError
        If it cannot be published now. Nothing became visible.
    BadInputError
        If what was handed over is no version. Nothing became visible.
    """
    version = checked_version(version)
    check_ranks(version, shards)
    with SnapshotPublisher(directory, len(shards), **options).version(version) as staged:
        return staged.seal({rank: staged.put(rank, tensors) for rank, tensors in shards.items()})
