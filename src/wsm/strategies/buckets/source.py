"""Where one rank's buckets come from. Plain data; knows no sockets."""

from __future__ import annotations

from dataclasses import dataclass

from wsm.strategies.ipc.shared_segment import MEMORY_DIRECTORY


@dataclass(frozen=True)
class IpcAsyncSource:
    """One rank's way to the trainer that sends buckets.

    Parameters
    ----------
    address : str
        ``ipc:///absolute/path`` or ``tcp://127.0.0.1:port``; one for all ranks.
    rank : int
        Global rank of the shard.
    world_size : int, optional
        Number of ranks that the trainer must send for; not checked if not given.
    connect_s : float
        How long to wait for the trainer to offer a version.
    silence_s : float
        How long it may say nothing once it has, and how long one that ended before may take to come back.
    memory_directory : str
        Where shared memory lies.
    """

    address: str
    rank: int = 0
    world_size: int | None = None
    connect_s: float = 60.0
    silence_s: float = 10.0
    memory_directory: str = MEMORY_DIRECTORY
