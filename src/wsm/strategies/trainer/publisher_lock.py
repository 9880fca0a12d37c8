"""One publisher into a directory at a time, whatever it publishes there."""

from __future__ import annotations

from pathlib import Path

from wsm.shared_directory import FileLock, try_lock_file
from wsm.strategies.errors import PublisherBusyError, StorageError

#: Of those who publish whole versions and deltas; those who share memory have another one.
PUBLISHER_LOCK, SHARER_LOCK = ".publisher.lock", ".ipc_metas.lock"


def take_publisher_lock(
    place: Path, name: str = PUBLISHER_LOCK, *, directory: Path | None = None
) -> FileLock:
    """Keep other publishers out until the lock is released. Does not wait.

    Parameters
    ----------
    place : path
        The directory that the lock file lies in; created if it does not exist.
    name : str
        Of the lock file.
    directory : path, optional
        What errors call the directory; `place` if not given.

    Raises
    ------
    PublisherBusyError
        If another process publishes there.
    StorageError
        If the file system refuses.
    wsm.shared_directory.ForeignPathError
        If the lock file is no regular file, or in a directory of all users another user's.
    """
    try:
        place.mkdir(parents=True, exist_ok=True)
        lock = try_lock_file(place / name)
    except OSError as error:
        raise StorageError(path=place, error=error) from error
    if lock is None:
        raise PublisherBusyError(directory=str(directory or place))
    return lock
