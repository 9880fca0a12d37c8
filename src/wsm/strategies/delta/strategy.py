"""The strategy ``delta``: changed elements only, on top of the version that a rank holds, or of whole files.

What the rank holds is read and compared with the base's digests before the first byte is changed, and so are
the blocks that are going to change it. It puts together what :mod:`wsm.strategies.delta._route` has found.

A target's tensors are digested before anything else happens to them, in one pass; the pass is the proof that
they are the base, whatever was recorded of them. The tensors of a whole snapshot are a base, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from wsm import log
from wsm.errors import BadInputError, InternalError, RefusedError
from wsm.strategies.applier.parallel_copy import CopyJob, copy_on_threads
from wsm.strategies.byte_copy import copy_bytes
from wsm.strategies.delta._manifest import DeltaShard, DeltaTensor
from wsm.strategies.delta._reader import OpenDelta
from wsm.strategies.delta._route import (
    Held,
    Route,
    find_route,
    links_to,
    places,
    whole_for_this_layout,
    whole_offer,
)
from wsm.strategies.delta.errors import DeltaLayoutError, delta_not_found
from wsm.strategies.delta.source import DeltaConfig, DeltaSource, codec
from wsm.strategies.errors import LoadCancelledError
from wsm.strategies.files.snapshot_names import VERSION_FILE
from wsm.strategies.observer import UNOBSERVED, LoadObserver
from wsm.strategies.offer import ManifestScope, Offer, OfferedTensor
from wsm.strategies.sections import Sections
from wsm.strategies.snapshot.store import announced_version
from wsm.strategies.strategy import Strategy
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
    threads : int
        How many may read it, the calling one included.

    Attributes
    ----------
    in_place : bool
        Whether what is read here is what is going to be written.
    """

    def __init__(self, target: WeightTarget, threads: int) -> None:
        self._target = target
        self._threads = threads
        self.in_place = not isinstance(target, ServedTarget)
        self._readable = target.served if isinstance(target, ServedTarget) else target.readable
        # What is written elsewhere and moved (device memory) is read as a copy: one tensor's at a time.
        self._copies = isinstance(target, StagedTarget)
        self._tied = tied_names(target)
        self._transposed = transposed_names(target)  # read as a copy too
        self._lock = threading.Lock()
        self._views: dict[str, tuple[memoryview, int]] = {}

    def digests(self, specs: Iterable[TensorSpec], observer: LoadObserver) -> Mapping[str, str] | None:
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
        known = self._target.specs()
        if self._tied:
            known = {**known, **{name: _named(known[own], name) for name, own in self._tied.items()}}
        wanted = [spec for spec in specs if known.get(spec.name) == spec]
        steps = _Looking(observer, tensors=len(wanted), nbytes=sum(spec.nbytes for spec in wanted))
        jobs = []
        digests: dict[str, str] = {}
        for spec in wanted:
            steps.go_on()
            try:
                view = self._view(spec)
            except RefusedError:  # released; each kind of target has an error of its own for it
                return None
            if len(view) != spec.nbytes:
                return None
            job = CopyJob(OfferedTensor(spec, "the weights that are there", _never_read), view, kept=True)
            copied = self._copies or self._tied.get(spec.name, spec.name) in self._transposed
            if copied or spec.nbytes < _SHARED_BYTES:
                job.run(steps)
                digests[spec.name] = job.digest
            else:
                jobs.append(job)
            if not copied:
                # Other threads must not ask the target, so all of its memory is known before they begin.
                self._views[spec.name] = (view, spec.nbytes)
        copy_on_threads(jobs, self._threads, steps)
        return digests | {job.tensor.spec.name: job.digest for job in jobs}

    def read(self, spec: TensorSpec, offset: int, destination: memoryview) -> None:
        """Fill `destination` from the target, unless it is the target's own memory. Blocks."""
        with self._lock:
            view, left = self._views.get(spec.name) or (self._view(spec), spec.nbytes)
            if left > len(destination):
                self._views[spec.name] = (view, left - len(destination))
            else:
                self._views.pop(spec.name, None)
        source = view[offset : offset + len(destination)]
        if not codec().same_memory(source, destination):
            copy_bytes(source, destination)

    def let_go(self) -> None:
        """Hold on to no memory of the target any longer: it may be released now. Idempotent."""
        self._views.clear()

    def _view(self, spec: TensorSpec) -> memoryview:
        return self._readable(self._tied.get(spec.name, spec.name)) if spec.nbytes else memoryview(b"")


class _Looking:
    """A look at a target that takes long: shows that it goes on, and ends where it is no longer wanted."""

    def __init__(self, observer: LoadObserver, *, tensors: int, nbytes: int) -> None:
        self._observer = observer
        self._tensors = tensors
        self._nbytes = nbytes

    def go_on(self) -> None:
        if self._observer.cancelled():
            raise LoadCancelledError(tensors_applied=0, tensors=self._tensors)

    def moved(self, _nbytes: int) -> None:
        self._observer.progress(0, self._nbytes)


def _named(spec: TensorSpec, name: str) -> TensorSpec:
    return TensorSpec(name, spec.dtype, spec.shape)


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
        return self._open(source, version, observer, TargetBase(target, threads))

    @contextmanager
    def preview(self, source: DeltaSource, version: str | None) -> Iterator[Offer]:
        """Open to look only: names, dtypes and shapes, whatever base a rank holds."""
        with ExitStack() as stack:
            label = _label(source, version)
            try:
                links = links_to(replace(source, max_chain=1), label, stack)
            except DeltaLayoutError as error:
                yield whole_for_this_layout(source, error, stack)
                return
            if links:
                yield _offer(Route(links, None, links[-1]), None)
                return
            whole = whole_offer(source, label, stack)
            if whole is None:
                raise _nothing(source, label)
            yield whole

    @contextmanager
    def _open(
        self, source: DeltaSource, version: str | None, observer: LoadObserver, base: TargetBase | None
    ) -> Iterator[Offer]:
        label = _label(source, version)

        def held(shard: DeltaShard) -> Held:
            return None if base is None else base.digests([row.spec for row in shard.tensors], observer)

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
    if version is not None:
        return version
    announced = announced_version(source.directory) or published_last(source.directory, deltas=True)
    if announced is None:
        raise _nothing(source, None)
    return announced


def _nothing(source: DeltaSource, version: str | None) -> BadInputError:
    looked_at = [f"{source.directory}/{VERSION_FILE}"] if version is None else places(source, version)
    return delta_not_found(version=version, rank=source.rank, looked_at=looked_at)


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
