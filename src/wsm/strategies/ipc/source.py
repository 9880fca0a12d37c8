"""Where shared tensors are looked for: what a configuration says, and one rank's view. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from wsm.config_reading import typed_section
from wsm.strategies.files.shard_source import ShardsConfig, ShardSource
from wsm.strategies.files.snapshot_names import SHARED_DIRECTORY
from wsm.typed import typed

#: What may become of shared tensors whose trainer has ended.
Orphans: TypeAlias = Literal["copy", "refuse"]


@typed_section
@dataclass(frozen=True)
class IpcConfig(ShardsConfig):
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
    memory_directory : str, optional
        Where shared memory lies; in the private directory of this user by default.
    """

    directory: str = SHARED_DIRECTORY
    adopt: bool = True
    orphans: Orphans = "copy"
    allow_pickle: bool = False
    memory_directory: str | None = None


@typed
@dataclass(frozen=True)
class IpcSource(ShardSource):
    """One rank's view of a directory of metas files.

    Parameters
    ----------
    directory : path or str
        Holds ``ipc_metas_{device_id}``.
    rank, device_id, world_size
        As for :class:`wsm.strategies.files.shard_source.ShardSource`.
    adopt : bool
        Whether the target may keep the shared memory itself, where it holds none; else all is copied.
    orphans : str
        ``copy`` or ``refuse``: what becomes of tensors whose trainer has ended. They are never kept.
    allow_pickle : bool
        Whether a metas file in pickle format may be read, and so run whatever its writer put into it.
    device_index : int, optional
        Which of the visible devices opens CUDA handles; ``FLAGS_selected_gpus`` if not given.
    memory_directory : str, optional
        Where shared memory lies; in the private directory of this user by default.
    """

    directory: Path | str = SHARED_DIRECTORY
    rank: int = 0
    adopt: bool = True
    orphans: Orphans = "copy"
    allow_pickle: bool = False
    device_index: int | None = None
    memory_directory: str | None = None
