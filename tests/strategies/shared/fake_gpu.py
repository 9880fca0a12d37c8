"""A Fake of a GPU, where there is none: handles of its tensors are exported, and opened elsewhere."""

from __future__ import annotations

import secrets

import numpy as np

NUMBERS = {"float32": 10, "int64": 9}


class FakeGpu:
    """A GPU's memory and paddle's two calls on it: a handle is exported here and opened there."""

    def __init__(self) -> None:
        self.memory: dict[bytes, np.ndarray] = {}
        self.opened: list[tuple] = []
        self.devices = 2
        self.base = self.core = self.LoDTensor = self.device = self.cuda = self

    def device_count(self) -> int:
        return self.devices

    @property
    def opened_on(self) -> list[int]:
        """The devices that memory was opened on."""
        return [fields[-1] for fields in self.opened]

    def tensor(self, array: np.ndarray) -> FakeCudaTensor:
        return FakeCudaTensor(self, np.array(array))

    def _new_shared_cuda(self, fields):
        handle, _, nbytes, *_ = fields
        self.opened.append(fields)
        assert nbytes == self.memory[handle].nbytes
        return self.memory[handle]

    def to_tensor(self, array):
        return FakeCudaTensor(self, array)


class FakeCudaTensor:
    """A paddle tensor on the fake GPU; its dense tensor has `_share_cuda`."""

    def __init__(self, gpu: FakeGpu, array: np.ndarray) -> None:
        self._gpu = gpu
        self.array = array
        self.size, self.shape, self.dtype = array.size, list(array.shape), f"paddle.{array.dtype}"

    def numpy(self):
        return self.array.copy()

    def value(self):
        return self

    def get_tensor(self):
        return self

    def _share_cuda(self):
        handle = secrets.token_bytes(64)
        self._gpu.memory[handle] = self.array
        kind = NUMBERS[str(self.array.dtype)]
        return handle, 0, self.array.nbytes, kind, list(self.array.shape), [], 5


class FakeCpuTensor(FakeCudaTensor):
    _share_cuda = None
