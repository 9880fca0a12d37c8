"""A delta on its way to its readers: it becomes visible whole, or not at all.

It is staged as every publication is (:mod:`wsm.strategies.trainer.staged_directory`), under ``deltas/``, and
announced by ``version.yaml`` after that.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from wsm.strategies.delta.manifest import DeltaManifest
from wsm.strategies.delta.names import DELTA_MANIFEST, DELTAS_DIRECTORY
from wsm.strategies.delta.published import chain_to, content_digests, delta_manifest
from wsm.strategies.delta.shard import DeltaShard
from wsm.strategies.errors import VersionExistsError
from wsm.strategies.files.atomic_file import write_new
from wsm.strategies.files.snapshot_names import VERSIONS_DIRECTORY
from wsm.strategies.files.version_file import write_version
from wsm.strategies.trainer.retention import Retention, retire
from wsm.strategies.trainer.staged_directory import StagedDirectory

_MAX_KEPT_CHAIN = 1 << 10


class StagedDelta(StagedDirectory):
    """A delta that is being written; a context manager that discards it unless it was committed.

    Parameters
    ----------
    directory : path or str
        Where versions are published.
    version : int
        The version that it leads to.
    durable : bool
        Whether it must survive a power cut once it is committed.

    Raises
    ------
    PublisherBusyError
        If another process publishes into the directory.
    StorageError
        If the file system refuses.
    wsm.strategies.errors.VersionNumberError
        If `version` is none.
    """

    def __init__(self, directory: Path | str, version: int, *, durable: bool = True) -> None:
        super().__init__(directory, DELTAS_DIRECTORY, version, durable=durable)

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
        with self._storage():
            write_new(self.path / DELTA_MANIFEST, manifest.encode(), durable=self._durable)
            standing = delta_manifest(self._directory, self.version)
            if standing is not None and standing.same_content(manifest):
                manifest = standing  # a publisher that died before the announcement is simply run again
            else:
                self._check_vacant(replace=replace)
                whole = content_digests(self._directory, self.version, deltas=False)
                if whole not in (None, tuple(shard.content_digest for shard in shards)):
                    raise VersionExistsError(
                        version=self.version, path=str(self._directory / VERSIONS_DIRECTORY)
                    )
                self._show()
            if announce:
                write_version(self._directory, self.version, durable=self._durable)
        needed = chain_to(self._directory, self.version, _MAX_KEPT_CHAIN)
        kept = Retention(retain.keep, {*retain.protect, *needed})
        return manifest, retire(self._place, self.version, kept)

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
        self._check_vacant(replace=replace)
        shutil.rmtree(self.final, ignore_errors=True)
