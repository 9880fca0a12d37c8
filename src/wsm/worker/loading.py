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
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from wsm import log
from wsm.actions import measuring
from wsm.actions.backends.memory import available_bytes
from wsm.actions.base import ActionContext, Loaded
from wsm.actions.measuring import resident_digest, resident_tensors
from wsm.actions.options import PlanOptions
from wsm.actions.surfaces import AvailableMemory, Runner
from wsm.command import VERSION_GONE, CommandArguments, partial_update_refused
from wsm.config import WsmConfig
from wsm.errors import BadInputError, GroupError, NoRoomError, UnfitError, WsmError
from wsm.labels import is_unnamed, recorded_version
from wsm.printable import counted
from wsm.states.vocabulary import UnknownTensors
from wsm.strategies import errors
from wsm.strategies.applier.admission import MemoryNeed
from wsm.strategies.applier.coverage import EVERY_NAME
from wsm.strategies.applier.feeding import ModelLoader
from wsm.strategies.applier.tensor_copy import default_threads
from wsm.strategies.applier.tensor_ledger import TensorLedger
from wsm.strategies.checkpoint_models import CheckpointModel
from wsm.strategies.errors import LoadCancelledError, listed
from wsm.strategies.files.atomic_file import look_at
from wsm.strategies.files.snapshot_directory import VersionPins
from wsm.strategies.load import LoadReport, inspect, load
from wsm.strategies.registry import strategy_called
from wsm.strategies.strategy import Sections
from wsm.strategies.tensor import WeightTarget
from wsm.strategies.training_names import TrainingNames, names_from_files, stripping
from wsm.worker._command import Found

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


def _require_as_served(context: ActionContext, report: LoadReport) -> None:
    """Refuse a part that is not, on what it was put on, what was served."""
    bases, promised = context.bases, context.promised_digest
    if promised not in (None, report.digest):
        raise GroupError(
            f"version {context.version} on version {', '.join(bases)} is not what was served: digest "
            f"{report.digest} instead of {promised}; one of them was published anew: update to a "
            "whole version",
            code="restored-otherwise",
            version=context.version,
            bases=bases,
            digest=report.digest,
            promised=promised,
        )


def _loaders(runner: object) -> Sequence[ModelLoader | CheckpointModel]:
    """Return the loaders of a :class:`LoadingRunner`; none of another runner."""
    loaders = getattr(runner, "loaders", None)
    return () if loaders is None else tuple(loaders())


def _base(context: ActionContext, base: str, brought: Callable[[str], LoadReport]) -> LoadReport:
    """Load what the version is put on; say of a failure that it is not the version's own."""
    try:
        return brought(base)
    except LoadCancelledError:
        raise
    except WsmError as error:
        raise GroupError(
            f"version {context.version} is a part, put on version {base}, which cannot be loaded again: "
            f"{error}; mend that, or update to a whole version",
            code="part-base",
            version=context.version,
            base=base,
            cause=str(error),
        ) from error


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
        touched=context.done.weights_touched,
    )


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


class Sources:
    """What one worker process loads from; each source is made once, as some keep a connection between loads.

    Raises
    ------
    wsm.errors.WsmError
        If there is no such strategy (:func:`wsm.strategies.registry.strategy_called`), or no load could use
        what the configuration says to it: now, not at the first update.
    """

    def __init__(self, config: WsmConfig) -> None:
        self.config = config
        self._strategy = strategy_called(config.strategy)
        self._sections = config.strategy_sections()
        self._made: dict[tuple[int, str | None], tuple[Sections, object]] = {}
        self._strategy.check(self._sections)
        self._names = names_from_files(config.training_names, config.names_to_training)
        directory = self._strategy.retired_from(self._sections)
        #: Keeps published versions that the group may have to load again; None: none is published there.
        self.pins = None if directory is None else VersionPins(directory)

    def load(self, context: ActionContext, target: WeightTarget) -> Loaded:
        """Load the version of a command by the configured strategy: what an action calls."""
        source = self.asked_for(context.rank, context)
        if context.partial and (not context.from_normal or context.done.weights_touched):
            raise partial_update_refused(why=f"rank {context.rank} holds none that serve")
        context.look_again()  # before the first byte is touched
        version = recorded_version(context.version)
        unknown = context.unknown_tensors or UnknownTensors(self.config.unknown_tensors)
        ignores = unknown is UnknownTensors.IGNORE

        def brought(version: str, *, a_part: bool) -> LoadReport:
            report = load(
                source,
                target,
                name=self.config.strategy,
                version=None if is_unnamed(version) else version,
                progress=lambda _done, _total: context.progress(),
                cancelled=context.cancelled,
                loaders=_loaders(context.runner),
                names=self.names_for(context.runner),
                threads=self.threads,
                partial=a_part,
                allowed_unknown=EVERY_NAME if ignores else (),
                admit=lambda need: _admit(need, context),
                before=context.before,
                anew=context.anew,
            )
            return _as_looked_at(report, version, context)

        under = [
            _base(context, base, partial(brought, a_part=place > 0))
            for place, base in enumerate(context.bases)
        ]
        report = brought(version, a_part=context.partial or bool(under))
        if under:
            _require_as_served(context, report)
        each = (*under, report)
        if report.unknown:
            _log.info("tensors.ignored", version=report.version, tensors=listed(report.unknown))
        return Loaded(
            version=report.version or version,
            manifest_digest=report.manifest_digest,
            manifest_scope=report.manifest_scope.value,
            publication=report.publication,
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
            tensor_set=report.tensor_set,
            more={"streamed": True} if self.stream else {},
        )

    def find(self, rank: int, asked: CommandArguments) -> Found:
        """Find the version that a rank's source announces, and look at its files if that is none.

        Raises
        ------
        BadInputError (``unversioned-weights``)
            If nothing there says which version it is, and the configuration refuses that; besides what
            :func:`wsm.strategies.load.inspect` raises.
        """
        strategy = self.config.strategy
        preview = inspect(self.asked_for(rank, asked), name=strategy)
        if preview.version is not None:
            return Found(preview.version)
        if self.config.unversioned != "load":
            first = preview.files[0] if preview.files else "none"
            raise UnfitError(
                f"{strategy} found {len(preview.files)} file(s), first {first}: neither they nor the command "
                "name a version, and the configuration refuses that (unversioned: refuse); name one "
                "(--version), or publish with a manifest and version.yaml",
                code="unversioned-weights",
                strategy=strategy,
                files=preview.files,
            )
        return Found(None, look_at(preview.files))

    def names_for(self, runner: object) -> TrainingNames | None:
        """Return what the trainer calls the model's tensors, if the configuration or the runner says it."""
        of_runner = runner.training_names() if isinstance(runner, RenamingRunner) else None
        return stripping(self._names or of_runner, self.config.names.strip)

    @property
    def rereadable(self) -> bool:
        """Whether they may be read whole by others than the ranks, which notice nothing."""
        return self._strategy.rereadable

    def have(self, rank: int, version: str) -> bool:
        """Whether the version is there, whole or not; raises as :meth:`of`."""
        return self._why_gone(self.of(rank), version) is None

    def require(self, rank: int, asked: CommandArguments) -> None:
        """Raise why the version that a command names is not there; whether it is whole the load sees."""
        gone = self._why_gone(self.asked_for(rank, asked), asked.version)
        if gone is not None:
            raise gone

    def _why_gone(self, source: object, version: str | None) -> BadInputError | None:
        try:
            inspect(source, version, name=self.config.strategy)
        except BadInputError as error:
            return error if error.code in VERSION_GONE else None
        return None

    @property
    def stream(self) -> bool:
        """Whether a version comes once, when a sender sends it, and is kept nowhere for another load."""
        strategy = self._strategy
        return not strategy.rereadable and strategy.retired_from(self._sections) is None

    @property
    def threads(self) -> int:
        """How many threads of a rank copy and digest; all ranks load at the same time, on this host."""
        return self.config.load_threads or default_threads(self.config.ranks)

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
            problem = f"the strategy {self.config.strategy} has no transfer modes"
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
        self._made[rank, used] = sections, self._strategy.source(sections, rank, self.config.ranks)
        return self._made[rank, used][1]

    def require_room(self, runner: Runner) -> None:
        """See that what is collected in host memory fits it, for all ranks of this host. Touches nothing.

        Raises
        ------
        NoRoomError (``check-needs-memory``)
            If it does not.
        """
        if not self._strategy.collects(self._sections, loaders=bool(_loaders(runner))):
            return
        ranks, available = self.config.ranks, available_bytes()
        needed = ranks * sum(spec.nbytes for spec in runner.weights.specs().values())
        if available is not None and needed > available:
            raise NoRoomError(
                "rsync: {check: whole} collects a version in host memory before the model is touched: "
                f"{needed} bytes for {counted(ranks, 'rank')}, and {available} are available within the "
                "limits on this process; give it more, or say rsync: {check: as_it_comes}, where a stream "
                "that does not fit costs the weights",
                code="check-needs-memory",
                needed=needed,
                available=available,
                ranks=ranks,
            )

    def close(self) -> None:
        """Let every connection go, also where one of them fails to. Idempotent."""
        with ExitStack() as closing:
            if self.pins is not None:
                closing.callback(self.pins.close)
            for _, source in self._made.values():
                closing.callback(self._strategy.close, source)
            self._made.clear()


def keeping_tensors(options: PlanOptions, directory: Path | str | None, rank: int) -> PlanOptions:
    """Return options whose verification leaves the digest of every tensor in `directory`."""
    if directory is None or options.resident_digest is not resident_digest:
        return options

    ledger = TensorLedger(directory, rank)

    def digest(weights: WeightTarget, progress: Callable[[], None]) -> str:
        return ledger.keep(resident_tensors(weights, progress))

    return dataclasses.replace(options, resident_digest=digest)
