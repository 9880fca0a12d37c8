"""The trainer's side of the strategy ``ipc``: tensors in shared memory, and the metas files that name them.

A trainer owns the memory until :meth:`SharedTensors.close`. It writes each version beside the one that is
published, into a segment that no reader has a lease on, and then replaces the metas files; a reader sees
the old version or the new one. A worker that keeps tensors where they are (adoption) keeps its lease, and
that segment is then neither written nor freed before it lets go. Knows no targets.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from wsm.clock import Clock, SystemClock
from wsm.labels import checked_version
from wsm.shared_directory import ForeignPathError, read_ours, remove_ours
from wsm.strategies.applier.finite import check_finite
from wsm.strategies.byte_copy import copy_and_digest
from wsm.strategies.digest import digest_of, running_digest, shard_digest
from wsm.strategies.errors import StorageError
from wsm.strategies.files.atomic_file import replace_file
from wsm.strategies.files.snapshot_names import SHARED_DIRECTORY
from wsm.strategies.ipc._abandoned import head_of, remove_abandoned
from wsm.strategies.ipc.metas import SEGMENT_PREFIX, IpcMetas, TensorPlace, metas_name
from wsm.strategies.ipc.shared_segment import OwnedSegment, sweep
from wsm.strategies.promise import PromisedTensor
from wsm.strategies.tensor import BEGIN_IN_PAGE, TensorSpec
from wsm.strategies.trainer.staged_directory import SHARER_LOCK, take_publisher_lock
from wsm.strategies.trainer.tensors import TrainerReport, TrainerTensors, bytes_of, check_ranks, specs_of
from wsm.typed import typed_calls

# Every tensor begins on a cache line, and no vector instruction minds where it was adopted.
_ALIGNMENT = 64


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
class SharedTensors:
    """Shared memory of one trainer, published version by version; use it in ``with``.

    Parameters
    ----------
    directory : path or str
        Where the metas files lie; created if it does not exist.
    device_ids : mapping of int to int, optional
        Per rank, the device id in its metas file's name; the rank itself where not given.
    memory_directory : str, optional
        Where shared memory is created: a tmpfs with room for two versions; by default this user's directory.
    clock : Clock, optional
        For the seconds in reports.

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
        device_ids: Mapping[int, int] | None = None,
        memory_directory: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._directory = Path(directory)
        self._device_ids = device_ids or {}
        self._memory_directory = memory_directory
        self._clock = clock or SystemClock()
        self._published: dict[int, OwnedSegment] = {}
        self._older: list[OwnedSegment] = []
        self._metas: dict[Path, _Metas] = {}
        self._lock = take_publisher_lock(self._directory, SHARER_LOCK)
        self._prefix = f"{SEGMENT_PREFIX}{digest_of(os.fsencode(self._directory.resolve()))[:8]}."
        remove_abandoned(memory_directory)

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
        BadInputError, TrainerTensorError
            If what was handed over is no version. The version before stays published.
        """
        begun = self._clock.monotonic_ns()
        version = checked_version(version)
        check_ranks(version, shards)
        publication = secrets.token_hex(16)
        created = 0
        written: dict[int, _Shard] = {}
        with ExitStack() as undo:
            for rank in sorted(shards):
                segment, new = self._segment_for(_nbytes(specs_of(shards[rank])))
                undo.callback(self._older.append, segment)
                created += segment.nbytes if new else 0
                written[rank] = _write(segment, shards[rank], progress, finite=finite)
            group = tuple(
                shard_digest((spec, digest) for spec, digest, _ in written[rank].tensors)
                for rank in sorted(written)
            )
            for shard in written.values():
                shard.segment.end_writing()
            metas = {
                rank: IpcMetas.with_tensors(
                    shard.tensors,
                    version=version,
                    rank=rank,
                    world_size=len(shards),
                    publication=publication,
                    group=group,
                    segments={shard.segment.name: shard.segment.nbytes},
                    places=shard.places,
                    finite=finite,
                )
                for rank, shard in written.items()
            }
            self._announce(metas)
            undo.pop_all()
        self._older += self._published.values()
        self._published = {rank: shard.segment for rank, shard in written.items()}
        self._let_go()
        return SharedReport(
            version=version,
            manifest_digest=metas[0].group_digest,
            digests=dict(enumerate(group)),
            bytes=sum(each.spec.nbytes for shard in written.values() for each in shard.tensors),
            created_bytes=created,
            seconds=(self._clock.monotonic_ns() - begun) / 1_000_000_000,
        )

    def leased(self) -> bool:
        """Whether any worker reads or keeps memory that this trainer owns."""
        return any(segment.leased() for segment in (*self._published.values(), *self._older))

    def withdraw(self) -> None:
        """Take the published version back: its metas files go, and its memory is written over next time."""
        for path in list(self._metas) if self._lock.is_held else ():
            with suppress(OSError):
                self._put_back(path, None)
        self._older += self._published.values()
        self._published = {}

    def close(self) -> None:
        """Withdraw, and let all memory go; what a worker keeps stays until the worker lets go. Idempotent.

        In a forked child it lets go of the child's own copies only.
        """
        self.withdraw()
        while self._older:
            self._older.pop().close()
        self._lock.release()

    def __enter__(self) -> SharedTensors:  # noqa: PYI034 - typing has Self from Python 3.11 on
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _segment_for(self, nbytes: int) -> tuple[OwnedSegment, bool]:
        named = self._named()
        for segment in self._older:
            if segment.nbytes == nbytes and segment.name not in named and segment.begin_writing():
                self._older.remove(segment)
                return segment, False
        segment = OwnedSegment(self._prefix, nbytes, self._memory_directory)
        segment.begin_writing()
        segment.write_at(0, head_of(self._directory))
        return segment, True

    def _announce(self, metas: Mapping[int, IpcMetas]) -> None:
        """Write every rank's metas file, or put back those that were written; remove other ranks'."""
        paths = {rank: self._directory / metas_name(self._device_ids.get(rank, rank)) for rank in metas}
        before = dict(self._metas)
        path = self._directory
        try:
            for rank, content in metas.items():
                path = paths[rank]
                self._write_metas(path, content.encode(), content.segments)
        except OSError as error:
            visible = None
            for written in [each for each in self._metas if self._metas[each] is not before.get(each)]:
                with suppress(OSError):
                    self._put_back(written, before.get(written))
                    continue
                visible = metas[0].version  # the file goes on naming memory, which is not written over then
            raise StorageError(path=path, error=error, visible=visible) from error
        for other in self._metas.keys() - set(paths.values()):
            with suppress(OSError):
                self._put_back(other, None)

    def _write_metas(self, path: Path, content: bytes, segments: Iterable[str]) -> None:
        replace_file(path, content, durable=False, alone=True)
        self._metas[path] = _Metas(content, tuple(segments))

    def _put_back(self, path: Path, before: _Metas | None) -> None:
        """Let a metas file that is ours be what it was; raises OSError, and it is as it is then."""
        if before is not None:
            self._write_metas(path, before.content, before.segments)
            return
        with suppress(FileNotFoundError, ForeignPathError):  # gone, or no longer ours
            if read_ours(path) == self._metas[path].content:
                remove_ours(path)
        del self._metas[path]

    def _named(self) -> set[str]:
        """Return the segments that metas files of ours name: readers may come to them at any time."""
        return {name for metas in self._metas.values() for name in metas.segments}

    def _let_go(self) -> None:
        """Free what the next version will not be written over, and what dead trainers left."""
        wanted = [segment.nbytes for segment in self._published.values()]
        named = self._named()
        kept: list[OwnedSegment] = []
        for segment in self._older:
            segment.end_writing()
            if segment.name in named:
                kept.append(segment)
            elif segment.leased() or segment.nbytes in wanted:
                if segment.nbytes in wanted and not segment.leased():
                    wanted.remove(segment.nbytes)
                kept.append(segment)
            else:
                segment.close()
        self._older = kept
        sweep(self._prefix, self._memory_directory)  # also what the files of a dead trainer name still
        remove_abandoned(self._memory_directory)


@dataclass(frozen=True)
class _Metas:
    """A metas file as it was written, and the segments that it names."""

    content: bytes
    segments: tuple[str, ...]


@dataclass(frozen=True)
class _Shard:
    segment: OwnedSegment
    tensors: tuple[PromisedTensor, ...]
    places: tuple[TensorPlace, ...]


def _nbytes(specs: list[TensorSpec]) -> int:
    return BEGIN_IN_PAGE + sum(_aligned(spec.nbytes) for spec in specs)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _write(
    segment: OwnedSegment,
    tensors: TrainerTensors,
    progress: Callable[[int], None] | None,
    *,
    finite: bool,
) -> _Shard:
    offset = BEGIN_IN_PAGE
    promised, places = [], []
    for spec in specs_of(tensors):
        digest = running_digest()
        destination = segment.memory[offset : offset + spec.nbytes]
        copy_and_digest(bytes_of(tensors, spec), destination, digest, progress)
        if finite:
            check_finite(spec, destination)
        promised.append(PromisedTensor(spec, digest.hexdigest()))
        places.append(TensorPlace(segment.name, offset))
        offset += _aligned(spec.nbytes)
    return _Shard(segment, tuple(promised), tuple(places))
