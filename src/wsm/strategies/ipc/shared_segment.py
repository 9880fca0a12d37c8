"""A piece of POSIX shared memory with one owner and any number of readers, each held by a kernel lock.

Ownership is explicit and survives nobody: the owner holds one byte of the file alone, every reader shares
another. A reader's lease lasts as long as its last mapping; the owner writes anew only while nobody has a
lease. Unlinking takes only the name: memory goes when the last of them lets go. What a dead owner leaves
behind has a name and no owner, and is swept by the next one. Knows nothing about tensors.
"""

from __future__ import annotations

import errno
import mmap
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from wsm.strategies.errors import FileSizeError, UnreadableFileError
from wsm.strategies.ipc import byte_leases
from wsm.strategies.ipc.errors import (
    ForeignSegmentError,
    SegmentBusyError,
    SegmentMissingError,
    SharingRefusedError,
)

#: Where POSIX shared memory lies on Linux.
MEMORY_DIRECTORY = "/dev/shm"  # noqa: S108 - no place for temporary files: the place that is shared

# Far behind any data; locks need no bytes to lie on.
_OWNER = 1 << 62
_READERS = _OWNER + 1


class OwnedSegment:
    """Shared memory that this object owns, mapped for writing.

    Parameters
    ----------
    prefix : str
        Begin of the name; the rest is drawn.
    nbytes : int
        Its size; 1 at least. All of it is reserved at once, so no later write fails for want of room.
    directory : str
        Where it is created.

    Attributes
    ----------
    name : str
        Its file name.
    memory : memoryview
        Its bytes, zeros at first.

    Raises
    ------
    SharingRefusedError
        If there is no room.
    """

    def __init__(self, prefix: str, nbytes: int, directory: str = MEMORY_DIRECTORY) -> None:
        self.nbytes = nbytes
        self._open = True
        try:
            self.name, self._descriptor = _create_owned(prefix, directory)
        except OSError as error:
            raise SharingRefusedError(path=directory, nbytes=nbytes, reason=str(error)) from error
        self._path = f"{directory}/{self.name}"
        try:
            os.posix_fallocate(self._descriptor, 0, nbytes)
            self._mapping = mmap.mmap(self._descriptor, nbytes)
        except OSError as error:
            os.close(self._descriptor)
            Path(self._path).unlink(missing_ok=True)
            raise SharingRefusedError(path=directory, nbytes=nbytes, reason=str(error)) from error
        self.memory = memoryview(self._mapping)

    def leased(self) -> bool:
        """Whether any reader holds it now."""
        return byte_leases.is_taken(self._descriptor, _READERS)

    def require_whole(self) -> None:
        """See that the memory has not been cut short: writing to what is gone would kill this process.

        Raises
        ------
        FileSizeError
            If it has.
        """
        _require_whole(self._descriptor, self._path, self.nbytes)

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """Return bytes of it without its mapping; fewer where it ends."""
        return os.pread(self._descriptor, nbytes, offset)

    def write_at(self, offset: int, data: bytes) -> None:
        """Write bytes of it without its mapping."""
        os.pwrite(self._descriptor, data, offset)

    def begin_writing(self) -> bool:
        """Keep new readers out until :meth:`end_writing`; False if there are readers, or it was cut short."""
        if os.fstat(self._descriptor).st_size < self.nbytes:
            return False  # writing to what is gone would kill this process
        return byte_leases.take_alone(self._descriptor, _READERS)

    def end_writing(self) -> None:
        """Let readers in. Idempotent."""
        byte_leases.give_back(self._descriptor, _READERS)

    def close(self) -> None:
        """Take the name away and let the memory go as far as this process holds it. Idempotent.

        A view that somebody made of :attr:`memory` keeps it until that view is gone.
        """
        if not self._open:
            return
        self._open = False
        Path(self._path).unlink(missing_ok=True)
        self.memory.release()
        with suppress(BufferError):  # the caller's own views hold it: it goes with the last of them
            self._mapping.close()
        os.close(self._descriptor)


class AttachedSegment:
    """Another process's shared memory, under a lease until it is closed and its last mapping is gone.

    Parameters
    ----------
    name : str
        Its file name.
    nbytes : int
        Bytes that it must have at least.
    referrer : str
        Who named it (a file or a peer), for messages.
    directory : str
        Where it lies.
    answering : bool
        Whether :meth:`write_at` will be used.

    Attributes
    ----------
    path : str
        Its whole name, for messages.

    Raises
    ------
    SegmentMissingError, FileSizeError, ForeignSegmentError, SegmentBusyError, UnreadableFileError
        If it is not there, too short, not ours, being written, or cannot be opened.
    """

    def __init__(
        self,
        name: str,
        nbytes: int,
        *,
        referrer: str,
        directory: str = MEMORY_DIRECTORY,
        answering: bool = False,
    ) -> None:
        self.path = f"{directory}/{name}"
        self.nbytes = nbytes
        self._mapping: mmap.mmap | None = None
        try:
            access = os.O_RDWR if answering else os.O_RDONLY
            self._descriptor = os.open(self.path, access | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError as error:
            raise SegmentMissingError(file=referrer, segment=self.path) from error
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise ForeignSegmentError(segment=self.path, problem="it is a symbolic link") from error
            raise UnreadableFileError(file=self.path, reason=str(error)) from error
        try:
            self._check()
        except BaseException:
            self.close()
            raise

    def owned(self) -> bool:
        """Whether its owner lives."""
        return byte_leases.is_taken_alone(self._descriptor, _OWNER)

    def named(self) -> bool:
        """Whether it still has its name: the owner has not withdrawn it."""
        return bool(os.fstat(self._descriptor).st_nlink)

    def remove_orphan(self) -> None:
        """Take the name away if the owner is dead and nobody else will; whoever maps it keeps it."""
        if self._descriptor < 0:
            return
        with suppress(OSError):
            if not self.owned() and os.path.samestat(os.fstat(self._descriptor), Path(self.path).stat()):
                Path(self.path).unlink()

    def read_into(self, offset: int, destination: memoryview) -> None:
        """Fill `destination` from `offset` on. Blocks.

        Raises
        ------
        FileSizeError, UnreadableFileError
            If it was cut short meanwhile, or cannot be read. `destination` may be partly filled.
        """
        rest = destination
        while rest:
            try:
                count = os.preadv(self._descriptor, [rest], offset)
            except OSError as error:
                raise UnreadableFileError(file=self.path, reason=str(error), touched=True) from error
            if count == 0:
                raise FileSizeError(file=self.path, expected=self.nbytes, actual=offset, touched=True)
            offset += count
            rest = rest[count:]

    def read_from(self, begin: int, offset: int, destination: memoryview) -> None:
        """Fill `destination` from `offset` of what begins at `begin` on; as :meth:`read_into`."""
        self.read_into(begin + offset, destination)

    def shared_memory(self) -> memoryview:
        """Return its bytes, read-only, as the owner writes them; :meth:`require_whole` before each use.

        Raises
        ------
        UnreadableFileError
            If they cannot be mapped.
        """
        return memoryview(self._mapped(mmap.ACCESS_READ))

    def require_whole(self, *, touched: bool) -> None:
        """See that the memory has not been cut short: reading what is gone would kill this process.

        Raises
        ------
        FileSizeError
            If it has; `touched` is what it says of the target.
        """
        _require_whole(self._descriptor, self.path, self.nbytes, touched=touched)

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """Return bytes of it without any mapping; fewer where it ends."""
        return os.pread(self._descriptor, nbytes, offset)

    def write_at(self, offset: int, data: bytes) -> None:
        """Write bytes of it, if it was attached for answering."""
        os.pwrite(self._descriptor, data, offset)

    def memory(self) -> memoryview:
        """Return its bytes, mapped privately: what is written there nobody else sees.

        The mapping shares the open file, and with it the lease, until the last view of it is gone.

        Raises
        ------
        UnreadableFileError
            If they cannot be mapped.
        """
        if self._mapping is None:
            self._mapping = self._mapped(mmap.ACCESS_COPY)
        return memoryview(self._mapping)

    def close(self) -> None:
        """Let go. Idempotent; views of :meth:`memory` stay valid, and keep the lease."""
        self._mapping = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _mapped(self, access: int) -> mmap.mmap:
        try:
            return mmap.mmap(self._descriptor, self.nbytes, access=access)
        except (OSError, ValueError, OverflowError) as error:  # no room for it, cut short, no such size
            raise UnreadableFileError(file=self.path, reason=f"it cannot be mapped ({error})") from error

    def _check(self) -> None:
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ForeignSegmentError(segment=self.path, problem="it is no regular file")
        if status.st_uid not in (os.geteuid(), 0):
            raise ForeignSegmentError(segment=self.path, problem=f"it belongs to user {status.st_uid}")
        if status.st_size < self.nbytes:
            raise FileSizeError(file=self.path, expected=self.nbytes, actual=status.st_size)
        if not byte_leases.take_shared(self._descriptor, _READERS):
            raise SegmentBusyError(segment=self.path)


def sweep(prefix: str, keep: frozenset[str], directory: str = MEMORY_DIRECTORY) -> tuple[str, ...]:
    """Remove segments that begin with `prefix` and have no owner; return their names.

    A reader keeps the memory, as it would if the owner had closed it.

    Parameters
    ----------
    prefix : str
        As given to :class:`OwnedSegment`.
    keep : frozenset of str
        Names that stay all the same: what a dead owner published, and nobody has replaced.
    directory : str
        Where to look.
    """
    swept = []
    for path in Path(directory).glob(f"{prefix}*"):
        if path.name not in keep and _is_abandoned(path):
            with suppress(OSError):
                path.unlink()
                swept.append(path.name)
    return tuple(sorted(swept))


def _require_whole(descriptor: int, path: str, nbytes: int, *, touched: bool = False) -> None:
    size = os.fstat(descriptor).st_size
    if size < nbytes:
        raise FileSizeError(file=path, expected=nbytes, actual=size, touched=touched)


def _create_owned(prefix: str, directory: str) -> tuple[str, int]:
    """Create an empty file that is ours; return its name and descriptor."""
    while True:
        name = f"{prefix}{secrets.token_hex(8)}"
        descriptor = os.open(
            f"{directory}/{name}", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        # Before it was ours, somebody who sweeps may have taken it for what a dead owner left.
        if byte_leases.take_alone(descriptor, _OWNER) and os.fstat(descriptor).st_nlink:
            return name, descriptor
        os.close(descriptor)


def _is_abandoned(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return not byte_leases.is_taken(descriptor, _OWNER)
    finally:
        os.close(descriptor)
