"""From a worker's sources to what loads a version and finds the announced one.

Responsible for fitting a strategy's arguments and report to what actions expect. It knows strategies
and actions, no words and no states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, runtime_checkable

from wsm.actions import measuring
from wsm.actions.backends.paddle_memory import available_bytes
from wsm.actions.base import ActionContext, Loaded, LoadFunction
from wsm.actions.surfaces import AvailableMemory
from wsm.command import partial_update_refused
from wsm.errors import WsmError
from wsm.strategies.applier.admission import MemoryNeed
from wsm.strategies.applier.loaders import ModelLoader
from wsm.strategies.errors import LoadCancelledError
from wsm.strategies.files.version_file import MAX_VERSION
from wsm.strategies.load import LoadReport, inspect, load
from wsm.strategies.tensor import WeightTarget
from wsm.worker.announced import FINDER, Find
from wsm.worker.errors import (
    OtherVersionError,
    PartBaseError,
    RestoredOtherwiseError,
    UnversionedWeightsError,
)
from wsm.worker.execution import Load
from wsm.worker.sources import Sources


@runtime_checkable
class LoadingRunner(Protocol):
    """What a runner implements besides, whose models take a checkpoint's tensors by loaders of their own."""

    def loaders(self) -> Sequence[ModelLoader]:
        """Return the main model's, then those of the auxiliary models; known without any memory held."""
        ...


def load_function(sources: Sources) -> LoadFunction:
    """Return ``load(context, target) -> Loaded`` for the configured strategy."""
    strategy = sources.strategy

    def load_version(context: ActionContext, target: WeightTarget) -> Loaded:
        source = sources.of(context.rank, context.transfer_mode and context.transfer_mode.value)
        if context.partial and (not context.from_normal or context.weights_touched):
            raise partial_update_refused(why=f"rank {context.rank} holds none that serve")
        if context.version is None:
            _announced(source, strategy)

        def brought(version: int | None, *, a_part: bool) -> LoadReport:
            return load(
                source,
                target,
                name=strategy,
                version=version,
                progress=lambda _done, _total: context.progress(),
                cancelled=context.cancelled,
                loaders=_loaders(context.runner),
                threads=sources.threads,
                partial=a_part,
                admit=lambda need: _admit(need, context),
            )

        under = [
            _base(context, base, partial(brought, a_part=place > 0))
            for place, base in enumerate(context.bases)
        ]
        report = brought(context.version, a_part=context.partial or bool(under))
        if under and context.promised_digest not in (None, report.digest):
            raise RestoredOtherwiseError(
                version=report.version,
                bases=context.bases,
                digest=report.digest,
                promised=context.promised_digest or "",
            )
        each = (*under, report)
        return Loaded(
            version=report.version if report.version is not None else context.version,
            manifest_digest=report.manifest_digest,
            manifest_scope=report.manifest_scope.value,
            digest=report.digest,
            bytes=sum(one.bytes for one in each),
            tensors=max(one.tensors for one in each),
            files=[file for one in each for file in one.files],
            load_s=sum(one.seconds for one in each),
            sync_s=sum(one.sync_s for one in each),
            apply_s=sum(one.apply_s for one in each),
            peak_extra_bytes=max(one.peak_extra_bytes for one in each),
            adopted_bytes=report.adopted_bytes,
            partial=report.partial,
            kept_tensors=len(report.missing),
            not_loaded=list(report.missing),
        )

    return load_version


def _loaders(runner: object) -> Sequence[ModelLoader]:
    """Return the loaders of a :class:`LoadingRunner`; none of another runner."""
    loaders = getattr(runner, "loaders", None)
    return () if loaders is None else tuple(loaders())


def _base(context: ActionContext, base: int, brought: Callable[[int], LoadReport]) -> LoadReport:
    """Load what the version is put on; say of a failure that it is not the version's own."""
    try:
        return brought(base)
    except LoadCancelledError:
        raise
    except WsmError as error:
        raise PartBaseError(version=context.version, base=base, cause=str(error)) from error


def find_function(sources: Sources) -> Find:
    """Return what finds the announced version, as rank 0 does for the whole group.

    Raises (when it is called) :class:`wsm.worker.errors.UnversionedWeightsError` if nothing there says which
    version it is, and other errors of :func:`wsm.strategies.load.inspect`.
    """
    return lambda: _announced(sources.of(FINDER), sources.strategy)


def proven(load_version: LoadFunction) -> Load:
    """Return `load_version`, held to what it says: the version that was asked for, or a version at all.

    Everything later (the agreement of the ranks, the committed word, the receipt, the version of each
    token) goes by what was said here, so a loader that brings something else must not get as far as PREPARED.
    """

    def load_and_check(context: ActionContext, target: WeightTarget) -> Mapping[str, Any]:
        loaded = Loaded.of(load_version(context, target))
        said, asked = loaded.version, context.version
        if type(said) is not int or not 0 <= said <= MAX_VERSION or asked not in (None, said):
            raise OtherVersionError(rank=context.rank, asked=asked, said=said)
        return loaded.facts()

    return load_and_check


def _admit(need: MemoryNeed, context: ActionContext) -> None:
    """Refuse a load that cannot fit; each rank speaks for itself, as its neighbours may have begun before.

    A device's memory is not the host's, which what is moved there passes through.
    """
    memory = context.runner.memory
    available = measuring.available_bytes(context)
    if isinstance(memory, AvailableMemory) and not memory.shared_by_ranks:
        need.fits(host=available_bytes(), device=available)
    else:
        need.fits(host=available)


def _announced(source: object, strategy: str) -> int:
    """Refuse weights that nobody can name, before the first byte of them is applied."""
    preview = inspect(source, name=strategy)
    if preview.version is None:
        raise UnversionedWeightsError(strategy=strategy, files=preview.files)
    return preview.version
