"""Byte locks on one file, held by processes and given back by the kernel when they die.

POSIX record locks (``fcntl``) belong to a process, which loses all its locks on a file when it closes *any*
descriptor of it. Hence the registry: a process opens each lock file once, for all its callers. Two threads of
one process do not exclude each other by POSIX locks, so the registry does that as well.

The owner of a group removes its lock file, and a hand may, so that another process locks what no path names
any more: :meth:`LockFile.is_current` has to be asked after acquiring. A forked child inherits none of the
locks, and here no belief in them either.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import final

from wsm.shared_directory import ForeignPathError, is_at, open_or_create_ours, open_ours, remove_same
from wsm.signals._memory import refusal

_FLOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux: type, whence, start, length, pid
_REFUSED = (errno.EAGAIN, errno.EACCES)

#: As a length: all bytes that any participant can have.
UNBOUNDED = 1 << 40

_SHORTEST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.01


class LockFile:
    """A lock file that this process has open; get one with :func:`create_lock_file`."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.users = 1
        self._descriptor = descriptor
        self._status = os.fstat(descriptor)
        self._held: dict[LockHold, tuple[int, int]] = {}

    def is_current(self) -> bool:
        """Whether `path` still names this file."""
        return is_at(self.path, self._status)

    def try_acquire(self, start: int, length: int = 1) -> LockHold | None:
        """Lock bytes now; None if another process, or another part of this one, has any of them."""
        with _registry.mutex:
            if self._held_here(start, length):
                return None
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, length, start)
            except OSError as error:
                if error.errno in _REFUSED:
                    return None
                raise refusal(self.path, error) from error
            hold = LockHold(self)
            self._held[hold] = (start, length)
            self.users += 1
            return hold

    def acquire(self, start: int, timeout_s: float) -> LockHold | None:
        """Lock one byte, waiting for it up to `timeout_s` seconds; None if that was not enough.

        Record locks know no deadline, so this asks again after pauses that grow from 0.5 to 10 ms.
        """
        deadline = time.monotonic() + timeout_s
        pause = _SHORTEST_PAUSE_S
        while True:
            hold = self.try_acquire(start)
            left = deadline - time.monotonic()
            if hold is not None or left <= 0:
                return hold
            with _registry.released:
                _registry.released.wait(min(pause, left))
            pause = min(pause * 2, _LONGEST_PAUSE_S)

    def holder(self, byte: int) -> int | None:
        """Pid of the process that has a byte, this one included.

        None if it is free; 0 if the holder lives in another pid namespace.
        """
        with _registry.mutex:
            if self._held_here(byte, 1):
                return os.getpid()
            asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
            kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(self._descriptor, fcntl.F_GETLK, asked))
            return None if kind == fcntl.F_UNLCK else max(pid, 0)

    def remove(self) -> None:
        """Unlink the file if it is still the one at `path`. Only the holder of the owner's byte may."""
        remove_same(self.path, self._status)

    def close(self) -> None:
        """Give back one use; the last one closes the file. Holds count as uses."""
        with _registry.mutex:
            self.users -= 1
            if self.users == 0:
                del _registry.files[_inode_of(self._status)]
                os.close(self._descriptor)

    def _held_here(self, start: int, length: int) -> bool:
        held = self._held.values()
        return any(start < begin + size and begin < start + length for begin, size in held)


@final
class LockHold:
    """Bytes that are locked by this process until :meth:`release`, the end of a ``with``, or its death."""

    def __init__(self, file: LockFile) -> None:
        self._file: LockFile | None = file
        self._pid = os.getpid()

    @property
    def is_held(self) -> bool:
        """Whether the calling process holds the bytes; false in a forked child."""
        return self._file is not None and self._pid == os.getpid()

    def release(self) -> None:
        """Unlock. Does nothing the second time, and nothing in a forked child."""
        file, self._file = self._file, None
        if file is not None and self._pid == os.getpid():
            with _registry.mutex:
                start, length = file._held.pop(self)
                fcntl.lockf(file._descriptor, fcntl.LOCK_UN, length, start)
                _registry.released.notify_all()
                file.close()

    def __enter__(self) -> LockHold:
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()


def create_lock_file(path: Path) -> LockFile:
    """Open the lock file `path`, mode 0600, created where it is missing; ``close()`` gives it back.

    A process has one object for it. Raises SegmentAccessError or RefusedError if it cannot be opened or
    created.
    """
    try:
        return _open(path, open_or_create_ours)
    except (OSError, ForeignPathError) as error:
        raise refusal(path, error) from error


def open_lock_file(path: Path) -> LockFile | None:
    """Open the lock file `path` if there is one; otherwise as :func:`create_lock_file`."""
    try:
        return _open(path, open_ours)
    except FileNotFoundError:
        return None
    except (OSError, ForeignPathError) as error:
        raise refusal(path, error) from error


def _open(path: Path, how: Callable[[Path], int]) -> LockFile:
    with _registry.mutex:
        # Found by stat first: opening it a second time to look would mean closing a descriptor of it.
        with contextlib.suppress(FileNotFoundError):
            known = _registry.files.get(_inode_of(path.lstat()))
            if known is not None:
                known.users += 1
                return known
        descriptor = how(path)
        file = LockFile(path, descriptor)
        _registry.files[_inode_of(os.fstat(descriptor))] = file
        return file


class _Registry:
    def __init__(self) -> None:
        self.mutex = threading.RLock()
        self.released = threading.Condition(self.mutex)
        self.files: dict[tuple[int, int], LockFile] = {}

    def forget_parent(self) -> None:
        """Begin anew in a forked child: the locks stayed with the parent, the mutex maybe with its thread."""
        self.mutex = threading.RLock()
        self.released = threading.Condition(self.mutex)
        for file in self.files.values():
            # The inherited descriptors serve the child as well: a lock belongs to the asking process.
            file.users -= len(file._held)
            file._held.clear()


def _inode_of(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


_registry = _Registry()
os.register_at_fork(after_in_child=_registry.forget_parent)
