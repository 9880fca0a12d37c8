"""A delta on its way to its readers: it becomes visible whole, or not at all.

It is written under ``deltas/.staging-…``, renamed to ``deltas/{version}`` when every rank's part is there,
and announced by ``version.yaml`` after that. The lock is that of whole versions, which are announced there
too.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

from wsm.strategies.delta.manifest import DeltaManifest
from wsm.strategies.delta.names import DELTA_MANIFEST, DELTAS_DIRECTORY
from wsm.strategies.delta.published import chain_to, content_digests, delta_manifest
from wsm.strategies.delta.shard import DeltaShard
from wsm.strategies.errors import StorageError, VersionExistsError
from wsm.strategies.files.atomic_file import sync_directory, write_new
from wsm.strategies.files.snapshot_names import VERSIONS_DIRECTORY
from wsm.strategies.files.version_file import write_version
from wsm.strategies.snapshot.retention import Retention, bring_in, finish_removals, retire
from wsm.strategies.trainer.publisher_lock import take_publisher_lock

_STAGING_PREFIX = ".staging-"
_MAX_KEPT_CHAIN = 1 << 10


class StagedDelta(AbstractContextManager["StagedDelta"]):
    """A delta that is being written; a context manager that discards it unless it was committed.

    Parameters
    ----------
    directory : path or str
        Where versions are published.
    version : int
        The version that it leads to.
    durable : bool
        Whether it must survive a power cut once it is committed.

    Attributes
    ----------
    path : Path
        Where the ranks' parts are written; readers do not look there.
    publication : str
        What marks every file of this publication.

    Raises
    ------
    PublisherBusyError
        If another process publishes into the directory.
    StorageError
        If the file system refuses.
    """

    def __init__(self, directory: Path | str, version: int, *, durable: bool = True) -> None:
        self.version = version
        self.publication = secrets.token_hex(8)
        self._directory = Path(directory)
        self._deltas = self._directory / DELTAS_DIRECTORY
        self._durable = durable
        self.path = self._deltas / f"{_STAGING_PREFIX}{version}-{self.publication}"
        self._lock = take_publisher_lock(self._directory / VERSIONS_DIRECTORY)
        try:
            self._deltas.mkdir(exist_ok=True)
            for leftover in self._deltas.glob(f"{_STAGING_PREFIX}*"):
                shutil.rmtree(leftover)
            finish_removals(self._deltas)
            self.path.mkdir()
        except OSError as error:
            self._release()
            raise StorageError(path=str(self.path), reason=error.strerror or str(error)) from error

    def commit(
        self, shards: Sequence[DeltaShard], *, announce: bool, replace: bool, retain: Retention
    ) -> tuple[DeltaManifest, tuple[int, ...]]:
        """Make the delta visible, then remove those that are no longer kept. Blocks.

        Parameters
        ----------
        shards : sequence of DeltaShard
            What was written, in rank order.
        announce : bool
            Whether ``version.yaml`` names the version from now on.
        replace : bool
            Whether another delta to the same version may be replaced.
        retain : Retention
            Which older deltas stay, apart from those that lead to this one.

        Returns
        -------
        tuple of DeltaManifest and tuple of int
            What stands there now, and the versions whose deltas were removed.

        Raises
        ------
        VersionExistsError
            If another delta leads to the version and `replace` is false, or the whole version is there and
            holds other tensors.
        StorageError
            If the file system refuses.
        """
        manifest = DeltaManifest.of(shards)
        final = self._deltas / str(self.version)
        try:
            write_new(self.path / DELTA_MANIFEST, manifest.encode(), durable=self._durable)
            standing = delta_manifest(self._directory, self.version)
            if standing is not None and standing.same_content(manifest):
                manifest = standing  # a publisher that died before the announcement is simply run again
            else:
                if final.exists() and not replace:
                    raise VersionExistsError(version=self.version, path=str(final))
                whole = content_digests(self._directory, self.version, deltas=False)
                if whole not in (None, tuple(shard.content_digest for shard in shards)):
                    raise VersionExistsError(
                        version=self.version, path=str(self._directory / VERSIONS_DIRECTORY)
                    )
                bring_in(self.path, final)
                if self._durable:
                    sync_directory(self._deltas)
            if announce:
                write_version(self._directory, self.version, durable=self._durable)
        except OSError as error:
            raise StorageError(path=str(self.path), reason=error.strerror or str(error)) from error
        needed = chain_to(self._directory, self.version, _MAX_KEPT_CHAIN)
        kept = Retention(retain.keep, {*retain.protect, *needed})
        return manifest, retire(self._deltas, self.version, kept)

    def make_way(self, shards: Sequence[DeltaShard], *, replace: bool) -> None:
        """See that no delta leads to other tensors under this number, now published whole instead. Blocks.

        Raises
        ------
        VersionExistsError
            If one does, and `replace` is false.
        """
        standing = delta_manifest(self._directory, self.version)
        if standing is None or standing.same_content(DeltaManifest.of(shards)):
            return
        final = self._deltas / str(self.version)
        if not replace:
            raise VersionExistsError(version=self.version, path=str(final))
        shutil.rmtree(final, ignore_errors=True)

    def discard(self) -> None:
        """Remove what was staged, if it was not committed, and let other publishers in. Idempotent."""
        if self.path.exists():
            shutil.rmtree(self.path, ignore_errors=True)
        self._release()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.discard()

    def _release(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
