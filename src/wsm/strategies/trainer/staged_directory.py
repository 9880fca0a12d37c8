"""A publication on its way to its readers: a directory that becomes visible whole, or not at all.

It is written under ``.staging-…``, which readers do not look at, and renamed to its version's label once it
is complete. One process publishes to a directory at a time: the kernel's lock of the publishers dies with its
holder, so a staging directory that is found under the lock is a dead publisher's. What it holds, a whole
version or a delta, the derived class knows.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from wsm.errors import RefusedError
from wsm.labels import checked_version
from wsm.shared_directory import FileLock, try_lock_file
from wsm.strategies.errors import PublisherBusyError, StorageError, VersionExistsError
from wsm.strategies.files.atomic_file import replace_file, sync_directory
from wsm.strategies.files.snapshot_names import VERSION_FILE, VERSIONS_DIRECTORY
from wsm.strategies.files.version_file import version_bytes
from wsm.strategies.trainer.publications import label_in, next_ordinal
from wsm.strategies.trainer.retention import bring_in, finish_removals, remove_unless_read

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

StagedT = TypeVar("StagedT", bound="StagedDirectory")


class StagedDirectory:
    """What is being published; a context manager that discards it unless it was committed.

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
        Whether it must survive a power cut once it is committed.
    within : StagedDirectory, optional
        Another publication into the same directory, which keeps other publishers out for both.

    Attributes
    ----------
    path : Path
        Where the ranks' files are written; readers do not look there.
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
        within: StagedDirectory | None = None,
    ) -> None:
        self.version = checked_version(version)
        self.publication = secrets.token_hex(8)
        self._directory = Path(directory)
        self._place = self._directory / place
        self._durable = durable
        self.path = self._place / f"{_STAGING_PREFIX}{self.version}-{self.publication}"
        self.final = self._place / self.version
        self._within = within
        self._visible: str | None = None
        self._lock: FileLock = (
            take_publisher_lock(self._directory / VERSIONS_DIRECTORY, directory=self._directory)
            if within is None
            else within._lock
        )
        try:
            with self._storage():
                self._place.mkdir(exist_ok=True)
                finish_removals(self._place)
                self._ordinal = next_ordinal(self._directory)
                for leftover in self._place.glob(f"{_STAGING_PREFIX}*"):
                    remove_unless_read(leftover)
                self.path.mkdir()
        except BaseException:
            self._release()
            raise

    def discard(self) -> None:
        """Remove what was staged, if it was not committed, and let other publishers in. Idempotent.

        In a forked child it does nothing: what was staged is its parent's.
        """
        if self._lock.is_held:
            remove_unless_read(self.path)
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

    def _release(self) -> None:
        if self._within is None:
            self._lock.release()
