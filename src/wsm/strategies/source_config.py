"""What a configuration says about each strategy's source, apart from whose shard it is. Plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wsm.strategies.delta.source import MAX_CHAIN
from wsm.strategies.files.snapshot_names import SHARED_DIRECTORY
from wsm.strategies.ipc.shared_segment import MEMORY_DIRECTORY

#: What may become of shared tensors whose trainer has ended.
ORPHANS = ("copy", "refuse")


@dataclass(frozen=True)
class IpcConfig:
    """Where the ``ipc`` strategy looks.

    Parameters
    ----------
    directory : str
        Holds ``ipc_metas_{device id}`` (FastDeploy: ``/shared_ipc_meta``).
    device_ids : sequence of int
        The device id in each rank's file name; empty: from the environment, as for snapshots.
    adopt : bool
        Whether a released tensor may live in the trainer's shared memory itself, instead of a copy.
    orphans : str
        ``copy`` or ``refuse``: what becomes of tensors whose trainer has ended.
    allow_pickle : bool
        Whether a metas file in pickle format may be read, which runs code that it contains.
    memory_directory : str
        Where shared memory lies.
    """

    directory: str = SHARED_DIRECTORY
    device_ids: Sequence[int] = ()
    adopt: bool = True
    orphans: str = "copy"
    allow_pickle: bool = False
    memory_directory: str = MEMORY_DIRECTORY


@dataclass(frozen=True)
class IpcAsyncConfig:
    """Where the ``ipc_async`` strategy asks.

    Parameters
    ----------
    address : str
        The trainer's, one for all ranks: ``ipc:///absolute/path`` or ``tcp://127.0.0.1:port``.
    connect_s : float
        Seconds to wait for the trainer to offer a version.
    silence_s : float
        Seconds that it may say nothing once it has; and that one which ended before may take to come back.
    memory_directory : str
        Where shared memory lies.
    """

    address: str = ""
    connect_s: float = 60.0
    silence_s: float = 10.0
    memory_directory: str = MEMORY_DIRECTORY


@dataclass(frozen=True)
class RsyncConfig:
    """How the strategies ``rsync`` and ``gdr`` reach a trainer's versions.

    Parameters
    ----------
    transport : str
        ``checkpoint_transfer`` or ``mooncake``, which has a section of its own.
    directory : str or None
        Its ``version.yaml`` says which version a boot loads (FastDeploy: the model directory); None where
        every command names one, or the transport knows the newest.
    verify_checksum : bool
        Whether a stream must bring its manifest, so that every tensor is verified; without it what a trainer
        that does not know wsm sends is applied unverified, and the receipt says so.
    keep : bool
        Whether a released parameter may keep memory that CheckpointTransfer handed over, instead of a copy.
        Only for builds that never write to it again.
    transfer_mode : str
        For ``gdr``: ``host``, ``ipc`` or ``gpu_direct``, where the command does not say.
    rsync_config : mapping
        For ``checkpoint_transfer``: FastDeploy's ``rsync_config``, as it is.
    """

    transport: str = "checkpoint_transfer"
    directory: str | None = None
    verify_checksum: bool = True
    keep: bool = False
    transfer_mode: str = "host"
    rsync_config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DeltaConfig:
    """Where the ``delta`` strategy looks.

    Parameters
    ----------
    directory : str
        Holds ``deltas/{version}/``, and ``versions/{version}/`` for versions that are published whole.
    device_ids : sequence of int
        The device id in the names of each rank's whole files; empty: from the environment, as for snapshots.
    fallback : str
        ``full`` or ``refuse``: what a rank does that does not hold what a delta was made against.
    max_chain : int
        The most deltas that are put on top of each other.
    """

    directory: str = "."
    device_ids: Sequence[int] = ()
    fallback: str = "full"
    max_chain: int = MAX_CHAIN


@dataclass(frozen=True)
class MooncakeConfig:
    """How ``rsync`` reaches a :class:`wsm.strategies.MooncakePublisher`, if its transport is ``mooncake``.

    Parameters
    ----------
    address : str
        The publisher's, one for all ranks: ``tcp://IPv4:port`` or ``ipc:///absolute/path``.
    connect_s : float
        Seconds to wait for it to have a version.
    silence_s : float
        Seconds that it may say nothing, and that no read may end; and that one which ended before it had
        granted anything may take to come back.
    host : str
        The IPv4 address of this host that the publisher's engine reaches ours at.
    protocol : str
        ``tcp``; or ``rdma``, which has not been run by us.
    device : str
        RDMA devices, separated by commas; empty for all.
    """

    address: str = ""
    connect_s: float = 60.0
    silence_s: float = 10.0
    host: str = "127.0.0.1"
    protocol: str = "tcp"
    device: str = ""
