"""The trainer's side of the strategy ``ipc``: tensors in shared memory, and the metas files that name them.

A trainer owns the memory until :meth:`SharedTensors.close`. It writes each version beside the one that is
published, into a segment that no reader has a lease on, and then replaces the metas files; a reader sees
the old version or the new one. A worker that keeps tensors where they are (adoption) keeps its lease, and
that segment is then neither written nor freed before it lets go. Knows no targets.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from wsm.errors import BadInputError, RefusedError
from wsm.labels import Label, checked_version
from wsm.shared_directory import ForeignPathError, read_ours, remove_ours
from wsm.strategies import errors
from wsm.strategies.byte_copy import copy_and_digest
from wsm.strategies.digest import digest_of, running_digest
from wsm.strategies.errors import ManifestError, StorageError, storing
from wsm.strategies.files.atomic_file import replace_file, write_new
from wsm.strategies.files.snapshot_names import SHARED_DIRECTORY
from wsm.strategies.ipc._abandoned import head_of, remove_abandoned
from wsm.strategies.ipc.metas import (
    MAX_METAS_BYTES,
    SEGMENT_PREFIX,
    IpcMetas,
    TensorPlace,
    metas_name,
)
from wsm.strategies.ipc.shared_segment import (
    AttachedSegment,
    OwnedSegment,
    sweep,
)
from wsm.strategies.promise import PromisedTensor
from wsm.strategies.tensor import BEGIN_IN_PAGE, aligned
from wsm.strategies.trainer.retention import SHARER_LOCK, take_publisher_lock
from wsm.strategies.trainer.tensors import (
    PutVersion,
    TrainerReport,
    TrainerTensors,
    bytes_of,
    check_ranks,
    specs_of,
)
from wsm.typed import Count, CountFrom0, typed_calls

# Begins the names of files that say what was put and is not sealed yet.
_STAGED = "ipc_staged-"


@dataclass(frozen=True, kw_only=True)
class SharedReport(TrainerReport):
    """What was shared.

    Its `seconds` go from the first byte to the last metas file.

    Parameters
    ----------
    created_bytes : int
        How much shared memory had to be created; the rest was written over an older version's.
    """

    created_bytes: int


@typed_calls
class SharedTensors(AbstractContextManager["SharedTensors"]):
    """Shared memory of one trainer, published version by version; use it in ``with``.

    Parameters
    ----------
    directory : path or str
        Where the metas files lie; created if it does not exist.
    world_size : int
        Number of ranks that a :meth:`version` is for.
    job : str, optional
        What all processes of one trainer share and no other trainer has, as for
        :class:`wsm.strategies.SnapshotPublisher`; each of them has an object of its own. Without one, this
        process puts the shards of all ranks, and keeps other trainers out of the directory until it closes.
    device_ids : mapping of int to int, optional
        Per rank, the device id in its metas file's name; the rank itself where not given.
    memory_directory : str, optional
        Where shared memory is created: a tmpfs with room for two versions; by default this user's directory.

    Raises
    ------
    PublisherBusyError
        If another process shares tensors through the same directory.
    StorageError
        If the directory cannot be used.
    """

    def __init__(
        self,
        directory: Path | str = SHARED_DIRECTORY,
        *,
        world_size: Count = 1,
        job: Label | None = None,
        device_ids: Mapping[int, int] | None = None,
        memory_directory: str | None = None,
    ) -> None:
        self._directory = Path(directory)
        self._world_size = world_size
        self._job = job
        self._device_ids = device_ids or {}
        self._memory_directory = memory_directory
        self._segments: list[OwnedSegment] = []
        self._staged: dict[Path, _Put] = {}
        self._metas: dict[Path, bytes] = {}
        self._process = os.getpid()
        self._last: str | None = None
        self._lock = take_publisher_lock(self._directory, SHARER_LOCK) if job is None else None
        self._prefix = f"{SEGMENT_PREFIX}{digest_of(os.fsencode(self._directory.resolve()))[:8]}."
        remove_abandoned(memory_directory)

    def version(self, label: str | int, *, finite: bool = False) -> SharedVersion:
        """Begin a version that the processes of a job put their shards into; use it in ``with``.

        Parameters
        ----------
        label : str or int
            The version.
        finite : bool
            Refuse NaN and infinity here, and have every load refuse them.

        Raises
        ------
        BadInputError
            If `label` is none.
        """
        begun = SharedVersion(self, label, self._world_size, finite=finite)
        # Who sealed the version before the last one had done so when this process heard of the last one's.
        kept = {begun.publication, self._last}
        for path in [path for path, put in self._staged.items() if put.shard.publication not in kept]:
            self._unstage(path)
        self._last = begun.publication
        return begun

    def publish(
        self,
        version: str | int,
        shards: Mapping[int, TrainerTensors],
        *,
        finite: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> SharedReport:
        """Copy one version into shared memory and let workers find it. Blocks.

        Parameters
        ----------
        version : str or int
            Its number.
        shards : mapping of int to mapping
            Per rank 0..world size - 1, its state dict (:mod:`wsm.strategies.trainer.tensors`).
        finite : bool
            Refuse NaN and infinity here, and have every load refuse them.
        progress : callable, optional
            ``progress(bytes)`` after each MiB at most; what it raises ends the publication, and nothing
            became visible.

        Raises
        ------
        RefusedError, StorageError
            If there is no room, or a metas file cannot be written. The version before stays published; if a
            metas file cannot be put back either, its rank finds a version that the others do not, as after a
            death between two of them: loads name both (``mixed-parts``) until the next publication.
        BadInputError
            If what was handed over is no version. The version before stays published.
        """
        version = checked_version(version)
        check_ranks(version, shards)
        with SharedVersion(self, version, len(shards), finite=finite) as staged:
            digests = {rank: staged.put(rank, shards[rank], progress=progress) for rank in sorted(shards)}
            return staged.seal(digests)

    def leased(self) -> bool:
        """Whether any worker reads or keeps memory that this process owns."""
        return any(segment.leased() for segment in self._segments)

    def withdraw(self) -> None:
        """Take back what this process published: its metas files go, and the memory is written over."""
        for path in list(self._metas) if self._process == os.getpid() else ():
            with suppress(OSError):
                self._put_back(path, None)

    def close(self) -> None:
        """Withdraw, and let all memory go; what a worker keeps stays until the worker lets go. Idempotent.

        In a forked child it lets go of the child's own copies only.
        """
        self.withdraw()
        for path in list(self._staged):
            self._unstage(path)
        while self._segments:
            self._segments.pop().close()
        if self._lock is not None:
            self._lock.release()

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        lock = take_publisher_lock(self._directory, SHARER_LOCK) if self._lock is None else None
        try:
            yield
        finally:
            if lock is not None:
                lock.release()

    def _unstage(self, path: Path) -> None:
        """Take back what this process has put and no process has sealed; a seal does not find it any more."""
        put = self._staged.pop(path, None)
        with suppress(OSError, ForeignPathError):
            if put is not None and self._process == os.getpid() and read_if_there(path) == put.data:
                remove_ours(path)

    def _segment_for(self, nbytes: int) -> tuple[OwnedSegment, bool]:
        """Return memory that no worker reads or can find, kept for writing; whether it is new."""
        staged = {put.segment.name for put in self._staged.values()}
        for segment in self._segments:
            if segment.nbytes == nbytes and segment.name not in staged and segment.begin_writing():
                # Looked at now that no reader can come: who seals reads the memory that it announces.
                if segment.name.encode() not in self._named():
                    return segment, False
                segment.end_writing()
        segment = OwnedSegment(self._prefix, nbytes, self._memory_directory)
        self._segments.append(segment)
        segment.begin_writing()
        segment.write_at(0, head_of(self._directory))
        return segment, True

    def _named(self) -> bytes:
        """Return what the metas files say that readers may come to."""
        files = map(read_if_there, self._directory.glob(metas_name("*")))
        return b"".join((*(data for data in files if data is not None), *self._metas.values()))

    def _tidy(self) -> None:
        """Remove what dead processes staged, once other trainers are kept out."""
        for path in self._directory.glob(f".{_STAGED}*"):
            if not self._owned(path.name.removeprefix(f".{_STAGED}")):
                path.unlink(missing_ok=True)
        for path in self._directory.glob(f"{_STAGED}*"):
            with suppress(OSError, ForeignPathError, ManifestError):
                shard = IpcMetas.decode(read_ours(path), file=str(path))
                if not all(map(self._owned, shard.segments)):
                    remove_ours(path)

    def _owned(self, segment: str) -> bool:
        """Whether the process lives that owns a segment of a job in this directory."""
        try:
            with closing(self._attached(segment, 0, "a file of staged tensors")) as memory:
                return memory.owned()
        except RefusedError:
            return True  # it is being written
        except BadInputError:
            return False

    def _attached(self, segment: str, nbytes: int, referrer: str) -> AttachedSegment:
        return AttachedSegment(
            segment,
            nbytes,
            prefixes=(self._prefix,),
            referrer=referrer,
            directory=self._memory_directory,
        )

    def _announce(self, metas: Mapping[int, IpcMetas]) -> None:
        """Write every rank's metas file, or put back those that were written; remove other ranks'."""
        paths = {rank: self._path(rank) for rank in metas}
        before = {path: read_if_there(path) for path in paths.values()}
        written: list[Path] = []
        path = self._directory
        try:
            for rank, content in metas.items():
                path = paths[rank]
                self._write_metas(path, content.encode())
                written.append(path)
        except OSError as error:
            visible = None
            for each in written:
                with suppress(OSError):
                    self._put_back(each, before[each])
                    continue
                visible = metas[0].version  # the file goes on naming memory, which is not written over then
            raise StorageError(path=path, error=error, visible=visible) from error
        for other in self._metas.keys() - set(paths.values()):
            with suppress(OSError):
                self._put_back(other, None)

    def _path(self, rank: int) -> Path:
        return self._directory / metas_name(self._device_ids.get(rank, rank))

    def _write_metas(self, path: Path, content: bytes) -> None:
        replace_file(path, content, durable=False, alone=True)
        self._metas[path] = content

    def _put_back(self, path: Path, before: bytes | None) -> None:
        """Let a metas file that is ours be what it was; raises OSError, and it is as it is then."""
        if before is not None:
            self._write_metas(path, before)
            return
        with suppress(FileNotFoundError, ForeignPathError):  # gone, or no longer ours
            if read_ours(path) == self._metas[path]:
                remove_ours(path)
        del self._metas[path]

    def _let_go(self) -> None:
        """Free what the next version will not be written over, and what dead trainers left."""
        staged = {put.segment.name for put in self._staged.values()}
        try:
            named = self._named()
        except OSError:
            return  # it cannot be known now, so all of it stays
        used = [each for each in self._segments if each.name in staged or each.name.encode() in named]
        wanted = [segment.nbytes for segment in used]
        for segment in [each for each in self._segments if each not in used]:
            segment.end_writing()
            if segment.leased():
                continue
            if segment.nbytes in wanted:
                wanted.remove(segment.nbytes)
            else:
                self._segments.remove(segment)
                segment.close()
        remove_abandoned(self._memory_directory)


@typed_calls
class SharedVersion(PutVersion[SharedReport]):
    """A version that the processes of a job put their shards into; see :meth:`SharedTensors.version`."""

    def __init__(self, shared: SharedTensors, version: str | int, world_size: int, *, finite: bool) -> None:
        super().__init__(version, world_size, shared._job)
        self._shared, self._finite = shared, finite
        self._created = 0

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Take back what was put, if an error leaves; else it waits for its seal until the next but one."""
        for rank in range(self._world_size) if kind is not None else ():
            self._shared._unstage(self._staged_path(rank))
        if self._sealed is None:
            self._shared._let_go()

    def put(
        self, rank: CountFrom0, tensors: TrainerTensors, *, progress: Callable[[int], None] | None = None
    ) -> str:
        """Copy the shard of a rank into memory of this process. Blocks; no worker finds it before the seal.

        Where the rank was put before, by whichever process, this one counts once it is whole. The memory
        is this process's: once it has ended, the shard is refused.

        Returns
        -------
        str
            The digest of what was put, for :meth:`seal`.

        Raises
        ------
        RefusedError
            If the version is sealed (``already-sealed``), or there is no room.
        BadInputError
            If there is no such rank, or what was handed over is no shard.
        StorageError
            If the file system refuses.
        """
        self._require_rank(rank)
        with storing(self._shared._directory):
            self._require_unsealed()
            shared, path = self._shared, self._staged_path(rank)
            specs, offset = specs_of(tensors), BEGIN_IN_PAGE
            segment, new = shared._segment_for(offset + sum(aligned(spec.nbytes) for spec in specs))
            self._created += segment.nbytes if new else 0
            promised, places = [], []
            for spec in specs:
                digest = running_digest()
                # Released here: an error's traceback keeps this frame, which would keep the memory.
                with segment.memory[offset : offset + spec.nbytes] as destination:
                    source = bytes_of(tensors, spec, finite=self._finite, rank=rank)
                    copy_and_digest(source, destination, digest, progress)
                promised.append(PromisedTensor(spec, digest.hexdigest()))
                places.append(TensorPlace(segment.name, offset))
                offset += aligned(spec.nbytes)
            shard = IpcMetas.with_tensors(
                promised,
                version=self.version,
                rank=rank,
                world_size=self._world_size,
                publication=self.publication,
                segments={segment.name: segment.nbytes},
                places=tuple(places),
                finite=self._finite,
            )
            segment.end_writing()
            data = shard.encode()
            half = shared._directory / f".{_STAGED}{segment.name}"
            try:
                write_new(half, data, durable=False)
                half.replace(path)
            finally:
                half.unlink(missing_ok=True)
            shared._staged[path] = _Put(segment, shard, data)
            self._require_unsealed()
            return shard.seal

    def seal(self, digests: Mapping[int, str]) -> SharedReport:
        """Let workers find what was put for all ranks. Blocks.

        One process does so, for all. It waits for none: what was not put, is not what was heard, or lies in
        the memory of a process that has ended, is refused. A second seal of the same digests answers the
        same, in whichever process of the job.

        Parameters
        ----------
        digests : mapping of int to str
            What :meth:`put` has returned for each rank.

        Raises
        ------
        BadInputError
            If a rank is missing, or put as something else than was heard, for another number of ranks, or by
            a process that has ended (``incomplete-publication``).
        RefusedError
            If it was sealed with other digests (``already-sealed``).
        PublisherBusyError
            If another process seals there now.
        StorageError
            If a metas file cannot be written; as :meth:`SharedTensors.publish`.
        """
        shared = self._shared
        if (before := self._sealed_before(digests)) is not None:
            return before
        with storing(shared._directory), shared._alone(), ExitStack() as leases:
            shared._tidy()
            found = {rank: self._heard(rank, digests[rank], leases) for rank in sorted(digests)}
            group = tuple(shard.content_digest for shard in found.values())
            metas = {rank: replace(shard, group=group) for rank, shard in found.items()}
            shared._announce(metas)
            for rank in found:
                path = self._staged_path(rank)
                shared._staged.pop(path, None)
                with suppress(OSError):
                    path.unlink(missing_ok=True)
        shared._let_go()
        sweep(shared._prefix, shared._memory_directory)  # also what the files of a dead trainer name still
        report = SharedReport(
            version=self.version,
            manifest_digest=metas[0].group_digest,
            digests=dict(enumerate(group)),
            bytes=sum(each.spec.nbytes for shard in found.values() for each in shard.tensors),
            created_bytes=self._created,
            seconds=self._seconds(),
        )
        self._sealed = dict(digests), report
        return report

    def _staged_path(self, rank: int) -> Path:
        return self._shared._directory / f"{_STAGED}{self.version}-{self.publication}.{rank}"

    def _announced(self, rank: int) -> IpcMetas | None:
        """Return the metas file of a rank, if it is of this publication."""
        path = self._shared._path(rank)
        with suppress(ManifestError):
            data = read_if_there(path)
            found = None if data is None else IpcMetas.decode(data, file=str(path))
            if found is not None and found.publication == self.publication:
                return found
        return None

    def _require_unsealed(self) -> None:
        if self._job is not None and any(map(self._announced, range(self._world_size))):
            raise errors.already_sealed(version=self.version, problem="no shard can be put any more")

    def _heard(self, rank: int, digest: str, leases: ExitStack) -> IpcMetas:
        """Return what was put for a rank, if it was heard of and its memory, leased here, has its owner."""
        path = self._staged_path(rank)
        data = read_if_there(path)
        sealed = self._announced(rank) if data is None else None
        if data is None and sealed is None:
            raise self._incomplete(f"nothing was put for rank {rank}")
        put = self._shared._staged.get(path)
        if put is not None and put.data == data:
            shard = put.shard
        else:
            shard = (
                replace(sealed, group=())
                if sealed is not None
                else IpcMetas.decode(data or b"", file=str(path))
            )
        if sealed is not None:
            self._require_same({rank: shard.seal}, {rank: digest})
        self._require_heard(rank, shard, digest)
        for name, nbytes in shard.segments.items():
            try:
                memory = self._shared._attached(name, nbytes, str(path))
            except (BadInputError, RefusedError) as error:
                problem = f"the process that put rank {rank} has ended, or puts anew ({error})"
                raise self._incomplete(problem) from error
            leases.enter_context(closing(memory))
            if not memory.owned():
                raise self._incomplete(f"the process that put rank {rank} has ended")
        if sealed is None and read_if_there(path) != data:
            raise self._incomplete(f"rank {rank} was put anew meanwhile")
        return shard


def read_if_there(path: Path) -> bytes | None:
    """Return the bytes of a file of ours; None if there is none, or it is too large. Raises OSError."""
    with suppress(FileNotFoundError, IsADirectoryError, ForeignPathError):
        return read_ours(path) if path.stat().st_size <= MAX_METAS_BYTES else None
    return None


@dataclass(frozen=True)
class _Put:
    """What this process has put for a rank, and the bytes of the file that says so."""

    segment: OwnedSegment
    shard: IpcMetas
    data: bytes
