"""Locks on single bytes that live as long as an open file, whoever has it: process, mapping or copy.

These are Linux's open-file-description locks. Unlike POSIX record locks they belong to the open file, so
closing another descriptor of the same file loses nothing, and a mapping (which keeps a copy of its
descriptor) keeps the lock until it is unmapped. The kernel gives them back when the last holder dies, also
across pid namespaces. Knows nothing about what a byte stands for.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

_FLOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux: type, whence, start, length, pid
_REFUSED = (errno.EAGAIN, errno.EACCES)


def take_shared(descriptor: int, byte: int) -> bool:
    """Lock `byte` together with others who share it; False if somebody has it alone. Needs read access."""
    return _set(descriptor, fcntl.F_RDLCK, byte)


def take_alone(descriptor: int, byte: int) -> bool:
    """Lock `byte` alone; False if anybody else has it. Needs write access."""
    return _set(descriptor, fcntl.F_WRLCK, byte)


def give_back(descriptor: int, byte: int) -> None:
    """Unlock `byte`. Idempotent."""
    _set(descriptor, fcntl.F_UNLCK, byte)


def is_taken(descriptor: int, byte: int) -> bool:
    """Whether another open file has `byte`, shared or alone."""
    return _conflict(descriptor, fcntl.F_WRLCK, byte)


def is_taken_alone(descriptor: int, byte: int) -> bool:
    """Whether another open file has `byte` alone."""
    return _conflict(descriptor, fcntl.F_RDLCK, byte)


def _set(descriptor: int, kind: int, byte: int) -> bool:
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0))
    except OSError as error:
        if error.errno in _REFUSED:
            return False
        raise
    return True


def _conflict(descriptor: int, kind: int, byte: int) -> bool:
    answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0))
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)
