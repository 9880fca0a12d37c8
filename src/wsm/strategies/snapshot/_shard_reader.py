"""One rank's shard, opened and checked against all that is written about it before a byte of data moves.

Files, headers, the part metadata in them, the shard's manifest and the version's manifest must agree
with each other and with what was asked for. Knows no targets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from wsm.strategies import errors
from wsm.strategies.errors import VersionMismatchError
from wsm.strategies.files import snapshot_names
from wsm.strategies.files.part_file import PartFile, open_part
from wsm.strategies.files.safetensors import Readahead, SafetensorsFile, SafetensorsHeader, lay_out
from wsm.strategies.files.snapshot_directory import SnapshotDirectory
from wsm.strategies.snapshot.lookup import Located, ShardFiles, announced_version
from wsm.strategies.snapshot.manifest import PartMetadata, ShardManifest
from wsm.strategies.snapshot.source import SnapshotSource
from wsm.strategies.snapshot.version_manifest import (
    VersionManifest,
    read_shard_manifest,
    read_version_manifest,
    require_listed,
)
from wsm.strategies.tensor import TensorSpec


def open_parts(
    directory: SnapshotDirectory,
    names: Iterable[str],
    manifest: ShardManifest | None,
    stack: ExitStack,
    *,
    allow_pickle: bool = False,
) -> tuple[PartFile, ...]:
    """Open the files called `names`, in that order. Blocks on metadata only.

    Parameters
    ----------
    directory : SnapshotDirectory
        Where they lie.
    names : iterable of str
        Their names.
    manifest : ShardManifest or None
        What they should hold, if that is known; not compared here, see :func:`check_content`.
    stack : ExitStack
        Closes them.
    allow_pickle : bool
        Whether pickles may be read.

    Raises
    ------
    wsm.strategies.errors.BadInputError
        If one cannot be opened, or is no valid file.
    """
    headers = {} if manifest is None else _headers(manifest)
    return tuple(
        stack.enter_context(
            closing(open_part(directory, name, allow_pickle=allow_pickle, expected=headers.get(name)))
        )
        for name in names
    )


def read_ahead(parts: Iterable[PartFile], window_bytes: int) -> None:
    """Let the kernel bring in the parts, in this order, up to `window_bytes` before they are read; 0: not.

    Pickles are in memory already.
    """
    files = [part for part in parts if isinstance(part, SafetensorsFile)]
    if not window_bytes:
        return

    def advise(file: int, offset: int, length: int) -> None:
        files[file].need_soon(offset, length)

    ahead = Readahead([file.nbytes for file in files], window_bytes, advise)
    for index, file in enumerate(files):
        file.watch(partial(ahead.reached, index))


def common_metadata(files: Sequence[PartFile]) -> PartMetadata | None:
    """Return what all parts say about themselves; None if no part was written by wsm.

    Raises
    ------
    BadInputError
        If they differ.
    BadInputError
        If one says something that makes no sense.
    """
    found = [PartMetadata.decode(file.metadata, file=file.path) for file in files]
    for field in ("version", "rank", "world_size", "publication"):
        values = [str(getattr(item, field, "not written by wsm")) for item in found]
        if len(set(values)) > 1:
            paths = [file.path for file in files]
            raise errors.mixed_parts(field=field, values=list(zip(paths, values, strict=True)))
    return found[0]


def check_content(
    file: str, manifest: ShardManifest, metadata: PartMetadata | None, files: Sequence[PartFile]
) -> None:
    """Compare parts with their manifest, which lists just these files.

    Parameters
    ----------
    file : str
        The manifest, for messages.
    manifest : ShardManifest
        The manifest.
    metadata : PartMetadata or None
        What all parts say about themselves.
    files : sequence of PartFile
        The parts.

    Raises
    ------
    BadInputError
        If the parts are of another publication, or hold other tensors.
    BadInputError
        If one has another size.
    """
    if metadata is not None and metadata.publication != manifest.publication:
        raise errors.differs_from_manifest(file=file, problem="the parts are of another publication")
    sizes = {part.file: part.nbytes for part in manifest.parts}
    promised = _promised(manifest)
    for part in files:
        name = Path(part.path).name
        if part.nbytes != sizes[name]:
            raise errors.bad_file_size(file=part.path, expected=sizes[name], actual=part.nbytes)
        found = list(part.specs())
        if found != promised[name]:
            _refuse_other_tensors(file, part.path, found, promised[name])


def _promised(manifest: ShardManifest) -> dict[str, list[TensorSpec]]:
    """Return what each file must hold, by the file's name."""
    promised: list[list[TensorSpec]] = [[] for _ in manifest.parts]
    for spec, _, part, _ in manifest.tensors:
        promised[part].append(spec)
    return {part.file: specs for part, specs in zip(manifest.parts, promised, strict=True)}


def _headers(manifest: ShardManifest) -> Mapping[str, tuple[bytes, SafetensorsHeader]]:
    """Return the very bytes with which each file begins, if wsm wrote it and nothing happened to it."""
    metadata = PartMetadata(manifest.version, manifest.rank, manifest.world_size, manifest.publication)
    return {name: lay_out(specs, metadata.encode()) for name, specs in _promised(manifest).items()}


def _refuse_other_tensors(
    file: str, part: str, found: Sequence[TensorSpec], promised: Sequence[TensorSpec]
) -> None:
    """Refuse a part with other tensors than promised; their order in the file is the writer's own matter."""
    ours, theirs = ({spec.name: spec for spec in specs} for specs in (found, promised))
    different = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
    if different:
        raise errors.differs_from_manifest(
            file=file, problem=f"{part} has other tensors, names, dtypes or shapes: {different[:6]}"
        )


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
