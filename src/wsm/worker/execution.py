"""One command on one rank: is it legal, which plan serves it, what came of each action, what is undone.

Between :mod:`wsm.actions` (what to do) and :mod:`wsm.states` (where that leads). It knows no words: the
worker calls it when the protocol says so, and tells the protocol what it returned. Nothing here runs
inside a state machine's callback; machines are fired before the work begins and after it ended.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from wsm.actions.base import Action, ActionContext
from wsm.actions.sequence import Plan, Plans
from wsm.clock import Clock
from wsm.command import CommandArguments
from wsm.errors import InternalError
from wsm.report import RankReport
from wsm.states.machine import LifeCycle
from wsm.states.vocabulary import KVEvent, KVPolicy, KVState, WeightEvent, WeightState
from wsm.strategies.tensor import WeightTarget
from wsm.worker.errors import CommandIllegalError
from wsm.worker.performance import Performance
from wsm.worker.recording import Recorder
from wsm.worker.watch import ActionWatch

Load = Callable[[ActionContext, WeightTarget], Mapping[str, Any]]


class Request(enum.Enum):
    """What is asked of the rank."""

    CLEAR = "clear"
    UPDATE = "update"
    HOT_UPDATE = "hot update"


_NOTHING = Plan(name="nothing", actions=())


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
        self.plan = _plan_for(request, plans, life.weights)
        self._discard = plans.discard
        self._rejoin = plans.rejoin
        self._life = life
        self._context = context
        self._clock = clock
        self._recorder = recorder
        self._watch = watch
        self._work = Performance(
            life=life,
            context=context,
            clock=clock,
            recorder=recorder,
            cause=f"{request.value} {arguments.request_id}",
            watch=watch,
        )
        self._dropping: Iterator[Action] | None = None
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
        event = WeightEvent.CLEAR if self.request is Request.CLEAR else WeightEvent.UPDATE
        if not self._life.can(event):
            raise CommandIllegalError(
                rank=self._context.rank,
                command=self.request.value,
                weights=self._life.weights.name,
                kv=self._life.kv.name,
                why=f"there is no way from {self._life.weights.name} by {self.request.value}",
            )
        self.plan.admit(self._context)
        self.doing = "drain"
        self._watch.takes_up(self.plan)
        for action in self.plan.before_parking:
            self._work.run(action)
        return tuple(action.collective for action in self.plan.actions)

    def drained(self) -> bool:
        """Whether the in-flight policy is satisfied, so that the rank may park."""
        return all(action.settled(self._context) for action in self.plan.before_parking)

    def accept(self) -> None:
        """Begin the transition: every rank stands at the same step boundary."""
        self.doing = "accept"
        if self.request is Request.CLEAR:
            self._work.fire(WeightEvent.CLEAR)
            self._work.fire(KVEvent.CLEAR)
        else:
            keeps = self.arguments.kv_policy is not KVPolicy.DROP
            self._work.fire(WeightEvent.UPDATE, kv_kept=keeps)
            if self._life.kv is KVState.NORMAL and not keeps:
                self._work.fire(KVEvent.UPDATE)
        self._may_vote(0)

    def run(self, index: int) -> None:
        """Run one action of the plan and measure that it is done. Whatever it raises fails the command."""
        action = self.plan.actions[index]
        self.doing = action.name
        if not action.collective:
            action.precondition(self._context)
        self._work.run(action)
        self._work.kv_followed(action.name)
        self._may_vote(index + 1)

    def fail(self, cause: str) -> None:
        """Take in that the command has failed on this rank."""
        if self._life.weights in (WeightState.UPDATING, WeightState.CLEARING):
            self._work.fire(WeightEvent.FAIL, cause=cause)

    def finish(self) -> RankReport:
        """Declare that everything which can fail is behind this rank."""
        self.doing = "decision"
        if self.request is Request.CLEAR:
            if self._life.kv is KVState.CLEARING:
                self._work.fire(KVEvent.CLEARED)
            if self._life.weights is WeightState.CLEARING:
                self._work.fire(WeightEvent.CLEARED)
        else:
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

    def stop_staging(self, wait_s: float = 0.0) -> None:
        """Stop what runs beside the serving loop, since nobody wants the command any more. Idempotent.

        Waits up to `wait_s` seconds for it to end.
        """

    def undo(self) -> bool:
        """Stop and take back what can be taken back; return whether this rank is not what it was before.

        A clear that has begun is never taken back: its end is CLEARED, on every rank.
        """
        self.doing = "undo"
        if self._life.weights in (WeightState.CLEARING, WeightState.FAULTED):
            self._context.weights_touched = True
        if self._context.weights_touched:
            return True
        for action in reversed(self._work.began):
            try:
                action.undo(self._context)
            except Exception as error:  # noqa: BLE001 - whatever an undo raises: the rank is not what it was
                self._recorder.action_failed(f"undo_{action.name}", error)
                self._context.weights_touched = True
                return True
            self._recorder.action_undone(action.name)
        self._work.began.clear()
        return False

    def keep(self) -> bool | None:
        """End an aborted command that nobody was touched by; as :meth:`drop` where nothing was held."""
        if self._life.weights in (WeightState.NORMAL, WeightState.CLEARED) and self._dropping is None:
            return True
        if self._context.from_normal:
            if self._life.kv is KVState.UPDATING:
                self._work.fire(KVEvent.REBUILT, cause="the old cache is still whole")
            self._work.fire(WeightEvent.ABORT, kept=True)
            return True
        return self.drop()

    def drop(self) -> bool | None:
        """End an aborted command holding no weights, one action of the discard plan per call.

        Returns
        -------
        bool or None
            None while actions are left; True once everything is released, False if the teardown failed.
        """
        self.doing = "discard"
        if self._dropping is None:
            if self._life.weights is WeightState.CLEARED:
                return True
            leaves = self._life.weights in (WeightState.NORMAL, WeightState.FAULTED)
            self._work.fire(WeightEvent.CLEAR if leaves else WeightEvent.ABORT)
            if self._life.kv is not KVState.CLEARED:
                self._work.fire(KVEvent.CLEAR)
            self._dropping = iter(self._discard.actions)
        action = next(self._dropping, None)
        if action is None:
            if self._life.kv is KVState.CLEARING:
                self._work.fire(KVEvent.CLEARED)
            self._work.fire(WeightEvent.CLEARED)
            return True
        try:
            self._work.run(action)
        except Exception as error:  # noqa: BLE001 - a teardown that fails in any way leaves the rank FAULTED
            self._work.fire(WeightEvent.FAIL, cause=f"{action.name}: {error}")
            return False
        self._work.kv_followed(action.name)
        return None

    def abandon(self) -> None:
        """Let go alone of what broke with a peer: the epoch has ended. What an action raises goes on."""
        self.doing = "rejoin"
        for action in self._rejoin.actions:
            self._work.run(action)

    def report(self) -> RankReport:
        """Describe what was done so far."""
        return self._work.report()

    def _may_vote(self, index: int) -> None:
        """Check what an action needs that is voted for next: after the vote it must be entered."""
        if index < len(self.plan.actions) and self.plan.actions[index].collective:
            self.doing = self.plan.actions[index].name
            self.plan.actions[index].precondition(self._context)


def _plan_for(request: Request, plans: Plans, weights: WeightState) -> Plan:
    """Choose the plan by where the rank is; its collective actions are the same on every rank."""
    if request is Request.HOT_UPDATE:
        return plans.hot
    if request is Request.UPDATE:
        return plans.update_in_place if weights is WeightState.NORMAL else plans.update
    if weights is WeightState.NORMAL:
        return plans.clear
    # A faulted rank is repaired beside peers that are cleared already: no collective can be part of it.
    return plans.discard if weights is WeightState.FAULTED else _NOTHING
