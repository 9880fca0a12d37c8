"""Metas files as FastDeploy's trainers pickle them, and device memory that metas point at: paddle opens both.

Only for those who allowed pickles by name, or whose metas name CUDA IPC handles. The calls are FastDeploy's
own (``_new_shared_cuda``), for host memory paddle's (``_new_shared_filename``). Such a file says no version
and promises no digest. The CUDA calls have not been run: paddle's CPU build does not have them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from wsm.strategies import errors as strategies_errors
from wsm.strategies.byte_copy import copy_bytes
from wsm.strategies.files.part_file import imported_paddle, unpickled
from wsm.strategies.files.shard_source import device_index_from_environment
from wsm.strategies.ipc.metas import HOST, TensorMeta, bad_device_meta
from wsm.strategies.offer import ManifestScope, Offer, OfferedTensor
from wsm.strategies.snapshot.store import version_beside


class PickledMetas:
    """A pickled metas file that may be read, read whole.

    Parameters
    ----------
    descriptor : int
        The open file.
    path : str
        Its name, for messages.

    Raises
    ------
    RefusedError
        If paddle is not installed.
    BadInputError
        If it holds something else than a map of names to metas.
    """

    def __init__(self, descriptor: int, path: str) -> None:
        self.path = path
        content = unpickled(descriptor, file=path)
        if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
            raise strategies_errors.bad_pickle(file=path, problem="it is no map of names to metas")
        self._metas: dict[str, Sequence[Any]] = content

    def offer(self, device_index: int | None, version: str | None) -> Offer:
        """Return its tensors; nothing is opened before it is read.

        Raises
        ------
        BadInputError, VersionMismatchError
            If `version` was asked for, and ``version.yaml`` beside the file does not say that it is this one.
        wsm.strategies.errors.ManifestError
            If a meta is none.
        """
        beside = version_beside(str(Path(self.path).parent), version)
        tensors = tuple(self._tensor(name, device_index) for name in self._metas)
        return Offer(
            version=beside,
            tensors=tensors,
            files=(self.path,),
            manifest_digest=None,
            manifest_scope=ManifestScope.LOADED,
            peak_extra_bytes=max((tensor.spec.nbytes for tensor in tensors), default=0),
        )

    def _tensor(self, name: str, device_index: int | None) -> OfferedTensor:
        fields = self._metas[name]
        on_host = isinstance(fields, (list, tuple)) and len(fields) > 6 and isinstance(fields[6], bool)
        if on_host:
            # paddle's meta of host memory: name, descriptor (-1), size, type, dims, lod, by descriptor
            meta = TensorMeta.of_fields(name, [fields[0], 0, *fields[2:6], HOST], file=self.path)
            opened = partial(_open_on_host, meta, self.path, tuple(fields))
            return OfferedTensor(meta.spec, self.path, _HostBytes(opened).read_into)
        meta = TensorMeta.of_fields(name, fields, file=self.path)
        return device_tensor(meta, None, self.path, device_index)


def device_tensor(
    meta: TensorMeta, digest: str | None, file: str, device_index: int | None, *, finite: bool = False
) -> OfferedTensor:
    """Return a tensor of device memory to offer; it is opened, and copied to the host, when it is read.

    Raises
    ------
    BadInputError
        If this build of paddle opens none. Nothing was changed.
    """
    shared = _shared_cuda(meta, file)
    index = device_index_from_environment(os.environ) if device_index is None else device_index
    opened = partial(_open_on_device, shared, meta, file, index)
    return OfferedTensor(meta.spec, file, _HostBytes(opened).read_into, digest, finite=finite)


class _HostBytes:
    """The bytes of a tensor of paddle, which is opened and copied to the host when it is read, in order."""

    def __init__(self, opened: Callable[[], Any]) -> None:
        self._opened = opened
        self._data: memoryview | None = None

    def read_into(self, offset: int, destination: memoryview) -> None:
        if self._data is None:
            self._data = memoryview(self._opened().numpy().reshape(-1).view("u1"))
        end = offset + len(destination)
        copy_bytes(self._data[offset:end], destination)
        if end == len(self._data):
            self._data = None


def _open_on_host(meta: TensorMeta, file: str, fields: tuple[Any, ...]) -> Any:
    paddle = imported_paddle(file)
    try:
        return paddle.to_tensor(_dense_tensor(paddle)._new_shared_filename(fields))
    except Exception as error:  # whatever paddle says of memory that is gone, or never was
        raise bad_device_meta(tensor=meta.spec.name, file=file, problem=str(error)) from error


def _shared_cuda(meta: TensorMeta, file: str) -> Callable[[Any], Any]:
    paddle = imported_paddle(file)
    shared: Callable[[Any], Any] | None = getattr(_dense_tensor(paddle), "_new_shared_cuda", None)
    if shared is not None and paddle.device.cuda.device_count():
        return shared
    problem = "this build of paddle has no CUDA; use a GPU build"
    if shared is not None:
        problem = "paddle's CUDA sees no GPU; run the rank where the trainer's GPU is"
    raise bad_device_meta(tensor=meta.spec.name, file=file, problem=problem)


def _open_on_device(shared: Callable[[Any], Any], meta: TensorMeta, file: str, index: int) -> Any:
    fields = meta.fields()
    try:
        return imported_paddle(file).to_tensor(shared((fields[0].encode("latin-1"), *fields[1:6], index)))
    except Exception as error:  # whatever CUDA says
        raise bad_device_meta(tensor=meta.spec.name, file=file, problem=str(error)) from error


def _dense_tensor(paddle: Any) -> Any:
    """Return paddle's class of tensors without gradients: LoDTensor in 2.6, both names in 3.3."""
    core = paddle.base.core
    return getattr(core, "LoDTensor", None) or core.DenseTensor
