"""Where the tests of this directory run: on a GPU, or with the same body on the CPU.

What differs is here and nowhere else: the place of tensors, who counts memory, how a trainer shares, and
what captures addresses. On the CPU a Fake stands for the CUDA graph; everything else is real on both.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np
import paddle
import psutil

from tests.gpu import machine
from wsm.actions.backends.memory import DeviceMemory, HostMemory
from wsm.actions.backends.paddle_bytes import array_of
from wsm.actions.backends.paddle_weights import DeviceWeights
from wsm.actions.surfaces import MemorySurface
from wsm.strategies import SharedDeviceTensors, SharedTensors, TensorSpec


class CapturedDouble(Protocol):
    """Something that captured a tensor's address, and computes twice what lies there."""

    def replay(self) -> np.ndarray[Any, Any]:
        """Compute anew, from whatever is at the captured address now."""
        ...


class Sharing(Protocol):
    """A trainer's side of ``ipc``, for a group of one rank."""

    def publish(self, version: int, tensors: dict[str, Any]) -> str:
        """Share the tensors; return the digest of the publication."""
        ...

    def close(self) -> None:
        """Let go of everything, once nobody reads."""
        ...


class Device(Protocol):
    """Where tensors lie."""

    name: str

    def use(self) -> None:
        """Make new tensors lie there."""
        ...

    def weights(self, layers: Any) -> DeviceWeights:
        """Return the shard of `layers`, moved through host memory, as for a device."""
        ...

    def memory(self) -> MemorySurface:
        """Return who counts memory for the library."""
        ...

    def occupied_bytes(self) -> int:
        """Return what is occupied, as somebody outside of paddle and the library counts it."""
        ...

    def capture_double(self, tensor: Any) -> CapturedDouble:
        """Capture twice the tensor, which is of float32."""
        ...

    def sharing(self, directory: Path) -> Sharing:
        """Return a trainer's side of ``ipc`` that shares tensors of this device."""
        ...


class FakeCudaGraph:
    """Reads where a tensor lay when it was captured, whatever has become of the tensor."""

    def __init__(self, tensor: Any) -> None:
        self._memory = array_of(tensor)

    def replay(self) -> np.ndarray[Any, Any]:
        """Compute anew."""
        doubled: np.ndarray[Any, Any] = self._memory + self._memory
        return doubled


class CudaGraph:
    """A CUDA graph of one kernel, captured by paddle's own calls."""

    def __init__(self, tensor: Any, place: Any) -> None:
        from paddle.device.cuda.graphs import CUDAGraph  # noqa: PLC0415 - of GPU builds alone

        with paddle.no_grad():
            tensor + tensor  # the kernel is loaded when it first runs, which cannot be captured
            paddle.device.synchronize()
            self._graph = CUDAGraph(place)
            self._graph.capture_begin()
            self._out = tensor + tensor
            self._graph.capture_end()

    def replay(self) -> np.ndarray[Any, Any]:
        """Run the captured kernel."""
        self._graph.replay()
        paddle.device.synchronize()
        found: np.ndarray[Any, Any] = self._out.numpy()
        return found


class Cpu:
    """Host memory."""

    name = "cpu"

    def use(self) -> None:
        """Make new tensors lie in host memory, on GPU builds too."""
        paddle.device.set_device("cpu")

    def weights(self, layers: Any) -> DeviceWeights:
        """Return the shard."""
        return DeviceWeights(layers, paddle.CPUPlace())

    def memory(self) -> MemorySurface:
        """Return the process's own count."""
        return HostMemory()

    def occupied_bytes(self) -> int:
        """Return the pages that are this process's alone."""
        return int(psutil.Process().memory_full_info().uss)

    def capture_double(self, tensor: Any) -> CapturedDouble:
        """Capture with the Fake."""
        return FakeCudaGraph(tensor)

    def sharing(self, directory: Path) -> Sharing:
        """Return the owner of POSIX shared memory."""
        return _SharedOnHost(directory)


class _SharedOnHost:
    """Tensors shared on the host; paddle's are handed over as their bytes."""

    def __init__(self, directory: Path) -> None:
        self._shared = SharedTensors(directory)

    def publish(self, version: int, tensors: dict[str, Any]) -> str:
        """Copy them into shared memory."""
        return self._shared.publish(version, {0: host_copies(tensors)}).manifest_digest

    def close(self) -> None:
        """Let go of the memory."""
        self._shared.close()


class Gpu:
    """A GPU of this machine."""

    name = "gpu"

    def __init__(self, index: int = 0) -> None:
        self._index = index

    def use(self) -> None:
        """Make new tensors lie on the GPU."""
        paddle.device.set_device(f"gpu:{self._index}")

    def weights(self, layers: Any) -> DeviceWeights:
        """Return the shard."""
        return DeviceWeights(layers, paddle.CUDAPlace(self._index))

    def memory(self) -> MemorySurface:
        """Return the count of paddle's allocator."""
        return DeviceMemory()

    def occupied_bytes(self) -> int:
        """Return what the driver says is taken."""
        return machine.occupied_bytes(self._index)

    def capture_double(self, tensor: Any) -> CapturedDouble:
        """Capture a CUDA graph."""
        return CudaGraph(tensor, paddle.CUDAPlace(self._index))

    def sharing(self, directory: Path) -> Sharing:
        """Return the owner of CUDA IPC handles, for the rank 0."""
        return SharedDeviceTensors(directory, device_id=0, device_index=self._index)


DEVICES: dict[str, type[Cpu | Gpu]] = {"cpu": Cpu, "gpu": Gpu}


def device_named(name: str) -> Device:
    """Return the device that a program of these tests was told to use, in use."""
    device = DEVICES[name]()
    device.use()
    return device


def host_copies(tensors: dict[str, Any]) -> dict[str, tuple[TensorSpec, memoryview]]:
    """Return the specs and bytes of paddle tensors of any device, for those who take host memory."""
    layer = paddle.nn.Layer()
    for name, tensor in tensors.items():
        layer.register_buffer(name, tensor)
    weights = DeviceWeights(layer, next(iter(tensors.values())).place)
    return {name: (spec, weights.readable(name)) for name, spec in weights.specs().items()}
