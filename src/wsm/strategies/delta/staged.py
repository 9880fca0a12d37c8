"""A delta that is being staged, under ``deltas/``: when it may become visible, and what has to stay for it.

How it becomes visible, :mod:`wsm.strategies.trainer.staged_directory` knows.

What is published already under its label stays where it may stand for the new one, by the rule of all
publishers (:mod:`wsm.strategies.snapshot.staged_version`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wsm.strategies.delta.manifest import DeltaManifest
from wsm.strategies.delta.names import DELTA_MANIFEST, DELTAS_DIRECTORY, blocks_name, rank_manifest_name
from wsm.strategies.delta.published import chain_to, content_digests
from wsm.strategies.delta.shard import DeltaShard
from wsm.strategies.errors import ManifestError, VersionExistsError
from wsm.strategies.files.atomic_file import write_new
from wsm.strategies.files.snapshot_names import VERSIONS_DIRECTORY
from wsm.strategies.files.version_file import write_version
from wsm.strategies.trainer.retention import Retention, retire, take_away
from wsm.strategies.trainer.staged_directory import StagedDirectory


@dataclass(frozen=True)
class PublishedDelta:
    """The manifests of a delta: the one of all ranks, and each rank's."""

    manifest: DeltaManifest
    shards: tuple[DeltaShard, ...]

    @classmethod
    def of(cls, shards: Sequence[DeltaShard], *, ordinal: int = 0) -> PublishedDelta:
        """Return what the shards of one publication are together, given in rank order."""
        return cls(DeltaManifest.of(shards, ordinal=ordinal), tuple(shards))

    def lacks(self, wanted: PublishedDelta) -> tuple[str, ...] | None:
        """Return what `wanted` promises and this one does not; None if it leads from or to other tensors."""
        if not self.manifest.same_content(wanted.manifest):
            return None
        pairs = zip(self.shards, wanted.shards, strict=True)
        return ("that all is finite",) if any(w.finite and not o.finite for o, w in pairs) else ()


def standing_delta(path: Path) -> PublishedDelta | None:
    """Return what is published in `path`; None if there is nothing, or nothing that is whole."""
    file = path / DELTA_MANIFEST
    try:
        manifest = DeltaManifest.decode(file.read_bytes(), file=str(file))
        shards = tuple(_shard(path, rank) for rank in range(manifest.world_size))
        sizes = [(path / blocks_name(shard.rank)).stat().st_size for shard in shards]
    except (OSError, ManifestError):
        return None
    whole = sizes == [shard.nbytes for shard in shards]
    listed = [shard.digest for shard in shards] == [entry.digest for entry in manifest.shards]
    return PublishedDelta(manifest, shards) if whole and listed else None


def _shard(path: Path, rank: int) -> DeltaShard:
    file = path / rank_manifest_name(rank)
    return DeltaShard.decode(file.read_bytes(), file=str(file))


_MAX_KEPT_CHAIN = 1 << 10


class StagedDelta(StagedDirectory):
    """A delta that is being written.

    Parameters
    ----------
    directory, version, durable : path or str, str or int, bool
        As for every publication; see the base class, also for attributes and errors. The version is the one
        that it leads to.
    """

    def __init__(self, directory: Path | str, version: str | int, *, durable: bool = True) -> None:
        super().__init__(directory, DELTAS_DIRECTORY, version, durable=durable)

    def commit(
        self, shards: Sequence[DeltaShard], *, announce: bool, replace: bool, retain: Retention
    ) -> tuple[DeltaManifest, tuple[str, ...]]:
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
        tuple of DeltaManifest and tuple of str
            What stands there now, and the versions whose deltas were removed.

        Raises
        ------
        VersionExistsError
            If another delta leads to the version, or one that promises less, and `replace` is false; or the
            whole version is there and holds other tensors.
        StorageError
            If the file system refuses.
        """
        staged = PublishedDelta.of(shards, ordinal=self._ordinal)
        with self._storage():
            write_new(self.path / DELTA_MANIFEST, staged.manifest.encode(), durable=self._durable)
            standing = standing_delta(self.final)
            lacking = None if standing is None else standing.lacks(staged)
            if standing is not None and lacking == ():
                staged = standing  # a publisher that died before the announcement is simply run again
            else:
                self._check_vacant(replace=replace, lacking=lacking)
                self._check_whole(shards)
                self._show()
            if announce:
                write_version(self._directory, self.version, durable=self._durable)
        needed = chain_to(self._directory, self.version, _MAX_KEPT_CHAIN)
        kept = dataclasses.replace(retain, protect={*retain.protect, *needed})
        return staged.manifest, retire(self._place, self.version, kept)

    def may_stay(self, shards: Sequence[DeltaShard], *, replace: bool) -> bool:
        """Whether what is there leads to these tensors and promises as much as the whole. Blocks.

        Raises
        ------
        VersionExistsError
            If it does not, and `replace` is false.
        """
        standing = standing_delta(self.final)
        lacking = None if standing is None else standing.lacks(PublishedDelta.of(shards))
        if lacking != ():
            self._check_vacant(replace=replace, lacking=lacking)
        return lacking == ()

    def take_away_standing(self) -> None:
        """Take the delta away that stands there, if any, in one step. Blocks.

        Raises
        ------
        StorageError
            If the file system refuses.
        """
        with self._storage():
            take_away(self.final)

    def _check_whole(self, shards: Sequence[DeltaShard]) -> None:
        """Refuse a label under which other tensors are published whole: it may mean one content only."""
        whole = content_digests(self._directory, self.version, deltas=False)
        if whole not in (None, tuple(shard.content_digest for shard in shards)):
            raise VersionExistsError(version=self.version, path=str(self._directory / VERSIONS_DIRECTORY))
