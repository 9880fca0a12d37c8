"""From a command's words and arguments to the work that it means on this rank.

Refuses what this rank cannot even begin. Knows where arguments stand, and runs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from wsm.actions.base import ActionContext, Plans
from wsm.actions.surfaces import Runner
from wsm.clock import Clock
from wsm.command import (
    ARGUMENTS_KIND,
    CommandArguments,
    CommandArgumentsError,
    part_not_restorable,
    partial_update_refused,
    version_held,
)
from wsm.commit_report import commit_report
from wsm.report import RankReport
from wsm.states.command_events import Request
from wsm.states.machine import LifeCycle
from wsm.states.rank_state import RankState
from wsm.states.vocabulary import ALL_TAGS, KVState, Tag, WeightState
from wsm.states.words import Operation
from wsm.strategies.snapshot.version_pins import VersionPins
from wsm.strategies.tensor import WeightTarget
from wsm.worker.announced import AnnouncedVersion
from wsm.worker.errors import StepBrokenError
from wsm.worker.execution import Execution, Load
from wsm.worker.group_words import GroupWords
from wsm.worker.holding import Holding
from wsm.worker.hot_execution import HotExecution
from wsm.worker.recording import Recorder
from wsm.worker.stager import Stager
from wsm.worker.watch import ActionWatch

_REQUESTS = {
    Operation.CLEAR: Request.CLEAR,
    Operation.UPDATE: Request.UPDATE,
    Operation.HOT_UPDATE: Request.HOT_UPDATE,
}

#: The most versions that a part may be put on: each is pinned, which takes a descriptor.
MAX_BASES = 64

#: How long a command waits for memory that a hot update is about to let go, in seconds.
_REST_S = 1.0


class ExecutionFactory:
    """Makes the executions of one rank.

    Parameters
    ----------
    words : GroupWords
        The segment, seen by this rank.
    runner : Runner
        The engine's surfaces.
    plans : Plans
        Of this engine.
    load : callable
        What a load action loads with.
    life : LifeCycle
        This rank's state machines.
    clock : Clock
        For the seconds in reports.
    recorder : Recorder
        Journal and log.
    announced : AnnouncedVersion
        What an update means that names no version.
    watch : ActionWatch
        Told which action this rank is inside of.
    stagers : callable
        Makes the thread of a rank's hot update.
    holding : Holding or None
        What this rank holds between commands; None: nothing yet.
    facts : mapping or None
        What every report of this participant says besides.
    pins : VersionPins or None
        Keeps a version from the moment when a command names it; None: of what nobody publishes.

    Attributes
    ----------
    booted : bool
        Whether weights were committed in this epoch already. A commit is the group's, so this is the same on
        every rank, and so is what follows from it.
    """

    def __init__(
        self,
        *,
        words: GroupWords,
        runner: Runner,
        plans: Plans,
        load: Load,
        life: LifeCycle,
        clock: Clock,
        recorder: Recorder,
        announced: AnnouncedVersion,
        watch: ActionWatch,
        stagers: Callable[[int], Stager] = Stager,
        holding: Holding | None = None,
        facts: Mapping[str, Any] | None = None,
        pins: VersionPins | None = None,
    ) -> None:
        self.pins = pins or VersionPins(None)
        self._facts = dict(facts or {})
        self.holding = holding or Holding()
        self._words = words
        self._runner = runner
        self._plans = plans
        self._load = load
        self._life = life
        self._clock = clock
        self._recorder = recorder
        self._announced = announced
        self._watch = watch
        self.booted = False
        self._stagers = stagers
        self._staging: tuple[Stager, ...] = ()

    def may_begin(self, state: RankState) -> bytes | None:
        """Return the arguments of the command at hand; None while what it means cannot be known (yet)."""
        slot = self._words.segment.arguments(state.sequence)
        data = slot.read(state.epoch, state.sequence, ARGUMENTS_KIND)
        if data is None or state.operation is Operation.CLEAR or self._announced.is_known(state):
            return data
        try:
            arguments = CommandArguments.from_bytes(data)
        except CommandArgumentsError:
            return data  # to be refused by whoever begins it
        return None if arguments.version is None and Tag.WEIGHTS in arguments.tags else data

    def commanded(self, state: RankState, data: bytes) -> Execution:
        """Make the work of the command at hand; on rank 0 this decides which version it means.

        Raises
        ------
        wsm.command.CommandArgumentsError, StepBrokenError
            If this rank cannot begin it. Nothing was changed.
        wsm.errors.WsmError
            If it names no version and none is announced. Nothing was changed.
        RefusedError
            If it restores a part, and nobody kept what that was put on. Nothing was changed.
        RefusedError
            If a part would be put on more parts than a rank keeps. Nothing was changed.
        RefusedError
            If the announced one is held, and nothing else is asked for that is missing.
        """
        arguments = CommandArguments.from_bytes(data)
        if state.broken:
            raise StepBrokenError(rank=state.rank, step=state.step)
        request = _REQUESTS[state.operation]
        if arguments.version is None and request is not Request.CLEAR and Tag.WEIGHTS in arguments.tags:

            def refuse_held(version: int) -> None:
                if self._holds(arguments, version):
                    raise version_held(rank=state.rank, version=version)

            version = self._announced.version(state, refuse_held)
            arguments = replace(arguments, version=version)
        if arguments.partial and len(self.holding.bases) >= MAX_BASES:
            why = f"rank {state.rank} has put {MAX_BASES} parts on a whole version already"
            raise partial_update_refused(why=why)
        restored = self._to_restore(state, arguments.version) if arguments.restores else None
        for version in (*(restored.bases if restored is not None else ()), arguments.version):
            if version is not None:
                self.pins.add(version)
        return self._make(state, request, self._narrowed(request, arguments), restored)

    def _to_restore(self, state: RankState, version: int | None) -> RankReport | None:
        """Return what was reported of the part that is to be restored; None where it is no part."""
        committed = self._words.view().committed
        report = commit_report(self._words.segment, state.rank, committed.sequence)
        if report is None or not report.bases or report.version != version:
            return None
        if not report.facts.get("restorable"):
            raise part_not_restorable(rank=state.rank, version=report.version, bases=report.bases)
        return report

    def _load_and_note(self, context: ActionContext, target: WeightTarget) -> Mapping[str, Any]:
        """Load, and say of a part what it was put on, and whether that is kept for a restore."""
        facts = self._load(context, target)
        bases = context.bases
        if context.partial:
            bases = self.holding.bases_of_part(facts.get("version"), facts.get("not_loaded"))
        if not bases:
            return facts
        return {**facts, "bases": bases, "restorable": all(self.pins.add(version) for version in bases)}

    def _holds(self, arguments: CommandArguments, version: int) -> bool:
        """Whether a command for `version` would find all that it names, as the last commit left it."""
        weights = self._life.weights is WeightState.NORMAL and version == self.holding.version
        kv = Tag.KV_CACHE not in arguments.tags or self._life.kv is KVState.NORMAL
        return weights and kv and not arguments.reload

    def _narrowed(self, request: Request, arguments: CommandArguments) -> CommandArguments:
        """Leave weights alone that are held already, where it is the KV cache that a rank lacks.

        Every rank holds the same version and was told the same one, so all of them come to the same plan.
        """
        held = self._life.weights is WeightState.NORMAL and arguments.version == self.holding.version
        lacks_kv_only = held and arguments.version is not None and self._life.kv is KVState.CLEARED
        asked = request is Request.UPDATE and arguments.tags == ALL_TAGS and not arguments.reload
        return replace(arguments, tags=frozenset({Tag.KV_CACHE})) if lacks_kv_only and asked else arguments

    def _facts_without_a_load(self) -> dict[str, Any]:
        return {"bytes": 0, "tensors": 0, **self.holding.weights, **self._facts}

    def ending(self, state: RankState) -> Execution:
        """Make what brings a rank to the group's outcome that had not begun: to keep, or to give back.

        What the others give back the arguments say; where they cannot be read, nobody knows.
        """
        slot = self._words.segment.arguments(state.sequence)
        data = slot.read(state.epoch, state.sequence, ARGUMENTS_KIND)
        try:
            asked = None if data is None else CommandArguments.from_bytes(data)
        except CommandArgumentsError:
            asked = None
        if asked is None:
            return self._make(state, Request.CLEAR, CommandArguments("unreadable", tags=frozenset()))
        tags = asked.tags if asked.clears else ALL_TAGS
        return self._make(state, Request.CLEAR, replace(asked, version=None, tags=tags))

    def leaving(self, state: RankState) -> Execution:
        """Make what gives back all that a rank holds, since its epoch has ended."""
        return self._make(state, Request.CLEAR, CommandArguments("its epoch has ended"))

    def _make(
        self,
        state: RankState,
        request: Request,
        arguments: CommandArguments,
        restored: RankReport | None = None,
    ) -> Execution:
        context = self._context(state, arguments)
        if restored is not None:
            context.bases, context.promised_digest = restored.bases, restored.digest
        common: dict[str, Any] = {
            "plans": self._plans,
            "life": self._life,
            "context": context,
            "clock": self._clock,
            "recorder": self._recorder,
            "watch": self._watch,
        }
        before = tuple(stager for stager in self._staging if not stager.rest(0))
        if request is not Request.HOT_UPDATE:
            # What a hot update replaced is to be let go by now, or measuring would still find it.
            self._staging = tuple(stager for stager in before if not stager.rest(_REST_S))
            return Execution(request, arguments, **common)
        stager = self._stagers(state.rank)
        self._staging = (*before, stager)
        # A heartbeat from another thread would hide a loop that hangs; the deadline is the loop's to see.
        context.progress = _no_progress
        context.cancelled = lambda: stager.cancelled or self._called_off(state)
        return HotExecution(stager=stager, before=before, request=request, arguments=arguments, **common)

    def _context(self, state: RankState, arguments: CommandArguments) -> ActionContext:
        return ActionContext(
            runner=self._runner,
            rank=state.rank,
            world_size=len(self._words.steps),
            epoch=state.epoch,
            sequence=state.sequence,
            version=arguments.version,
            in_flight=arguments.in_flight,
            kv_policy=arguments.kv_policy,
            transfer_mode=arguments.transfer_mode,
            from_normal=self._life.serving,
            boots=not self.booted,
            kept_digest=self.holding.kept_digest,
            partial=arguments.partial,
            # What is not loaded now is reported as it was when it was loaded.
            facts=dict(self._facts) if Tag.WEIGHTS in arguments.tags else self._facts_without_a_load(),
            load=self._load_and_note,
            progress=self._watch.check,
            cancelled=lambda: self._called_off(state),
        )

    def _called_off(self, state: RankState) -> bool:
        """Whether a load may end: the group has decided against it, or can decide nothing else any more."""
        stalled = self._watch.stalled_in(state.sequence) is not None
        return stalled or self._words.called_off(state.epoch)


def _no_progress() -> None:
    """Stand in for the heartbeat where the work is not the loop's."""
