"""The one look-up of a version in a directory: where it lies, what is promised, which files a rank reads.

A version that is published as ``versions/{version}/`` is taken from there and nowhere else; else FastDeploy's
flat files in the directory itself, then in the shared one. If ``version.yaml`` moves on while a reader is
about to open what it announced, the reader follows it. Without it the newest version is the one that was
published last. Then the files of a shard are opened and checked before their bytes move: files, headers, the
part metadata in them, the shard's manifest and the version's must agree with each other and with what was
asked for. Knows no targets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from wsm import log
from wsm.errors import BadInputError, UnfitError
from wsm.labels import is_label
from wsm.states.fleet import NamedContent
from wsm.strategies import errors
from wsm.strategies.errors import (
    ManifestError,
    SnapshotNotFoundError,
    VersionMismatchError,
)
from wsm.strategies.files import snapshot_names
from wsm.strategies.files.part_file import PartFile, open_part
from wsm.strategies.files.safetensors import Readahead, SafetensorsFile, lay_out
from wsm.strategies.files.snapshot_directory import SnapshotDirectory, open_held
from wsm.strategies.files.snapshot_names import VERSION_MANIFEST, VERSIONS_DIRECTORY
from wsm.strategies.files.version_file import announced_version
from wsm.strategies.promise import Sealed, ShardIdentity
from wsm.strategies.snapshot.manifest import ShardManifest, VersionManifest, identity_of_part, part_metadata
from wsm.strategies.snapshot.source import SnapshotSource
from wsm.strategies.trainer.publications import listed_versions, newest_version

_log = log.logger("strategies")

# Each further attempt takes a publisher that retired a version between two of our system calls.
_ATTEMPTS = 8
_MAX_MANIFEST_BYTES = 1 << 28

SealedT = TypeVar("SealedT", bound=Sealed)


@dataclass(frozen=True)
class FoundVersion:
    """What lies there for one rank.

    Parameters
    ----------
    directory : SnapshotDirectory
        Where.
    expected : str or None
        The version that it must be; None: whichever it is.
    publication : VersionManifest or None
        What ties the shards of all ranks together. If it is for another number of ranks than the group has,
        the rest is empty: the rank reads slices.
    promise : ShardManifest or None
        Of the rank's own shard.
    parts : tuple of str
        Names of its files, in the order in which they are loaded.
    ignored : tuple of str
        Paths of files that look like parts and have no number.
    """

    directory: SnapshotDirectory
    expected: str | None
    publication: VersionManifest | None
    promise: ShardManifest | None = None
    parts: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


def find(source: SnapshotSource, version: str | None, stack: ExitStack) -> FoundVersion:
    """Find what the source's rank loads. Blocks on metadata only.

    Parameters
    ----------
    source : SnapshotSource
        Where to look.
    version : str or None
        The version to find; None for the one that ``version.yaml`` announces, else the one published last.
    stack : ExitStack
        Closes the directories that are opened here.

    Raises
    ------
    SnapshotNotFoundError
        If no place holds anything for this rank.
    wsm.strategies.errors.BadInputError
        If a place holds something unusable.
    """
    wanted = version
    for _ in range(_ATTEMPTS):
        before = wanted
        unusable: BadInputError | None = None
        if version is None:
            try:
                wanted = newest_version(source.directory)
            except BadInputError as error:  # files that lie there plain load without it, and say no version
                wanted, unusable = None, error
        found = _look(source, version, wanted, stack)
        if found is not None:
            return found
        if unusable is not None:
            raise unusable
        if wanted == before:
            break
    raise _not_found(source, wanted)


def _look(
    source: SnapshotSource, version: str | None, wanted: str | None, stack: ExitStack
) -> FoundVersion | None:
    root, device_id = str(source.directory), source.resolved_device_id()
    base = snapshot_names.shard_base(source.rank, device_id)
    own: SnapshotDirectory | None = None
    if wanted is not None:
        path = f"{root}/{snapshot_names.VERSIONS_DIRECTORY}/{wanted}"
        if (own := open_held(path, boundary=root)) is not None:
            stack.callback(own.close)
    directory = own or _open(root, stack)
    if directory is not None:
        publication = read_sealed(directory, VERSION_MANIFEST, VersionManifest)
        if publication is not None and source.world_size not in (None, publication.world_size):
            return FoundVersion(directory, wanted, publication)
        names, ignored = _parts(directory, base, device_id)
        if names:
            promise = read_sealed(directory, snapshot_names.shard_manifest_name(base), ShardManifest)
            return FoundVersion(directory, wanted, publication, promise, names, ignored)
    if own is not None or source.shared_directory is None:
        return None
    shared = _open(str(source.shared_directory), stack)
    name = snapshot_names.whole_name(base)
    if shared is None or name not in shared.names():
        return None
    # It has no version.yaml of ours, so only an explicit wish binds it.
    publication = read_sealed(shared, VERSION_MANIFEST, VersionManifest)
    promise = read_sealed(shared, snapshot_names.shard_manifest_name(base), ShardManifest)
    return FoundVersion(shared, version, publication, promise, (name,))


def content_of(store: Path, label: str) -> NamedContent | None:
    """Return what a label means in a store now; None: it is not there. Blocks.

    Raises
    ------
    BadInputError
        If its manifest cannot be read.
    """
    with suppress(FileNotFoundError):
        path = store / VERSIONS_DIRECTORY / label
        with closing(SnapshotDirectory(str(path))) as directory:
            found = read_sealed(directory, VERSION_MANIFEST, VersionManifest)
            return None if found is None else NamedContent(label, found.group_digest)
    return None


def read_sealed(directory: SnapshotDirectory, name: str, kind: type[SealedT]) -> SealedT | None:
    """Return a document of a directory; None if there is none. Blocks.

    Raises
    ------
    ManifestError
        If it is damaged.
    wsm.strategies.errors.BadInputError
        If it cannot be opened or read.
    """
    try:
        data = directory.read(name, _MAX_MANIFEST_BYTES)
    except FileNotFoundError:
        return None
    file = directory.locate(name)
    if data is None:
        raise ManifestError(file=file, problem=f"it is larger than {_MAX_MANIFEST_BYTES} bytes")
    return kind.decode(data, file=file)


def _parts(
    directory: SnapshotDirectory, base: str, device_id: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return a shard's files, at the first of FastDeploy's three places that has any, and what is no part.

    A trainer may leave numbers out. What a lost part held is missed by the manifest, or by the model.
    """
    indexed: list[tuple[int, str]] = []
    ignored: list[str] = []
    names = directory.names()
    for name in names:
        if not snapshot_names.looks_like_part(base, name):
            continue
        index = snapshot_names.part_index(base, name)
        if index is None:
            path = directory.locate(name)
            _log.warning("snapshot.part_ignored", file=path, expected=f"{base}.part<number>.pdparams")
            ignored.append(path)
        else:
            indexed.append((index, name))
    indexed.sort()
    indexes = [index for index, _ in indexed]
    if len(set(indexes)) != len(indexes):
        raise UnfitError(
            f"the parts of {base} are numbered {errors.listed(indexes)}: a number occurs twice; publish the "
            "snapshot again",
            code="part-sequence",
            base=base,
            indexes=tuple(indexes),
        )
    if indexes and (indexes[0] > 1 or indexes[-1] - indexes[0] >= len(indexes)):
        found = errors.listed(indexes)
        _log.warning("snapshot.parts_missing", directory=directory.path, base=base, found=found)
    if indexed:
        return tuple(name for _, name in indexed), tuple(ignored)
    whole = [
        name
        for name in (snapshot_names.whole_name(base), snapshot_names.legacy_name(device_id))
        if name in names
    ]
    return tuple(whole[:1]), tuple(ignored)


def version_beside(directory: str, wanted: str | None) -> str | None:
    """Return the version of files that name none themselves: the one in the ``version.yaml`` beside them.

    Where no version is wanted, a file that cannot be used counts as none: FastDeploy does not read it there.

    Raises
    ------
    BadInputError, UnreadableFileError, wsm.strategies.errors.VersionMismatchError
        If it does not say that they are the version `wanted`.
    """
    try:
        beside = announced_version(directory)
    except BadInputError as error:
        if wanted is not None:
            raise
        _log.warning("version_file.ignored", directory=directory, error=str(error))
        return None
    if wanted is not None and beside is None:
        raise UnfitError(
            f"version {wanted} was asked for, but neither a manifest, nor the files, nor a version.yaml in "
            f"{directory} says which they hold; write version.yaml beside them, or ask for no particular one",
            code="version-unknown",
            requested=wanted,
            where=directory,
        )
    if wanted is not None and beside is not None and beside != wanted:
        where = f"{directory}/{snapshot_names.VERSION_FILE}"
        raise VersionMismatchError(requested=wanted, found=beside, where=where)
    return beside


def _open(path: str, stack: ExitStack) -> SnapshotDirectory | None:
    try:
        return stack.enter_context(closing(SnapshotDirectory(path)))
    except FileNotFoundError:
        return None


def _not_found(source: SnapshotSource, wanted: str | None) -> SnapshotNotFoundError:
    device_id = source.resolved_device_id()
    base = snapshot_names.shard_base(source.rank, device_id)
    root, shared = str(source.directory), source.shared_directory
    versions = f"{root}/{snapshot_names.VERSIONS_DIRECTORY}"
    own = None if wanted is None else f"{versions}/{wanted}"
    whole = snapshot_names.whole_name(base)
    looked_at = [
        own or f"{root}/{snapshot_names.VERSION_FILE}",
        f"{root}/{base}.part*.pdparams",
        f"{root}/{whole}",
        f"{root}/{snapshot_names.legacy_name(device_id)}",
        *([] if shared is None else [f"{shared}/{whole}"]),
    ]
    present: list[str] = []
    missing: str | None = None
    with ExitStack() as stack:
        for path in (root, versions, own, shared):
            directory = None if path is None else _open(str(path), stack)
            if directory is None:
                missing = root if path == root else missing
            else:
                telling = is_label if path == versions else snapshot_names.is_snapshot_file
                present += [directory.locate(name) for name in directory.names() if telling(name)]
    there = listed_versions(Path(versions)) if own is not None else []
    return SnapshotNotFoundError(
        rank=source.rank,
        device_id=device_id,
        looked_at=looked_at,
        present=present,
        missing=missing,
        retired=bool(there) and there[0].ordinal > len(there),
    )


_SHARD = re.compile(r"model_state\.tp([0-9]{1,9})\.([0-9]{1,9})\.(?:part[0-9]{1,9}\.)?pdparams")


def shards_in(directory: Path, version: str | None) -> list[tuple[int, int]]:
    """Return rank and device id of every shard of a version, found by the names of files, in rank order.

    Raises
    ------
    SnapshotNotFoundError
        If there is none.
    wsm.errors.BadInputError
        If the directory or its ``version.yaml`` cannot be used.
    """
    wanted = newest_version(directory) if version is None else version
    places = [str(directory)]
    if wanted is not None:
        places.insert(0, f"{directory}/{snapshot_names.VERSIONS_DIRECTORY}/{wanted}")
    for place in places:
        try:
            with closing(SnapshotDirectory(place)) as opened:
                names = opened.names()
        except FileNotFoundError:
            continue
        found = {(int(m[1]), int(m[2])) for m in map(_SHARD.fullmatch, names) if m is not None}
        if found:
            return sorted(found)
    raise SnapshotNotFoundError(rank=0, device_id=0, looked_at=places, present=())


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
        publication.listed(source.rank, promise, directory=directory.path)
    if promise is not None:
        listed = [part.file for part in promise.parts]
        missing = [part for part in listed if part not in found.parts]
        extra = [part for part in found.parts if part not in listed]
        if missing or extra:
            problem = f"parts missing {missing}, parts not listed {extra}"
            raise errors.differs_from_manifest(file=file, problem=problem)
    pickles = source.allow_pickle
    parts, identity = open_parts(
        directory, found.parts, promise, stack, where=file, asked=asked, allow_pickle=pickles
    )
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
        raise UnfitError(
            f"{lacking} is missing, so nothing can be verified: {said}; copy the manifests along with the "
            "parts, or publish again, or load what there is unverified (snapshot: {verify: if_present})",
            code="manifest-missing",
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
    names: Sequence[str],
    promise: ShardManifest | None,
    stack: ExitStack,
    *,
    where: str,
    asked: tuple[str | None, int | None, int | None] = (None, None, None),
    allow_pickle: bool = False,
) -> tuple[tuple[PartFile, ...], ShardIdentity | None]:
    """Open files of one shard, in this order, and hold them against its promise. Blocks on metadata only.

    Parameters
    ----------
    directory : SnapshotDirectory
        Where they lie.
    names : sequence of str
        Their names; those of the promise, if there is one.
    promise : ShardManifest or None
        What they should hold, if that is known.
    stack : ExitStack
        Closes them.
    where : str
        The promise's file.
    asked : tuple of (str or None, int or None, int or None)
        Version, rank and number of ranks that they must be for; None: for any.
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
        If one cannot be opened, is no valid file, or they say different things about themselves, or something
        else than was asked for. Or if they are of another publication than the promise, or one has another
        size or holds other tensors.
    """
    metadata = {} if promise is None else part_metadata(promise)
    held = {} if promise is None else {part.file: (part, tensors) for part, tensors in promise.by_part()}
    parts = []
    for name in names:
        # The very bytes with which the file begins, if wsm wrote it and nothing happened to it.
        header = lay_out([tensor.spec for tensor in held[name][1]], metadata) if name in held else None
        part = open_part(directory, name, allow_pickle=allow_pickle, expected=header)
        parts.append(stack.enter_context(closing(part)))
    identities = [identity_of_part(part.metadata, file=part.path) for part in parts]
    for field in ("version", "rank", "world_size", "publication"):
        values = [str(getattr(each, field, "not written by wsm")) for each in identities]
        if len(set(values)) > 1:
            paths = [part.path for part in parts]
            raise errors.mixed_parts(field=field, values=list(zip(paths, values, strict=True)))
    if (identity := identities[0]) is not None:
        identity.require(*asked, where=parts[0].path)
    if promise is not None:
        whose = (promise.rank, promise.world_size, promise.publication)
        if identity is not None and whose != (identity.rank, identity.world_size, identity.publication):
            problem = f"the parts are of rank {identity.rank}, publication {identity.publication}"
            raise errors.differs_from_manifest(file=where, problem=problem)
        for part, (listed, tensors) in zip(parts, map(held.__getitem__, names), strict=True):
            if part.nbytes != listed.nbytes:
                raise errors.bad_file_size(file=part.path, expected=listed.nbytes, actual=part.nbytes)
            found, wanted = list(part.specs()), [tensor.spec for tensor in tensors]
            # Their order in the file is the writer's own matter.
            if found != wanted and (different := {*found} ^ {*wanted}):
                names = sorted({spec.name for spec in different})
                problem = f"{part.path} has other tensors, names, dtypes or shapes: {names[:6]}"
                raise errors.differs_from_manifest(file=where, problem=problem)
    return tuple(parts), identity


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
