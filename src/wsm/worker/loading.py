"""How one rank loads: from a configuration to its source, and to what loads and finds a version.

Responsible for making each source once, for fitting a strategy's arguments and report to what actions expect,
for keeping published versions that are loaded again, and for writing down what was verified. It knows
strategies and actions, no words and no states.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Protocol, runtime_checkable

from wsm import log
from wsm.actions import measuring
from wsm.actions.backends.paddle_memory import available_bytes
from wsm.actions.base import ActionContext, Loaded, LoadFunction
from wsm.actions.measuring import resident_digest, resident_tensors
from wsm.actions.options import PlanOptions
from wsm.actions.surfaces import AvailableMemory
from wsm.command import CommandArguments, partial_update_refused
from wsm.config import WsmConfig
from wsm.errors import WsmError
from wsm.labels import is_unnamed, recorded_version
from wsm.states.vocabulary import UnknownTensors
from wsm.strategies import errors
from wsm.strategies.applier.admission import MemoryNeed
from wsm.strategies.applier.coverage import EVERY_NAME
from wsm.strategies.applier.loaders import ModelLoader
from wsm.strategies.applier.parallel_copy import default_threads
from wsm.strategies.applier.tensor_ledger import TensorLedger
from wsm.strategies.checkpoint_models import CheckpointModel
from wsm.strategies.errors import LoadCancelledError, listed
from wsm.strategies.files.file_looks import look_at
from wsm.strategies.load import LoadReport, inspect, load
from wsm.strategies.registry import strategy_called
from wsm.strategies.sections import Sections
from wsm.strategies.snapshot.version_pins import VersionPins
from wsm.strategies.tensor import WeightTarget
from wsm.strategies.training_names import TrainingNames
from wsm.strategies.training_names_file import names_from_files
from wsm.worker._command import Find, Found
from wsm.worker.errors import (
    part_base,
    restored_otherwise,
    unversioned_weights,
)

_log = log.logger("worker")


@runtime_checkable
class LoadingRunner(Protocol):
    """What a runner implements besides, whose models take a checkpoint's tensors by loaders of their own."""

    def loaders(self) -> Sequence[ModelLoader | CheckpointModel]:
        """Return the main model's, then those of the auxiliary models; known without any memory held."""
        ...


@runtime_checkable
class RenamingRunner(Protocol):
    """What a runner implements besides, whose trainer has names of its own for the model's tensors."""

    def training_names(self) -> TrainingNames:
        """Return the map from those names to the model's."""
        ...


def load_function(sources: Sources) -> LoadFunction:
    """Return ``load(context, target) -> Loaded`` for the configured strategy."""
    strategy = sources.strategy

    def load_version(context: ActionContext, target: WeightTarget) -> Loaded:
        source = sources.asked_for(context.rank, context)
        if context.partial and (not context.from_normal or context.weights_touched):
            raise partial_update_refused(why=f"rank {context.rank} holds none that serve")
        context.look_again()  # before the first byte is touched
        version = _wanted(context.version, source, strategy)
        ignores = sources.ignores_unknown(context.unknown_tensors)

        def brought(version: str, *, a_part: bool) -> LoadReport:
            report = load(
                source,
                target,
                name=strategy,
                version=None if is_unnamed(version) else version,
                progress=lambda _done, _total: context.progress(),
                cancelled=context.cancelled,
                loaders=_loaders(context.runner),
                names=sources.names or _names(context.runner),
                threads=sources.threads,
                partial=a_part,
                allowed_unknown=EVERY_NAME if ignores else (),
                admit=lambda need: _admit(need, context),
            )
            return _as_looked_at(report, version, context)

        under = [
            _base(context, base, partial(brought, a_part=place > 0))
            for place, base in enumerate(context.bases)
        ]
        report = brought(version, a_part=context.partial or bool(under))
        if under and context.promised_digest not in (None, report.digest):
            raise restored_otherwise(
                version=context.version,
                bases=context.bases,
                digest=report.digest,
                promised=context.promised_digest or "",
            )
        each = (*under, report)
        _say_what_was_ignored(report)
        return Loaded(
            version=report.version or version,
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
            verified_tensors=0 if is_unnamed(version) else report.verified,
            unknown_tensors=len(report.unknown) if ignores else None,
            through_models=report.through_models or None,
            auxiliary_tensors=report.auxiliary or None,
        )

    return load_version


def _say_what_was_ignored(report: LoadReport) -> None:
    if report.unknown:
        _log.info(log.TENSORS_IGNORED, version=report.version, tensors=listed(report.unknown))


def _loaders(runner: object) -> Sequence[ModelLoader | CheckpointModel]:
    """Return the loaders of a :class:`LoadingRunner`; none of another runner."""
    loaders = getattr(runner, "loaders", None)
    return () if loaders is None else tuple(loaders())


def _names(runner: object) -> TrainingNames | None:
    """Return the map of a :class:`RenamingRunner`; None of another runner."""
    return runner.training_names() if isinstance(runner, RenamingRunner) else None


def _base(context: ActionContext, base: str, brought: Callable[[str], LoadReport]) -> LoadReport:
    """Load what the version is put on; say of a failure that it is not the version's own."""
    try:
        return brought(base)
    except LoadCancelledError:
        raise
    except WsmError as error:
        raise part_base(version=context.version, base=base, cause=str(error)) from error


def _as_looked_at(report: LoadReport, version: str, context: ActionContext) -> LoadReport:
    """Return the report; refuse what names no version and is not what this rank has looked at."""
    others = sorted(set(report.files).symmetric_difference(context.looked))
    if not is_unnamed(version) or (report.version is None and not others):
        return report
    found = f"says version {report.version}" if report.version is not None else "came or went"
    raise errors.source_changed(
        version=context.version or "",
        file=(others or report.files)[0],
        found=found,
        touched=context.weights_touched,
    )


def find_function(sources: Sources) -> Find:
    """Return what finds the version that a rank's source announces, and looks at its files if that is none.

    Raises (when it is called) BadInputError (``unversioned-weights``) if nothing there says which
    version it is, and the configuration refuses that; and other errors of
    :func:`wsm.strategies.load.inspect`.
    """

    def find(rank: int, asked: CommandArguments) -> Found:
        preview = inspect(sources.asked_for(rank, asked), name=sources.strategy)
        if preview.version is not None:
            return Found(preview.version)
        if not sources.loads_unversioned:
            raise unversioned_weights(strategy=sources.strategy, files=preview.files)
        return Found(None, look_at(preview.files))

    return find


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


def _wanted(asked: str | None, source: object, strategy: str) -> str:
    """Return the version that was asked for, or is announced; refuse weights that have neither."""
    if asked is not None:
        return recorded_version(asked)
    preview = inspect(source, name=strategy)
    if preview.version is None:
        raise unversioned_weights(strategy=strategy, files=preview.files)
    return preview.version


class Sources:
    """The sources of one worker process, each made once: some keep a connection between loads.

    Parameters
    ----------
    config : WsmConfig
        The group's configuration.

    Raises
    ------
    wsm.errors.WsmError
        If there is no such strategy (:func:`wsm.strategies.registry.strategy_called`), or no load could use
        what the configuration says to it: now, not at the first update.
    """

    def __init__(self, config: WsmConfig) -> None:
        self._config = config
        self._strategy = strategy_called(config.strategy)
        self._sections = config.strategy_sections()
        self._made: dict[tuple[int, str | None], tuple[Sections, object]] = {}
        self._strategy.check(self._sections)
        #: What the trainer calls the model's tensors, where the configuration says it.
        self.names = names_from_files(config.training_names, config.names_to_training)

    @property
    def strategy(self) -> str:
        """The strategy that loads from these sources."""
        return self._config.strategy

    def ignores_unknown(self, asked: UnknownTensors | None) -> bool:
        """Whether tensors that the model does not have are left out, by the command or the configuration."""
        return (asked or UnknownTensors(self._config.unknown_tensors)) is UnknownTensors.IGNORE

    @property
    def loads_unversioned(self) -> bool:
        """Whether weights are loaded that name no version."""
        return self._config.unversioned == "load"

    @property
    def rereadable(self) -> bool:
        """Whether they may be read whole by others than the ranks, which notice nothing."""
        return self._strategy.rereadable

    @property
    def threads(self) -> int:
        """How many threads of a rank copy and digest; all ranks load at the same time, on this host."""
        return self._config.load_threads or default_threads(self._config.ranks)

    def asked_for(self, rank: int, asked: CommandArguments | ActionContext) -> object:
        """Return where `rank` loads from by what a command says of its transfer; raises as :meth:`of`."""
        return self.of(
            rank,
            asked.transfer_mode and asked.transfer_mode.value,
            verify_checksum=asked.verify_checksum,
            rsync_config=asked.rsync_config,
        )

    def of(
        self,
        rank: int,
        mode: str | None = None,
        *,
        verify_checksum: bool | None = None,
        rsync_config: Mapping[str, Any] | None = None,
    ) -> object:
        """Return where `rank` loads from, as a command asked for it; None: as configured.

        One source for each rank and mode is kept: another takes its place where a command says something else
        of its transfer than the one before.

        Raises
        ------
        RefusedError
            If the strategy has no such mode or option, or it is not available here.
        """
        asked = self._strategy.as_asked(self._sections, verify_checksum=None, rsync_config=rsync_config)
        usual = self._strategy.default_mode(asked)
        if mode is not None and usual is None:
            problem = f"the strategy {self.strategy} has no transfer modes"
            raise errors.transfer_mode_unavailable(mode=mode, problem=problem, available=())
        used = mode or usual
        sections = self._sections if used is None else self._strategy.in_mode(self._sections, used)
        sections = self._strategy.as_asked(
            sections, verify_checksum=verify_checksum, rsync_config=rsync_config
        )
        found = self._made.get((rank, used))
        if found is not None and found[0] == sections:
            return found[1]
        if found is not None:
            del self._made[rank, used]
            self._strategy.close(found[1])
        self._made[rank, used] = sections, self._strategy.source(sections, rank, self._config.ranks)
        return self._made[rank, used][1]

    def close(self) -> None:
        """Let every connection go, also where one of them fails to. Idempotent."""
        with ExitStack() as closing:
            for _, source in self._made.values():
                closing.callback(self._strategy.close, source)
            self._made.clear()


def pins_for(config: WsmConfig) -> VersionPins:
    """Return what keeps published versions that a group may have to load again.

    Raises
    ------
    wsm.errors.WsmError
        If there is no such strategy, as :func:`wsm.strategies.registry.strategy_called`.
    """
    return VersionPins(strategy_called(config.strategy).retired_from(config.strategy_sections()))


def keeping_tensors(options: PlanOptions, directory: str | None, rank: int) -> PlanOptions:
    """Return options whose verification leaves the digest of every tensor in `directory`."""
    if directory is None or options.resident_digest is not resident_digest:
        return options

    ledger = TensorLedger(directory, rank)

    def digest(weights: WeightTarget, progress: Callable[[], None]) -> str:
        return ledger.keep(resident_tensors(weights, progress))

    return dataclasses.replace(options, resident_digest=digest)
