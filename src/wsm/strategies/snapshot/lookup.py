"""In which directory a rank's shard lies, and which files of it the rank loads.

The directory is a published version's own, the flat one, or the shared one; the files lie at one of
FastDeploy's four places, looked at in its order.

A version that is published as ``versions/{version}/`` is taken from there and nowhere else. If
``version.yaml`` moves on while a reader is about to open what it announced, the reader follows it. Without it
the newest version is the one that was published last.
Knows names and places, no contents.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from wsm import log
from wsm.labels import is_label
from wsm.strategies import errors
from wsm.strategies.errors import SnapshotNotFoundError, VersionFileMissingError
from wsm.strategies.files import snapshot_names
from wsm.strategies.files.snapshot_directory import SnapshotDirectory, open_held
from wsm.strategies.files.version_file import read_version
from wsm.strategies.snapshot.source import SnapshotSource
from wsm.strategies.trainer.publications import published_last

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


# Each further attempt takes a publisher that retired a version between two of our system calls.
_ATTEMPTS = 8

_Found = TypeVar("_Found")


@dataclass(frozen=True)
class Located:
    """The files of a shard, and the version that they must hold (None: whichever they hold)."""

    files: ShardFiles
    expected: str | None


@dataclass(frozen=True)
class FoundVersion:
    """A directory that may hold a whole version, and the version that it must be (None: whichever it is)."""

    directory: SnapshotDirectory
    expected: str | None


def locate(source: SnapshotSource, version: str | None, stack: ExitStack) -> Located:
    """Find the files of the source's rank.

    Parameters
    ----------
    source : SnapshotSource
        Where to look.
    version : str or None
        The version to find; None for the one that ``version.yaml`` announces, else the one published last.
    stack : ExitStack
        Closes the directories that are opened here.

    Raises
    ------
    SnapshotNotFoundError
        If no place holds anything for this rank.
    wsm.strategies.errors.BadInputError
        If a place holds something unusable.
    """
    found, wanted = _follow(source, version, lambda wanted: _find(source, wanted, stack))
    if found is None:
        raise _not_found(source, wanted)
    # The shared directory has no version.yaml of ours, so only an explicit wish binds it.
    return Located(found, version if found.place is Place.SHARED else wanted)


def locate_published(source: SnapshotSource, version: str | None, stack: ExitStack) -> FoundVersion | None:
    """Find the directory in which a version lies with the shards of all its ranks, whatever their number.

    Parameters
    ----------
    source, version, stack
        As in :func:`locate`.

    Returns
    -------
    Published or None
        None if there is no directory that could hold one.

    Raises
    ------
    wsm.strategies.errors.BadInputError
        If something there is unusable.
    """
    found, wanted = _follow(source, version, lambda wanted: _published(str(source.directory), wanted, stack))
    return None if found is None else FoundVersion(found, wanted)


def _follow(
    source: SnapshotSource, version: str | None, find: Callable[[str | None], _Found | None]
) -> tuple[_Found | None, str | None]:
    """Look for a version with `find`; for the announced one again, if the announcement moves meanwhile."""
    if version is not None:
        return find(version), version
    announced = None
    for _ in range(_ATTEMPTS):
        before, announced = announced, newest_version(source.directory)
        found = find(announced)
        if found is not None or announced == before:
            return found, announced
    return None, announced


def newest_version(directory: Path | str) -> str | None:
    """Return the version that ``version.yaml`` announces; without one, the one that was published last.

    Raises
    ------
    BadInputError, UnreadableFileError
        If ``version.yaml`` is there and unusable.
    """
    announced = announced_version(directory)
    return published_last(directory) if announced is None else announced


def announced_version(directory: Path | str) -> str | None:
    """Return the version that ``version.yaml`` announces; None without one.

    Raises
    ------
    BadInputError, UnreadableFileError
        If it is there and unusable.
    """
    try:
        return read_version(directory)
    except VersionFileMissingError:
        return None


def _find(source: SnapshotSource, wanted: str | None, stack: ExitStack) -> ShardFiles | None:
    device_id = source.resolved_device_id()
    root = str(source.directory)
    if wanted is not None:
        directory = open_held(_version_path(root, wanted), boundary=root, stack=stack)
        if directory is not None:
            return find_in_directory(directory, rank=source.rank, device_id=device_id)
    flat = _open(root, stack)
    if flat is not None:
        found = find_in_directory(flat, rank=source.rank, device_id=device_id)
        if found is not None:
            return found
    if source.shared_directory is None:
        return None
    shared = _open(str(source.shared_directory), stack)
    return None if shared is None else find_in_shared(shared, rank=source.rank, device_id=device_id)


def _published(root: str, wanted: str | None, stack: ExitStack) -> SnapshotDirectory | None:
    if wanted is not None:
        directory = open_held(_version_path(root, wanted), boundary=root, stack=stack)
        if directory is not None:
            return directory
    return _open(root, stack)


def _open(path: str, stack: ExitStack) -> SnapshotDirectory | None:
    try:
        return stack.enter_context(closing(SnapshotDirectory(path)))
    except FileNotFoundError:
        return None


def _version_path(root: str, version: str) -> str:
    return f"{root}/{snapshot_names.VERSIONS_DIRECTORY}/{version}"


def _not_found(source: SnapshotSource, wanted: str | None) -> SnapshotNotFoundError:
    device_id = source.resolved_device_id()
    root = str(source.directory)
    shared = None if source.shared_directory is None else str(source.shared_directory)
    versions = f"{root}/{snapshot_names.VERSIONS_DIRECTORY}"
    searched = [root, versions]
    if wanted is None:
        looked_at = [f"{root}/{snapshot_names.VERSION_FILE}"]
    else:
        looked_at = [_version_path(root, wanted)]
        searched.append(_version_path(root, wanted))
    looked_at += places(root, shared, rank=source.rank, device_id=device_id)
    if shared is not None:
        searched.append(shared)
    present: list[str] = []
    missing: str | None = None
    with ExitStack() as stack:
        for path in searched:
            directory = _open(path, stack)
            if directory is None:
                missing = root if path == root else missing
            else:
                telling = is_label if path == versions else snapshot_names.is_snapshot_file
                present += [directory.locate(name) for name in directory.names() if telling(name)]
    return SnapshotNotFoundError(
        rank=source.rank, device_id=device_id, looked_at=looked_at, present=present, missing=missing
    )


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
