"""Where snapshots are looked for: what a configuration says, and one rank's view. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from wsm.config_reading import typed_section
from wsm.strategies.files.shard_source import ShardsConfig, ShardSource
from wsm.strategies.files.snapshot_names import SHARED_DIRECTORY
from wsm.typed import CountFrom0, typed

#: Which manifests a shard needs: see :class:`SnapshotConfig`.
Verify: TypeAlias = Literal["required", "if_promised", "if_present"]


@typed_section
@dataclass(frozen=True)
class SnapshotConfig(ShardsConfig):
    """Where the ``ipc_snapshot`` strategy looks.

    Parameters
    ----------
    directory : str
        The model directory: parts, full files, ``versions/`` and ``version.yaml``.
    shared_directory : str
        The directory of last resort (FastDeploy: ``/shared_ipc_meta``).
    device_ids : sequence of int
        As for :class:`wsm.strategies.files.shard_source.ShardsConfig`.
    allow_pickle : bool
        Whether files in pickle format may be loaded, which runs code that they contain.
    readahead_bytes : int
        How far ahead of a load the kernel is asked to read, for files that are not in the page cache; 0
        leaves it to the kernel.
    verify : str
        ``if_promised``: files that say that wsm published them need its manifests; other writers' load as
        they are. ``required``: these are refused. ``if_present``: what lost its manifests loads unverified.
    """

    shared_directory: str = SHARED_DIRECTORY
    allow_pickle: bool = False
    readahead_bytes: CountFrom0 = 0
    verify: Verify = "if_promised"


@typed
@dataclass(frozen=True)
class SnapshotSource(ShardSource):
    """One rank's view of a snapshot directory.

    Parameters
    ----------
    directory : path or str
        Holds ``versions/{version}/`` as wsm publishes them, or FastDeploy's flat files.
    rank, device_id
        As for :class:`wsm.strategies.files.shard_source.ShardSource`.
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
    verify : str
        As for :class:`SnapshotConfig`.
    """

    shared_directory: Path | str | None = SHARED_DIRECTORY
    allow_pickle: bool = False
    readahead_bytes: CountFrom0 = 0
    verify: Verify = "if_promised"
