"""Which files a rank loads: FastDeploy's four places, in its order.

1. ``{directory}/{base}.part{N}.pdparams``, all of them, by ascending N;
2. ``{directory}/{base}.pdparams``;
3. ``{directory}/model_state.tp0{device_id}.pdparams``, the old name of a device's shard;
4. ``{shared directory}/{base}.pdparams``.

The first place that has anything wins, and the later ones are not looked at. N is taken from the file
name alone (a directory called ``x.part9.d`` misled FastDeploy) and compared as a number. Knows no contents.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from wsm import log
from wsm.strategies import errors
from wsm.strategies.files import snapshot_names
from wsm.strategies.files.snapshot_directory import SnapshotDirectory

_log = log.logger("strategies")


class Place(enum.Enum):
    """Where a shard was found."""

    PARTS = "parts"
    WHOLE = "whole"
    LEGACY = "legacy"
    SHARED = "shared"


@dataclass(frozen=True)
class ShardFiles:
    """The files of one shard.

    Parameters
    ----------
    place : Place
        Which of the four it is.
    directory : SnapshotDirectory
        Where they lie.
    base : str
        The base of their names; the manifest beside them has it too.
    names : tuple of str
        In the order in which they are loaded.
    ignored : tuple of str
        Paths of files that look like parts and have no number.
    """

    place: Place
    directory: SnapshotDirectory
    base: str
    names: tuple[str, ...]
    ignored: tuple[str, ...] = ()


def find_in_directory(directory: SnapshotDirectory, *, rank: int, device_id: int) -> ShardFiles | None:
    """Look at places 1 to 3.

    Raises
    ------
    BadInputError
        If the parts' numbers repeat.
    UnreadableFileError
        If the directory cannot be listed.
    """
    base = snapshot_names.shard_base(rank, device_id)
    names = directory.names()
    parts, ignored = _parts(directory, base, names)
    if parts:
        return ShardFiles(Place.PARTS, directory, base, parts, ignored)
    candidates = (
        (Place.WHOLE, snapshot_names.whole_name(base)),
        (Place.LEGACY, snapshot_names.legacy_name(device_id)),
    )
    for place, name in candidates:
        if name in names:
            return ShardFiles(place, directory, base, (name,), ignored)
    return None


def find_in_shared(directory: SnapshotDirectory, *, rank: int, device_id: int) -> ShardFiles | None:
    """Look at place 4.

    Raises
    ------
    UnreadableFileError
        If the directory cannot be listed.
    """
    base = snapshot_names.shard_base(rank, device_id)
    name = snapshot_names.whole_name(base)
    if name in directory.names():
        return ShardFiles(Place.SHARED, directory, base, (name,))
    return None


def places(directory: str, shared_directory: str | None, *, rank: int, device_id: int) -> list[str]:
    """Return the four places in words, for an error that lists them."""
    base = snapshot_names.shard_base(rank, device_id)
    found = [
        f"{directory}/{base}.part*.pdparams",
        f"{directory}/{snapshot_names.whole_name(base)}",
        f"{directory}/{snapshot_names.legacy_name(device_id)}",
    ]
    if shared_directory is not None:
        found.append(f"{shared_directory}/{snapshot_names.whole_name(base)}")
    return found


def _parts(
    directory: SnapshotDirectory, base: str, names: list[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    indexed: list[tuple[int, str]] = []
    ignored: list[str] = []
    for name in names:
        if not snapshot_names.looks_like_part(base, name):
            continue
        index = snapshot_names.part_index(base, name)
        if index is None:
            path = directory.locate(name)
            _log.warning(log.SNAPSHOT_PART_IGNORED, file=path, expected=f"{base}.part<number>.pdparams")
            ignored.append(path)
        else:
            indexed.append((index, name))
    indexed.sort()
    _check_sequence(directory, base, [index for index, _ in indexed])
    return tuple(name for _, name in indexed), tuple(ignored)


def _check_sequence(directory: SnapshotDirectory, base: str, indexes: list[int]) -> None:
    """Refuse numbers that repeat; say in the log which are not there.

    A trainer may leave numbers out. What a lost part held is missed by the manifest, or by the model.
    """
    if len(set(indexes)) != len(indexes):
        raise errors.part_sequence(base=base, indexes=indexes, problem="a number occurs twice")
    if indexes and (indexes[0] > 1 or indexes[-1] - indexes[0] >= len(indexes)):
        _log.warning(
            log.SNAPSHOT_PARTS_MISSING, directory=directory.path, base=base, found=errors.listed(indexes)
        )
