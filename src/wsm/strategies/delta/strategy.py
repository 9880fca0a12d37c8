"""The strategy ``delta``: changed elements only, on top of the version that a rank holds, or of whole files.

What the rank holds is read and compared with the base's digests before the first byte is changed, and so are
the blocks that are going to change it. It puts together what :mod:`wsm.strategies.delta._route` has found.

A target's tensors are digested before anything else happens to them, in one pass; the pass is the proof that
they are the base, whatever was recorded of them. The tensors of a whole snapshot are a base, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from wsm import log
from wsm.errors import InternalError, RefusedError
from wsm.strategies.applier.tensor_copy import CopyJob, copy_on_threads
from wsm.strategies.byte_copy import copy_bytes
from wsm.strategies.delta._manifest import DeltaShard, DeltaTensor
from wsm.strategies.delta._route import (
    Held,
    OpenDelta,
    Route,
    find_route,
    links_to,
    whole_alone,
)
from wsm.strategies.delta.errors import delta_not_found
from wsm.strategies.delta.source import DeltaConfig, DeltaSource, codec
from wsm.strategies.files.snapshot_names import VERSION_FILE
from wsm.strategies.observer import UNOBSERVED, LoadObserver
from wsm.strategies.offer import ManifestScope, Offer, OfferedTensor
from wsm.strategies.snapshot.store import announced_version
from wsm.strategies.strategy import Sections, Strategy
from wsm.strategies.tensor import (
    ServedTarget,
    StagedTarget,
    TensorSpec,
    WeightTarget,
    tied_names,
    transposed_names,
)
from wsm.strategies.trainer.publications import published_last

_Read: TypeAlias = Callable[[int, memoryview], None]
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
        for spec in wanted:
            self.go_on()
            try:
                view = self._view(spec)
            except RefusedError:  # released; each kind of target has an error of its own for it
                return None
            if len(view) != spec.nbytes:
                return None
            job = CopyJob(OfferedTensor(spec, "the weights that are there", _never_read), view, kept=True)
            copied = self._copies or self._tied.get(spec.name, spec.name) in self._transposed
            if copied or spec.nbytes < _SHARED_BYTES:
                job.run(self)
                digests[spec.name] = job.digest
            else:
                jobs.append(job)
            if not copied:
                # Other threads must not ask the target, so all of its memory is known before they begin.
                self._views[spec.name] = view
        copy_on_threads(jobs, self._threads, self)
        return digests | {job.tensor.spec.name: job.digest for job in jobs}

    def read(self, spec: TensorSpec, offset: int, destination: memoryview) -> None:
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

    def moved(self, nbytes: int) -> None:  # noqa: ARG002 - of the protocol
        """Show that a look goes on."""
        self._observer.progress(0, self._nbytes)

    def _view(self, spec: TensorSpec) -> memoryview:
        return self._readable(self._tied.get(spec.name, spec.name)) if spec.nbytes else memoryview(b"")


def _never_read(_offset: int, _destination: memoryview) -> None:
    raise InternalError("what is only looked at was read")


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
        return self._open(source, version, observer, None)

    def open_over(
        self,
        source: DeltaSource,
        version: str | None,
        observer: LoadObserver,
        target: WeightTarget,
        threads: int,
    ) -> AbstractContextManager[Offer]:
        """Open for a target, which may hold the base. Blocks as long as a read of it, and of the deltas.

        Parameters
        ----------
        source : DeltaSource
            Where to look.
        version : str or None
            The version that it must lead to; None for the one that ``version.yaml`` announces.
        observer : LoadObserver
            Asked for cancellation while the target is read.
        target : WeightTarget
            What is going to be written; it is only read here.
        threads : int
            How many may read it, the calling one included.

        Raises
        ------
        wsm.strategies.delta.errors.DeltaBaseError
            If it does not hold the base, and no whole files are there or allowed.
        wsm.strategies.errors.BadInputError
            If there is nothing, or it is damaged. Nothing was changed.
        """
        return self._open(source, version, observer, TargetBase(target, observer, threads))

    @contextmanager
    def preview(self, source: DeltaSource, version: str | None) -> Iterator[Offer]:
        """Open to look only: names, dtypes and shapes, whatever base a rank holds."""
        with ExitStack() as stack:
            label = _label(source, version)
            links = links_to(replace(source, max_chain=1), label, stack)
            if links:
                yield _offer(Route(links, None, links[-1]), None)
            else:
                yield whole_alone(source, label, stack)

    @contextmanager
    def _open(
        self, source: DeltaSource, version: str | None, observer: LoadObserver, base: TargetBase | None
    ) -> Iterator[Offer]:
        label = _label(source, version)

        def held(shard: DeltaShard) -> Held:
            return None if base is None else base.digests(row.spec for row in shard.tensors)

        with ExitStack() as stack:
            if base is not None:
                stack.callback(base.let_go)
            route = find_route(source, label, stack, held)
            for link in route.links:
                link.verify(observer)
            _log.info(
                "delta.route",
                version=label,
                rank=source.rank,
                deltas=[link.shard.version for link in route.links],
                delta_bytes=sum(link.shard.nbytes for link in route.links),
                whole=None if route.whole is None else route.whole.version,
            )
            yield _offer(route, base)


def _label(source: DeltaSource, version: str | None) -> str:
    label = version or announced_version(source.directory) or published_last(source.directory, deltas=True)
    if label is None:
        looked_at = [f"{source.directory}/{VERSION_FILE}"]
        raise delta_not_found(version=None, rank=source.rank, looked_at=looked_at)
    return label


def _offer(route: Route, held: TargetBase | None) -> Offer:
    """Put the links of a route on top of what it begins with."""
    whole, last = route.whole, route.last
    if last is None:
        if whole is None:
            raise InternalError("a route begins nowhere and has no delta")
        return whole
    manifest, shard = last.manifest, last.shard
    begun = {} if whole is None else {tensor.spec.name: tensor for tensor in whole.tensors}
    if whole is not None and not route.links:
        # The ranks of a group compare manifests: all say that of the delta, whichever way they have come.
        tensors = [replace(tensor, finite=tensor.finite or shard.finite) for tensor in whole.tensors]
        digest, publication = manifest.group_digest, manifest.publication
        return replace(whole, tensors=tuple(tensors), manifest_digest=digest, publication=publication)

    def tensor_of(row: DeltaTensor) -> OfferedTensor:
        base: _Read | None = None
        if whole is not None:
            base = begun[row.name].read_into
        elif held is not None:
            base = partial(held.read, row.spec)
        changed = any(link.rows[row.name].blocks for link in route.links)
        return OfferedTensor(
            row.spec,
            last.path,
            partial(_read, row.name, route.links, base),
            row.digest,
            piece_bytes=shard.block_bytes,
            stands=whole is None and held is not None and held.in_place and not changed,
            finite=shard.finite,
        )

    return Offer(
        version=shard.version,
        tensors=tuple(map(tensor_of, shard.tensors)),
        files=(*(() if whole is None else whole.files), *(link.path for link in route.links or (last,))),
        manifest_digest=manifest.group_digest,
        manifest_scope=ManifestScope.GROUP,
        publication=manifest.publication,
        peak_extra_bytes=3 * shard.block_bytes,
        parallel=True,
    )


def _read(
    name: str, links: Sequence[OpenDelta], base: _Read | None, offset: int, destination: memoryview
) -> None:
    """Fill `destination` with the base's bytes, or the last that stand in a delta whole; then the changes."""
    whole = [index for index, link in enumerate(links) if link.replaces(name, offset, len(destination))]
    if not whole:
        if base is None:
            raise InternalError(f"{name!r} was only to be looked at and is read")
        base(offset, destination)
    for link in links[whole[-1] if whole else 0 :]:
        link.patch(name, offset, destination)


def published_tensors(source: DeltaSource, version: str, stack: ExitStack) -> dict[str, OfferedTensor]:
    """Return the tensors of a published version, whole or with the deltas since; `stack` closes their files.

    Raises
    ------
    wsm.errors.WsmError
        As a load of that version into a target that holds nothing.
    """
    offer = stack.enter_context(Delta().open(source, version, UNOBSERVED))
    return {tensor.spec.name: tensor for tensor in offer.tensors}
