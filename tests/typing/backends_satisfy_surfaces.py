"""Every backend is what the actions take it for, member by member; checked by mypy, never run."""

from __future__ import annotations

from wsm.actions.backends.memory import DeviceMemory, HostMemory
from wsm.actions.backends.paddle_groups import DeviceGroups, PaddleGlooGroups
from wsm.actions.backends.paddle_weights import DeviceWeights, PaddleWeights
from wsm.actions.measuring import AddressedWeights
from wsm.actions.surfaces import (
    AvailableMemory,
    MemorySurface,
    ProcessGroupSurface,
    Runner,
    StageableWeights,
    WeightSurface,
)
from wsm.fastdeploy._runner_surfaces import WorkerSurfaces
from wsm.strategies.applier.memory_target import MemoryTarget


def a_runner(runner: WorkerSurfaces) -> Runner:
    return runner


def groups(gloo: PaddleGlooGroups, device: DeviceGroups) -> tuple[ProcessGroupSurface, ProcessGroupSurface]:
    return gloo, device


def weights(paddle: PaddleWeights) -> tuple[WeightSurface, AddressedWeights, StageableWeights]:
    return paddle, paddle, paddle


def device_weights(device: DeviceWeights) -> tuple[WeightSurface, StageableWeights]:
    return device, device


def plain_weights(plain: MemoryTarget) -> tuple[WeightSurface, StageableWeights]:
    return plain, plain


def memory(host: HostMemory, device: DeviceMemory) -> tuple[MemorySurface, MemorySurface]:
    return host, device


def available(host: HostMemory, device: DeviceMemory) -> tuple[AvailableMemory, AvailableMemory]:
    return host, device
