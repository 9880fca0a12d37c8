"""One command on one rank: its plan is walked, its events are fired, what it did is undone or given back.

Each action of the plan is run, measured and journalled, and can be undone. Which events a command means says
:mod:`wsm.states.command_events`, whose functions fire into :class:`RankMachines`: the live machines, with a
clock and a journal behind them. A run knows no words: the loop calls it when the protocol says so, and tells
the protocol what it returned. A hot update is another life, and a kind of its own:
:class:`wsm.worker._hot_run.HotRun`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from wsm.actions import names
from wsm.actions.base import Action, ActionContext, Plan, Plans, facts_kept_plain
from wsm.actions.surfaces import KnownSetAside
from wsm.clock import Clock
from wsm.command import ActionSeconds, CommandArguments, RankReport
from wsm.errors import InternalError, RefusedError
from wsm.journal import entry as kinds
from wsm.states import command_events
from wsm.states.command_events import Asked, CacheChange, Machines, WayOut
from wsm.states.holding import event_to, held_after, in_flight_objection
from wsm.states.joint import JointState
from wsm.states.machine import LifeCycle
from wsm.states.phases import Event
from wsm.states.table import Event as StateEvent
from wsm.states.vocabulary import InFlightPolicy, KVPolicy, Tag, WeightState
from wsm.states.words import Operation
from wsm.worker._watchdog import ActionWatch
from wsm.worker.recording import Recorder

_NOTHING = Plan(key=None, actions=())

_CACHE_CHANGES = {
    names.RELEASE_KV_CACHE: CacheChange.RELEASED,
    names.REBUILD_KV_CACHE: CacheChange.READY,
    names.FORGET_KV_CACHE: CacheChange.READY,
}
_LOADS = (names.LOAD_WEIGHTS, names.STAGE_WEIGHTS)


class RankTools(NamedTuple):
    """What a rank brings to every command."""

    plans: Plans
    life: LifeCycle
    watch: ActionWatch
    clock: Clock
    recorder: Recorder


class RankMachines:
    """The live machines of a rank while it is at one command; `cause`: of events without one of their own."""

    def __init__(self, tools: RankTools, *, epoch: int, sequence: int, cause: str) -> None:
        self._tools = tools
        self._command = epoch, sequence
        self._cause = cause

    @property
    def joint(self) -> JointState:
        """Where weights and KV cache are."""
        return self._tools.life.joint

    def can(self, event: StateEvent) -> bool:
        """Whether the machine of an event would take it in now."""
        return self._tools.life.can(event)

    def fire(self, event: StateEvent, *, kept: bool = False, kv_kept: bool = True, cause: str = "") -> None:
        """Take in one event, and write it down; see :meth:`wsm.states.command_events.Machines.fire`."""
        epoch, sequence = self._command
        record = self._tools.life.fire(
            event,
            at_ns=self._tools.clock.monotonic_ns(),
            epoch=epoch,
            sequence=sequence,
            kept=kept,
            kv_kept=kv_kept,
            cause=cause or self._cause,
        )
        self._tools.recorder.transition(record)

    def admit(self, *, held: bool) -> None:
        """Let admission be what the group has decided."""
        event = event_to(self._tools.life.admission, held=held)
        if event is not None:
            self.fire(event)


class Run:
    """The work of one command that is carried out in place.

    `plan`: the one that serves the request from the state that the rank was in. `done`: what its actions have
    done. `doing`: what is done now, for reports: an action, or a moment of the command. `is_mixed`: whether
    the weights may be of two versions. `teardown_failure`: what the teardown raised, once the end was
    FAULTED. `held`: whether the group is held once this command is committed. `sets_aside`: whether requests
    wait then for the end of the hold, as far as is known.
    """

    is_mixed = False

    def __init__(
        self, request: Operation, arguments: CommandArguments, context: ActionContext, tools: RankTools
    ) -> None:
        keeps_kv = arguments.kv_policy is not KVPolicy.DROP
        self._asked = Asked(request, arguments.tags, tools.life.joint, keeps_kv=keeps_kv)
        self._loads = request is not Operation.CLEAR and Tag.WEIGHTS in arguments.tags
        serves = self._asked.plan
        self.plan = _NOTHING if serves is None else tools.plans.named(serves)
        self.done = context.done
        self._context = context
        self._tools = tools
        self.held = held_after(arguments.after, held=context.held)
        keeps = context.in_flight is InFlightPolicy.KEEP
        self.sets_aside = self.held and keeps and (context.set_aside or not context.held)
        cause = f"{request.phrase} {arguments.request_id}"
        self.machines = RankMachines(tools, epoch=context.epoch, sequence=context.sequence, cause=cause)
        self.doing = "begin"
        self._seconds: list[ActionSeconds] = []
        self._began: list[Action] = []
        self._way_out: WayOut | None = None
        self._teardown: list[Action] = []  # what is left of it
        self.teardown_failure: Exception | None = None

    # -- the good path -----------------------------------------------------------------------------

    def begin(self) -> tuple[bool, ...]:
        """Check that the command is legal here and stop admitting; return which actions need a vote.

        Raises
        ------
        RefusedError (``command-illegal``)
            If it does not fit the state of this rank.
        RefusedError, NoRoomError
            If a policy cannot be honoured, or the weights cannot be staged. Nothing was changed.
        """
        context, joint = self._context, self.machines.joint
        why = command_events.objection(self._asked, self.machines)
        if why is not None:
            raise RefusedError(
                f"rank {context.rank} refuses {self._asked.request.phrase}: {why} (weights "
                f"{joint.weights.name}, KV cache {joint.kv.name}); nothing was changed",
                code="command-illegal",
                rank=context.rank,
                command=self._asked.request.phrase,
                weights=joint.weights.name,
                kv=joint.kv.name,
                why=why,
            )
        self.plan.admit(context)
        if context.held and self._asked.request is not Operation.RELEASE:
            self._require_settled()
        version = context.version if self._loads else None
        self._tools.recorder.note(kinds.COMMAND_ADMITTED, plan=self.plan.name, version=version)
        self._tools.watch.takes_up(self.plan)
        return self._admit()

    def stage(self) -> bool:
        """Go on with what runs beside the serving loop; return whether all of it is done."""
        raise InternalError(f"{self._asked.request.phrase} stages nothing beside the serving loop")

    def drained(self) -> bool:
        """Whether the in-flight policy is satisfied, so that the rank may park."""
        return all(action.settled(self._context) for action in self.plan.before_parking)

    def accept(self) -> None:
        """Begin the transition: every rank stands at the same step boundary."""
        self.doing = "accept"
        self._begin_transition()
        self._may_vote(0)

    def act(self, index: int) -> None:
        """Run one numbered action of the plan; what the next one needs for its vote is checked, too.

        Whatever it raises fails the command.
        """
        action = self.plan.actions[index]
        self.doing = action.name
        if not action.collective:
            action.precondition(self._context)
        self._run(action)
        self._may_vote(index + 1)

    def finish(self) -> None:
        """Declare that everything which can fail is behind this rank."""
        self.doing = "decision"
        command_events.finish(self._asked, self.machines)

    def commit(self) -> None:
        """Serve the new version. What a commit action raises goes to the embedding loop.

        The decision stands all the same, so the next poll tries again; commit actions are idempotent.
        """
        self.doing = "commit"
        command_events.commit(self.machines)
        context = self._context
        wanted = {
            names.RESUME_ADMITTING: not self.held,
            names.END_SET_ASIDE: context.held and context.in_flight is InFlightPolicy.ABORT,
        }
        for action in self.plan.commit:
            if wanted.get(action.name, True):
                self._run(action, named=False)
        self.machines.admit(held=self.held)

    def report(self, *, pause_s: float = 0.0) -> RankReport:
        """Describe what was done so far; `pause_s`: how long the rank served nothing for it, in seconds."""
        facts = dict(self._context.facts)
        return RankReport(
            rank=self._context.rank,
            version=facts.pop("version", None),
            manifest_digest=facts.pop("manifest_digest", None),
            digest=facts.pop("digest", None),
            bytes=facts.pop("bytes", 0),
            tensors=facts.pop("tensors", 0),
            actions=tuple(self._seconds),
            bases=tuple(facts.pop("bases", ())),
            facts=facts,
            held=self.held,
            loads=self._loads,
            pause_s=pause_s,
        )

    # -- the ways out ------------------------------------------------------------------------------

    def fail(self, cause: str) -> None:
        """Take in that the command has failed on this rank."""
        command_events.fail(self.machines, cause)

    def undo(self) -> bool:
        """Stop and take back what can be taken back; return whether this rank is not what it was before."""
        self.doing = "undo"
        torn = self.done.weights_touched or command_events.is_torn(self.machines.joint)
        self.done.weights_touched = torn or not self._undone()
        return self.done.weights_touched

    def end(self, way_out: Callable[[Asked, Machines], WayOut], event: Event) -> Event | None:
        """Bring a command that is not committed to its end, one action of a discard plan per call.

        Returns
        -------
        Event or None
            None while actions are left; then `event`, or FAULTED if the teardown failed, or if it is unknown
            what the others have given back: then this rank serves nothing until all is cleared. What failed
            is in :attr:`teardown_failure`.
        """
        self.doing = "discard"
        if self._way_out is None:
            self._way_out = way = way_out(self._asked, self.machines)
            plans = [self._tools.plans.named(plan) for plan in way.plans]
            self._teardown = [action for plan in plans for action in plan.actions]
        if self.teardown_failure is not None:
            return Event.FAULTED
        if self._teardown:
            action = self._teardown.pop(0)
            try:
                self._run(action, named=False)
            except Exception as error:  # noqa: BLE001 - whatever it is: what is still held is unknown
                command_events.not_freed(self.machines, f"{action.name}: {error}")
                self.teardown_failure = error
                return Event.FAULTED
            return None
        if self._way_out.plans:
            command_events.freed(self.machines)
        faulted = self._way_out.faulted or self.machines.joint.weights is WeightState.FAULTED
        return Event.FAULTED if faulted else event

    def stop_staging(self, wait_s: float = 0.0) -> None:
        """Stop what runs beside the loop, and wait `wait_s` seconds at most for its end. Idempotent."""

    # -- parts of these ----------------------------------------------------------------------------

    def _admit(self) -> tuple[bool, ...]:
        """Run what comes before parking; return which actions need a vote."""
        for action in self.plan.before_parking:
            self._run(action)
        return tuple(action.collective for action in self.plan.actions)

    def _require_settled(self) -> None:
        """Refuse an in-flight policy about requests that a hold has set aside, if it cannot be honoured."""
        context, requests = self._context, self._context.runner.requests
        known = isinstance(requests, KnownSetAside)
        set_aside = requests.set_aside() if isinstance(requests, KnownSetAside) else None
        if set_aside is None and not context.set_aside:
            return
        why = in_flight_objection(context.in_flight, held=context.held, set_aside=set_aside, can_end=known)
        if why is not None:
            raise RefusedError(f"{why}; nothing was changed", code="policy-refused", why=why)

    def _begin_transition(self) -> None:
        """Let the machines leave where they were before the command."""
        self._asked = replace(self._asked, begun=True)
        command_events.begin(self._asked, self.machines)

    def _may_vote(self, index: int) -> None:
        """Check what an action needs that is voted for next: after the vote it must be entered."""
        if index < len(self.plan.actions) and self.plan.actions[index].collective:
            self.doing = self.plan.actions[index].name
            self.plan.actions[index].precondition(self._context)

    def _run(self, action: Action, *, named: bool = True) -> None:
        """Run an action and measure that it is done; whatever it raises is journalled and passed on.

        `named`: reports call it by its name.
        """
        if named:
            self.doing = action.name
        self._begins(action)
        began_ns = self._tools.clock.monotonic_ns()
        self._tools.recorder.write()  # an action that hangs, or ends the process, stands in the journal
        try:
            with facts_kept_plain(action, self._context):
                action.carry_out(self._context)
        except BaseException as error:
            self._failed(action, error)
            raise
        self._ended(action, (self._tools.clock.monotonic_ns() - began_ns) / 1e9)
        change = _CACHE_CHANGES.get(action.name)
        if change is not None:
            command_events.followed(change, self.machines)

    def _begins(self, action: Action, *, beside: bool = False) -> None:
        """Say that an action begins; `beside` the serving loop: in a thread of its own."""
        self._began.append(action)
        self._tools.watch.begins(action, beside=beside)
        self._tools.recorder.action_started(action.name)

    def _ended(self, action: Action, seconds: float) -> None:
        """Say that an action has ended well."""
        self._tools.watch.ends()
        self._seconds.append(ActionSeconds(action.name, seconds))
        version = self._context.facts.get("version") if action.name in _LOADS else None
        self._tools.recorder.action_finished(action.name, seconds, version)

    def _failed(self, action: Action, error: BaseException) -> None:
        """Say that an action has failed."""
        self._tools.recorder.action_failed(action.name, error)
        self._tools.watch.ends()

    def _undone(self) -> bool:
        """Take back what was begun, the last first; return whether all of it could be."""
        self._tools.recorder.write()
        while self._began:
            action = self._began[-1]
            try:
                with facts_kept_plain(action, self._context):
                    action.undo(self._context)
            except Exception as error:  # noqa: BLE001 - whatever an undo raises: the rank is not what it was
                self._tools.recorder.action_failed(f"undo_{action.name}", error)
                return False
            self._tools.recorder.action_undone(action.name)
            del self._began[-1]
        return True
