"""The parts of one rank's shard: opened, and checked against each other and against their manifest.

Knows no targets, and not whose shard is wanted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

from wsm.strategies import errors
from wsm.strategies.files.part_file import PartFile, open_part
from wsm.strategies.files.safetensors import Readahead, SafetensorsFile, SafetensorsHeader, lay_out
from wsm.strategies.files.snapshot_directory import SnapshotDirectory
from wsm.strategies.snapshot.manifest import ShardManifest
from wsm.strategies.snapshot.part_metadata import PartMetadata
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
