"""The trainer's side of ``ipc`` for device memory: CUDA IPC handles of its tensors, in one rank's metas file.

Nothing is copied: the handles name the trainer's own tensors. So the lifetime is explicit. What is published
must not be written to until :meth:`SharedDeviceTensors.withdraw` was called and
:meth:`~SharedDeviceTensors.leased` is false; this object holds the tensors until then, and
:meth:`~SharedDeviceTensors.close` does not let go of memory that a worker is reading. Leases are kernel locks
on a small segment of host memory that stands for the device memory, which has none. A worker never keeps
device memory of a trainer, and refuses that of a dead one, which is gone with it.

The exporting call is paddle's (``_share_cuda``), as FastDeploy's trainers make it; it was not run on a GPU.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from wsm.errors import RefusedError
from wsm.labels import checked_version
from wsm.shared_directory import ForeignPathError, read_ours, remove_ours
from wsm.strategies import errors as strategies_errors
from wsm.strategies.digest import digest_of, shard_digest
from wsm.strategies.dtype_names import PADDLE_DTYPES, paddle_name
from wsm.strategies.errors import StorageError
from wsm.strategies.files.atomic_file import replace_file
from wsm.strategies.files.shard_source import device_id_from_environment, device_index_from_environment
from wsm.strategies.files.snapshot_names import SHARED_DIRECTORY
from wsm.strategies.finite import check_finite
from wsm.strategies.ipc._abandoned import head_of
from wsm.strategies.ipc.metas import (
    DEVICE_SEGMENT_PREFIX,
    HOST,
    IpcMetas,
    TensorMeta,
    TensorPlace,
    bad_device_meta,
    metas_name,
)
from wsm.strategies.ipc.shared_segment import HEAD_BYTES, OwnedSegment, sweep
from wsm.strategies.promise import PromisedTensor
from wsm.strategies.tensor import TensorSpec
from wsm.strategies.trainer.retention import take_publisher_lock
from wsm.typed import Count, CountFrom0, Wait, typed_calls

_LOOK_EVERY_S = 0.01


@typed_calls
class SharedDeviceTensors(AbstractContextManager["SharedDeviceTensors"]):
    """Device tensors of one trainer process, published version by version to one rank; use it in ``with``.

    Parameters
    ----------
    directory : path or str
        Where the metas file lies; created if it does not exist.
    rank, world_size : int
        Whose shard this process trains, and of how many ranks.
    device_id : int, optional
        Physical device id in the file's name; from the environment if not given
        (:mod:`wsm.strategies.files.shard_source`).
    device_index : int, optional
        The index of its device among those that this process sees, as the seventh field says it;
        ``FLAGS_selected_gpus`` if not given. A worker opens the handle on the device of its own.
    memory_directory : str, optional
        Where the segment for leases is created; in the private directory of this user by default.

    Raises
    ------
    BadInputError
        If the environment gives no number either.
    wsm.strategies.errors.PublisherBusyError
        If another process shares device tensors through the same file.
    wsm.strategies.errors.StorageError
        If the directory cannot be used.
    """

    def __init__(
        self,
        directory: Path | str = SHARED_DIRECTORY,
        *,
        rank: CountFrom0 = 0,
        world_size: Count = 1,
        device_id: int | None = None,
        device_index: int | None = None,
        memory_directory: str | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        named = device_id_from_environment(rank, environment) if device_id is None else device_id
        self._index = device_index_from_environment(environment) if device_index is None else device_index
        self._rank = rank
        self._world_size = world_size
        self._path = Path(directory) / metas_name(named)
        self._memory_directory = memory_directory
        place = os.fsencode(self._path.parent.resolve() / self._path.name)
        self._prefix = f"{DEVICE_SEGMENT_PREFIX}{digest_of(place)[:8]}."
        self._announced = b""
        self._held: list[tuple[OwnedSegment, Mapping[str, Any]]] = []
        self._lock = take_publisher_lock(self._path.parent, f".{self._path.name}.lock")

    def digest(self, tensors: Mapping[str, Any]) -> str:
        """Return the digest of a shard, for :meth:`publish` of all ranks. Blocks; copies to the host.

        Raises
        ------
        BadInputError
            If one of the tensors cannot be exported.
        """
        return shard_digest((meta.spec, digest) for meta, digest in self._exported(tensors))

    def publish(
        self,
        version: str | int,
        tensors: Mapping[str, Any],
        *,
        publication: str | None = None,
        group: Sequence[str] | None = None,
        finite: bool = False,
    ) -> str:
        """Let the rank find the tensors where they lie. Blocks: each is copied to the host to be digested.

        Parameters
        ----------
        version : str or int
            Its number.
        tensors : mapping of str to paddle.Tensor
            On the device, contiguous; not written to until they are withdrawn and not leased.
        publication : str, optional
            The same on all ranks and never used before; drawn here if this rank is the only one.
        group : sequence of str, optional
            The :meth:`digest` of every rank's shard, in rank order; needed with more ranks than one.
        finite : bool
            Refuse NaN and infinity here, and have every load refuse them.

        Returns
        -------
        str
            Digest of the publication; what every rank's load reports.

        Raises
        ------
        BadInputError
            If this build of paddle has no CUDA, or a tensor cannot be exported. Nothing became visible.
        BadInputError (``trainer-tensor``)
            If one is not finite although it is to be. Nothing became visible.
        BadInputError
            If the ranks' digests are missing or do not fit. Nothing became visible.
        StorageError, RefusedError
            If the file or the segment cannot be written. Nothing became visible.
        """
        version = checked_version(version)
        rows = self._exported(tensors, finite=finite)
        promised = [PromisedTensor(meta.spec, digest) for meta, digest in rows]
        own = shard_digest((spec, digest) for spec, digest, _ in promised)
        if group is None and self._world_size == 1:
            group, publication = (own,), publication or secrets.token_hex(16)
        if publication is None or group is None or list(group)[self._rank : self._rank + 1] != [own]:
            raise strategies_errors.incomplete_publication(
                version=version,
                problem=f"rank {self._rank} of {self._world_size} needs the publication's name and the "
                "digests of all ranks, its own among them",
            )
        lease = OwnedSegment(self._prefix, HEAD_BYTES, self._memory_directory)
        lease.write_at(0, head_of(self._path.parent))
        metas = IpcMetas.with_tensors(
            promised,
            version=version,
            rank=self._rank,
            world_size=self._world_size,
            publication=publication,
            group=tuple(group),
            segments={lease.name: lease.nbytes},
            places=tuple(
                TensorPlace(lease.name if meta.device == HOST else meta.handle, meta.offset, meta.device)
                for meta, _ in rows
            ),
            finite=finite,
        )
        content = metas.encode()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, content, durable=False, alone=True)
        except OSError as error:
            lease.close()
            raise StorageError(path=self._path, error=error) from error
        self._announced = content
        self._let_go()
        self._held.append((lease, dict(tensors)))
        sweep(self._prefix, self._memory_directory)
        return metas.group_digest

    def leased(self) -> bool:
        """Whether a worker reads tensors of this process now."""
        return any(lease.leased() for lease, _ in self._held)

    def withdraw(self) -> None:
        """Let no further worker find the tensors; write to them only when none has a lease. Idempotent."""
        with suppress(OSError, ForeignPathError):
            if self._announced and self._lock.is_held and read_ours(self._path) == self._announced:
                remove_ours(self._path)
        self._announced = b""
        self._let_go()

    def close(self, wait_s: Wait = 10.0) -> None:
        """Withdraw, and let go of the tensors when no worker reads them any more. Idempotent.

        Raises
        ------
        RefusedError
            If a worker still reads after `wait_s` seconds: the tensors stay alive, and this may be called
            again. Freed under a reader, device memory is anything.
        """
        self.withdraw()
        deadline = time.monotonic() + wait_s
        while self._held and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY_S)
            self._let_go()
        if self._held:
            raise RefusedError(
                f"a worker still reads the device memory of {self._path} after {wait_s:g} s; the tensors "
                "stay alive: close again when it has loaded, or end the worker first",
                code="device-memory-leased",
                file=str(self._path),
                waited_s=wait_s,
            )
        self._lock.release(remove=True)

    def __exit__(self, *_: object) -> None:
        self.close()

    def _let_go(self) -> None:
        """Forget tensors of earlier publications without readers; no reader comes to them any more."""
        kept = []
        for lease, tensors in self._held:
            if lease.begin_writing():  # no reader, and none from here on
                lease.close()
            else:
                kept.append((lease, tensors))
        self._held = kept

    def _exported(self, tensors: Mapping[str, Any], *, finite: bool = False) -> list[tuple[TensorMeta, str]]:
        return [self._export(name, tensor, finite=finite) for name, tensor in tensors.items()]

    def _export(self, name: str, tensor: Any, *, finite: bool) -> tuple[TensorMeta, str]:
        file = str(self._path)
        dense = tensor.value().get_tensor()
        share = getattr(dense, "_share_cuda", None)
        if share is None:
            raise bad_device_meta(
                tensor=name, file=file, problem="this build of paddle has no CUDA; use a GPU build"
            )
        if not tensor.size:
            # It has no memory that could be exported; it lies nowhere in the segment of the leases.
            dtype = PADDLE_DTYPES.get(paddle_name(tensor))
            if dtype is None:
                raise bad_device_meta(tensor=name, file=file, problem=f"wsm does not move {tensor.dtype}")
            spec = TensorSpec(name, dtype, tuple(tensor.shape))
            return TensorMeta(spec, self._prefix, 0, HOST), digest_of(b"")
        data = memoryview(tensor.numpy().reshape(-1)).cast("B")
        digest = digest_of(data)
        try:
            handle, *rest = share()
        except Exception as error:  # whatever CUDA says
            raise bad_device_meta(tensor=name, file=file, problem=str(error)) from error
        text = handle.decode("latin-1") if isinstance(handle, bytes) else handle
        meta = TensorMeta.of_fields(name, [text, *rest[:5], self._index], file=file)
        if finite:
            check_finite(meta.spec, data)
        return meta, digest
