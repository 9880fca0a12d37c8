"""One command on one rank: its plan is run, its events are fired, what it did is undone or given back.

Between :mod:`wsm.actions` (what to do) and :mod:`wsm.states.command_events` (which events that means). It
knows no words: the worker calls it when the protocol says so, and tells the protocol what it returned.
Nothing here runs inside a state machine's callback; machines are fired before the work begins and after it
ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from wsm.actions.base import Action, ActionContext, Plan, Plans
from wsm.clock import Clock
from wsm.command import CommandArguments
from wsm.errors import InternalError
from wsm.report import RankReport
from wsm.states import command_events
from wsm.states.command_events import Asked, Request, WayOut
from wsm.states.joint import JointState
from wsm.states.machine import LifeCycle
from wsm.states.vocabulary import KVPolicy, Tag
from wsm.strategies.tensor import WeightTarget
from wsm.worker.errors import CommandIllegalError
from wsm.worker.performance import Performance
from wsm.worker.recording import Recorder
from wsm.worker.watch import ActionWatch

Load = Callable[[ActionContext, WeightTarget], Mapping[str, Any]]

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
    teardown_failure : Exception or None
        What the teardown raised, once :meth:`keep` or :meth:`drop` has said that it failed.
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
        keeps_kv = arguments.kv_policy is not KVPolicy.DROP
        self._asked = Asked(request, arguments.tags, life.joint, keeps_kv=keeps_kv)
        self.plan = _NOTHING if self._asked.plan is None else plans.named(self._asked.plan)
        self._plans = plans
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
        self._recorder = recorder
        self._teardown: Iterator[Action] | None = None
        self.teardown_failure: Exception | None = None
        self.doing = "begin"

    @property
    def touched(self) -> bool:
        """Whether this rank may be unable to serve what it served before."""
        return self._context.weights_touched

    def begin(self) -> tuple[bool, ...]:
        """Check that the command is legal here and stop admitting; return which actions need a vote.

        Raises
        ------
        CommandIllegalError, RefusedError (``policy-refused``)
            If it is not. Nothing was changed.
        """
        self._admit()
        self._watch.takes_up(self.plan)
        for action in self.plan.before_parking:
            self.doing = action.name
            self._work.run(action)
        return tuple(action.collective for action in self.plan.actions)

    def _admit(self) -> None:
        """Refuse a command that is illegal here, or that the plan cannot honour."""
        why = command_events.objection(self._asked)
        if why is not None:
            raise CommandIllegalError(
                rank=self._context.rank,
                command=self.request.value,
                weights=self._life.weights.name,
                kv=self._life.kv.name,
                why=why,
            )
        self.plan.admit(self._context)
        loads = self.request is not Request.CLEAR and Tag.WEIGHTS in self.arguments.tags
        self._recorder.command_admitted(self.plan.name, self._context.version if loads else None)

    def drained(self) -> bool:
        """Whether the in-flight policy is satisfied, so that the rank may park."""
        return all(action.settled(self._context) for action in self.plan.before_parking)

    def accept(self) -> None:
        """Begin the transition: every rank stands at the same step boundary."""
        self.doing = "accept"
        self._begin_transition()
        self._may_vote(0)

    def _begin_transition(self) -> None:
        """Let the machines leave where they were before the command."""
        self._asked = replace(self._asked, begun=True)
        self._work.follow(command_events.begin(self._asked, self._life.joint))

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
        self._work.follow(command_events.fail(self._life.joint, cause))

    def finish(self) -> RankReport:
        """Declare that everything which can fail is behind this rank."""
        self.doing = "decision"
        self._work.follow(command_events.finish(self._asked, self._life.joint))
        return self.report()

    def commit(self) -> None:
        """Serve the new version. What a commit action raises goes to the embedding loop.

        The decision stands all the same, so the next poll tries again; commit actions are idempotent.
        """
        self.doing = "commit"
        self._work.follow(command_events.commit(self._life.joint))
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
        if command_events.is_torn(self._life.joint):
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
        """End an aborted command that touched no rank, after it was undone: hold what was held before.

        Returns as :meth:`drop` does.
        """
        return self._leave(command_events.keep)

    def drop(self) -> bool | None:
        """End an aborted command holding nothing, or without the half that was to be cleared.

        One action of a discard plan per call.

        Returns
        -------
        bool or None
            None while actions are left; True once all of it is released, False if the teardown failed, or if
            it is unknown what the others have given back: then this rank serves nothing until all is cleared.
            What failed is in :attr:`teardown_failure`.
        """
        return self._leave(command_events.drop)

    def _leave(self, way_out: Callable[[Asked, JointState], WayOut]) -> bool | None:
        self.doing = "discard"
        if self._teardown is None:
            ending = way_out(self._asked, self._life.joint)
            self._work.follow(ending.course)
            if ending.plan is None:
                return not ending.faulted
            self._teardown = iter(self._plans.named(ending.plan).actions)
        action = next(self._teardown, None)
        if action is None:
            self._work.follow(command_events.freed(self._life.joint))
            return True
        try:
            self._work.run(action)
        except Exception as error:  # noqa: BLE001 - a teardown that fails in any way leaves the rank FAULTED
            self.teardown_failure = error
            self._work.follow(command_events.not_freed(self._life.joint, f"{action.name}: {error}"))
            return False
        self._work.kv_followed(action.name)
        return None

    def abandon(self) -> None:
        """Let go alone of what broke with a peer: the epoch has ended. What an action raises goes on."""
        self.doing = "rejoin"
        for action in self._plans.rejoin.actions:
            self._work.run(action)

    def report(self) -> RankReport:
        """Describe what was done so far."""
        return self._work.report()

    def _may_vote(self, index: int) -> None:
        """Check what an action needs that is voted for next: after the vote it must be entered."""
        if index < len(self.plan.actions) and self.plan.actions[index].collective:
            self.doing = self.plan.actions[index].name
            self.plan.actions[index].precondition(self._context)
