"""The strategy ``ipc``: one rank's shard from memory that a trainer on the same host shares.

It finds the metas file, holds it against what was asked for, takes a lease on the memory and yields it as an
offer. While the load lasts (and as long as a target keeps the memory) the trainer neither writes nor frees
it. If the trainer has ended, what it left is copied, digests checked, or refused if the source says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path

from wsm import log
from wsm.errors import BadInputError, GroupError, RefusedError, UnfitError, WsmError, coded, raise_kept
from wsm.shared_directory import read_ours
from wsm.strategies import errors as strategies_errors
from wsm.strategies.errors import ManifestError, VersionMismatchError, listed, reading
from wsm.strategies.files.part_file import is_pickle
from wsm.strategies.files.snapshot_directory import SnapshotDirectory
from wsm.strategies.ipc._abandoned import remove_abandoned
from wsm.strategies.ipc._pickled_metas import PickledMetas, device_tensor
from wsm.strategies.ipc.metas import (
    DEVICE_SEGMENT_PREFIX,
    HOST,
    MAX_METAS_BYTES,
    SEGMENT_PREFIX,
    IpcMetas,
    is_metas_file,
    metas_name,
)
from wsm.strategies.ipc.shared_segment import (
    AttachedSegment,
    shared_memory_busy,
)
from wsm.strategies.ipc.source import IpcConfig, IpcSource
from wsm.strategies.observer import UNOBSERVED, LoadObserver
from wsm.strategies.offer import ManifestScope, Offer, OfferedTensor
from wsm.strategies.strategy import Sections, Strategy

# Each further attempt takes a trainer that published anew between two of our system calls.
_ATTEMPTS = 8

_log = log.logger("strategies")


class Ipc(Strategy):
    """Load from memory that a trainer shares."""

    source_type = IpcSource
    sections = (IpcConfig,)
    rereadable = True

    def source(self, sections: Sections, rank: int, ranks: int) -> IpcSource:
        """Return one rank's view of the configured directory."""
        return sections.of(IpcConfig).source(IpcSource, rank, ranks)

    @contextmanager
    def open(
        self,
        source: IpcSource,
        version: str | None,
        observer: LoadObserver = UNOBSERVED,  # noqa: ARG002 - of the protocol; nothing here waits
    ) -> Iterator[Offer]:
        """Find the metas of the source's rank and take a lease on its memory. Blocks on metadata only.

        Parameters
        ----------
        source : IpcSource
            Where to look.
        version : str or None
            The version that must be shared; None for whichever is.
        observer : LoadObserver
            Not asked: nothing here waits.

        Raises
        ------
        wsm.strategies.errors.BadInputError
            If there is nothing, or not what was asked for. Nothing was changed.
        GroupError
            If the trainer has ended and the source refuses orphans. Nothing was changed.
        """
        try:
            with ExitStack() as stack:
                yield _found(source, version, stack)
        finally:
            remove_abandoned(source.memory_directory)

    def close(self, source: IpcSource) -> None:
        """Remove what dead trainers left that no rank can find any more."""
        remove_abandoned(source.memory_directory)


def rank_of_metas(path: Path, *, allow_pickle: bool = False) -> int:
    """Return whose shard a metas file says it is; 0 for a pickled one, which does not say.

    Raises
    ------
    wsm.strategies.errors.BadInputError
        If it cannot be read, or is no such file.
    """
    with closing(SnapshotDirectory(str(path.parent))) as directory:
        data = _read(directory, path.name, IpcSource(path.parent, allow_pickle=allow_pickle))
    return IpcMetas.decode(data, file=str(path)).rank if isinstance(data, bytes) else 0


def _found(source: IpcSource, version: str | None, stack: ExitStack) -> Offer:
    """Return the offer of the metas that stand there while its memory is under our lease."""
    name = metas_name(source.resolved_device_id())
    try:
        directory = stack.enter_context(closing(SnapshotDirectory(str(source.directory))))
    except FileNotFoundError as error:
        raise _not_found(file=f"{source.directory}/{name}", present=()) from error
    file = directory.locate(name)
    data = _read(directory, name, source)
    for _ in range(_ATTEMPTS):
        if isinstance(data, PickledMetas):
            return data.offer(source.device_index, version)
        gone: list[BaseException] = []
        with ExitStack() as held:
            try:
                offer = _offer(data, file, source, version, held)
            except (BadInputError, RefusedError) as error:
                gone.append(error)
            before, data = data, _read(directory, name, source)
            if data == before:
                raise_kept(gone)
                stack.push(held.pop_all())
                return offer
    raise shared_memory_busy(segment=file)


def _read(directory: SnapshotDirectory, name: str, source: IpcSource) -> bytes | PickledMetas:
    path = directory.locate(name)
    try:
        descriptor = directory.open(name)
    except FileNotFoundError as error:
        present = [other for other in directory.names() if is_metas_file(other)]
        raise _not_found(file=path, present=present) from error
    with os.fdopen(descriptor, "rb") as file, reading(path):
        if is_pickle(descriptor, path):
            if not source.allow_pickle:
                raise UnfitError(
                    f"{path} is in pickle format, which may run any code when read, and is refused; "
                    "publish with wsm.strategies.SharedTensors, or set allow_pickle: true if you trust "
                    "its writer",
                    code="pickled-metas-refused",
                    file=path,
                )
            return PickledMetas(descriptor, path)
        if os.fstat(descriptor).st_size > MAX_METAS_BYTES:
            raise ManifestError(file=path, problem=f"it is larger than {MAX_METAS_BYTES} bytes")
        return file.read(MAX_METAS_BYTES)


def _offer(data: bytes, file: str, source: IpcSource, version: str | None, held: ExitStack) -> Offer:
    metas = IpcMetas.decode(data, file=file)
    _require(metas, source, version, file)
    if not metas.group:
        raise ManifestError(file=file, problem="it was put and not sealed")
    segments = {
        name: held.enter_context(
            closing(
                AttachedSegment(
                    name,
                    nbytes,
                    prefixes=(SEGMENT_PREFIX, DEVICE_SEGMENT_PREFIX),
                    referrer=file,
                    directory=source.memory_directory,
                )
            )
        )
        for name, nbytes in metas.segments.items()
    }
    on_device = [meta for meta in metas.metas if meta.device != HOST]
    orphaned = [segment.path for segment in segments.values() if not segment.owned()]
    if orphaned:
        # Host memory outlives its owner; device memory is gone with the process.
        if on_device or source.orphans != "copy":
            why = "orphans are refused here; start the trainer and publish again, or set orphans: copy"
            if on_device:
                why = "device memory is gone with its process; start the trainer and publish again"
            raise GroupError(
                f"the trainer that published {file} for rank {metas.rank} has ended (no process owns "
                f"{orphaned[0]}), and {why}",
                code="owner-died",
                file=file,
                rank=metas.rank,
                segment=orphaned[0],
            )
        _log.warning("shared_memory.orphaned", file=file, segment=orphaned[0])
    adopt = source.adopt and not orphaned
    tensors = tuple(
        OfferedTensor(
            meta.spec,
            segments[meta.handle].path,
            partial(segments[meta.handle].read_from, meta.offset),
            promised.digest,
            memory=partial(segments[meta.handle].memory, meta.offset, meta.spec.nbytes) if adopt else None,
            finite=metas.finite,
        )
        if meta.device == HOST
        else device_tensor(meta, promised.digest, file, source.device_index, finite=metas.finite)
        for meta, promised in zip(metas.metas, metas.tensors, strict=True)
    )
    return Offer(
        version=metas.version,
        tensors=tensors,
        files=(file, *(segment.path for segment in segments.values())),
        manifest_digest=metas.group_digest,
        manifest_scope=ManifestScope.GROUP,
        publication=metas.publication,
        peak_extra_bytes=max((meta.spec.nbytes for meta in on_device), default=0),
        parallel=not on_device,
    )


def _require(metas: IpcMetas, source: IpcSource, version: str | None, file: str) -> None:
    try:
        metas.require(version, source.rank, source.world_size, where=file)
    except VersionMismatchError:
        named = _versions(source)
        if len(set(named.values())) > 1:  # a trainer died between two of them
            raise strategies_errors.mixed_parts(field="version", values=sorted(named.items())) from None
        raise


def _versions(source: IpcSource) -> dict[str, str]:
    """Return the version of every rank's metas file that can be read now."""
    found = {}
    with suppress(OSError):
        for path in Path(source.directory).glob(metas_name("*")):
            with suppress(WsmError):
                found[str(path)] = IpcMetas.decode(read_ours(path), file=str(path)).version
    return found


@coded("metas-not-found")
def _not_found(*, file: str, present: Sequence[str]) -> BadInputError:
    """No trainer has published shared tensors for this device."""
    seen = f"; there are {listed(present)}" if present else ""
    return UnfitError(
        f"{file} does not exist{seen}; let the trainer publish its tensors, "
        "or correct the directory or device id",
        present=tuple(present),
    )
