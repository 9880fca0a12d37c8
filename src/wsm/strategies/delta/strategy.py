"""The strategy ``delta``: changed elements only, on top of the version that a rank holds, or of whole files.

What the rank holds is read and compared with the base's digests before the first byte is changed, and so are
the blocks that are going to change it. It puts together what :mod:`wsm.strategies.delta.route` has found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial

from wsm import log
from wsm.errors import BadInputError, InternalError
from wsm.strategies.delta import errors as delta_errors
from wsm.strategies.delta.base import BaseTensors, SnapshotBase, TargetBase
from wsm.strategies.delta.errors import DeltaLayoutError
from wsm.strategies.delta.reader import OpenDelta
from wsm.strategies.delta.route import (
    Held,
    Route,
    find_route,
    links_to,
    places,
    whole_for_this_layout,
    whole_offer,
)
from wsm.strategies.delta.shard import DeltaShard, DeltaTensor
from wsm.strategies.delta.source import DeltaConfig, DeltaSource
from wsm.strategies.files.snapshot_names import VERSION_FILE
from wsm.strategies.observer import UNOBSERVED, LoadObserver
from wsm.strategies.offer import ManifestScope, Offer, OfferedTensor
from wsm.strategies.sections import Sections
from wsm.strategies.snapshot.lookup import announced_version
from wsm.strategies.strategy import Strategy
from wsm.strategies.tensor import WeightTarget
from wsm.strategies.trainer.publications import published_last

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
                log.DELTA_ROUTE,
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
    return delta_errors.delta_not_found(version=version, rank=source.rank, looked_at=looked_at)


def _offer(route: Route, held: TargetBase | None) -> Offer:
    """Put the links of a route on top of what it begins with."""
    whole, last = route.whole, route.last
    if whole is not None and (last is None or not route.links):
        # The ranks of a group compare manifests: all say that of the delta, whichever way they have come.
        return whole if last is None else _as_promised(whole, last)
    if last is None:
        raise InternalError("a route begins nowhere and has no delta")
    base = held if whole is None else SnapshotBase(whole.tensors)
    begun = () if whole is None else whole.files
    return Offer(
        version=last.shard.version,
        tensors=tuple(_tensor(row, route.links, base, last) for row in last.shard.tensors),
        files=(*begun, *(link.path for link in route.links or (last,))),
        manifest_digest=last.manifest.digest,
        manifest_scope=ManifestScope.GROUP,
        peak_extra_bytes=3 * last.shard.block_bytes,
        parallel=True,
    )


def _as_promised(whole: Offer, last: OpenDelta) -> Offer:
    """Offer whole files under the manifest of the delta to their version, with what that promises."""
    tensors = whole.tensors
    if last.shard.finite:
        tensors = tuple(replace(tensor, finite=True) for tensor in tensors)
    return replace(whole, tensors=tensors, manifest_digest=last.manifest.digest)


def _tensor(
    row: DeltaTensor, links: Sequence[OpenDelta], base: BaseTensors | None, last: OpenDelta
) -> OfferedTensor:
    in_place = isinstance(base, TargetBase) and base.in_place
    return OfferedTensor(
        row.spec,
        last.path,
        partial(_read, row, links, base),
        row.digest,
        piece_bytes=last.shard.block_bytes,
        stands=in_place and not any(link.rows[row.spec.name].blocks for link in links),
        finite=last.shard.finite,
    )


def _read(
    row: DeltaTensor,
    links: Sequence[OpenDelta],
    base: BaseTensors | None,
    offset: int,
    destination: memoryview,
) -> None:
    begin = next(
        (
            index
            for index in range(len(links) - 1, -1, -1)
            if links[index].replaces(row.spec.name, offset, len(destination))
        ),
        -1,
    )
    if begin < 0:
        if base is None:
            raise InternalError(f"{row.spec.name!r} was only to be looked at and is read")
        base.read(row.spec, offset, destination)
    for link in links[max(begin, 0) :]:
        link.patch(row.spec.name, offset, destination)


def published_tensors(source: DeltaSource, version: str, stack: ExitStack) -> dict[str, OfferedTensor]:
    """Return the tensors of a published version, whole or with the deltas since; `stack` closes their files.

    Raises
    ------
    wsm.errors.WsmError
        As a load of that version into a target that holds nothing.
    """
    offer = stack.enter_context(Delta().open(source, version, UNOBSERVED))
    return {tensor.spec.name: tensor for tensor in offer.tensors}
