"""One rank's shard, opened and checked against all that is written about it before a byte of data moves.

Files, headers, the part metadata in them, the shard's manifest and the version's manifest must agree
with each other and with what was asked for. Knows no targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from wsm.strategies import errors
from wsm.strategies.errors import VersionMismatchError
from wsm.strategies.files import snapshot_names
from wsm.strategies.files.part_file import PartFile
from wsm.strategies.snapshot.lookup import Located, announced_version
from wsm.strategies.snapshot.manifest import ShardManifest
from wsm.strategies.snapshot.manifest_files import read_shard_manifest, read_version_manifest, require_listed
from wsm.strategies.snapshot.part_metadata import PartMetadata
from wsm.strategies.snapshot.shard_parts import check_content, common_metadata, open_parts
from wsm.strategies.snapshot.snapshot_files import ShardFiles
from wsm.strategies.snapshot.source import SnapshotSource
from wsm.strategies.snapshot.version_manifest import VersionManifest


@dataclass(frozen=True)
class OpenShard:
    """A shard whose files are open and agree.

    Parameters
    ----------
    files : tuple of PartFile
        In the order in which they are loaded.
    manifest : ShardManifest or None
        This rank's manifest.
    version_manifest : VersionManifest or None
        The manifest of all ranks.
    version : str or None
        The version that they prove to hold.
    """

    files: tuple[PartFile, ...]
    manifest: ShardManifest | None
    version_manifest: VersionManifest | None
    version: str | None


def open_shard(located: Located, source: SnapshotSource, stack: ExitStack) -> OpenShard:
    """Open a shard's files and check them.

    Parameters
    ----------
    located : Located
        Which files, and the version that they must hold.
    source : SnapshotSource
        Whose shard it must be.
    stack : ExitStack
        Closes the files.

    Raises
    ------
    wsm.strategies.errors.BadInputError
        Of the type that fits what is wrong. Nothing was changed.
    """
    shard = located.files
    manifest_name = snapshot_names.shard_manifest_name(shard.base)
    manifest_file = shard.directory.locate(manifest_name)
    manifest = read_shard_manifest(shard.directory, manifest_name)
    if manifest is not None:
        _check_identity(manifest_file, manifest, source, located.expected)
    version_manifest = _version_manifest(shard, source.rank, manifest)
    if manifest is not None:
        _check_part_list(manifest_file, manifest, shard.names)
    files = open_parts(shard.directory, shard.names, manifest, stack, allow_pickle=source.allow_pickle)
    metadata = common_metadata(files)
    if metadata is not None:
        _check_identity(files[0].path, metadata, source, located.expected)
    if manifest is not None:
        check_content(manifest_file, manifest, metadata, files)
    missing = _missing_manifest(shard, source.verify, metadata, manifest, version_manifest)
    if missing is not None:
        raise errors.manifest_missing(
            manifest=shard.directory.locate(missing),
            file=files[0].path,
            version=None if metadata is None else metadata.version,
            publication=None if metadata is None else metadata.publication,
        )
    version = _proven_version(located, manifest or metadata)
    return OpenShard(files, manifest, version_manifest, version)


def _version_manifest(shard: ShardFiles, rank: int, manifest: ShardManifest | None) -> VersionManifest | None:
    whole = read_version_manifest(shard.directory)
    if whole is None:
        return None
    file = shard.directory.locate(snapshot_names.VERSION_MANIFEST)
    if rank >= whole.world_size:
        raise errors.shard_identity(file=file, field="world size", expected=rank + 1, found=whole.world_size)
    require_listed(whole, rank, manifest, file=file)
    return whole


def _missing_manifest(
    shard: ShardFiles,
    verify: str,
    metadata: PartMetadata | None,
    manifest: ShardManifest | None,
    whole: VersionManifest | None,
) -> str | None:
    """Return the name of a manifest that the shard needs and does not have; None if it has what it needs."""
    if verify == "if_present" or (verify == "if_promised" and metadata is None):
        return None
    if manifest is None:
        return snapshot_names.shard_manifest_name(shard.base)
    # Without it the ranks of a group could not tell one publication of a version from another.
    return snapshot_names.VERSION_MANIFEST if whole is None and manifest.world_size > 1 else None


def _check_identity(
    file: str,
    shard: ShardManifest | PartMetadata,
    source: SnapshotSource,
    expected: str | None,
) -> None:
    if shard.rank != source.rank:
        raise errors.shard_identity(file=file, field="rank", expected=source.rank, found=shard.rank)
    if source.world_size is not None and shard.world_size != source.world_size:
        raise errors.shard_identity(
            file=file, field="world size", expected=source.world_size, found=shard.world_size
        )
    if expected is not None and shard.version != expected:
        raise VersionMismatchError(requested=expected, found=shard.version, where=file)


def _check_part_list(file: str, manifest: ShardManifest, names: Sequence[str]) -> None:
    listed = [part.file for part in manifest.parts]
    missing = [name for name in listed if name not in names]
    extra = [name for name in names if name not in listed]
    if missing or extra:
        raise errors.differs_from_manifest(
            file=file, problem=f"parts missing {missing}, parts not listed {extra}"
        )


def _proven_version(located: Located, shard: ShardManifest | PartMetadata | None) -> str | None:
    if shard is not None:
        return shard.version
    directory = located.files.directory.path
    beside = announced_version(directory)
    if located.expected is None:
        return beside
    if beside is None:
        raise errors.version_unknown(requested=located.expected, where=directory)
    if beside != located.expected:
        raise VersionMismatchError(
            requested=located.expected, found=beside, where=f"{directory}/{snapshot_names.VERSION_FILE}"
        )
    return beside
