"""Where deltas lie and what their files are called. Pure: no file is touched here.

A directory of published versions has ``versions/{version}/`` for whole ones; ``deltas/{version}/`` beside it
holds what turns the base version into that one. Ranks alone name the files: FastDeploy has no deltas, so
no loader of its expects a device id in them.
"""

from __future__ import annotations

from wsm.strategies.files import snapshot_names

#: Where deltas lie, one directory for each version that they lead to.
DELTAS_DIRECTORY = snapshot_names.DELTAS_DIRECTORY
#: What ties the deltas of all ranks together; the same for every rank.
DELTA_MANIFEST = snapshot_names.DELTA_MANIFEST


def blocks_name(rank: int) -> str:
    """Return the name of the file with the changed blocks of one rank."""
    return f"delta.tp{rank}.blocks"


def rank_manifest_name(rank: int) -> str:
    """Return the name of the manifest of one rank's delta."""
    return f"delta.tp{rank}.manifest.json"
