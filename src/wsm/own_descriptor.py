"""Open files and sockets that belong to one process: a forked child does not keep them, nor their locks.

A lock taken by ``flock``, or on an open file description, lasts as long as any process has the open file, and
a forked child has all of its parent's. A trainer that forks readers of its data would so hold its locks
through children that know nothing of them, and seem to live when it is dead; likewise a connection ends only
when the last process that has it closes it. Hence the one list of such files and sockets here: every child
that Python forks closes them, and locks are given back before a file is closed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import struct
import threading
import weakref
from collections.abc import Callable
from typing import Final, final

from wsm.errors import RefusedError

_FLOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux: type, whence, start, length, pid
_TO_THE_END: Final = 0
_REFUSED: Final = (errno.EAGAIN, errno.EACCES)


def forked_child() -> RefusedError:
    """A forked child used what belongs to its parent."""
    return RefusedError(
        "this belongs to the parent process, with its locks; make one of its own in the child",
        code="forked-child",
    )


@final
class OwnDescriptor:
    """One open file with its locks, until :meth:`close`, the last reference to this object, or a fork.

    `opening` returns a new descriptor. No process is forked while it runs, so it must not wait.
    """

    def __init__(self, opening: Callable[[], int]) -> None:
        self._number = -1
        self._forked = False
        with _inherited.mutex:
            self._number = opening()
            _inherited.open.add(self)

    @property
    def number(self) -> int:
        """The descriptor; RefusedError if this process is a forked child, which has none."""
        if self._forked:
            raise forked_child()
        return self._number

    @property
    def is_open(self) -> bool:
        """Whether it was neither closed nor left to the parent of this process."""
        return self._number >= 0

    def try_lock(self) -> bool:
        """Lock the whole file by ``flock``; False if another open file has a lock against that.

        OSError if the file system has no such locks.
        """
        try:
            fcntl.flock(self.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def lock(self) -> None:
        """Lock the whole file by ``flock``. Blocks while another open file has a lock on it."""
        fcntl.flock(self.number, fcntl.LOCK_EX)

    def try_lock_byte(self, byte: int, *, shared: bool = False) -> bool:
        """Lock one byte of the open file; False if another open file has a lock against that."""
        try:
            self._byte_lock(fcntl.F_OFD_SETLK, fcntl.F_RDLCK if shared else fcntl.F_WRLCK, byte)
        except OSError as error:
            if error.errno in _REFUSED:
                return False
            raise
        return True

    def unlock_byte(self, byte: int) -> None:
        """Give one byte back. Idempotent."""
        self._byte_lock(fcntl.F_OFD_SETLK, fcntl.F_UNLCK, byte)

    def is_byte_locked(self, byte: int, *, alone: bool = False) -> bool:
        """Whether another open file has the byte, shared or alone; with `alone`, alone."""
        answer = self._byte_lock(fcntl.F_OFD_GETLK, fcntl.F_RDLCK if alone else fcntl.F_WRLCK, byte)
        return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)

    def close(self) -> None:
        """Give every lock back, then close. Idempotent; in a forked child it does nothing."""
        with _inherited.mutex:
            number, self._number = self._number, -1
            _inherited.open.discard(self)
        if number >= 0:
            with contextlib.suppress(OSError):
                fcntl.flock(number, fcntl.LOCK_UN)
            with contextlib.suppress(OSError):
                fcntl.fcntl(number, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, 0, 0, _TO_THE_END, 0))
            os.close(number)

    def leave_to_parent(self) -> None:
        """Close in a forked child, without unlocking what the parent has locked."""
        number, self._number, self._forked = self._number, -1, True
        if number >= 0:
            os.close(number)

    def _byte_lock(self, command: int, kind: int, byte: int) -> bytes:
        asked = _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0)
        answer: bytes = fcntl.fcntl(self.number, command, asked)
        return answer

    def __del__(self) -> None:
        self.close()


def reopened(descriptor: int, flags: int) -> int:
    """Open the file of a descriptor once more, whatever its path names by now; a new open file."""
    return os.open(f"/proc/self/fd/{descriptor}", flags | os.O_CLOEXEC | os.O_NONBLOCK)


def path_of(descriptor: int) -> str:
    """Return where the file of a descriptor lies now, whatever names led to it."""
    return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - a Path would normalise it


def not_inherited(made: socket.socket) -> socket.socket:
    """Return a socket that was just made, which forked children close from now on."""
    with _inherited.mutex:
        _inherited.sockets.add(made)
    return made


class _Inherited:
    def __init__(self) -> None:
        self.mutex = threading.RLock()
        self.open: weakref.WeakSet[OwnDescriptor] = weakref.WeakSet()
        self.sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def before_fork(self) -> None:
        """Let no thread be between opening a file and saying so here."""
        self.mutex.acquire()

    def in_parent(self) -> None:
        self.mutex.release()

    def in_child(self) -> None:
        self.mutex = threading.RLock()
        inherited, self.open = list(self.open), weakref.WeakSet()
        sockets, self.sockets = list(self.sockets), weakref.WeakSet()
        for one in inherited:
            one.leave_to_parent()
        for each in sockets:
            each.close()


_inherited = _Inherited()
os.register_at_fork(
    before=_inherited.before_fork,
    after_in_parent=_inherited.in_parent,
    after_in_child=_inherited.in_child,
)
