"""Which versions a directory holds, whole or as deltas, by what their manifests say. Reads no tensors.

For messages and for publishers; a load believes only what it has opened itself.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from wsm.strategies.delta._manifest import DeltaManifest
from wsm.strategies.errors import ManifestError
from wsm.strategies.files.snapshot_names import (
    DELTA_MANIFEST,
    DELTAS_DIRECTORY,
    VERSION_MANIFEST,
    VERSIONS_DIRECTORY,
)
from wsm.strategies.promise import Publication
from wsm.strategies.snapshot.manifest import VersionManifest
from wsm.strategies.trainer.publications import listed_versions


def whole_manifest(root: Path, version: str) -> VersionManifest | None:
    """Return the manifest of a whole version; None if there is none that can be read."""
    file = root / VERSIONS_DIRECTORY / version / VERSION_MANIFEST
    with suppress(OSError, ManifestError):
        return VersionManifest.decode(file.read_bytes(), file=str(file))
    return None


def delta_manifest(root: Path, version: str) -> DeltaManifest | None:
    """Return the manifest of the delta that leads to a version; None if there is none that can be read."""
    file = root / DELTAS_DIRECTORY / version / DELTA_MANIFEST
    with suppress(OSError, ManifestError):
        return DeltaManifest.decode(file.read_bytes(), file=str(file))
    return None


def content_digests(publication: Publication) -> list[str]:
    """Return the digest of each rank's tensors."""
    return [shard.content_digest for shard in publication.shards]


def version_with_digest(root: Path, rank: int, digest: str) -> str | None:
    """Return a label under which these tensors of a rank are published; None if there is none."""
    for place in (VERSIONS_DIRECTORY, DELTAS_DIRECTORY):
        for listed in listed_versions(root / place):
            found = whole_manifest(root, listed.label) or delta_manifest(root, listed.label)
            if found is not None and digest in content_digests(found)[rank : rank + 1]:
                return listed.label
    return None


def chain_to(root: Path, version: str, limit: int) -> list[str]:
    """Return the versions of the deltas that lead to `version` from the nearest whole one, newest first.

    At most `limit` of them; all that follow from each other where no whole version is there.
    """
    chain: list[str] = []
    while len(chain) < limit and version not in chain and whole_manifest(root, version) is None:
        delta = delta_manifest(root, version)
        if delta is None:
            break
        chain.append(version)
        version = delta.base_version
    return chain
