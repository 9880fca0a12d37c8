"""What is published already under a version's label, and whether it may stand for a new publication of it.

The rule of all publishers: what is published promises at least what the last call was asked to promise. The
very same tensors stay as they stand if that holds; otherwise nothing changes unless the caller said so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wsm.strategies.errors import ManifestError
from wsm.strategies.files.snapshot_names import VERSION_MANIFEST
from wsm.strategies.snapshot.manifest import ShardManifest
from wsm.strategies.snapshot.version_manifest import VersionManifest


@dataclass(frozen=True)
class Publication:
    """The manifests of a whole version: the one of all ranks, and each rank's."""

    manifest: VersionManifest
    shards: tuple[ShardManifest, ...]

    def lacks(self, wanted: Publication) -> tuple[str, ...] | None:
        """Return what `wanted` promises and this one does not; None if it holds other tensors.

        Fewer promises may be wanted than are made: a promise is never taken back silently.
        """
        if not self.manifest.same_content(wanted.manifest):
            return None
        lacking = set()
        for ours, theirs in zip(self.shards, wanted.shards, strict=True):
            if theirs.finite and not ours.finite:
                lacking.add("that all is finite")
            if theirs.device_id != ours.device_id:
                lacking.add(f"the name for device {theirs.device_id}")
            if _other_placements(ours, theirs):
                lacking.add("where each tensor lies")
        return tuple(sorted(lacking))


def standing_publication(path: Path) -> Publication | None:
    """Return what is published in `path`; None if there is nothing, or nothing that is whole."""
    file = path / VERSION_MANIFEST
    try:
        manifest = VersionManifest.decode(file.read_bytes(), file=str(file))
        shards = _shards(path, manifest)
        parts = [part for shard in shards for part in shard.parts]
        whole = all((path / part.file).stat().st_size == part.nbytes for part in parts)
    except (OSError, ManifestError):
        return None
    return Publication(manifest, tuple(shards)) if whole else None


def _shards(path: Path, manifest: VersionManifest) -> Sequence[ShardManifest]:
    files = [path / shard.manifest for shard in manifest.shards]
    return [ShardManifest.decode(file.read_bytes(), file=str(file)) for file in files]


def _other_placements(ours: ShardManifest, theirs: ShardManifest) -> bool:
    placed = {entry.spec.name: entry.placement for entry in ours.tensors}
    return any(
        entry.placement is not None and entry.placement != placed[entry.spec.name] for entry in theirs.tensors
    )
