"""One rank's shard, opened and checked against all that is written about it before a byte of data moves.

Files, headers, the part metadata in them, the shard's manifest and the version's manifest must agree
with each other and with what was asked for. Knows no targets.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from wsm.strategies import snapshot_names
from wsm.strategies.errors import (
    FileSizeError,
    ManifestError,
    ManifestMismatchError,
    MixedPartsError,
    ShardIdentityError,
    UnreadableFileError,
    VersionMismatchError,
    VersionUnknownError,
)
from wsm.strategies.manifest import ShardManifest
from wsm.strategies.part_file import PartFile, open_part
from wsm.strategies.part_metadata import PartMetadata
from wsm.strategies.safetensors_header import Header, lay_out
from wsm.strategies.snapshot_directory import SnapshotDirectory
from wsm.strategies.snapshot_files import ShardFiles
from wsm.strategies.snapshot_lookup import Located, announced_version
from wsm.strategies.snapshot_source import SnapshotSource
from wsm.strategies.tensor import TensorSpec
from wsm.strategies.version_manifest import VersionManifest

_MAX_MANIFEST_BYTES = 1 << 28


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
    version : int or None
        The version that they prove to hold.
    """

    files: tuple[PartFile, ...]
    manifest: ShardManifest | None
    version_manifest: VersionManifest | None
    version: int | None


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
    manifest_file = shard.directory.locate(snapshot_names.shard_manifest_name(shard.base))
    manifest = _shard_manifest(shard)
    if manifest is not None:
        _check_identity(manifest_file, manifest, source, located.expected)
    version_manifest = _version_manifest(shard, source.rank, manifest)
    if manifest is not None:
        _check_part_list(manifest_file, manifest, shard.names)
    promised = {} if manifest is None else _promised(manifest)
    headers = {} if manifest is None else _headers(manifest, promised)
    files = tuple(
        stack.enter_context(
            closing(
                open_part(shard.directory, name, allow_pickle=source.allow_pickle, expected=headers.get(name))
            )
        )
        for name in shard.names
    )
    metadata = _common_metadata(files)
    if metadata is not None:
        _check_identity(files[0].path, metadata, source, located.expected)
    if manifest is not None:
        _check_content(manifest_file, manifest, metadata, promised, files)
    version = _proven_version(located, manifest or metadata)
    return OpenShard(files, manifest, version_manifest, version)


def _shard_manifest(shard: ShardFiles) -> ShardManifest | None:
    name = snapshot_names.shard_manifest_name(shard.base)
    data = _read_small(shard.directory, name)
    return None if data is None else ShardManifest.decode(data, file=shard.directory.locate(name))


def _version_manifest(shard: ShardFiles, rank: int, manifest: ShardManifest | None) -> VersionManifest | None:
    name = snapshot_names.VERSION_MANIFEST
    data = _read_small(shard.directory, name)
    if data is None:
        return None
    file = shard.directory.locate(name)
    whole = VersionManifest.decode(data, file=file)
    if rank >= whole.world_size:
        raise ShardIdentityError(file=file, field="world size", expected=rank + 1, found=whole.world_size)
    entry = whole.shards[rank]
    if manifest is None:
        raise ManifestMismatchError(file=file, problem=f"{entry.manifest} is missing")
    if (manifest.digest, manifest.version, manifest.publication, manifest.world_size) != (
        entry.digest,
        whole.version,
        whole.publication,
        whole.world_size,
    ):
        raise ManifestMismatchError(file=file, problem=f"{entry.manifest} is of another publication")
    return whole


def _read_small(directory: SnapshotDirectory, name: str) -> bytes | None:
    """Return the content of a manifest's file; None if there is none. Blocks.

    Raises
    ------
    ManifestError
        If it is too large to be a manifest.
    wsm.strategies.errors.BadInputError
        If it cannot be opened or read.
    """
    try:
        descriptor = directory.open(name)
    except FileNotFoundError:
        return None
    path = directory.locate(name)
    with os.fdopen(descriptor, "rb") as file:
        try:
            data = file.read(_MAX_MANIFEST_BYTES + 1)
        except OSError as error:
            raise UnreadableFileError(file=path, reason=str(error)) from error
    if len(data) > _MAX_MANIFEST_BYTES:
        raise ManifestError(file=path, problem=f"it is larger than {_MAX_MANIFEST_BYTES} bytes")
    return data


def _check_identity(
    file: str,
    shard: ShardManifest | PartMetadata,
    source: SnapshotSource,
    expected: int | None,
) -> None:
    if shard.rank != source.rank:
        raise ShardIdentityError(file=file, field="rank", expected=source.rank, found=shard.rank)
    if source.world_size is not None and shard.world_size != source.world_size:
        raise ShardIdentityError(
            file=file, field="world size", expected=source.world_size, found=shard.world_size
        )
    if expected is not None and shard.version != expected:
        raise VersionMismatchError(requested=expected, found=shard.version, where=file)


def _check_part_list(file: str, manifest: ShardManifest, names: Sequence[str]) -> None:
    listed = [part.file for part in manifest.parts]
    missing = [name for name in listed if name not in names]
    extra = [name for name in names if name not in listed]
    if missing or extra:
        raise ManifestMismatchError(file=file, problem=f"parts missing {missing}, parts not listed {extra}")


def _common_metadata(files: Sequence[PartFile]) -> PartMetadata | None:
    found = [PartMetadata.decode(file.metadata, file=file.path) for file in files]
    for field in ("version", "rank", "world_size", "publication"):
        values = [str(getattr(item, field, "not written by wsm")) for item in found]
        if len(set(values)) > 1:
            paths = [file.path for file in files]
            raise MixedPartsError(field=field, values=list(zip(paths, values, strict=True)))
    return found[0]


def _promised(manifest: ShardManifest) -> dict[str, list[TensorSpec]]:
    """Return what each file must hold, by the file's name."""
    promised: list[list[TensorSpec]] = [[] for _ in manifest.parts]
    for spec, _, part, _ in manifest.tensors:
        promised[part].append(spec)
    return {part.file: specs for part, specs in zip(manifest.parts, promised, strict=True)}


def _headers(
    manifest: ShardManifest, promised: Mapping[str, list[TensorSpec]]
) -> dict[str, tuple[bytes, Header]]:
    """Return the very bytes with which each file begins, if wsm wrote it and nothing happened to it."""
    metadata = PartMetadata(manifest.version, manifest.rank, manifest.world_size, manifest.publication)
    return {name: lay_out(specs, metadata.encode()) for name, specs in promised.items()}


def _check_content(
    file: str,
    manifest: ShardManifest,
    metadata: PartMetadata | None,
    promised: Mapping[str, list[TensorSpec]],
    files: Sequence[PartFile],
) -> None:
    if metadata is not None and metadata.publication != manifest.publication:
        raise ManifestMismatchError(file=file, problem="the parts are of another publication")
    sizes = {part.file: part.nbytes for part in manifest.parts}
    for part in files:
        name = Path(part.path).name
        if part.nbytes != sizes[name]:
            raise FileSizeError(file=part.path, expected=sizes[name], actual=part.nbytes)
        found = list(part.specs())
        if found != promised[name]:
            _refuse_other_tensors(file, part.path, found, promised[name])


def _refuse_other_tensors(
    file: str, part: str, found: Sequence[TensorSpec], promised: Sequence[TensorSpec]
) -> None:
    """Refuse a part with other tensors than promised; their order in the file is the writer's own matter."""
    ours, theirs = ({spec.name: spec for spec in specs} for specs in (found, promised))
    different = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
    if different:
        raise ManifestMismatchError(
            file=file, problem=f"{part} has other tensors, names, dtypes or shapes: {different[:6]}"
        )


def _proven_version(located: Located, shard: ShardManifest | PartMetadata | None) -> int | None:
    if shard is not None:
        return shard.version
    directory = located.files.directory.path
    beside = announced_version(directory)
    if located.expected is None:
        return beside
    if beside is None:
        raise VersionUnknownError(requested=located.expected, where=directory)
    if beside != located.expected:
        raise VersionMismatchError(
            requested=located.expected, found=beside, where=f"{directory}/{snapshot_names.VERSION_FILE}"
        )
    return beside
