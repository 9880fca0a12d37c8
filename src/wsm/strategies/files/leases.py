"""Leases of readers on a published directory: a lock that delays its retirement, and nothing else.

A reader shares a lock on the manifest of the whole directory, which takes the right to read that file. To
lock it alone would take the right to write it, and not even the publisher does that: it asks whether a reader
has it. So no reader keeps another one out, and none keeps a publisher from publishing. Readers may be other
users than the publisher. Where there is no such file, or the file system has no locks, nothing is leased.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from functools import partial
from pathlib import Path

from wsm.own_descriptor import OwnDescriptor
from wsm.strategies.files.snapshot_names import DELTA_MANIFEST, VERSION_MANIFEST

_CAREFULLY = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# Far behind any data; locks need no bytes to lie on.
_READERS = 1 << 62


def take_lease(directory: int) -> OwnDescriptor | None:
    """Lease an open directory until what is returned is closed; None where that cannot be. Does not block."""
    lease = _opened(directory)
    if lease is not None:
        with suppress(OSError):
            if lease.try_lock_byte(_READERS, shared=True):
                return lease
        lease.close()
    return None


def is_leased(path: Path) -> bool:
    """Whether any reader has a lease on the directory at `path`. Does not block; raises OSError."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        lease = _opened(directory)
    finally:
        os.close(directory)
    if lease is None:
        return False
    try:
        return lease.is_byte_locked(_READERS)
    except OSError:
        return False  # no locks here; open files survive their removal anyway
    finally:
        lease.close()


def _opened(directory: int) -> OwnDescriptor | None:
    """Open the file that leases lie on; a published directory has one of them."""
    for name in (VERSION_MANIFEST, DELTA_MANIFEST):
        with suppress(OSError):
            found = OwnDescriptor(partial(os.open, name, _CAREFULLY, dir_fd=directory))
            if stat.S_ISREG(os.fstat(found.number).st_mode):
                return found
            found.close()
    return None
