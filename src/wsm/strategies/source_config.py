"""What a configuration says about each strategy's source, apart from whose shard it is. Plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wsm.strategies.shared_segment import MEMORY_DIRECTORY
from wsm.strategies.snapshot_names import SHARED_DIRECTORY

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
        Seconds that it may say nothing once it has.
    memory_directory : str
        Where shared memory lies.
    """

    address: str = ""
    connect_s: float = 60.0
    silence_s: float = 10.0
    memory_directory: str = MEMORY_DIRECTORY
