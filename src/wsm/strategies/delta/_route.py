"""By which way a rank comes to a version: from what it holds or from whole files, and over which deltas.

A delta is opened and checked against all that is written about it; :meth:`OpenDelta.verify` reads its blocks
once against their digests, so that a damaged file is known before the first byte of a target changes.

The shortest way wins: nothing but one delta; several, if the rank missed some; the whole version; an earlier
whole version and the deltas since. Every joint is checked by digests before a byte moves: what a delta
leads to must be what the next one was made against. Applies nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path

from wsm.errors import BadInputError
from wsm.strategies import errors as strategies_errors
from wsm.strategies.delta import errors as delta_errors
from wsm.strategies.delta._blocks import BlockKind
from wsm.strategies.delta._manifest import (
    DeltaManifest,
    DeltaShard,
    DeltaTensor,
    blocks_name,
    content_digests,
    delta_manifest,
    rank_manifest_name,
    version_with_digest,
    whole_manifest,
)
from wsm.strategies.delta.errors import DeltaBaseError, delta_not_found
from wsm.strategies.delta.source import DeltaSource, codec
from wsm.strategies.digest import running_digest, shard_digest
from wsm.strategies.errors import SnapshotNotFoundError, VersionMismatchError, listed
from wsm.strategies.files.atomic_file import read_all
from wsm.strategies.files.snapshot_directory import SnapshotDirectory, open_held
from wsm.strategies.files.snapshot_names import DELTA_MANIFEST, DELTAS_DIRECTORY, VERSIONS_DIRECTORY
from wsm.strategies.observer import LoadObserver
from wsm.strategies.offer import Offer
from wsm.strategies.snapshot.ipc_snapshot import IpcSnapshot
from wsm.strategies.snapshot.source import SnapshotSource
from wsm.strategies.snapshot.store import read_sealed
from wsm.strategies.tensor import ITEM_BYTES

_READ_BYTES = 1 << 20


@dataclass(eq=False)
class OpenDelta:
    """A delta whose files are open and agree.

    Parameters
    ----------
    shard : DeltaShard
        This rank's manifest.
    manifest : DeltaManifest
        The manifest of all ranks.
    path : str
        The file with the blocks, for messages.
    descriptor : int
        That file, open for reading; owned by this object from now on.
    """

    shard: DeltaShard
    manifest: DeltaManifest
    path: str
    descriptor: int

    @cached_property
    def rows(self) -> dict[str, DeltaTensor]:
        """The tensors by name."""
        return {row.name: row for row in self.shard.tensors}

    def verify(self, observer: LoadObserver) -> None:
        """Read all blocks and compare them with their digests. Blocks, as long as a read of them takes.

        Parameters
        ----------
        observer : LoadObserver
            Asked for cancellation.

        Raises
        ------
        BadInputError
            If a tensor's blocks are not those that were written.
        LoadCancelledError
            If the observer says so; nothing was touched.
        BadInputError, UnreadableFileError
            If the file shrank meanwhile, or cannot be read.
        """
        buffer = memoryview(bytearray(_READ_BYTES))
        for row in self.shard.tensors:
            begin, end = self._where[row.name][0], self._where[row.name][-1]
            digest = running_digest()
            while begin < end:
                observer.stop_if_cancelled(len(self.shard.tensors))
                piece = buffer[: min(_READ_BYTES, end - begin)]
                self._read(begin, piece)
                digest.update(piece)
                begin += len(piece)
            if digest.hexdigest() != row.stored_digest:
                raise delta_errors.bad_delta(
                    file=self.path,
                    tensor=row.name,
                    problem=f"digest {digest.hexdigest()} instead of {row.stored_digest}",
                )

    def replaces(self, name: str, offset: int, length: int) -> bool:
        """Whether every byte of a range is in the delta, so that the base's need not be read."""
        blocks, size = self.rows[name].blocks, self.shard.block_bytes
        return bool(blocks) and all(
            block.kind is BlockKind.FULL for block in blocks[offset // size : -(-(offset + length) // size)]
        )

    def patch(self, name: str, offset: int, destination: memoryview) -> None:
        """Turn bytes of the base into those of the version. Blocks; may be called by several threads.

        Parameters
        ----------
        name : str
            The tensor.
        offset : int
            Where `destination` begins in it.
        destination : memoryview
            Writable; holds the base's bytes.

        Raises
        ------
        BadInputError, UnreadableFileError
            If the blocks are not what they were when they were verified.
        """
        row, size = self.rows[name], self.shard.block_bytes
        end = offset + len(destination)
        for index in range(offset // size, -(-end // size)) if row.blocks else ():
            if row.blocks[index].kind is not BlockKind.SAME:
                low, high = max(offset, index * size), min(end, (index + 1) * size)
                self._patch_block(row, index, low - index * size, destination[low - offset : high - offset])

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _patch_block(self, row: DeltaTensor, index: int, begin: int, destination: memoryview) -> None:
        block, position = row.blocks[index], self._where[row.name][index]
        if block.kind is BlockKind.FULL:
            self._read(position + begin, destination)
            return
        data = memoryview(bytearray(block.stored))
        self._read(position, data)
        size = self.shard.block_bytes
        length = min(size, row.spec.nbytes - index * size)
        blocks = codec()
        try:
            patch = blocks.decode(block, data, length=length, item=ITEM_BYTES[row.dtype])
        except blocks.BlockError as error:
            raise delta_errors.bad_delta(
                file=self.path,
                tensor=row.name,
                problem=f"block {index}: {error}",
            ) from error
        patch.apply(destination, begin)

    @cached_property
    def _where(self) -> dict[str, tuple[int, ...]]:
        """Where each block of each tensor begins in the file; the last number is where the tensor ends."""
        found = {}
        begin = 0
        for row in self.shard.tensors:
            found[row.name] = tuple(accumulate((block.stored for block in row.blocks), initial=begin))
            begin += row.stored
        return found

    def _read(self, position: int, destination: memoryview) -> None:
        read_all(self.descriptor, position, destination, file=self.path, expected=self.shard.nbytes)


def ranks_of(source: DeltaSource, manifest: DeltaManifest) -> int:
    """Return the number of ranks that a delta must be for."""
    return source.world_size or max(manifest.world_size, source.rank + 1)


def open_delta(source: DeltaSource, version: str, stack: ExitStack) -> OpenDelta | None:
    """Open what leads the source's rank to `version`; None if there is none for so many ranks.

    Blocks on metadata only.

    Parameters
    ----------
    source : DeltaSource
        Where to look, and whose it must be.
    version : str
        The version that it must lead to.
    stack : ExitStack
        Closes directory and file.

    Raises
    ------
    RefusedError
        If there is one, and what reads it is not installed.
    wsm.strategies.errors.BadInputError
        Of the type that fits what is wrong. Nothing was changed.
    """
    root, rank = str(source.directory), source.rank
    directory = open_held(f"{root}/{DELTAS_DIRECTORY}/{version}", boundary=root, stack=stack)
    if directory is None:
        return None
    where = directory.locate(DELTA_MANIFEST)
    manifest = read_sealed(directory, DELTA_MANIFEST, DeltaManifest)
    if manifest is None:
        raise strategies_errors.differs_from_manifest(
            file=directory.path, problem=f"{DELTA_MANIFEST} is missing"
        )
    if manifest.version != version:
        raise VersionMismatchError(requested=version, found=manifest.version, where=where)
    wanted = ranks_of(source, manifest)
    if manifest.world_size != wanted:
        return None
    if rank >= wanted:
        raise strategies_errors.shard_identity(
            file=where, field="world size", expected=rank + 1, found=wanted
        )
    shard, path = _listed_shard(directory, manifest, rank), directory.locate(blocks_name(rank))
    try:
        descriptor = directory.open(blocks_name(rank))
    except FileNotFoundError as error:
        problem = f"{blocks_name(rank)} is missing"
        raise strategies_errors.differs_from_manifest(file=where, problem=problem) from error
    opened = stack.enter_context(closing(OpenDelta(shard, manifest, path, descriptor)))
    size = os.fstat(descriptor).st_size
    if size != shard.nbytes:
        raise strategies_errors.bad_file_size(file=path, expected=shard.nbytes, actual=size)
    codec()
    return opened


def _listed_shard(directory: SnapshotDirectory, manifest: DeltaManifest, rank: int) -> DeltaShard:
    """Return the manifest of a rank's delta, if it is the one that the manifest of all lists."""
    where, name = directory.locate(DELTA_MANIFEST), rank_manifest_name(rank)
    shard = read_sealed(directory, name, DeltaShard)
    if shard is None:
        raise strategies_errors.differs_from_manifest(file=where, problem=f"{name} is missing")
    shard.require(None, rank, None, where=directory.locate(name))
    if (shard.seal, shard.version, shard.base_version, shard.publication, shard.world_size) != (
        manifest.shards[rank].seal,
        manifest.version,
        manifest.base_version,
        manifest.publication,
        manifest.world_size,
    ):
        raise strategies_errors.differs_from_manifest(file=where, problem=f"{name} is another one")
    if not shard.tensors:
        raise strategies_errors.empty_snapshot(where=directory.locate(name))
    return shard


#: Digests of a rank's tensors by name; None where it holds none.
Held = Mapping[str, str] | None

_NOT_WHOLE = "whole files are not loaded instead (fallback: refuse)"


@dataclass(frozen=True)
class Route:
    """A way to a version.

    Parameters
    ----------
    links : sequence of OpenDelta
        The deltas to put on top of what it begins with, in that order; none where it is the version already.
    whole : Offer or None
        The whole snapshot that it begins with; None: what the target holds.
    last : OpenDelta or None
        The delta that leads to the version, whether it is needed or not; None if there is none.
    """

    links: Sequence[OpenDelta]
    whole: Offer | None
    last: OpenDelta | None


def links_to(source: DeltaSource, version: str, stack: ExitStack) -> list[OpenDelta]:
    """Open the deltas that lead to `version`, as far back as they follow from each other; oldest first.

    What lies before a delta of another number of ranks was that layout's; a whole version of this one may
    begin the way.

    Raises
    ------
    wsm.strategies.errors.BadInputError
        If one of them is damaged, or another rank's. Nothing was changed.
    """
    links: list[OpenDelta] = []
    seen: set[str] = set()
    while len(links) < source.max_chain and version not in seen:
        seen.add(version)
        link = open_delta(source, version, stack)
        if link is None or (links and links[0].shard.base_digest != link.shard.content_digest):
            break
        links.insert(0, link)
        version = link.shard.base_version
    return links


def find_route(
    source: DeltaSource,
    version: str,
    stack: ExitStack,
    held: Callable[[DeltaShard], Held],
) -> Route:
    """Find the way to `version` for a rank. Blocks on metadata, and as long as `held` does.

    Parameters
    ----------
    source : DeltaSource
        Where to look.
    version : str
        The version.
    stack : ExitStack
        Closes what is opened.
    held : callable
        Returns the digests of what the rank holds, of the tensors of the given delta that it has. Called only
        if there is a delta.

    Raises
    ------
    DeltaBaseError
        If the version is a delta, and the rank neither holds its base nor may load whole files instead.
    BadInputError
        As :func:`whole_alone`, if no delta leads to it.
    wsm.strategies.errors.BadInputError
        If what is published is damaged.
    """
    links = links_to(source, version, stack)
    if not links:
        return Route((), whole_alone(source, version, stack), None)
    _check_one_content(source, links[-1])
    # What lies before each link, and last where all of them lead.
    joints = [(link.shard.base_version, link.shard.base_digest) for link in links]
    joints.append((links[-1].shard.version, links[-1].shard.content_digest))
    holds = held(links[-1].shard)
    if holds is not None:
        for index in range(len(links), -1, -1):
            if _is_held(links, index, holds):
                return Route(links[index:], None, links[-1])
    looked_for = _NOT_WHOLE
    if source.fallback == "full":
        for index in range(len(links), -1, -1):
            label, digest = joints[index]
            whole = whole_offer(source, label, stack)
            if whole is not None and offered_digest(whole) == digest:
                return Route(links[index:], whole, links[-1])
        places = ", ".join(f"{VERSIONS_DIRECTORY}/{label}" for label, _ in joints)
        looked_for = f"no whole snapshot that leads there is in {source.directory} ({places})"
    raise _refusal(source, links[-1], holds, looked_for)


def whole_alone(source: DeltaSource, version: str, stack: ExitStack) -> Offer:
    """Open whole files of a version to which no delta of this number of ranks leads.

    Where a delta of another number does, all ranks of the group load whole files, if the source may.

    Raises
    ------
    BadInputError
        If there are none (``delta-not-found``), or a delta alone that was made for other ranks
        (``delta-layout``). Nothing was changed.
    wsm.strategies.errors.BadInputError
        If they are damaged, or cannot be cut for so many ranks.
    """
    other = delta_manifest(Path(source.directory), version)
    if other is None or source.fallback == "full":
        whole = whole_offer(source, version, stack)
        if whole is not None:
            return whole
    if other is None:
        raise delta_not_found(version=version, rank=source.rank, looked_at=places(source, version))
    ranks = ranks_of(source, other)
    where = f"{source.directory}/{DELTAS_DIRECTORY}/{version}/{DELTA_MANIFEST}"
    looked_for = _NOT_WHOLE
    if source.fallback == "full":
        looked_for = f"no whole files of it are in {source.directory}/{VERSIONS_DIRECTORY}/{version}"
    raise BadInputError(
        f"version {version} in {where} is a delta for world size {other.world_size}, and this group has "
        f"world size {ranks}: changes of one layout cannot be cut into another; {looked_for}; publish "
        f"version {version} whole, with placements or for {ranks} ranks, or start {other.world_size} ranks",
        code="delta-layout",
        unfit=True,
        version=version,
        where=where,
        made_for=other.world_size,
        ranks=ranks,
    )


def whole_offer(source: DeltaSource, version: str, stack: ExitStack) -> Offer | None:
    """Open the whole snapshot of `version`; None if there is none.

    Raises
    ------
    wsm.strategies.errors.BadInputError
        If it is damaged, or another rank's.
    """
    snapshot = SnapshotSource(
        source.directory,
        source.rank,
        device_id=source.device_id,
        world_size=source.world_size,
        shared_directory=None,
    )
    try:
        return stack.enter_context(IpcSnapshot().open(snapshot, version))
    except SnapshotNotFoundError:
        return None


def offered_digest(offer: Offer) -> str | None:
    """Return the digest that an offer promises for all its tensors; None if it does not for one of them."""
    rows = [(tensor.spec, tensor.digest or "") for tensor in offer.tensors]
    return shard_digest(rows) if all(digest for _, digest in rows) else None


def places(source: DeltaSource, version: str) -> list[str]:
    """Return where `version` is looked for, for messages."""
    root = source.directory
    return [f"{root}/{DELTAS_DIRECTORY}/{version}", f"{root}/{VERSIONS_DIRECTORY}/{version}"]


def _check_one_content(source: DeltaSource, link: OpenDelta) -> None:
    """Refuse a label under which two things are published, since it cannot be known which was meant."""
    whole = whole_manifest(Path(source.directory), link.shard.version)
    ours = content_digests(link.manifest)
    if whole is not None and whole.world_size == len(ours) and content_digests(whole) != ours:
        raise strategies_errors.differs_from_manifest(
            file=link.path,
            problem=f"the whole version {link.shard.version} beside it holds other tensors; remove one",
        )


def _is_held(links: Sequence[OpenDelta], index: int, held: Mapping[str, str]) -> bool:
    rows = links[min(index, len(links) - 1)].shard.tensors
    after = index == len(links)
    return all(
        held[row.name] == (row.digest if after else row.base_digest) for row in rows if row.name in held
    )


def _refusal(source: DeltaSource, link: OpenDelta, held: Held, looked_for: str) -> DeltaBaseError:
    shard = link.shard
    found_digest, found_version, different = None, None, []
    found = "this rank holds no whole weights"
    if held is not None:
        rows = [row for row in shard.tensors if row.name in held]
        found_digest = shard_digest((row.spec, held[row.name]) for row in rows)
        found_version = version_with_digest(Path(source.directory), source.rank, found_digest)
        different = [row.name for row in rows if held[row.name] != row.base_digest]
        known = "a version unknown here" if found_version is None else f"version {found_version}"
        names = listed([repr(name) for name in different])
        found = f"this rank holds {known}, digest {found_digest} (different: {names})"
    return DeltaBaseError(
        f"version {shard.version} in {link.path} is a delta against version {shard.base_version}, digest "
        f"{shard.base_digest}, but {found}; {looked_for}; load a full version, or publish this one as a full "
        "one",
        version=shard.version,
        base_version=shard.base_version,
        base_digest=shard.base_digest,
        found_digest=found_digest,
        found_version=found_version,
        tensors=tuple(different),
        where=link.path,
    )
