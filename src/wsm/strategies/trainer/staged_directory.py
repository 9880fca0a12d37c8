"""A publication on its way to its readers: a directory that becomes visible whole, or not at all.

It is written under ``.staging-…``, which readers do not look at, and renamed to its version's label once it
is complete. Several processes may write into one together: each of them shares a kernel lock on it, which
dies with the process, so what nobody has a lock on is a dead publisher's, and the next one removes it. One
process at a time makes a publication visible, under the lock of all publishers into the directory. What it
holds, a whole version or a delta, the derived class knows.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from wsm.errors import RefusedError
from wsm.labels import checked_version
from wsm.own_descriptor import OwnDescriptor
from wsm.shared_directory import FileLock, is_at, try_lock_file
from wsm.strategies.digest import digest_of
from wsm.strategies.errors import PublisherBusyError, StorageError, VersionExistsError
from wsm.strategies.files.atomic_file import replace_file, sync_directory
from wsm.strategies.files.snapshot_names import VERSION_FILE, VERSIONS_DIRECTORY
from wsm.strategies.files.version_file import version_bytes
from wsm.strategies.trainer.publications import label_in, next_ordinal
from wsm.strategies.trainer.retention import bring_in, finish_removals, remove_unless_read, take_away

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


_STAGING_PREFIX = ".staging-"
#: What becomes visible, in a staging directory; and the file whose first byte its processes share.
_WHOLE, _MEMBERS = "whole", "members.lock"
# Each further attempt takes a publisher that removed the directory of dead processes as we entered it.
_ATTEMPTS = 64

StagedT = TypeVar("StagedT", bound="StagedDirectory")


class StagedDirectory:
    """What is being published; a context manager that discards it unless it became visible.

    Parameters
    ----------
    directory : path or str
        Where versions are published; the lock is that of all publishers into it, since all of them announce
        in its ``version.yaml``.
    place : str
        The directory in it that holds one directory per version.
    version : str or int
        The version.
    durable : bool
        Whether it must survive a power cut once it is visible.
    job : str, optional
        What the processes share that stage this version together. They keep other publishers out only while
        one of them makes it visible; without a job this process does so from here on.
    within : StagedDirectory, optional
        Another publication into the same directory, which keeps other publishers out for both.

    Attributes
    ----------
    path : Path
        What becomes visible is written here; readers do not look there.
    final : Path
        Where readers will find it.
    publication : str
        What marks every file of this publication.

    Raises
    ------
    PublisherBusyError
        If another process publishes into the directory.
    StorageError
        If the file system refuses.
    BadInputError
        If `version` is none.
    """

    def __init__(
        self,
        directory: Path | str,
        place: str,
        version: str | int,
        *,
        durable: bool,
        job: str | None = None,
        within: StagedDirectory | None = None,
    ) -> None:
        self.version = checked_version(version)
        named = None if job is None else digest_of(f"{job}\0{self.version}".encode())
        self.publication = named or secrets.token_hex(8)
        self._directory = Path(directory)
        self._place = self._directory / place
        self._durable = durable
        self._stage = self._place / f"{_STAGING_PREFIX}{self.version}-{self.publication}"
        self.path = self._stage / _WHOLE
        self.final = self._place / self.version
        self._within = within
        self._visible: str | None = None
        self._lock: FileLock | None = within._lock if within is not None else None
        if within is None and job is None:
            self._lock = self._take_lock()
        try:
            with self._storage():
                self._place.mkdir(parents=True, exist_ok=True)
                if self._lock is not None:
                    self._tidy()
                elif any(_is_dead(stage) for stage in self._stages()):
                    with suppress(PublisherBusyError), self._alone():
                        pass  # who has the lock tidies
                self._membership = self._entered()
                if job is None:
                    self.path.mkdir()
        except BaseException:
            self._release()
            raise

    def discard(self) -> None:
        """Leave what was staged, and let other publishers in. Idempotent.

        The last process to leave removes it. In a forked child it does nothing: what was staged is its
        parent's.
        """
        if self._membership.is_open:
            _remove_dead(self._stage, self._membership)
            self._release()

    def __enter__(self: StagedT) -> StagedT:  # noqa: PYI019 - typing has Self from Python 3.11 on
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.discard()

    @contextmanager
    def _storage(self) -> Iterator[None]:
        """Turn what the file system refuses within into a StorageError."""
        try:
            yield
        except OSError as error:
            raise StorageError(path=self.path, error=error, visible=self._visible) from error

    def _check_vacant(self, *, replace: bool, lacking: Sequence[str] | None = None) -> None:
        """Refuse to take the place of a version that is there, unless it may be replaced.

        Parameters
        ----------
        replace : bool
            Whether it may.
        lacking : sequence of str, optional
            What it does not promise, if it holds the very same tensors.

        Raises
        ------
        VersionExistsError
            If it may not.
        RefusedError
            If the directory is that of another label, as on a file system where case does not count.
        """
        there = label_in(self.final)
        if there not in (None, self.version):
            raise RefusedError(
                f"version {self.version} cannot be published: {self.final} holds version {there}, as happens "
                "where the file system does not tell upper from lower case; publish under a label that "
                "differs in more than case",
                code="directory-of-other",
                version=self.version,
                there=there,
                path=str(self.final),
            )
        if self.final.exists() and not replace:
            raise VersionExistsError(version=self.version, path=str(self.final), lacking=lacking or ())

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other publishers out within, and remove what dead ones staged first."""
        if self._lock is not None:
            yield
            return
        self._lock = self._take_lock()
        try:
            self._tidy()
            yield
        finally:
            self._release()
            self._lock = None

    def _show(self) -> None:
        """Make what was staged visible in one step. Blocks; raises OSError."""
        bring_in(self.path, self.final)
        self._visible = self.version
        if self._durable:
            sync_directory(self._place)

    def _announce(self) -> None:
        """Let ``version.yaml`` name the version, which is visible. Blocks; raises OSError."""
        self._visible = self.version
        path = self._directory / VERSION_FILE
        replace_file(path, version_bytes(self.version), durable=self._durable, alone=True)

    def _take_lock(self) -> FileLock:
        return take_publisher_lock(self._directory / VERSIONS_DIRECTORY, directory=self._directory)

    def _release(self) -> None:
        if self._within is None and self._lock is not None:
            self._lock.release()

    def _stages(self) -> Iterator[Path]:
        return self._place.glob(f"{_STAGING_PREFIX}*")

    def _tidy(self) -> None:
        finish_removals(self._place)
        self._ordinal = next_ordinal(self._directory)
        for stage in self._stages():
            with suppress(OSError):
                _remove_dead(stage, _members_of(stage))

    def _entered(self) -> OwnDescriptor:
        """Make the staging directory, or enter that of the job; it stays while what is returned is open."""
        for _ in range(_ATTEMPTS):
            with suppress(FileNotFoundError):  # removed between two of our calls
                self._stage.mkdir(exist_ok=True)
                members = _members_of(self._stage)
                try:
                    if members.try_lock_byte(0, shared=True) and is_at(
                        self._stage / _MEMBERS, os.fstat(members.number)
                    ):
                        return members
                except BaseException:
                    members.close()
                    raise
                members.close()
        raise PublisherBusyError(directory=str(self._directory))


def _members_of(stage: Path) -> OwnDescriptor:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return OwnDescriptor(partial(os.open, stage / _MEMBERS, flags, 0o666))


def _is_dead(stage: Path) -> bool:
    """Whether no process is in a staging directory; false where that cannot be known."""
    with suppress(OSError):
        members = _members_of(stage)
        try:
            return not members.is_byte_locked(0)
        finally:
            members.close()
    return False


def _remove_dead(stage: Path, members: OwnDescriptor) -> None:
    """Remove a staging directory if no other process is in it, and close `members`."""
    try:
        with suppress(OSError):
            # A publisher that died as it replaced a version may have left the old one there, with readers.
            if members.try_lock_byte(0) and remove_unless_read(stage / _WHOLE):
                take_away(stage)
    finally:
        members.close()
