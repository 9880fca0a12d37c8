"""Where snapshots are looked for: what a configuration says, and one rank's view. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from wsm.config_reading import OptionFault
from wsm.strategies.files.shard_source import ShardsConfig, ShardSource
from wsm.strategies.files.snapshot_names import SHARED_DIRECTORY

#: Which manifests a shard needs: see :class:`SnapshotConfig`.
VERIFY = ("required", "if_promised", "if_present")


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
    readahead_bytes: int = 0
    verify: str = "if_promised"

    def fault(self, ranks: int, *, used: bool) -> OptionFault | None:
        """Return the first option that cannot be; see :class:`wsm.strategies.sections.CheckedSection`."""
        if self.readahead_bytes < 0:
            fix = "give a number of bytes, or 0 to leave it to the kernel"
            return OptionFault("readahead_bytes", f"is {self.readahead_bytes}", fix)
        if self.verify not in VERIFY:
            return OptionFault("verify", f"is {self.verify!r}", f"use one of {', '.join(VERIFY)}")
        return super().fault(ranks, used=used)


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
        One of :data:`VERIFY`; see :class:`SnapshotConfig`.
    """

    shared_directory: Path | str | None = SHARED_DIRECTORY
    allow_pickle: bool = False
    readahead_bytes: int = 0
    verify: str = "if_promised"
