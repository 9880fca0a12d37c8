"""In which directory a rank's shard lies: a published version's own, the flat one, or the shared one.

A version that is published as ``versions/{version}/`` is taken from there and nowhere else. If
``version.yaml`` moves on while a reader is about to open what it announced, the reader follows it. Without it
the newest version is the one that was published last.
Knows names and places, no contents.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from wsm.labels import is_label
from wsm.strategies.errors import SnapshotNotFoundError, VersionFileMissingError
from wsm.strategies.files import snapshot_names
from wsm.strategies.files.snapshot_directory import SnapshotDirectory, open_held
from wsm.strategies.files.version_file import read_version
from wsm.strategies.snapshot.snapshot_files import (
    Place,
    ShardFiles,
    find_in_directory,
    find_in_shared,
    places,
)
from wsm.strategies.snapshot.source import SnapshotSource
from wsm.strategies.trainer.publications import published_last

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
    with ExitStack() as stack:
        for path in searched:
            directory = _open(path, stack)
            if directory is not None:
                telling = is_label if path == versions else snapshot_names.is_snapshot_file
                present += [directory.locate(name) for name in directory.names() if telling(name)]
    return SnapshotNotFoundError(rank=source.rank, device_id=device_id, looked_at=looked_at, present=present)
