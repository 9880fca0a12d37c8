"""From a configuration to the source that one rank loads from, for each strategy of the registry.

Responsible for making each source once, and for letting go what it keeps between loads. It opens nothing
itself, and knows no words, states or actions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from wsm.config import WsmConfig
from wsm.strategies.buckets.source import IpcAsyncSource
from wsm.strategies.delta.source import DeltaSource
from wsm.strategies.errors import UnknownStrategyError
from wsm.strategies.ipc.strategy import IpcSource
from wsm.strategies.mooncake.engine import EngineSettings
from wsm.strategies.mooncake.transport import MooncakeTransport
from wsm.strategies.registry import STRATEGIES
from wsm.strategies.snapshot.source import SnapshotSource
from wsm.strategies.transports.checkpoint_transfer import CheckpointTransferTransport
from wsm.strategies.transports.checkpoint_transfer_options import CheckpointTransferOptions
from wsm.strategies.transports.errors import TransportUnknownError
from wsm.strategies.transports.gdr import GdrSource
from wsm.strategies.transports.rsync import RsyncSource
from wsm.strategies.transports.transfer_modes import INTERFACES, check_transfer_mode
from wsm.strategies.transports.transport import KeptTransport, Transport


class Sources:
    """The sources of one worker process, each made once: some keep a connection between loads.

    Parameters
    ----------
    config : WsmConfig
        The group's configuration.

    Raises
    ------
    wsm.strategies.errors.UnknownStrategyError
        If there is no such strategy: now, not at the first update.
    """

    def __init__(self, config: WsmConfig) -> None:
        if config.strategy not in _SOURCES or config.strategy not in STRATEGIES:
            raise UnknownStrategyError(name=config.strategy, known=sorted(STRATEGIES))
        self._config = config
        self._made: dict[tuple[int, str | None], object] = {}
        _CHECKS.get(config.strategy, _nothing)(config)

    @property
    def strategy(self) -> str:
        """The strategy that loads from these sources."""
        return self._config.strategy

    @property
    def threads(self) -> int | None:
        """How many threads of a rank copy and digest; None where a load decides."""
        return self._config.load_threads or None

    def of(self, rank: int, mode: str | None = None) -> object:
        """Return where `rank` loads from, in the transfer mode that a command asked for.

        Raises
        ------
        wsm.strategies.transports.errors.TransferModeError
            If the strategy has no such mode, or it is not available here.
        """
        config = self._config
        if mode is None and self.strategy == "gdr":
            mode = config.rsync.transfer_mode
        if mode is not None:
            check_transfer_mode(mode, self.strategy, config.rsync.transport)
            config = replace(config, rsync=replace(config.rsync, transfer_mode=mode))
        if (rank, mode) not in self._made:
            self._made[rank, mode] = _SOURCES[self.strategy](config, rank)
        return self._made[rank, mode]

    def close(self) -> None:
        """Let every connection go. Idempotent."""
        for source in self._made.values():
            if isinstance(source, RsyncSource):
                source.transport.close()
        self._made.clear()


def _snapshot(config: WsmConfig, rank: int) -> SnapshotSource:
    snapshot = config.snapshot
    return SnapshotSource(
        snapshot.directory,
        rank=rank,
        device_id=snapshot.device_ids[rank] if snapshot.device_ids else None,
        world_size=config.ranks,
        shared_directory=snapshot.shared_directory,
        allow_pickle=snapshot.allow_pickle,
        readahead_bytes=snapshot.readahead_bytes,
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


def _delta(config: WsmConfig, rank: int) -> DeltaSource:
    delta = config.delta
    return DeltaSource(
        delta.directory,
        rank=rank,
        device_id=delta.device_ids[rank] if delta.device_ids else None,
        world_size=config.ranks,
        fallback=delta.fallback,
        max_chain=delta.max_chain,
    )


def _rsync(config: WsmConfig, rank: int) -> RsyncSource:
    rsync = config.rsync
    build = _TRANSPORTS[rsync.transport]
    return RsyncSource(
        KeptTransport(rsync.transport, lambda: build(config, rank)),
        rank=rank,
        world_size=config.ranks,
        directory=rsync.directory,
    )


def _gdr(config: WsmConfig, rank: int) -> GdrSource:
    plain = _rsync(config, rank)
    options = CheckpointTransferOptions.of(config.rsync.rsync_config)
    return GdrSource(
        plain.transport,
        rank,
        plain.world_size,
        plain.directory,
        chunk_tensors=options.mtp_chunk_size,
    )


def _checkpoint_transfer(config: WsmConfig, rank: int) -> Transport:  # noqa: ARG001 - it is told in open()
    return CheckpointTransferTransport(
        CheckpointTransferOptions.of(config.rsync.rsync_config),
        interface=INTERFACES[config.rsync.transfer_mode],
        verify_checksum=config.rsync.verify_checksum,
        keep=config.rsync.keep,
    )


def _mooncake(config: WsmConfig, rank: int) -> Transport:  # noqa: ARG001 - it is told in open()
    mooncake = config.mooncake
    return MooncakeTransport(
        mooncake.address,
        settings=EngineSettings(mooncake.host, mooncake.protocol, mooncake.device),
        connect_s=mooncake.connect_s,
        silence_s=mooncake.silence_s,
    )


def _check_rsync(config: WsmConfig) -> None:
    """Refuse options that no load could use, before there is a load."""
    if config.rsync.transport not in _TRANSPORTS:
        raise TransportUnknownError(name=config.rsync.transport, known=sorted(_TRANSPORTS))
    if config.rsync.transfer_mode != "host":
        check_transfer_mode(config.rsync.transfer_mode, config.strategy, config.rsync.transport)
    _TRANSPORTS[config.rsync.transport](config, 0)  # which connects to nobody yet


def _nothing(_config: WsmConfig) -> None:
    """Check nothing."""


#: The transports of ``rsync``: how one is made for one rank.
_TRANSPORTS: Mapping[str, Callable[[WsmConfig, int], Transport]] = {
    "checkpoint_transfer": _checkpoint_transfer,
    "mooncake": _mooncake,
}

#: What is checked when a worker starts, besides what the configuration checks by itself.
_CHECKS: Mapping[str, Callable[[WsmConfig], None]] = {"rsync": _check_rsync, "gdr": _check_rsync}

_SOURCES: Mapping[str, Callable[[WsmConfig, int], object]] = {
    "ipc_snapshot": _snapshot,
    "ipc": _ipc,
    "ipc_async": _ipc_async,
    "rsync": _rsync,
    "delta": _delta,
    "gdr": _gdr,
}
