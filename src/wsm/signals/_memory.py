"""One file mapped into this process, shared with all others that map it. Knows bytes only.

The file is opened by path, never through ``multiprocessing.shared_memory``: on CPython 3.10 to 3.12
attaching there registers with a resource tracker that unlinks the owner's segment when the attaching
process exits (CPython #82300).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
from collections.abc import Container, Iterator
from pathlib import Path

from wsm.errors import RefusedError
from wsm.shared_directory import ForeignPathError, create_ours, is_at, open_ours, remove_same
from wsm.signals.errors import SegmentAccessError, SegmentMissingError

_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


class SharedFile:
    """A shared mapping of the first `size` bytes of a file, which must have them.

    The caller closes its own descriptor. `address` is where byte 0 is mapped in this process, 0 once closed.
    """

    def __init__(self, descriptor: int, path: Path, size: int) -> None:
        self.path = path
        self.size = size
        self._status = os.fstat(descriptor)
        self._mapping = mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self.bytes: memoryview[int] = memoryview(self._mapping)
        # The view that yields the address is dropped at once: a living one would forbid to unmap.
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))

    def cast(self, element_format: str) -> memoryview[int]:
        """Return a view of other elements (``Q``, ``i``); to be released before :meth:`close`."""
        return self.bytes.cast(element_format)  # type: ignore[call-overload,no-any-return] # only literals are declared

    def is_replaced(self) -> bool:
        return not is_at(self.path, self._status)

    def missing_bytes(self) -> int:
        """How many mapped bytes the file does not have any more: to touch one ends the process by SIGBUS."""
        try:
            return max(self.size - self._mapping.size(), 0)
        except ValueError:  # unmapped, by another thread maybe
            return 0
        except OSError as error:
            if error.errno != errno.EBADF:  # which is what an unmapping under way looks like
                raise
            return 0

    def remove(self) -> None:
        remove_same(self.path, self._status)

    def close(self) -> None:
        """Unmap; idempotent. BufferError if a view into the memory is held, which stays mapped then."""
        self.bytes.release()
        try:
            self._mapping.close()
        except BufferError:
            self.bytes = memoryview(self._mapping)
            raise
        self.address = 0


@contextlib.contextmanager
def opened(path: Path, flags: int = os.O_RDWR, *, also: Container[int] = ()) -> Iterator[tuple[int, int]]:
    """Open an existing file of this user, or of `also`; yields descriptor and size in bytes.

    Raises SegmentMissingError, or SegmentAccessError if it is another user's, or no regular file.
    """
    try:
        descriptor = open_ours(path, flags, also=also)
    except FileNotFoundError:
        raise SegmentMissingError(
            f"there is no segment {path}; start the group first, check its name, "
            "that both sides run as one user, and in containers share /dev/shm (one IPC namespace)",
            path=str(path),
        ) from None
    except (OSError, ForeignPathError) as error:
        raise refusal(path, error) from error
    try:
        yield descriptor, os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def publish(path: Path, unfinished: Path, size: int, content: bytes) -> SharedFile:
    """Create `path` with `content` and zeros up to `size` bytes; it appears whole.

    The bytes are allocated here, because a full ``/dev/shm`` would else kill a process by SIGBUS at its first
    store. It is built under `unfinished`, in the same folder; the caller must be the only one that builds
    there. Raises FileExistsError, and RefusedError or SegmentAccessError if there is no room or the folder
    refuses.
    """
    try:
        unfinished.unlink(missing_ok=True)
        descriptor = create_ours(unfinished)
    except OSError as error:
        raise refusal(path, error, needed_bytes=size) from error
    try:
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            raise refusal(path, error, needed_bytes=size) from error
        memory = SharedFile(descriptor, path, size)
        memory.bytes[: len(content)] = content
        try:
            os.link(unfinished, path)
        except FileExistsError:
            memory.close()
            raise
        return memory
    finally:
        remove_same(unfinished, os.fstat(descriptor))
        os.close(descriptor)


def refusal(path: Path, error: OSError | ForeignPathError, *, needed_bytes: int = 0) -> RefusedError:
    if isinstance(error, ForeignPathError):
        return SegmentAccessError(path=str(path), reason=error.context["problem"])
    reason = error.strerror or str(error)
    if error.errno not in _FULL:
        return SegmentAccessError(path=str(path), reason=reason)
    room = os.statvfs(path.parent)
    free_bytes = room.f_bavail * room.f_frsize
    return RefusedError(
        f"{path} needs {needed_bytes} bytes and {free_bytes} are free ({reason}); "
        "remove what is stale in that folder, or give it more (containers: --shm-size)",
        code="shared-memory-full",
        path=str(path),
        reason=reason,
        needed_bytes=needed_bytes,
        free_bytes=free_bytes,
    )
