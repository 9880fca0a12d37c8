"""A piece of POSIX shared memory with one owner and any number of readers, each held by a kernel lock.

Ownership is explicit and ends with its process: the owner holds one byte of the file alone, every reader
shares another. A reader's lease lasts as long as its last mapping; the owner writes anew only while there is
no lease. Unlinking takes only the name: memory goes when the last of them lets go. What a dead owner leaves
behind has a name and no owner, and is swept by the next one.

Locks lie on an open file of their own, beside the one that is mapped: a forked child keeps its parent's
mappings, and would keep its locks with them. Knows nothing about tensors.
"""

from __future__ import annotations

import mmap
import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from wsm.errors import BadInputError, RefusedError, UnfitError, coded, remedy
from wsm.own_descriptor import OwnDescriptor, reopened
from wsm.shared_directory import ForeignPathError, create_ours, open_ours, private_directory, remove_same
from wsm.strategies import errors as strategies_errors
from wsm.strategies.errors import UnreadableFileError
from wsm.strategies.files.atomic_file import read_all
from wsm.strategies.tensor import BEGIN_IN_PAGE

#: The first bytes of a segment, in front of any tensor: what its owner says of it, for after its death.
HEAD_BYTES = BEGIN_IN_PAGE

# Before so many bytes are read where they lie it is worth a system call to see that they are all there.
_LARGE_BYTES = 1 << 20

# Far behind any data; locks need no bytes to lie on.
_OWNER = 1 << 62
_READERS = _OWNER + 1


@coded("shared-memory-gone")
def shared_memory_gone(*, file: str, segment: str) -> BadInputError:
    """A metas file names shared memory that its owner has withdrawn."""
    return UnfitError(
        f"{file} points at {segment}, which does not exist (any more); "
        "let the trainer publish again, as the user that runs the ranks"
    )


def foreign_segment(
    *, segment: str, problem: str, fix: str = "run trainer and worker as one user"
) -> BadInputError:
    """Shared memory is no regular file of this user, or not what such memory is."""
    return UnfitError(
        f"the shared memory {segment!r} is not used: {problem}; {fix}",
        code="foreign-segment",
        segment=segment,
        problem=problem,
    )


@coded("shared-memory-busy")
def shared_memory_busy(*, segment: str) -> RefusedError:
    """The owner of shared memory is writing it anew."""
    return RefusedError(f"the owner of {segment} is writing it anew; load when it has published")


class OwnedSegment:
    """Shared memory that this object owns, mapped for writing.

    Parameters
    ----------
    prefix : str
        Begin of the name; the rest is drawn.
    nbytes : int
        Its size; 1 at least. All of it is reserved at once, so no later write fails for want of room.
    directory : str, optional
        Where it is created; in this user's private directory by default.

    Attributes
    ----------
    name : str
        Its file name.
    memory : memoryview
        Its bytes, zeros at first.

    Raises
    ------
    RefusedError
        If there is no room.
    """

    def __init__(self, prefix: str, nbytes: int, directory: str | None = None) -> None:
        self.nbytes = nbytes
        self._open = True
        directory = _place(directory)
        try:
            self.name, self._descriptor, self._locks = _create_owned(prefix, directory)
            self._path = f"{directory}/{self.name}"
            try:
                os.posix_fallocate(self._descriptor, 0, nbytes)
                self._mapping = mmap.mmap(self._descriptor, nbytes)
            except BaseException:
                self._let_go()
                raise
        except OSError as error:
            fix = remedy(error) or "enlarge it (docker: --shm-size) or release older versions"
            raise RefusedError(
                f"cannot share {nbytes} bytes in {directory}: {error}; nothing was published; {fix}",
                code="sharing-refused",
                path=directory,
                nbytes=nbytes,
                reason=str(error),
            ) from error
        self.memory = memoryview(self._mapping)

    def leased(self) -> bool:
        """Whether any reader holds it now."""
        return self._locks.is_byte_locked(_READERS)

    def require_whole(self) -> None:
        """See that the memory has not been cut short: writing to what is gone would kill this process.

        Raises
        ------
        BadInputError
            If it has.
        """
        _require_whole(self._descriptor, self._path, self.nbytes)

    def write_at(self, offset: int, data: bytes | memoryview) -> None:
        """Write bytes of it without its mapping, which takes less time where they are many. Blocks."""
        rest = memoryview(data)
        while rest:
            written = os.pwrite(self._descriptor, rest, offset)
            rest, offset = rest[written:], offset + written

    def begin_writing(self) -> bool:
        """Keep new readers out until :meth:`end_writing`; False if there are readers, or it was cut short."""
        if os.fstat(self._descriptor).st_size < self.nbytes:
            return False  # writing to what is gone would kill this process
        return self._locks.try_lock_byte(_READERS)

    def end_writing(self) -> None:
        """Let readers in. Idempotent."""
        self._locks.unlock_byte(_READERS)

    def close(self) -> None:
        """Take the name away and let the memory go as far as this process holds it. Idempotent.

        A view that another process made of :attr:`memory` keeps it until that view is gone. A forked child
        lets go of its copy only: the name is its parent's.
        """
        if not self._open:
            return
        self._open = False
        self.memory.release()
        with suppress(BufferError):  # the caller's own views hold it: it goes with the last of them
            self._mapping.close()
        self._let_go()

    def _let_go(self) -> None:
        if self._locks.is_open:
            remove_same(Path(self._path), os.fstat(self._descriptor))
        self._locks.close()
        os.close(self._descriptor)


class AttachedSegment:
    """Another process's shared memory, under a lease until it is closed and its last mapping is gone.

    Parameters
    ----------
    name : str
        Its file name.
    nbytes : int
        Bytes that it must have at least.
    prefixes : sequence of str
        What its name may begin with: memory of this kind. A peer or a file may name anything, also the
        segment of another group, which then is not even opened.
    referrer : str
        Who named it (a file or a peer), for messages.
    directory : str, optional
        Where it lies; in this user's private directory by default.

    Attributes
    ----------
    path : str
        Its whole name, for messages.

    Raises
    ------
    BadInputError, RefusedError, UnreadableFileError
        If it is not there, too short, not ours or not of this kind, being written, or cannot be opened.
    """

    def __init__(
        self,
        name: str,
        nbytes: int,
        *,
        prefixes: Sequence[str],
        referrer: str,
        directory: str | None = None,
    ) -> None:
        self.path = f"{_place(directory)}/{name}"
        self.nbytes = nbytes
        self._mapping: _LeasedMapping | None = None
        self._lease: OwnDescriptor | None = None
        if not name.startswith(tuple(prefixes)):
            expected = " or ".join(f"{prefix}..." for prefix in prefixes)
            problem = f"{referrer} names it, and such memory is called {expected}"
            raise foreign_segment(segment=self.path, problem=problem, fix="look who wrote or sent that")
        try:
            self._descriptor = open_ours(Path(self.path), os.O_RDONLY)
        except FileNotFoundError as error:
            raise shared_memory_gone(file=referrer, segment=self.path) from error
        except ForeignPathError as error:
            raise foreign_segment(segment=self.path, problem=error.context["problem"]) from error
        except OSError as error:
            raise UnreadableFileError(file=self.path, reason=str(error)) from error
        try:
            _require_whole(self._descriptor, self.path, nbytes)
            self._lease = _again(self._descriptor, os.O_RDONLY)
            if not self._lease.try_lock_byte(_READERS, shared=True):
                raise shared_memory_busy(segment=self.path)  # noqa: TRY301 - closed below, like after any error
        except BaseException:
            self.close()
            raise

    def owned(self) -> bool:
        """Whether its owner lives."""
        return self._lease is not None and self._lease.is_byte_locked(_OWNER, alone=True)

    def remove_orphan(self) -> None:
        """Take the name away if its owner is dead and will not; processes that map the memory keep it."""
        if self._lease is not None and self._lease.is_open and not self.owned():
            with suppress(OSError):
                remove_same(Path(self.path), os.fstat(self._descriptor))

    def read_from(self, begin: int, offset: int, destination: memoryview) -> None:
        """Fill `destination` from `offset` of what begins at `begin` on. Blocks.

        Raises
        ------
        BadInputError, UnreadableFileError
            If it was cut short meanwhile, or cannot be read. `destination` may be partly filled.
        """
        read_all(self._descriptor, begin + offset, destination, file=self.path, expected=self.nbytes)

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """Return bytes of it without any mapping; fewer where it ends."""
        return os.pread(self._descriptor, nbytes, offset)

    def memory(self, offset: int, nbytes: int) -> memoryview:
        """Return bytes of it, mapped privately: what is written there no other process sees.

        The mapping keeps the lease until the last view of it is gone.

        Raises
        ------
        BadInputError, UnreadableFileError
            If it was cut short, where reading what is gone would kill this process, or cannot be mapped.
        """
        if nbytes >= _LARGE_BYTES:
            _require_whole(self._descriptor, self.path, self.nbytes)
        if self._mapping is None:
            try:
                made = _LeasedMapping(self._descriptor, self.nbytes, access=mmap.ACCESS_COPY)
            except (OSError, ValueError, OverflowError) as error:  # no room for it, cut short, no such size
                raise UnreadableFileError(file=self.path, reason=f"it cannot be mapped ({error})") from error
            made.lease = self._lease
            self._mapping = made
        return memoryview(self._mapping)[offset : offset + nbytes]

    def close(self) -> None:
        """Let go. Idempotent; views of :meth:`memory` stay valid, and keep the lease."""
        self._mapping = None
        self._lease = None  # which gives it back, unless a mapping has it, too
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class _LeasedMapping(mmap.mmap):
    """A mapping that keeps a lease for as long as it has views."""

    lease: OwnDescriptor | None = None


def sweep(
    prefix: str, directory: str | None = None, *, needed: Callable[[str, bytes], bool] | None = None
) -> tuple[str, ...]:
    """Remove segments of this user that begin with `prefix` and have no owner; return their names.

    A reader keeps the memory, as it would if the owner had closed it.

    Parameters
    ----------
    prefix : str
        As given to :class:`OwnedSegment`.
    directory : str, optional
        Where to look; in this user's private directory by default.
    needed : callable, optional
        ``needed(name, head)``: whether one stays all the same; `head` is its first :data:`HEAD_BYTES`.
    """
    try:
        found = sorted(Path(_place(directory)).glob(f"{prefix}*"))
    except (OSError, ForeignPathError):  # it cannot be listed now: the next one sweeps
        return ()
    return tuple(path.name for path in found if _sweep_one(path, needed))


def _place(directory: str | None) -> str:
    return str(private_directory()) if directory is None else directory


def _require_whole(descriptor: int, path: str, nbytes: int) -> None:
    size = os.fstat(descriptor).st_size
    if size < nbytes:
        raise strategies_errors.bad_file_size(file=path, expected=nbytes, actual=size)


def _create_owned(prefix: str, directory: str) -> tuple[str, int, OwnDescriptor]:
    """Create an empty file that is ours; return its name, its descriptor, and that of its locks."""
    while True:
        name = f"{prefix}{secrets.token_hex(8)}"
        descriptor = create_ours(Path(directory, name))
        try:
            locks = _again(descriptor, os.O_RDWR)
            # Before it was ours, another process who sweeps may have taken it for what a dead owner left.
            if locks.try_lock_byte(_OWNER) and os.fstat(descriptor).st_nlink:
                return name, descriptor, locks
        except BaseException:
            remove_same(Path(directory, name), os.fstat(descriptor))
            os.close(descriptor)
            raise
        os.close(descriptor)


def _again(descriptor: int, access: int) -> OwnDescriptor:
    """Open a file once more, for its locks."""
    return OwnDescriptor(lambda: reopened(descriptor, access))


def _sweep_one(path: Path, needed: Callable[[str, bytes], bool] | None) -> bool:
    """Remove a segment of ours that has no owner and is not needed; whether it was one."""
    with suppress(OSError, ForeignPathError):
        descriptor = OwnDescriptor(lambda: open_ours(path, os.O_RDONLY))
        try:
            if descriptor.is_byte_locked(_OWNER):
                return False
            if needed is None or not needed(path.name, os.pread(descriptor.number, HEAD_BYTES, 0)):
                return remove_same(path, os.fstat(descriptor.number))
        finally:
            descriptor.close()
    return False
