"""What delta is published already under a version's label, and whether it may stand for a new one.

The rule is that of all publishers (:mod:`wsm.strategies.snapshot.standing`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wsm.strategies.delta.manifest import DeltaManifest
from wsm.strategies.delta.names import DELTA_MANIFEST, blocks_name, rank_manifest_name
from wsm.strategies.delta.shard import DeltaShard
from wsm.strategies.errors import ManifestError


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
