"""Which shards of a version a directory has, by the names of its files. Opens none of them."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

from wsm.strategies.errors import SnapshotNotFoundError
from wsm.strategies.files import snapshot_names
from wsm.strategies.files.snapshot_directory import SnapshotDirectory
from wsm.strategies.snapshot.lookup import newest_version

_SHARD = re.compile(r"model_state\.tp([0-9]{1,9})\.([0-9]{1,9})\.(?:part[0-9]{1,9}\.)?pdparams")


def shards_in(directory: Path, version: str | None) -> list[tuple[int, int]]:
    """Return rank and device id of every shard of a version, found by the names of files, in rank order.

    Raises
    ------
    SnapshotNotFoundError
        If there is none.
    wsm.errors.BadInputError
        If the directory or its ``version.yaml`` cannot be used.
    """
    wanted = newest_version(directory) if version is None else version
    places = [str(directory)]
    if wanted is not None:
        places.insert(0, f"{directory}/{snapshot_names.VERSIONS_DIRECTORY}/{wanted}")
    for place in places:
        try:
            with closing(SnapshotDirectory(place)) as opened:
                names = opened.names()
        except FileNotFoundError:
            continue
        found = {(int(m[1]), int(m[2])) for m in map(_SHARD.fullmatch, names) if m is not None}
        if found:
            return sorted(found)
    raise SnapshotNotFoundError(rank=0, device_id=0, looked_at=places, present=())
