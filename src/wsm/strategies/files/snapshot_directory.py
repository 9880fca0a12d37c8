"""A directory that snapshots are read from, held open so that it cannot change under a reader.

Files are opened relative to the directory's descriptor: when a publisher renames a version away, the
reader goes on in the one that it began with. A link is followed from that descriptor, too, and what it led to
is looked at before it is opened. While it is read, a published directory is leased, so that no publisher
retires it; a process that may load it again holds that lease for longer (:class:`VersionPins`).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from wsm.errors import BadInputError, UnfitError
from wsm.own_descriptor import OwnDescriptor, path_of, reopened
from wsm.strategies.errors import UnreadableFileError, not_a_regular_file, reading
from wsm.strategies.files.snapshot_names import DELTA_MANIFEST, VERSION_MANIFEST, VERSIONS_DIRECTORY

_CAREFULLY = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# Far behind any data; locks need no bytes to lie on.
_READERS = 1 << 62


def is_leased(path: Path) -> bool:
    """Whether any reader is known to have a lease on the directory at `path`. Does not block."""
    with suppress(OSError), ExitStack() as stack:  # it is gone, or has no locks: open files survive it anyway
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, directory)
        if (lease := _opened(directory)) is not None:
            stack.callback(lease.close)
            return lease.is_byte_locked(_READERS)
    return False


def _opened(directory: int) -> OwnDescriptor | None:
    """Open the file that leases lie on; a published directory has one of them."""
    for name in (VERSION_MANIFEST, DELTA_MANIFEST):
        with suppress(OSError):
            found = OwnDescriptor(partial(os.open, name, _CAREFULLY, dir_fd=directory))
            if stat.S_ISREG(os.fstat(found.number).st_mode):
                return found
            found.close()
    return None


# Each further attempt takes a publisher that replaced the directory between two of our system calls.
_ATTEMPTS = 8
_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW


class SnapshotDirectory:
    """One open directory.

    Parameters
    ----------
    path : str
        The directory; it may be a symbolic link itself.
    boundary : str, optional
        What links inside it must not lead out of; `path` if not given.

    Raises
    ------
    FileNotFoundError
        If there is nothing at `path`; the caller knows what that means.
    BadInputError (``not-a-regular-file``)
        If it is no directory.
    UnreadableFileError
        If it cannot be opened.
    """

    def __init__(self, path: str, *, boundary: str | None = None) -> None:
        self.path = path
        self._lease: OwnDescriptor | None = None
        with reading(path):
            self._boundary = os.path.realpath(path if boundary is None else boundary)
            try:
                self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except NotADirectoryError as error:
                raise not_a_regular_file(file=path, found="file", expected="directory") from error
        try:
            self._require_inside(path, path_of(self._descriptor))
        except BaseException:
            self.close()
            raise

    def hold(self) -> bool:
        """Keep publishers from retiring the directory until it is closed; False if one has already begun to.

        Where there is nothing to lease, or no locks, it gives True: open files survive their removal anyway.
        """
        if self._lease is None and (lease := _opened(self._descriptor)) is not None:
            with suppress(OSError):
                self._lease = lease if lease.try_lock_byte(_READERS, shared=True) else None
            if self._lease is None:
                lease.close()
        try:
            return os.path.samestat(Path(self.path).stat(), os.fstat(self._descriptor))
        except OSError:
            return False

    def names(self) -> list[str]:
        """Return the names in the directory, sorted.

        Raises
        ------
        UnreadableFileError
            If it cannot be listed.
        """
        with reading(self.path):
            return sorted(os.listdir(self._descriptor))  # noqa: PTH208 - a Path cannot list a descriptor

    def locate(self, name: str) -> str:
        """Return the path of `name`, for messages."""
        return f"{self.path}/{name}"

    def open(self, name: str) -> int:
        """Open a regular file for reading and return its descriptor, which the caller closes.

        Raises
        ------
        FileNotFoundError
            If there is no such name, or it is a dangling link.
        BadInputError (``not-a-regular-file``)
            If it is a directory, pipe, socket or device.
        BadInputError
            If it is a link that leads out of the boundary.
        UnreadableFileError
            If the operating system refuses.
        """
        path = self.locate(name)
        with reading(path):
            descriptor = self._open_following(name)
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            os.close(descriptor)
            raise not_a_regular_file(file=path, found="directory" if stat.S_ISDIR(mode) else "special file")
        return descriptor

    def read(self, name: str, limit: int) -> bytes | None:
        """Return the content of a small file; None if it is larger than `limit` bytes. Blocks.

        Raises
        ------
        FileNotFoundError
            If there is no such name, or it is a dangling link.
        wsm.strategies.errors.BadInputError
            As :meth:`open`, and if reading fails.
        """
        with os.fdopen(self.open(name), "rb") as file, reading(self.locate(name)):
            if os.fstat(file.fileno()).st_size > limit:
                return None
            data = file.read(limit + 1)
        return None if len(data) > limit else data

    def close(self) -> None:
        """Close the directory and let publishers retire it. Idempotent; files opened from it stay open."""
        if self._lease is not None:
            self._lease.close()
            self._lease = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open_following(self, name: str) -> int:
        try:
            return os.open(name, _OPEN_FLAGS, dir_fd=self._descriptor)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
        # A link. What it leads to is held without being opened, so that what is looked at is what is read.
        held = os.open(name, os.O_PATH | os.O_CLOEXEC, dir_fd=self._descriptor)
        try:
            self._require_inside(self.locate(name), path_of(held))
            # What is of another kind is refused below, without having been opened.
            return reopened(held, os.O_RDONLY if stat.S_ISREG(os.fstat(held).st_mode) else os.O_PATH)
        finally:
            os.close(held)

    def _require_inside(self, path: str, leads_to: str) -> None:
        with suppress(ValueError):
            if os.path.commonpath((self._boundary, leads_to)) == self._boundary:
                return
        if os.path.realpath(path) != leads_to:
            reason = "it was renamed while it was opened"
            raise UnreadableFileError(file=path, reason=reason, fix="load again")
        raise UnfitError(
            f"{path} is a link to {leads_to}, outside of {self._boundary}; copy the file there, "
            "or configure the directory that really holds it",
            code="outside-directory",
            directory=self._boundary,
            file=path,
            leads_to=leads_to,
        )


def open_held(path: str, *, boundary: str) -> SnapshotDirectory | None:
    """Open the directory that stands at `path`, and keep publishers from retiring it until it is closed.

    One that is replaced meanwhile is opened as it is then.

    Parameters
    ----------
    path, boundary : str
        As for :class:`SnapshotDirectory`.

    Returns
    -------
    SnapshotDirectory or None
        None if there is none, or it is being retired.

    Raises
    ------
    BadInputError, UnreadableFileError
        As :class:`SnapshotDirectory`.
    """
    for _ in range(_ATTEMPTS):
        try:
            directory = SnapshotDirectory(path, boundary=boundary)
        except FileNotFoundError:
            return None
        if directory.hold():
            return directory
        directory.close()
    return None


class VersionPins:
    """The pins of one process in one snapshot directory: versions that it may load again. For one thread.

    A pin ends with the process that has it; a publisher leaves the version for the next time.

    Parameters
    ----------
    directory : path, str or None
        Where versions are published; None: nothing is published there, and nothing is pinned.
    """

    def __init__(self, directory: Path | str | None) -> None:
        self._directory = directory
        self._held: dict[str, SnapshotDirectory] = {}

    @property
    def held(self) -> frozenset[str]:
        """The versions that are pinned."""
        return frozenset(self._held)

    def add(self, version: str) -> bool:
        """Pin a version, besides what is pinned; return whether it is. Does not block.

        A version that does not exist, or that a publisher has begun to retire, is not pinned: its load says
        so. A version that was published again in the meantime is pinned as it is now.
        """
        before = self._held.get(version)
        if before is not None and before.hold():
            return True
        self.keep(self.held - {version})
        with suppress(OSError, BadInputError):
            path = f"{self._directory}/{VERSIONS_DIRECTORY}/{version}"
            if self._directory is not None and (place := open_held(path, boundary=str(self._directory))):
                self._held[version] = place
        return version in self._held

    def keep(self, versions: Collection[str | None]) -> None:
        """Let go of every version but these. Adds none."""
        for version in self._held.keys() - set(versions):
            self._held.pop(version).close()

    def close(self) -> None:
        """Let go of all. Idempotent."""
        self.keep(())
