"""A second version of tensors in device memory, staged through host memory one tensor at a time.

As :mod:`.paddle_staging`, whose flip and checks it keeps; only how the bytes come and go is another matter.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from wsm.actions.backends.errors import AdoptionError
from wsm.actions.backends.paddle_staging import PaddleStaging, ServedTensors
from wsm.strategies.tensor import TensorReleasedError


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
    """A :class:`wsm.actions.staging_surface.StagedWeights` for parameters in device memory.

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
        AdoptionError
            If other bytes were written last, or paddle made another tensor of them.
        """
        if not self.specs()[name].nbytes:
            return
        on_host, self._on_host = self._on_host, None
        if on_host is None or on_host[0] != name:
            raise AdoptionError(tensor=name, found="no bytes of it are staged")
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
