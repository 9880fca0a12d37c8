"""From a configuration to the source that one rank loads from, for each strategy of the registry.

Responsible for nothing else: it opens nothing, and knows no words, states or actions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from wsm.config import WsmConfig
from wsm.strategies.errors import UnknownStrategyError
from wsm.strategies.ipc import IpcSource
from wsm.strategies.registry import STRATEGIES
from wsm.strategies.snapshot_source import SnapshotSource
from wsm.strategies.stream_source import IpcAsyncSource


def source_for(config: WsmConfig, rank: int) -> object:
    """Return where `rank` loads from with the configured strategy.

    Raises
    ------
    wsm.strategies.errors.UnknownStrategyError
        If there is no such strategy.
    """
    if config.strategy not in _SOURCES:
        raise UnknownStrategyError(name=config.strategy, known=sorted(STRATEGIES))
    return _SOURCES[config.strategy](config, rank)


def _snapshot(config: WsmConfig, rank: int) -> SnapshotSource:
    snapshot = config.snapshot
    return SnapshotSource(
        snapshot.directory,
        rank=rank,
        device_id=snapshot.device_ids[rank] if snapshot.device_ids else None,
        world_size=config.ranks,
        shared_directory=snapshot.shared_directory,
        allow_pickle=snapshot.allow_pickle,
    )


def _ipc(config: WsmConfig, rank: int) -> IpcSource:
    ipc = config.ipc
    return IpcSource(
        ipc.directory,
        rank=rank,
        device_id=ipc.device_ids[rank] if ipc.device_ids else None,
        world_size=config.ranks,
        adopt=ipc.adopt,
        orphans=ipc.orphans,
        allow_pickle=ipc.allow_pickle,
        memory_directory=ipc.memory_directory,
    )


def _ipc_async(config: WsmConfig, rank: int) -> IpcAsyncSource:
    stream = config.ipc_async
    return IpcAsyncSource(
        stream.address,
        rank=rank,
        world_size=config.ranks,
        connect_s=stream.connect_s,
        silence_s=stream.silence_s,
        memory_directory=stream.memory_directory,
    )


_SOURCES: Mapping[str, Callable[[WsmConfig, int], object]] = {
    "ipc_snapshot": _snapshot,
    "ipc": _ipc,
    "ipc_async": _ipc_async,
}
