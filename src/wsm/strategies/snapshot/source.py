"""Where one rank's snapshot is to be looked for. Plain data; knows no files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from wsm.strategies.files.device_id import OfDevice
from wsm.strategies.files.snapshot_names import SHARED_DIRECTORY


@dataclass(frozen=True)
class SnapshotSource(OfDevice):
    """One rank's view of a snapshot directory.

    Parameters
    ----------
    directory : path or str
        Holds ``versions/{version}/`` as wsm publishes them, or FastDeploy's flat files.
    rank : int
        Global rank of the shard.
    device_id : int, optional
        Physical device id in the file names; taken from the environment if not given
        (:mod:`wsm.strategies.files.device_id`).
    world_size : int, optional
        Number of ranks of the group. A version that was written for another number is re-sliced, if it says
        how its tensors are placed; without it, the rank's own shard is taken as it is.
    shared_directory : path or str, optional
        The last place to look; None looks nowhere else.
    allow_pickle : bool
        Whether files in pickle format may be read, and so run whatever their writer put into them.
    readahead_bytes : int
        How far ahead of the load the kernel is asked to read the parts, for files that are not in the page
        cache; 0 leaves it to the kernel.
    """

    directory: Path | str
    rank: int
    device_id: int | None = None
    world_size: int | None = None
    shared_directory: Path | str | None = SHARED_DIRECTORY
    allow_pickle: bool = False
    readahead_bytes: int = 0
