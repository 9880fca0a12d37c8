"""The strategy ``delta``: changed elements only, on top of the version that a rank holds, or of whole files.

The shortest way to a version wins: nothing but one delta; several, if the rank missed some; the whole
version; an earlier whole version and the deltas since. Every joint is checked by digests before a byte
moves: what a delta leads to must be what the next one was made against, and the blocks be those that were
written.

A target's tensors are digested before anything else happens to them, in one pass; the pass is the proof that
they are the base, whatever was recorded of them. The tensors of a whole snapshot are a base, too.

A delta is opened and checked against all that is written about it. :meth:`OpenDelta.verify` reads its blocks
once against their digests, so that a damaged file is known before the first byte of a target changes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path

from wsm import log
from wsm.errors import RefusedError, UnfitError
from wsm.strategies import errors as strategies_errors
from wsm.strategies.applier.tensor_copy import CopyJob, Steps, copy_on_threads, digest_source
from wsm.strategies.byte_copy import copy_bytes
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
from wsm.strategies.delta.source import (
    DeltaBaseError,
    DeltaConfig,
    DeltaSource,
    bad_delta,
    codec,
    delta_not_found,
)
from wsm.strategies.digest import shard_digest
from wsm.strategies.errors import SnapshotNotFoundError, VersionMismatchError, listed
from wsm.strategies.files.atomic_file import read_all
from wsm.strategies.files.snapshot_directory import open_held
from wsm.strategies.files.snapshot_names import (
    DELTA_MANIFEST,
    DELTAS_DIRECTORY,
    VERSION_FILE,
    VERSIONS_DIRECTORY,
)
from wsm.strategies.observer import UNOBSERVED, LoadObserver
from wsm.strategies.offer import ManifestScope, Offer, OfferedTensor, not_to_be_read
from wsm.strategies.snapshot.ipc_snapshot import IpcSnapshot
from wsm.strategies.snapshot.source import SnapshotSource
from wsm.strategies.snapshot.store import read_sealed
from wsm.strategies.strategy import Sections, Strategy
from wsm.strategies.tensor import (
    ITEM_BYTES,
    ServedTarget,
    StagedTarget,
    TensorSpec,
    WeightTarget,
    tied_names,
    transposed_names,
)
from wsm.strategies.trainer.publications import newest_version


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
        That file, open for reading.
    """

    shard: DeltaShard
    manifest: DeltaManifest
    path: str
    descriptor: int

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
        steps = Steps(lambda: observer.stop_if_cancelled(len(self.shard.tensors)))
        for row in self.shard.tensors:
            steps.go_on()
            begin = self._where[row.name][0]
            blocks = TensorSpec(row.name, "U8", (row.stored,))
            found = digest_source(OfferedTensor(blocks, self.path, partial(self._read_from, begin)), steps)
            if found != row.stored_digest:
                problem = f"digest {found} instead of {row.stored_digest}"
                raise bad_delta(file=self.path, tensor=row.name, problem=problem)

    def over(self, base: Iterable[OfferedTensor]) -> list[OfferedTensor]:
        """Return the tensors of the version, each read as the base's with its blocks on top.

        Without those of a base they can only be looked at. Reading one raises what reading the base does, and
        BadInputError or UnreadableFileError if the blocks are not what they were when they were verified.
        """
        begun = {tensor.spec.name: tensor for tensor in base}
        return [self._on(begun.get(row.name), row) for row in self.shard.tensors]

    def _on(self, base: OfferedTensor | None, row: DeltaTensor) -> OfferedTensor:
        below = not_to_be_read if base is None else base.read_into

        def read_into(offset: int, destination: memoryview) -> None:
            size, end = self.shard.block_bytes, offset + len(destination)
            blocks = row.blocks[offset // size : -(-end // size)]
            if not blocks or any(block.kind is not BlockKind.FULL for block in blocks):
                below(offset, destination)
            self._patch(row, offset, destination)

        return OfferedTensor(
            row.spec,
            self.path,
            read_into,
            row.digest,
            piece_bytes=self.shard.block_bytes,
            stands=base is not None and base.stands and not row.blocks,
            finite=self.shard.finite,
        )

    def _patch(self, row: DeltaTensor, offset: int, destination: memoryview) -> None:
        """Turn bytes of the base into those of the version. Several threads may do so."""
        size, end = self.shard.block_bytes, offset + len(destination)
        for index in range(offset // size, -(-end // size)) if row.blocks else ():
            if row.blocks[index].kind is not BlockKind.SAME:
                low, high = max(offset, index * size), min(end, (index + 1) * size)
                self._patch_block(row, index, low - index * size, destination[low - offset : high - offset])

    def _patch_block(self, row: DeltaTensor, index: int, begin: int, destination: memoryview) -> None:
        block, position = row.blocks[index], self._where[row.name][index]
        if block.kind is BlockKind.FULL:
            self._read_from(position, begin, destination)
            return
        data = memoryview(bytearray(block.stored))
        self._read_from(position, 0, data)
        size = self.shard.block_bytes
        length = min(size, row.spec.nbytes - index * size)
        blocks = codec()
        try:
            patch = blocks.decode(block, data, length=length, item=ITEM_BYTES[row.dtype])
        except blocks.BlockError as error:
            problem = f"block {index}: {error}"
            raise bad_delta(file=self.path, tensor=row.name, problem=problem) from error
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

    def _read_from(self, begin: int, offset: int, destination: memoryview) -> None:
        read_all(self.descriptor, begin + offset, destination, file=self.path, expected=self.shard.nbytes)


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
    directory = open_held(f"{root}/{DELTAS_DIRECTORY}/{version}", boundary=root)
    if directory is None:
        return None
    stack.callback(directory.close)
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
    name, path = rank_manifest_name(rank), directory.locate(blocks_name(rank))
    shard = read_sealed(directory, name, DeltaShard)
    if shard is not None:
        shard.require(None, rank, None, where=directory.locate(name))
    shard = manifest.listed(rank, shard, directory=directory.path)
    if not shard.tensors:
        raise strategies_errors.empty_snapshot(where=directory.locate(name))
    try:
        descriptor = directory.open(blocks_name(rank))
    except FileNotFoundError as error:
        problem = f"{blocks_name(rank)} is missing"
        raise strategies_errors.differs_from_manifest(file=where, problem=problem) from error
    stack.callback(os.close, descriptor)
    size = os.fstat(descriptor).st_size
    if size != shard.nbytes:
        raise strategies_errors.bad_file_size(file=path, expected=shard.nbytes, actual=size)
    codec()
    return OpenDelta(shard, manifest, path, descriptor)


# Smaller tensors are digested by the calling thread: others would wait for the interpreter's lock.
_SHARED_BYTES = 1 << 18


class TargetBase:
    """The tensors that a target holds; for one that is staged, those that serve beside it.

    Where the target is written in place the base's bytes are there already, and are left alone.

    Parameters
    ----------
    target : WeightTarget
        The target that is going to be written; only read here.
    observer : LoadObserver
        Shown that a look at it goes on, and asked for cancellation.
    threads : int
        How many may read it, the calling one included.

    Attributes
    ----------
    in_place : bool
        Whether what is read here is what is going to be written.
    """

    def __init__(self, target: WeightTarget, observer: LoadObserver, threads: int) -> None:
        self._target, self._observer, self._threads = target, observer, threads
        self.in_place = not isinstance(target, ServedTarget)
        self._readable = target.served if isinstance(target, ServedTarget) else target.readable
        # What is written elsewhere and moved (device memory) is read as a copy: one tensor's at a time.
        self._copies = isinstance(target, StagedTarget)
        self._tied = tied_names(target)
        self._transposed = transposed_names(target)  # read as a copy too
        self._views: dict[str, memoryview] = {}
        self._copy = ("", memoryview(b""))
        self._tensors = self._nbytes = 0

    def digests(self, specs: Iterable[TensorSpec]) -> Mapping[str, str] | None:
        """Return the digest of each of these tensors that the target has. Blocks, as long as a read of them.

        Returns
        -------
        mapping of str to str, or None
            By name; None if one of them holds no memory.

        Raises
        ------
        LoadCancelledError
            If the observer says so; nothing was touched.
        """
        specs_there = self._target.specs()
        tied = {name: replace(specs_there[own], name=name) for name, own in self._tied.items()}
        known = {**specs_there, **tied}
        wanted = [spec for spec in specs if known.get(spec.name) == spec]
        self._tensors, self._nbytes = len(wanted), sum(spec.nbytes for spec in wanted)
        jobs = []
        digests: dict[str, str] = {}
        steps = Steps(
            self.go_on, lambda _: self._observer.progress(0, self._nbytes)
        )  # it shows that it lives
        for spec in wanted:
            self.go_on()
            try:
                view = self._view(spec)
            except RefusedError:  # released; each kind of target has an error of its own for it
                return None
            if len(view) != spec.nbytes:
                return None
            job = CopyJob(OfferedTensor.of_bytes(spec, "the weights that are there", view), view, kept=True)
            copied = self._copies or self._tied.get(spec.name, spec.name) in self._transposed
            if copied or spec.nbytes < _SHARED_BYTES:
                job.run(steps)
                digests[spec.name] = job.digest
            else:
                jobs.append(job)
            if not copied:
                # Other threads must not ask the target, so all of its memory is known before they begin.
                self._views[spec.name] = view
        copy_on_threads(jobs, self._threads, steps)
        return digests | {job.tensor.spec.name: job.digest for job in jobs}

    def offered(self, row: DeltaTensor, last: OpenDelta) -> OfferedTensor:
        """Return a tensor as the target holds it, which the last delta leads on from, or to."""
        return OfferedTensor(
            row.spec,
            last.path,
            partial(self._read, row.spec),
            row.digest,
            piece_bytes=last.shard.block_bytes,
            stands=self.in_place,
            finite=last.shard.finite,
        )

    def _read(self, spec: TensorSpec, offset: int, destination: memoryview) -> None:
        """Fill `destination` from the target, unless it is the target's own memory. Blocks."""
        view = self._views.get(spec.name)
        if view is None:  # a copy, which this thread alone reads
            if self._copy[0] != spec.name:
                self._copy = ("", memoryview(b""))
                self._copy = (spec.name, self._view(spec))
            view = self._copy[1]
        source = view[offset : offset + len(destination)]
        if not codec().same_memory(source, destination):
            copy_bytes(source, destination)

    def let_go(self) -> None:
        """Hold on to no memory of the target any longer: it may be released now. Idempotent."""
        self._views.clear()
        self._copy = ("", memoryview(b""))

    def go_on(self) -> None:
        """End a look that is no longer wanted; of :class:`wsm.strategies.applier.tensor_copy.Steps`."""
        self._observer.stop_if_cancelled(self._tensors)

    def _view(self, spec: TensorSpec) -> memoryview:
        return self._readable(self._tied.get(spec.name, spec.name)) if spec.nbytes else memoryview(b"")


_log = log.logger("strategies")


class Delta(Strategy):
    """Load changes of the version that is there."""

    source_type = DeltaSource
    sections = (DeltaConfig,)
    rereadable = True

    def source(self, sections: Sections, rank: int, ranks: int) -> DeltaSource:
        """Return one rank's view of the configured directory."""
        return sections.of(DeltaConfig).source(DeltaSource, rank, ranks)

    def open(
        self, source: DeltaSource, version: str | None, observer: LoadObserver = UNOBSERVED
    ) -> AbstractContextManager[Offer]:
        """Open for a reader that holds nothing: whole files, and the deltas since. As :meth:`open_over`."""
        return self.open_over(source, version, observer, None)

    @contextmanager
    def open_over(
        self,
        source: DeltaSource,
        version: str | None,
        observer: LoadObserver,
        target: WeightTarget | None,
        threads: int = 1,
    ) -> Iterator[Offer]:
        """Open for a target, which may hold the base. Blocks as long as a read of it, and of the deltas.

        Parameters
        ----------
        source : DeltaSource
            Where to look.
        version : str or None
            The version that it must lead to; None for the one that ``version.yaml`` announces.
        observer : LoadObserver
            Asked for cancellation while the target is read.
        target : WeightTarget or None
            What is going to be written; it is only read here.
        threads : int
            How many may read it, the calling one included.

        Raises
        ------
        wsm.strategies.delta.source.DeltaBaseError
            If it does not hold the base, and no whole files are there or allowed.
        wsm.strategies.errors.BadInputError
            If there is nothing, or it is damaged. Nothing was changed.
        """
        label = _label(source, version)
        with ExitStack() as stack:
            base = None
            if target is not None:
                base = TargetBase(target, observer, threads)
                stack.callback(base.let_go)
            chain = _links_to(source, label, stack)
            if chain:
                begin, whole = _beginning(source, chain, base, stack)
            else:
                begin, whole = 0, _whole_alone(source, label, stack)
            links = chain[begin:]
            for link in links:
                link.verify(observer)
            _log.info(
                "delta.route",
                version=label,
                rank=source.rank,
                deltas=[link.shard.version for link in links],
                delta_bytes=sum(link.shard.nbytes for link in links),
                whole=None if whole is None else whole.version,
            )
            yield whole if whole is not None and not chain else _offer(chain[-1], links, whole, base)

    @contextmanager
    def preview(self, source: DeltaSource, version: str | None) -> Iterator[Offer]:
        """Open to look only: names, dtypes and shapes, whatever base a rank holds."""
        with ExitStack() as stack:
            label = _label(source, version)
            links = _links_to(replace(source, max_chain=1), label, stack)
            yield _offer(links[-1], links, None, None) if links else _whole_alone(source, label, stack)


def _label(source: DeltaSource, version: str | None) -> str:
    label = version or newest_version(source.directory, deltas=True)
    if label is None:
        looked_at = [f"{source.directory}/{VERSION_FILE}"]
        raise delta_not_found(version=None, rank=source.rank, looked_at=looked_at)
    return label


def _offer(
    last: OpenDelta, links: Sequence[OpenDelta], whole: Offer | None, held: TargetBase | None
) -> Offer:
    """Put links, whose last leads to the version, on top of a whole one or of what a target holds."""
    manifest, shard = last.manifest, last.shard
    tensors: Sequence[OfferedTensor] = ()
    if whole is not None:
        tensors = [replace(tensor, finite=tensor.finite or shard.finite) for tensor in whole.tensors]
        if not links:
            # The ranks of a group compare manifests: all say that of the delta, whichever way they have come.
            digest, publication = manifest.group_digest, manifest.publication
            return replace(whole, tensors=tuple(tensors), manifest_digest=digest, publication=publication)
    elif held is not None:
        tensors = [held.offered(row, last) for row in shard.tensors]
    for link in links:
        tensors = link.over(tensors)
    return Offer(
        version=shard.version,
        tensors=tuple(tensors),
        files=(*(() if whole is None else whole.files), *(link.path for link in links or (last,))),
        manifest_digest=manifest.group_digest,
        manifest_scope=ManifestScope.GROUP,
        publication=manifest.publication,
        peak_extra_bytes=3 * shard.block_bytes,
        parallel=True,
    )


def _links_to(source: DeltaSource, version: str, stack: ExitStack) -> list[OpenDelta]:
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


_NOT_WHOLE = "whole files are not loaded instead (fallback: refuse)"


def _beginning(
    source: DeltaSource, links: Sequence[OpenDelta], held: TargetBase | None, stack: ExitStack
) -> tuple[int, Offer | None]:
    """Return after how many of the links a rank begins, and with which whole version; None: what it holds.

    The nearest to the end wins, and what it holds before whole files.
    """
    last, root = links[-1], Path(source.directory)
    whole, ours = whole_manifest(root, last.shard.version), content_digests(last.manifest)
    if whole is not None and whole.world_size == len(ours) and content_digests(whole) != ours:
        # Two things are published under one label, and it cannot be known which was meant.
        problem = f"the whole version {last.shard.version} beside it holds other tensors; remove one"
        raise strategies_errors.differs_from_manifest(file=last.path, problem=problem)
    # What lies before each link, and where all of them lead.
    joints = [(link.shard.base_version, link.shard.base_digest) for link in links]
    joints.append((last.shard.version, last.shard.content_digest))
    rows = last.shard.tensors
    holds = None if held is None else held.digests(row.spec for row in rows)
    if holds is not None:
        states = [{row.name: row.base_digest for row in link.shard.tensors} for link in links]
        states.append({row.name: row.digest for row in rows})
        for index in range(len(links), -1, -1):
            if holds.items() <= states[index].items():
                return index, None
    looked_for = _NOT_WHOLE
    if source.fallback == "full":
        for index in range(len(links), -1, -1):
            label, digest = joints[index]
            offer = whole_offer(source, label, stack)
            if offer is None:
                continue
            # A tensor that nothing was promised for has the digest of none.
            if shard_digest((tensor.spec, tensor.digest or "") for tensor in offer.tensors) == digest:
                return index, offer
        places = ", ".join(f"{VERSIONS_DIRECTORY}/{label}" for label, _ in joints)
        looked_for = f"no whole snapshot that leads there is in {source.directory} ({places})"
    found_digest, found_version, different = None, None, []
    found = "this rank holds no whole weights"
    if holds is not None:
        rows = tuple(row for row in rows if row.name in holds)
        found_digest = shard_digest((row.spec, holds[row.name]) for row in rows)
        found_version = version_with_digest(root, source.rank, found_digest)
        different = [row.name for row in rows if holds[row.name] != row.base_digest]
        known = "a version unknown here" if found_version is None else f"version {found_version}"
        names = listed([repr(name) for name in different])
        found = f"this rank holds {known}, digest {found_digest} (different: {names})"
    base_version, base_digest = joints[-2]
    raise DeltaBaseError(
        f"version {last.shard.version} in {last.path} is a delta against version {base_version}, digest "
        f"{base_digest}, but {found}; {looked_for}; load a full version, or publish this one as a full one",
        version=last.shard.version,
        base_version=base_version,
        base_digest=base_digest,
        found_digest=found_digest,
        found_version=found_version,
        tensors=tuple(different),
        where=last.path,
    )


def _whole_alone(source: DeltaSource, version: str, stack: ExitStack) -> Offer:
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
    raise UnfitError(
        f"version {version} in {where} is a delta for world size {other.world_size}, and this group has "
        f"world size {ranks}: changes of one layout cannot be cut into another; {looked_for}; publish "
        f"version {version} whole, with placements or for {ranks} ranks, or start {other.world_size} ranks",
        code="delta-layout",
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


def places(source: DeltaSource, version: str) -> list[str]:
    """Return where `version` is looked for, for messages."""
    root = source.directory
    return [f"{root}/{DELTAS_DIRECTORY}/{version}", f"{root}/{VERSIONS_DIRECTORY}/{version}"]


def published_tensors(source: DeltaSource, version: str, stack: ExitStack) -> dict[str, OfferedTensor]:
    """Return the tensors of a published version, whole or with the deltas since; `stack` closes their files.

    Raises
    ------
    wsm.errors.WsmError
        As a load of that version into a target that holds nothing.
    """
    offer = stack.enter_context(Delta().open(source, version, UNOBSERVED))
    return {tensor.spec.name: tensor for tensor in offer.tensors}
