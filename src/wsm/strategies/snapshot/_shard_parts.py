"""The files of a shard, opened and checked against all that is written about them before their bytes move.

Files, headers, the part metadata in them, the shard's manifest and the version's manifest must agree
with each other and with what was asked for. Knows no targets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

from wsm.errors import BadInputError
from wsm.strategies import errors
from wsm.strategies.files import snapshot_names
from wsm.strategies.files.part_file import PartFile, open_part
from wsm.strategies.files.safetensors import Readahead, SafetensorsFile, lay_out
from wsm.strategies.files.snapshot_directory import SnapshotDirectory
from wsm.strategies.promise import ShardIdentity
from wsm.strategies.snapshot.manifest import ShardManifest, identity_of_part, part_metadata
from wsm.strategies.snapshot.source import SnapshotSource
from wsm.strategies.snapshot.store import FoundVersion, version_beside
from wsm.strategies.tensor import TensorSpec


def open_own(
    found: FoundVersion, source: SnapshotSource, stack: ExitStack
) -> tuple[str | None, tuple[PartFile, ...]]:
    """Open the files of the rank's own shard and check them; return the version that they prove to hold.

    Raises
    ------
    wsm.strategies.errors.BadInputError
        Of the type that fits what is wrong. Nothing was changed.
    """
    directory, promise, publication = found.directory, found.promise, found.publication
    name = snapshot_names.shard_manifest_name(
        snapshot_names.shard_base(source.rank, source.resolved_device_id())
    )
    file = directory.locate(name)
    asked = found.expected, source.rank, source.world_size
    if promise is not None:
        promise.require(*asked, where=file)
    if publication is not None:
        if source.rank >= publication.world_size:
            raise errors.shard_identity(
                file=directory.locate(snapshot_names.VERSION_MANIFEST),
                field="world size",
                expected=source.rank + 1,
                found=publication.world_size,
            )
        publication.listed(source.rank, promise, directory=directory.path)
    if promise is not None:
        listed = [part.file for part in promise.parts]
        missing = [part for part in listed if part not in found.parts]
        extra = [part for part in found.parts if part not in listed]
        if missing or extra:
            problem = f"parts missing {missing}, parts not listed {extra}"
            raise errors.differs_from_manifest(file=file, problem=problem)
    parts, identity = open_parts(directory, found.parts, promise, stack, allow_pickle=source.allow_pickle)
    if identity is not None:
        identity.require(*asked, where=parts[0].path)
    if promise is not None:
        check_parts(parts, promise, identity, where=file)
    # Without its own a shard is not verified; without the version's the ranks of a group could not tell one
    # publication of a version from another.
    lacking = directory.locate(name if promise is None else snapshot_names.VERSION_MANIFEST)
    needed = source.verify == "required" or (source.verify == "if_promised" and identity is not None)
    if needed and (promise is None or (publication is None and promise.world_size > 1)):
        file = parts[0].path
        said = (
            f"every file needs its manifest (verify: required), {file} too"
            if identity is None
            else f"{file} says that it was published as version {identity.version}"
        )
        raise BadInputError(
            f"{lacking} is missing, so nothing can be verified: {said}; copy the manifests along with the "
            "parts, or publish again, or load what there is unverified (snapshot: {verify: if_present})",
            code="manifest-missing",
            unfit=True,
            manifest=lacking,
            file=file,
            version=None if identity is None else identity.version,
            publication=None if identity is None else identity.publication,
        )
    proof = promise or identity
    version = version_beside(directory.path, found.expected) if proof is None else proof.version
    return version, parts


def open_parts(
    directory: SnapshotDirectory,
    names: Iterable[str],
    promise: ShardManifest | None,
    stack: ExitStack,
    *,
    allow_pickle: bool = False,
) -> tuple[tuple[PartFile, ...], ShardIdentity | None]:
    """Open files of one shard, in this order. Blocks on metadata only.

    Parameters
    ----------
    directory : SnapshotDirectory
        Where they lie.
    names : iterable of str
        Their names; those of the promise, if there is one.
    promise : ShardManifest or None
        What they should hold, if that is known; not compared here.
    stack : ExitStack
        Closes them.
    allow_pickle : bool
        Whether pickles may be read.

    Returns
    -------
    parts : tuple of PartFile
        The files.
    identity : ShardIdentity or None
        What all of them say about themselves; None if they were not written by wsm.

    Raises
    ------
    wsm.strategies.errors.BadInputError
        If one cannot be opened, is no valid file, or they say different things about themselves.
    """
    metadata = {} if promise is None else part_metadata(promise)
    held = {} if promise is None else {part.file: tensors for part, tensors in promise.by_part()}
    parts = []
    for name in names:
        # The very bytes with which the file begins, if wsm wrote it and nothing happened to it.
        header = lay_out([tensor.spec for tensor in held[name]], metadata) if name in held else None
        part = open_part(directory, name, allow_pickle=allow_pickle, expected=header)
        parts.append(stack.enter_context(closing(part)))
    identities = [identity_of_part(part.metadata, file=part.path) for part in parts]
    for field in ("version", "rank", "world_size", "publication"):
        values = [str(getattr(each, field, "not written by wsm")) for each in identities]
        if len(set(values)) > 1:
            paths = [part.path for part in parts]
            raise errors.mixed_parts(field=field, values=list(zip(paths, values, strict=True)))
    return tuple(parts), identities[0]


def check_parts(
    parts: Iterable[PartFile], promise: ShardManifest, identity: ShardIdentity | None, *, where: str
) -> None:
    """Hold parts against the promise, which lists just these; `where` is its file.

    Raises
    ------
    BadInputError
        If they are of another publication, or one has another size or holds other tensors.
    """
    if identity is not None and identity.publication != promise.publication:
        raise errors.differs_from_manifest(file=where, problem="the parts are of another publication")
    promised = {part.file: (part.nbytes, tensors) for part, tensors in promise.by_part()}
    for part in parts:
        nbytes, tensors = promised[Path(part.path).name]
        if part.nbytes != nbytes:
            raise errors.bad_file_size(file=part.path, expected=nbytes, actual=part.nbytes)
        found, wanted = list(part.specs()), [tensor.spec for tensor in tensors]
        if found != wanted:
            _refuse_other_tensors(where, part.path, found, wanted)


def read_ahead(parts: Iterable[PartFile], window_bytes: int) -> None:
    """Let the kernel bring in the parts, in this order, up to `window_bytes` before they are read.

    Pickles are in memory already.
    """
    files = [part for part in parts if isinstance(part, SafetensorsFile)]

    def advise(file: int, offset: int, length: int) -> None:
        files[file].need_soon(offset, length)

    ahead = Readahead([file.nbytes for file in files], window_bytes, advise)
    for index, file in enumerate(files):
        file.watch(partial(ahead.reached, index))


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
