"""One publisher per directory at a time, whole versions and deltas alike: both move its ``version.yaml``.

The kernel's lock dies with its holder, so whatever an earlier publisher left behind under it is a dead one's.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from wsm.strategies.errors import PublisherBusyError, StorageError

_LOCK_FILE = ".publisher.lock"


def take_publisher_lock(versions: Path) -> int:
    """Return a descriptor that keeps other publishers out until it is closed. Does not wait.

    Parameters
    ----------
    versions : path
        The directory of the whole versions; created if it does not exist.

    Raises
    ------
    PublisherBusyError
        If another process publishes there.
    StorageError
        If the file system refuses.
    """
    try:
        versions.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(versions / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise StorageError(path=str(versions), reason=error.strerror or str(error)) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise PublisherBusyError(directory=str(versions.parent)) from error
    except OSError as error:
        os.close(descriptor)
        raise StorageError(path=str(versions), reason=error.strerror or str(error)) from error
    return descriptor
