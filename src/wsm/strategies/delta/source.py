"""Where one rank's deltas are looked for, and what becomes of weights that they do not fit. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

#: What may be done where a rank does not hold the base: load whole files of the directory, or refuse.
FALLBACKS = ("full", "refuse")

#: The most deltas that are put on top of each other.
MAX_CHAIN = 16


@dataclass(frozen=True)
class DeltaSource:
    """One rank's view of a directory with deltas.

    Parameters
    ----------
    directory : path or str
        Holds ``deltas/{version}/``, and ``versions/{version}/`` for versions that are published whole.
    rank : int
        Global rank of the shard.
    device_id : int, optional
        Physical device id in the names of whole snapshots; from the environment if not given. Deltas do not
        have it.
    world_size : int, optional
        Number of ranks that it must have been written for; not checked if not given.
    fallback : str
        ``full``: a rank that does not hold the base (released, replaced, or another version) loads whole
        files, the version's own or those of an earlier one with the deltas since. ``refuse``: it is refused.
        A version that is published only whole is loaded whole either way.
    max_chain : int
        The most deltas that are put on top of each other.
    """

    directory: Path | str
    rank: int
    device_id: int | None = None
    world_size: int | None = None
    fallback: str = "full"
    max_chain: int = MAX_CHAIN
