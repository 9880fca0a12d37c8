"""One command on one rank: its plan is run, its events are fired, what it did is undone or given back.

Between :mod:`wsm.actions` (what to do) and :mod:`wsm.states.command_events` (which events that means). A run
knows no words: the loop calls it when the protocol says so, and tells the protocol what it returned.
Nothing here runs inside a state machine's callback; machines are fired before the work begins and after it
ended.

A hot update is a run with a staging thread. Until the group has decided, the machines stay where they are and
the rank serves: all the work is done by the thread, and the run only asks how far it is. After the decision
everything happens in one call, between two steps, and nothing of it may fail: what does all the same leaves
weights of two versions, so the rank must never step again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter

from wsm.actions import names
from wsm.actions.base import Action, ActionContext, Plan, Plans
from wsm.actions.errors import policy_impossible
from wsm.actions.surfaces import KnownSetAside
from wsm.clock import Clock
from wsm.command import CommandArguments
from wsm.errors import InternalError
from wsm.report import ActionSeconds, RankReport
from wsm.shortage import shortage_of
from wsm.states import command_events
from wsm.states.command_events import Asked, CacheChange, Course, WayOut
from wsm.states.holding import event_to, held_after, in_flight_objection
from wsm.states.joint import JointState
from wsm.states.machine import LifeCycle
from wsm.states.phases import Event
from wsm.states.plan_key import Request
from wsm.states.table import Event as StateEvent
from wsm.states.vocabulary import InFlightPolicy, KVPolicy, Tag, WeightState
from wsm.worker._staging import Moment, Staging, StagingThread
from wsm.worker._watchdog import ActionWatch
from wsm.worker.errors import (
    ActionDeadlineError,
    command_aborted,
    command_illegal,
    staging_exhausted,
    staging_unfinished,
)
from wsm.worker.recording import Recorder

_CACHE_CHANGES = {
    names.RELEASE_KV_CACHE: CacheChange.RELEASED,
    names.REBUILD_KV_CACHE: CacheChange.READY,
    names.FORGET_KV_CACHE: CacheChange.READY,
}
_LOADS = (names.LOAD_WEIGHTS, names.STAGE_WEIGHTS)
_NOTHING = Plan(key=None, actions=())

#: How long a command may be kept waiting for memory that an earlier staging is about to let go, in seconds.
_REST_S = 0.5


class Run:
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
        This rank's state machines; while a command is at hand, its run fires them.
    context : ActionContext
        Handed to every action.
    clock : Clock
        For the seconds in the report.
    recorder : Recorder
        Journal and log.
    watch : ActionWatch
        Told which plan and action are at hand.
    thread : StagingThread or None
        For a hot update: the thread that stages; unused so far.
    before : sequence of StagingThread
        Those of earlier hot updates that have not ended yet.

    Attributes
    ----------
    plan : Plan
        The one that serves the request from the state that the rank was in.
    doing : str
        What is done now, for reports: an action, or a moment of the command.
    teardown_failure : Exception or None
        What the teardown raised, once a way out has ended FAULTED.
    held : bool
        Whether the group is held once this command is committed.
    sets_aside : bool
        Whether requests wait then for the end of the hold, as far as is known.
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
        thread: StagingThread | None = None,
        before: Sequence[StagingThread] = (),
    ) -> None:
        keeps_kv = arguments.kv_policy is not KVPolicy.DROP
        self._asked = Asked(request, arguments.tags, life.joint, keeps_kv=keeps_kv)
        self._loads = request is not Request.CLEAR and Tag.WEIGHTS in arguments.tags
        serves = self._asked.plan
        self.plan = _NOTHING if serves is None else plans.named(serves)
        self._plans = plans
        self._life = life
        self._context = context
        self._clock = clock
        self._recorder = recorder
        self._watch = watch
        self.held = held_after(arguments.after, held=context.held)
        keeps = context.in_flight is InFlightPolicy.KEEP
        self.sets_aside = self.held and keeps and (context.set_aside or not context.held)
        self._cause = f"{request.value} {arguments.request_id}"
        self._began: list[Action] = []  # for undoing
        self._seconds: list[ActionSeconds] = []
        self._inside: Action | None = None  # the action whose own work was entered, and has not returned
        self._way_out: WayOut | None = None
        self._teardown: list[Action] = []  # what is left of it
        self.teardown_failure: Exception | None = None
        self.doing = "begin"
        # of a hot update
        self._thread = thread
        self._before = before
        self._staging = None if thread is None else Staging(self.plan.staging, context, clock)
        self._staging_begun = self._admission_ended = False
        self._moments: list[Moment] = []
        self._staged: Action | None = None  # the action that the thread is inside of
        self._staging_over = False  # whether it has failed, or was stopped
        self._staged_since_ns = 0
        self._flips = [] if thread is None else list(self.plan.flip)
        self._flipped = thread is None

    @property
    def touched(self) -> bool:
        """Whether this rank may be unable to serve what it served before."""
        return self._context.weights_touched

    # -- the good path -----------------------------------------------------------------------------

    def begin(self) -> tuple[bool, ...]:
        """Check that the command is legal here and stop admitting; return which actions need a vote.

        A hot update changes nothing here: it is checked that a second version fits.

        Raises
        ------
        RefusedError (``command-illegal``), NoRoomError (``staging-unfinished``)
            If it does not fit the state of this rank, or an earlier staging still holds its memory.
        RefusedError, NoRoomError
            If a policy cannot be honoured, or the weights cannot be staged. Nothing was changed.
        """
        why = command_events.objection(self._asked)
        if why is not None:
            raise command_illegal(
                rank=self._context.rank,
                command=self._asked.request.value,
                weights=self._life.weights.name,
                kv=self._life.kv.name,
                why=why,
            )
        self.plan.admit(self._context)
        if self._context.held and self._asked.request is not Request.RELEASE:
            self._require_settled()
        self._recorder.command_admitted(self.plan.name, self._context.version if self._loads else None)
        hot = self._thread is not None
        if hot and not all(thread.rest(_REST_S) for thread in self._before):
            raise staging_unfinished(rank=self._context.rank)
        self._watch.takes_up(self.plan)
        for action in self.plan.admission if hot else self.plan.before_parking:
            self._run(action)
        return () if hot else tuple(map(attrgetter("collective"), self.plan.actions))

    def stage(self) -> bool:
        """Go on with what runs beside the serving loop; return whether all of it is done. Does not block.

        Raises
        ------
        ActionDeadlineError
            If an action is past its deadline and has not ended by itself.
        Exception
            Whatever an action raised in the staging thread, with its traceback.
        """
        thread = self._thread
        if thread is None or self._staging is None:
            raise InternalError(f"{self._asked.request.value} stages nothing beside the serving loop")
        if self._staging_over:
            cause = "memory ran out as its failure was taken in"
            raise staging_exhausted(rank=self._context.rank, action=self.doing, cause=cause)
        if not self._staging_begun:
            self._staging_begun = True
            self.doing = self.plan.staging[0].name
            thread.start(self._staging)
        ended = thread.ended()  # first: whatever it tells has happened before
        self._take_in()
        if ended:
            try:
                thread.result()
            except BaseException as error:
                self._staging_over = True  # first: the thread tells it once
                if self._staged is not None:
                    self._staging_failed(self._staged, error)
                raise
            self.doing = "decision"
            return True
        seconds = (self._clock.monotonic_ns() - self._staged_since_ns) / 1e9
        action = self._staged
        if action is not None and seconds > action.deadline_s:
            late = ActionDeadlineError(
                rank=self._context.rank, action=action.name, seconds=seconds, deadline_s=action.deadline_s
            )
            thread.cancel()
            self._staging_failed(action, late)
            self._staging_over = True
            raise late
        return False

    def drained(self) -> bool:
        """Whether the in-flight policy is satisfied, so that the rank may park.

        A hot update ends admission here, after the decision.
        """
        if self._thread is not None and not self._admission_ended:
            for action in self.plan.before_parking:
                self._run(action)
            self._admission_ended = True
        return all(action.settled(self._context) for action in self.plan.before_parking)

    def accept(self) -> None:
        """Begin the transition: every rank stands at the same step boundary."""
        self.doing = "accept"
        self._begin_transition()
        self._may_vote(0)

    def act(self, index: int) -> None:
        """Run one action of the plan and measure that it is done. Whatever it raises fails the command."""
        action = self.plan.actions[index]
        self.doing = action.name
        if not action.collective:
            action.precondition(self._context)
        self._run(action)
        self._may_vote(index + 1)

    def finish(self) -> None:
        """Declare that everything which can fail is behind this rank."""
        self.doing = "decision"
        self._follow(command_events.finish(self._asked, self._life.joint))

    def commit(self) -> None:
        """Serve the new version. What a commit action raises goes to the embedding loop.

        The decision stands all the same, so the next poll tries again; commit actions are idempotent. A hot
        update flips here, and goes on where something was lacking around an action, or in one that may be
        run again; whatever this raises while :attr:`is_mixed`, the rank must not step again in this epoch.
        """
        if not self._flipped:
            self._flip()
        self.doing = "commit"
        self._follow(command_events.commit(self._life.joint))
        context = self._context
        wanted = {
            names.RESUME_ADMITTING: not self.held,
            names.END_SET_ASIDE: context.held and context.in_flight is InFlightPolicy.ABORT,
        }
        for action in self.plan.commit:
            if wanted.get(action.name, True):
                self._run(action, named=False)
        event = event_to(self._life.admission, held=self.held)
        if event is not None:  # else a call that was cut short has made it what was decided
            self._fire(event, self._cause)
        if self._thread is not None:
            self._let_go(self._thread)

    @property
    def is_mixed(self) -> bool:
        """Whether the weights may be of two versions: the flip has begun, and not ended."""
        return not self._flipped

    @property
    def may_go_on(self) -> bool:
        """Whether the weights are known: nothing was raised out of the very action that flips them."""
        return self._inside is None or not self._inside.touches_weights

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
        """Take in that the command has failed on this rank; staging stops."""
        if self._thread is not None:
            self._thread.cancel()
        self._follow(command_events.fail(self._life.joint, cause))

    def undo(self) -> bool:
        """Stop and take back what can be taken back; return whether this rank is not what it was before."""
        if self._thread is not None:
            self.stop_staging()  # nothing else was changed
            return self._context.weights_touched
        self.doing = "undo"
        if command_events.is_torn(self._life.joint):
            self._context.weights_touched = True
        if self._context.weights_touched:
            return True
        self._recorder.write()
        for action in reversed(self._began):
            try:
                action.undo(self._context)
            except Exception as error:  # noqa: BLE001 - whatever an undo raises: the rank is not what it was
                self._recorder.action_failed(f"undo_{action.name}", error)
                self._context.weights_touched = True
                return True
            self._recorder.action_undone(action.name)
        self._began.clear()
        return False

    def keep(self) -> Event | None:
        """End an aborted command that touched no rank, after it was undone: hold what was held before.

        Returns what came of it, or None while actions are left, as :meth:`drop` does.
        """
        self.stop_staging()
        return self._go(command_events.keep, Event.KEPT)

    def drop(self) -> Event | None:
        """End an aborted command holding nothing, or without the half that was to be cleared.

        One action of a discard plan per call.

        Returns
        -------
        Event or None
            None while actions are left; CLEARED once all of it is released, FAULTED if the teardown failed,
            or if it is unknown what the others have given back: then this rank serves nothing until all is
            cleared. What failed is in :attr:`teardown_failure`.
        """
        return self._go(command_events.drop, Event.CLEARED)

    def leave(self) -> Event | None:
        """Give back everything, since the epoch has ended; what broke with a peer is let go first.

        One action per call, in the old epoch. Returns as :meth:`drop` does.

        Raises
        ------
        MemoryError, OSError, RuntimeError
            For want of memory, descriptors or threads; the next call tries the same action again.
        """
        return self._go(lambda _asked, joint: command_events.leave(joint), Event.CLEARED, tries_again=True)

    def lose(self) -> None:
        """Begin the new epoch with nothing; :meth:`leave` has given back what was held."""
        self._follow(command_events.lose(self._life.joint), cause="a new epoch")

    def stop_staging(self, wait_s: float = 0.0) -> None:
        """Stop staging and let go of what was staged. Waits up to `wait_s` seconds for that. Idempotent."""
        if self._thread is None:
            return
        self._thread.cancel()
        self._take_in()
        if self._staged is not None:
            stopped = command_aborted(rank=self._context.rank, action=self._staged.name)
            self._staging_failed(self._staged, stopped)
        self._staging_over = True
        self._let_go(self._thread)
        if wait_s:
            self._thread.rest(wait_s)

    # -- parts of these ----------------------------------------------------------------------------

    def _require_settled(self) -> None:
        """Refuse an in-flight policy about requests that a hold has set aside, if it cannot be honoured."""
        context, requests = self._context, self._context.runner.requests
        known = isinstance(requests, KnownSetAside)
        set_aside = requests.set_aside() if isinstance(requests, KnownSetAside) else None
        if set_aside is None and not context.set_aside:
            return
        why = in_flight_objection(context.in_flight, held=context.held, set_aside=set_aside, can_end=known)
        if why is not None:
            raise policy_impossible(why=why)

    def _go(
        self, way_out: Callable[[Asked, JointState], WayOut], end: Event, *, tries_again: bool = False
    ) -> Event | None:
        """Go one action further on the way out; return what came of it at its end."""
        self.doing = "discard"
        if self._way_out is None:
            way = way_out(self._asked, self._life.joint)
            plans = [self._plans.named(plan) for plan in way.plans]
            teardown = [action for plan in plans for action in plan.actions]
            self._follow(way.course)
            self._teardown, self._way_out = teardown, way  # last: cut short, the way is looked for anew
        if self.teardown_failure is not None:
            return Event.FAULTED
        if self._teardown:
            action = self._teardown[0]
            try:
                self._run(action, named=False)
            except Exception as error:
                if tries_again and shortage_of(error) is not None:
                    raise
                if self._life.weights is not WeightState.FAULTED:  # it is where a shortage cut this short
                    self._follow(command_events.not_freed(self._life.joint, f"{action.name}: {error}"))
                self.teardown_failure = error
                return Event.FAULTED
            del self._teardown[0]
            return None
        if self._way_out.plans:
            self._follow(command_events.freed(self._life.joint))
        faulted = self._way_out.faulted or self._life.weights is WeightState.FAULTED
        return Event.FAULTED if faulted else end

    def _begin_transition(self) -> None:
        """Let the machines leave where they were before the command."""
        self._asked = replace(self._asked, begun=True)
        self._follow(command_events.begin(self._asked, self._life.joint))

    def _may_vote(self, index: int) -> None:
        """Check what an action needs that is voted for next: after the vote it must be entered."""
        if index < len(self.plan.actions) and self.plan.actions[index].collective:
            self.doing = self.plan.actions[index].name
            self.plan.actions[index].precondition(self._context)

    def _flip(self) -> None:
        self.doing = "flip"
        if len(self._flips) == len(self.plan.flip):
            self._begin_transition()
        while self._flips:
            self._run(self._flips[0])
            del self._flips[0]
        self._follow(command_events.finish(self._asked, self._life.joint))
        self._flipped = True

    def _run(self, action: Action, *, named: bool = True) -> None:
        """Run an action and measure that it is done; whatever it raises is journalled and passed on.

        The KV cache's machine follows an action that has changed it. `named`: reports call it by its name.
        """
        if named:
            self.doing = action.name
        self._inside = None
        began_ns = self._started(action)
        self._recorder.write()  # an action that hangs, or ends the process, stands in the journal
        try:
            self._inside = action
            action.run(self._context)
            action.probe(self._context)
            self._inside = None
            self._finished(action, (self._clock.monotonic_ns() - began_ns) / 1e9)
        except BaseException as error:
            self._recorder.action_failed(action.name, error)  # first: it never raises
            self._watch.ends()
            raise
        change = _CACHE_CHANGES.get(action.name)
        if change is not None:
            self._follow(command_events.followed(self._life.joint, change))

    def _started(self, action: Action, *, beside: bool = False) -> int:
        began_ns = self._clock.monotonic_ns()
        self._began.append(action)
        self._watch.begins(action, beside=beside)
        self._recorder.action_started(action.name)  # last: what begins in the journal ends there, too
        return began_ns

    def _finished(self, action: Action, seconds: float) -> None:
        self._watch.ends()
        self._seconds.append(ActionSeconds(action.name, seconds))
        version = self._context.facts.get("version") if action.name in _LOADS else None
        self._recorder.action_finished(action.name, seconds, version)

    def _staging_failed(self, action: Action, error: BaseException) -> None:
        """Say once that an action of the thread failed; cut short before that, stop_staging() says it."""
        self._recorder.action_failed(action.name, error)
        self._staged = None
        self._watch.ends()

    def _follow(self, course: Course, *, cause: str = "") -> None:
        """Let the machines take a course of events in; the refusal of one is raised."""
        for event, kept, kv_kept, why, _ in course.fired:
            self._fire(event, why or cause or self._cause, kept=kept, kv_kept=kv_kept)

    def _fire(self, event: StateEvent, cause: str, *, kept: bool = False, kv_kept: bool = True) -> None:
        record = self._life.fire(
            event,
            at_ns=self._clock.monotonic_ns(),
            epoch=self._context.epoch,
            sequence=self._context.sequence,
            kept=kept,
            kv_kept=kv_kept,
            cause=cause,
        )
        self._recorder.transition(record)

    def _take_in(self) -> None:
        """Write down what the staging thread has begun and ended since the last look.

        Nothing once it was stopped: what it was inside of has failed, however it ends.
        """
        if self._staging is None or self._staging_over:
            return
        self._moments += self._staging.news()  # here: a shortage between the two would lose them
        while self._moments:
            moment = self._moments[0]
            if moment.is_end:
                self._finished(moment.action, (moment.at_ns - self._staged_since_ns) / 1e9)
                self._staged = None
            else:
                self.doing = moment.action.name
                self._started(moment.action, beside=True)
                self._staged, self._staged_since_ns = moment.action, moment.at_ns
            del self._moments[0]

    def _let_go(self, thread: StagingThread) -> None:
        """Hand what is left of the staging to its thread, which gives it back and ends."""
        context = self._context
        thread.retire(lambda: None if context.staged is None else context.staged.give_back())
