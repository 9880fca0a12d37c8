"""The parameters and persistable buffers of paddle layers in device memory, through host memory.

Responsible for moving: the applier writes one tensor at a time into a buffer on the host, and each goes to
the device when it is complete and verified. The calls are FastDeploy's own (``paddle.empty`` or a new
tensor shared into a released parameter, a copy into one that holds memory), so that captured addresses
stay where they are in an update in place. It must not know where bytes come from.

A second version for a hot update is staged in device memory through host memory, one tensor at a time; its
flip and its checks are those of :mod:`wsm.actions.backends._paddle_staging`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

import numpy as np

from wsm.actions.backends import errors
from wsm.actions.backends._paddle_staging import PaddleStaging, ServedTensors
from wsm.actions.backends.paddle_bytes import carrier_name
from wsm.actions.backends.paddle_weights import PaddleWeights
from wsm.strategies.paddle_dtypes import paddle_name
from wsm.strategies.tensor import TensorReleasedError


class DeviceWeights(PaddleWeights):
    """One rank's model shard on a device, as a :class:`wsm.actions.surfaces.WeightSurface`.

    Extra memory: one tensor on the host while it is written or read, and one on the device while it is moved.

    Parameters
    ----------
    layers : paddle.nn.Layer or mapping of str to paddle.nn.Layer
        As for :class:`PaddleWeights`.
    place : paddle place
        Where the tensors belong, for example ``paddle.CUDAPlace(0)``; a released tensor does not know it.
    transposed : collection of str
        As for :class:`PaddleWeights`; they are turned round on the host.

    Raises
    ------
    BadInputError (``unsupported-tensor``)
        If a tensor's dtype has no safetensors name.
    """

    on_host = False

    def __init__(self, layers: Any, place: Any, *, transposed: Collection[str] = ()) -> None:
        super().__init__(layers, transposed=transposed)
        self._place = place
        self._staged: tuple[str, np.ndarray[Any, Any]] | None = None

    def _placed(self, name: str, memory: np.ndarray[Any, Any]) -> Any:
        """Return a tensor like the named one on the device, with the content of an array of its carrier."""
        return self.on_device(name, memory)

    def writable(self, name: str) -> memoryview:
        """Return host memory for the tensor's bytes; :meth:`written` moves them. One tensor at a time."""
        spec = self._specs[name]
        if not spec.nbytes:
            return memoryview(bytearray())
        memory = self.host_memory(name)
        self._staged = (name, memory)
        return memory.reshape(-1).view(np.uint8).data

    def written(self, name: str) -> None:
        """Move the bytes that were written for `name` to the device. Blocks until they are there.

        Raises
        ------
        GroupError (``adoption``)
            If other bytes were written last, or paddle made another tensor of them.
        """
        import paddle  # noqa: PLC0415 - a second of import time that only a loading worker pays

        if not self._specs[name].nbytes:
            return
        staged, self._staged = self._staged, None
        if staged is None or staged[0] != name:
            raise errors.adoption(tensor=name, found="no bytes of it are staged")
        tensor = self._tensors[name]
        source = self.on_device(name, staged[1])
        if tensor._is_initialized():
            with paddle.no_grad():
                tensor.copy_(source, True)
        else:
            source._share_buffer_to(tensor)
        if not tensor._is_initialized():
            raise errors.adoption(tensor=name, found="it holds no memory")

    def readable(self, name: str) -> memoryview:
        """Return a copy of the tensor's bytes on the host, read-only. Blocks.

        Raises
        ------
        TensorReleasedError
            If it holds no memory.
        """
        spec = self._specs[name]
        if not spec.nbytes:
            return memoryview(b"")
        if not self._tensors[name]._is_initialized():
            raise TensorReleasedError(tensor=name)
        return self.as_declared(name, self.copy_of(self.tensor(name)))

    def stage(self) -> DeviceStaging:
        """Begin a second version beside this one; takes no memory yet."""
        return DeviceStaging(self)

    def host_memory(self, name: str) -> np.ndarray[Any, Any]:
        """Return host memory for the bytes of the named tensor.

        Raises
        ------
        GroupError (``tensor-changed``)
            If it is not what it was.
        """
        carrier = np.dtype(carrier_name(paddle_name(self.tensor(name))))
        return np.empty(self._specs[name].shape, carrier)

    def on_device(self, name: str, memory: np.ndarray[Any, Any]) -> Any:
        """Return a tensor like the named one, on the device, with the bytes of `memory`. Blocks.

        Raises
        ------
        GroupError (``adoption``)
            If paddle made another tensor of them.
        """
        import paddle  # noqa: PLC0415 - a second of import time that only a loading worker pays

        wanted = paddle_name(self._tensors[name])
        source = paddle.to_tensor(memory, place=self._place)
        if paddle_name(source) != wanted:
            source = source.view(wanted)
        if paddle_name(source) != wanted or tuple(source.shape) != self._specs[name].shape:
            raise errors.adoption(
                tensor=name, found=f"the bytes became {paddle_name(source)}{list(source.shape)}"
            )
        return source

    def copy_of(self, tensor: Any) -> memoryview:
        """Return a copy of a tensor's bytes on the host, read-only. Blocks."""
        tensor = tensor.detach()
        carrier = carrier_name(paddle_name(tensor))
        if carrier != paddle_name(tensor):
            tensor = tensor.view(carrier)
        copied: np.ndarray[Any, Any] = tensor.numpy()
        return copied.reshape(-1).view(np.uint8).data.toreadonly()


class ServedDeviceTensors(ServedTensors, Protocol):
    """What is known besides of a shard on a device."""

    def host_memory(self, name: str) -> np.ndarray[Any, Any]:
        """Return host memory for the tensor's bytes."""
        ...

    def on_device(self, name: str, memory: np.ndarray[Any, Any]) -> Any:
        """Return a tensor on the device with these bytes."""
        ...

    def copy_of(self, tensor: Any) -> memoryview:
        """Return a copy of a tensor's bytes on the host, read-only."""
        ...


class DeviceStaging(PaddleStaging):
    """A :class:`wsm.actions.surfaces.StagedWeights` for parameters in device memory.

    Parameters
    ----------
    served : ServedDeviceTensors
        The shard whose place is to be taken.
    """

    def __init__(self, served: ServedDeviceTensors) -> None:
        super().__init__(served)
        self._device = served
        self._on_host: tuple[str, np.ndarray[Any, Any]] | None = None

    def writable(self, name: str) -> memoryview:
        """Return host memory for the tensor's bytes; :meth:`written` moves them. One tensor at a time."""
        if not self.specs()[name].nbytes:
            return memoryview(bytearray())
        memory = self._device.host_memory(name)
        self._on_host = (name, memory)
        return memory.reshape(-1).view(np.uint8).data

    def written(self, name: str) -> None:
        """Move the bytes that were written for `name` to the device, into memory of their own. Blocks.

        Raises
        ------
        GroupError (``adoption``)
            If other bytes were written last, or paddle made another tensor of them.
        """
        if not self.specs()[name].nbytes:
            return
        on_host, self._on_host = self._on_host, None
        if on_host is None or on_host[0] != name:
            raise errors.adoption(tensor=name, found="no bytes of it are staged")
        self._staged[name] = self._device.on_device(name, on_host[1])

    def readable(self, name: str) -> memoryview:
        """Return a copy of the staged bytes on the host, read-only. Blocks.

        Raises
        ------
        TensorReleasedError
            If nothing was staged for it.
        """
        if not self.specs()[name].nbytes:
            return memoryview(b"")
        if name not in self._staged:
            raise TensorReleasedError(tensor=name)
        return self._device.as_declared(name, self._device.copy_of(self._staged[name]))
