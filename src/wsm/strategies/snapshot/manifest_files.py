"""Reading the manifests of a published version from its directory, and whether they belong together.

Knows their names and how much they may hold, not what they are checked against.
"""

from __future__ import annotations

from wsm.strategies import errors
from wsm.strategies.errors import ManifestError
from wsm.strategies.files import snapshot_names
from wsm.strategies.files.snapshot_directory import SnapshotDirectory
from wsm.strategies.snapshot.manifest import ShardManifest
from wsm.strategies.snapshot.version_manifest import VersionManifest

_MAX_BYTES = 1 << 28


def read_shard_manifest(directory: SnapshotDirectory, name: str) -> ShardManifest | None:
    """Return the manifest of one rank's shard; None if there is none. Blocks.

    Raises
    ------
    ManifestError
        If it is damaged.
    wsm.strategies.errors.BadInputError
        If it cannot be opened or read.
    """
    data = _read(directory, name)
    return None if data is None else ShardManifest.decode(data, file=directory.locate(name))


def read_version_manifest(directory: SnapshotDirectory) -> VersionManifest | None:
    """Return the manifest of all ranks' shards; None if there is none. Blocks.

    Raises
    ------
    ManifestError
        If it is damaged.
    wsm.strategies.errors.BadInputError
        If it cannot be opened or read.
    """
    data = _read(directory, snapshot_names.VERSION_MANIFEST)
    file = directory.locate(snapshot_names.VERSION_MANIFEST)
    return None if data is None else VersionManifest.decode(data, file=file)


def require_listed(
    whole: VersionManifest, rank: int, manifest: ShardManifest | None, *, file: str
) -> ShardManifest:
    """Return the manifest of a rank's shard, if it is the one that the version's manifest lists.

    Raises
    ------
    BadInputError
        If it is missing, or another one. `file` is the version's manifest.
    """
    entry = whole.shards[rank]
    if manifest is None:
        raise errors.differs_from_manifest(file=file, problem=f"{entry.manifest} is missing")
    if (manifest.digest, manifest.version, manifest.publication, manifest.world_size) != (
        entry.digest,
        whole.version,
        whole.publication,
        whole.world_size,
    ):
        raise errors.differs_from_manifest(file=file, problem=f"{entry.manifest} is of another publication")
    return manifest


def _read(directory: SnapshotDirectory, name: str) -> bytes | None:
    try:
        data = directory.read(name, _MAX_BYTES)
    except FileNotFoundError:
        return None
    if data is None:
        raise ManifestError(file=directory.locate(name), problem=f"it is larger than {_MAX_BYTES} bytes")
    return data
