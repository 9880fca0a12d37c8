"""What torch's allocator has taken of a device, and what may still be taken."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from wsm.actions.backends.memory import HostMemory


class TorchDeviceMemory:
    """The memory that torch's allocator has taken of one device. Each rank has a device of its own.

    Parameters
    ----------
    device : torch.device or str
        As ``"cuda:0"``; another accelerator counts as far as torch measures it as it does CUDA.
    """

    shared_by_ranks = False

    def __init__(self, device: torch.device | str) -> None:
        self._device = torch.device(device)
        self._calls = torch.get_device_module(self._device)

    def resident_bytes(self) -> int:
        """Bytes that the allocator holds of the device, in use or cached."""
        return int(self._calls.memory_reserved(self._device))

    def figures(self) -> Mapping[str, int]:
        """Bytes that the allocator has given out and holds, now and at most."""
        return {
            "allocated": int(self._calls.memory_allocated(self._device)),
            "reserved": int(self._calls.memory_reserved(self._device)),
            "peak_allocated": int(self._calls.max_memory_allocated(self._device)),
            "peak_reserved": int(self._calls.max_memory_reserved(self._device)),
        }

    def available_bytes(self) -> int:
        """Bytes that are free on the device, as its driver says, and those that the allocator has cached."""
        free, _ = self._calls.mem_get_info(self._device)
        cached = self._calls.memory_reserved(self._device) - self._calls.memory_allocated(self._device)
        return int(free + cached)

    def empty_cache(self) -> None:
        """Return cached blocks to the device. Idempotent."""
        self._calls.synchronize(self._device)
        self._calls.empty_cache()


def memory_on(device: torch.device | str) -> HostMemory | TorchDeviceMemory:
    """Return the memory surface of a rank whose weights lie on `device`; ``"cpu"`` is the host's."""
    return HostMemory() if torch.device(device).type == "cpu" else TorchDeviceMemory(device)
