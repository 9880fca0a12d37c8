"""One command on one rank: is it legal, which plan serves it, what came of each action, what is undone.

Between :mod:`wsm.actions` (what to do) and :mod:`wsm.states` (where that leads). It knows no words: the
worker calls it when the protocol says so, and tells the protocol what it returned. Nothing here runs
inside a state machine's callback; machines are fired before the work begins and after it ended.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping
from typing import Any

from wsm.actions.base import ActionContext
from wsm.actions.sequence import Plan, Plans
from wsm.clock import Clock
from wsm.command import CommandArguments
from wsm.errors import InternalError
from wsm.report import RankReport
from wsm.states.halves import plan_to_clear, plan_to_update
from wsm.states.machine import LifeCycle
from wsm.states.vocabulary import (
    ALL_TAGS,
    KVEvent,
    KVPolicy,
    KVState,
    PlanName,
    Tag,
    WeightEvent,
    WeightState,
    sentence_of,
)
from wsm.strategies.tensor import WeightTarget
from wsm.worker.errors import CommandIllegalError
from wsm.worker.performance import Performance
from wsm.worker.recording import Recorder
from wsm.worker.retreat import Retreat
from wsm.worker.watch import ActionWatch

Load = Callable[[ActionContext, WeightTarget], Mapping[str, Any]]


class Request(enum.Enum):
    """What is asked of the rank."""

    CLEAR = "clear"
    UPDATE = "update"
    HOT_UPDATE = "hot update"


_NOTHING = Plan(name="nothing", actions=())

_AT_WORK = (WeightState.UPDATING, WeightState.CLEARING)
_AT_REST = (WeightState.NORMAL, WeightState.CLEARED)


class Execution:
    """The work of one command.

    Parameters
    ----------
    request : Request
        What is asked.
    arguments : CommandArguments
        How.
    plans : Plans
        Of this engine.
    life : LifeCycle
        This rank's state machines; this object fires them.
    context : ActionContext
        Handed to every action.
    clock : Clock
        For the seconds in the report.
    recorder : Recorder
        Journal and log.
    watch : ActionWatch
        Told which plan and action are at hand.

    Attributes
    ----------
    plan : Plan
        The one that serves the request from the state that the rank was in.
    """

    def __init__(
        self,
        request: Request,
        arguments: CommandArguments,
        *,
        plans: Plans,
        life: LifeCycle,
        context: ActionContext,
        clock: Clock,
        recorder: Recorder,
        watch: ActionWatch,
    ) -> None:
        self.request = request
        self.arguments = arguments
        self.plan = _plan_for(request, arguments.tags, plans, life)
        self._rejoin = plans.rejoin
        self._life = life
        self._context = context
        self._clock = clock
        self._watch = watch
        self._work = Performance(
            life=life,
            context=context,
            clock=clock,
            recorder=recorder,
            cause=f"{request.value} {arguments.request_id}",
            watch=watch,
        )
        # An update that is dropped takes both halves with it: what it was to bring stands on both.
        gives_back = arguments.tags if request is Request.CLEAR else ALL_TAGS
        self._retreat = Retreat(
            plans, gives_back, life=life, context=context, work=self._work, recorder=recorder
        )
        self.doing = "begin"

    @property
    def touched(self) -> bool:
        """Whether this rank may be unable to serve what it served before."""
        return self._context.weights_touched

    def begin(self) -> tuple[bool, ...]:
        """Check that the command is legal here and stop admitting; return which actions need a vote.

        Raises
        ------
        CommandIllegalError, wsm.actions.errors.PolicyRefusedError
            If it is not. Nothing was changed.
        """
        why = self._objection()
        if why is not None:
            raise CommandIllegalError(
                rank=self._context.rank,
                command=self.request.value,
                weights=self._life.weights.name,
                kv=self._life.kv.name,
                why=why,
            )
        self.plan.admit(self._context)
        self._watch.takes_up(self.plan)
        for action in self.plan.before_parking:
            self.doing = action.name
            self._work.run(action)
        return tuple(action.collective for action in self.plan.actions)

    def drained(self) -> bool:
        """Whether the in-flight policy is satisfied, so that the rank may park."""
        return all(action.settled(self._context) for action in self.plan.before_parking)

    def accept(self) -> None:
        """Begin the transition: every rank stands at the same step boundary."""
        self.doing = "accept"
        self._retreat.accepted = True
        keeps = self.arguments.kv_policy is not KVPolicy.DROP
        for event in self._events():
            self._work.fire(event, kv_kept=keeps or event is not WeightEvent.UPDATE)
        if self._life.weights is WeightState.UPDATING and self._life.kv is KVState.NORMAL and not keeps:
            self._work.fire(KVEvent.UPDATE)
        self._may_vote(0)

    def run(self, index: int) -> None:
        """Run one action of the plan and measure that it is done. Whatever it raises fails the command."""
        action = self.plan.actions[index]
        self.doing = action.name
        if not action.collective:
            action.precondition(self._context)
        self._work.run(action)
        if self._life.weights in _AT_WORK:  # a KV cache that moves alone arrives when all is done
            self._work.kv_followed(action.name)
        self._may_vote(index + 1)

    def fail(self, cause: str) -> None:
        """Take in that the command has failed on this rank."""
        # A KV cache that was to go alone stays CLEARING until the group has decided.
        if self._life.weights in _AT_WORK:
            self._work.fire(WeightEvent.FAIL, cause=cause)

    def finish(self) -> RankReport:
        """Declare that everything which can fail is behind this rank."""
        self.doing = "decision"
        if self.request is Request.CLEAR:
            if self._life.kv is KVState.CLEARING:
                self._work.fire(KVEvent.CLEARED)
            if self._life.weights is WeightState.CLEARING:
                self._work.fire(WeightEvent.CLEARED)
        elif self._life.weights is WeightState.UPDATING:
            if Tag.KV_CACHE in self.arguments.tags or self._life.kv is KVState.UPDATING:
                self._work.bring_kv_back()
            self._work.fire(WeightEvent.PREPARED)
        return self.report()

    def commit(self) -> None:
        """Serve the new version. What a commit action raises goes to the embedding loop.

        The decision stands all the same, so the next poll tries again; commit actions are idempotent.
        """
        self.doing = "commit"
        if self._life.weights is WeightState.PREPARED:
            self._work.fire(WeightEvent.COMMIT)
        elif self._life.kv is KVState.UPDATING:
            self._work.fire(KVEvent.REBUILT)
        for action in self.plan.commit:
            self._work.run(action)

    def stage(self) -> bool:
        """Go on with what runs beside the serving loop; return whether all of it is done.

        Raises
        ------
        InternalError
            If this command has nothing of the kind.
        """
        raise InternalError(f"{self.request.value} stages nothing beside the serving loop")

    @property
    def is_mixed(self) -> bool:
        """Whether nobody knows which version the weights are of; asked after a commit that raised."""
        return False

    @property
    def may_go_on(self) -> bool:
        """Whether a commit that raised may be tried again although :attr:`is_mixed`."""
        return True

    def stop_staging(self, wait_s: float = 0.0) -> None:
        """Stop what runs beside the serving loop, since nobody wants the command any more. Idempotent.

        Waits up to `wait_s` seconds for it to end.
        """

    def undo(self) -> bool:
        """Stop and take back what can be taken back; return whether this rank is not what it was before."""
        self.doing = "undo"
        return self._retreat.undo()

    def keep(self) -> bool | None:
        """End an aborted command that nobody was touched by: hold what was held before. As :meth:`drop`."""
        self.doing = "discard"
        return self._retreat.keep()

    def drop(self) -> bool | None:
        """End an aborted command holding nothing, or without the half that was to be cleared.

        One action of the discard plan per call.

        Returns
        -------
        bool or None
            None while actions are left; True once all of it is released, False if the teardown failed.
        """
        self.doing = "discard"
        return self._retreat.drop()

    @property
    def teardown_failure(self) -> Exception | None:
        """What the teardown raised, once :meth:`keep` or :meth:`drop` has said that it failed."""
        return self._retreat.failure

    def abandon(self) -> None:
        """Let go alone of what broke with a peer: the epoch has ended. What an action raises goes on."""
        self.doing = "rejoin"
        for action in self._rejoin.actions:
            self._work.run(action)

    def report(self) -> RankReport:
        """Describe what was done so far."""
        return self._work.report()

    def _events(self) -> list[WeightEvent | KVEvent]:
        """Say with which events this command begins, weights first."""
        events: list[WeightEvent | KVEvent] = []
        clears, tags = self.request is Request.CLEAR, self.arguments.tags
        if Tag.WEIGHTS in tags:
            events.append(WeightEvent.CLEAR if clears else WeightEvent.UPDATE)
        if clears and Tag.KV_CACHE in tags:
            events.append(KVEvent.CLEAR)
        return events or [KVEvent.UPDATE]

    def _objection(self) -> str | None:
        """Say why this command cannot begin where the rank is; None if it can."""
        faulted = self._life.weights is WeightState.FAULTED
        if faulted and self.request is Request.CLEAR and self.arguments.tags != ALL_TAGS:
            return "nobody knows what a FAULTED rank holds; clear weights and KV cache together"
        if self.request is Request.UPDATE and self.plan is _NOTHING:
            return f"nothing of {sentence_of(self.arguments.tags)} is missing"
        first = self._events()[0]
        if not self._life.can(first):
            state = self._life.weights if isinstance(first, WeightEvent) else self._life.kv
            return f"there is no way from {state.name} by {self.request.value}"
        return None

    def _may_vote(self, index: int) -> None:
        """Check what an action needs that is voted for next: after the vote it must be entered."""
        if index < len(self.plan.actions) and self.plan.actions[index].collective:
            self.doing = self.plan.actions[index].name
            self.plan.actions[index].precondition(self._context)


def _plan_for(request: Request, tags: Collection[Tag], plans: Plans, life: LifeCycle) -> Plan:
    """Choose the plan by where the rank is; its collective actions are the same on every rank."""
    if request is Request.HOT_UPDATE:
        return plans.hot
    name: PlanName | None
    if life.weights is WeightState.FAULTED:
        # It is repaired beside peers that are cleared already: no collective can be part of it.
        name = PlanName.DISCARD
    elif life.weights not in _AT_REST:
        name = None  # a new epoch, in the middle of a command: all that follows is to give back what is held
    elif request is Request.UPDATE:
        name = plan_to_update(tags, life.weights, life.kv)
    else:
        name = plan_to_clear(tags, life.weights, life.kv)
    return _NOTHING if name is None else plans.named(name)
