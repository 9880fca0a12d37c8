"""What a rank is inside of, and a thread that sees what the loop cannot see while it is blocked there.

:class:`ActionWatch` says which action is at hand since when, to other processes (:mod:`wsm.signals.presence`)
and to the watchdog, and checks the deadline where an action asks. :class:`Watchdog` calls the loop out of a
collective that cannot end any more, where the engine's communicators can be interrupted, and reports what it
cannot end: a passed deadline, a dead peer, a new epoch. It writes no word of the rank and no heartbeat, which
would hide the very hang that it is there for. Where the controller of a command does not come back, it does
for the group what is owed to the command (:mod:`wsm.controller.abandoned_commands`). While nothing is under
way it sleeps until a process of the group dies.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from wsm import log
from wsm.actions.base import Action, Plan, Plans
from wsm.actions.surfaces import InterruptibleGroups, ProcessGroupSurface
from wsm.clock import Clock
from wsm.controller.abandoned_commands import AbandonedCommands
from wsm.declared_plans import DeclaredAction, DeclaredPlan, DeclaredPlans
from wsm.errors import WsmError
from wsm.signals.liveness import DeathWatch, Life, Liveness
from wsm.signals.presence import Doing, PresenceWords
from wsm.states.errors import WordFormatError
from wsm.states.phases import Phase, RankState
from wsm.states.view import failed_inside
from wsm.worker._group_words import GroupWords
from wsm.worker.errors import ActionDeadlineError
from wsm.worker.recording import Recorder

#: Seconds beyond its deadline in which a controller may name who holds a collective action up.
NAMING_S = 0.25

#: Time between two looks while a command is under way, in seconds.
LOOK_S = 0.02

#: Time between two looks at the controller role while a decision is due, in seconds; each rank begins at
#: another moment of it, so that mostly one of them finds out.
ROLE_S = 0.1

_STAGGERED = 8
_RETRY_S = 1.0


@dataclass(frozen=True)
class Running:
    """The action that a rank is inside of.

    Parameters
    ----------
    action : Action
        Which.
    index : int or None
        What status words call it; None for one before parking or of the commit.
    since_ns : int
        When it began, by the worker's clock.
    """

    action: Action
    index: int | None
    since_ns: int


class ActionWatch:
    """The action at hand of one rank.

    Parameters
    ----------
    rank : int
        Whose.
    presence : PresenceWords
        Where it is said.
    plans : Plans
        Of this engine.
    clock : Clock
        For the times.

    Attributes
    ----------
    running : Running or None
        The action that the rank is inside of; may be read from another thread.
    deadline_s : float
        Of the action that began last.
    interruption : str or None
        Why the watchdog called the loop out of the last action; None if it did not.
    stalled : (int, WsmError) or None
        The command whose controller lets it wait beyond its deadline, and how; None: there is none.
    """

    def __init__(self, rank: int, presence: PresenceWords, plans: Plans, clock: Clock) -> None:
        self.running: Running | None = None
        self._rank = rank
        self._presence = presence
        self._plans = tuple(plans)
        self._numbers = {id(plan): number for number, plan in enumerate(self._plans)}
        self._clock = clock
        self.interruption: str | None = None
        self.deadline_s = 0.0
        self._wakes: Callable[[], object] | None = None
        self.stalled: tuple[int, WsmError] | None = None
        self._plan: int | None = None
        self._places = {
            id(action): (number, place, _index(plan, place))
            for number, plan in enumerate(self._plans)
            for place, action in enumerate(plan)
        }

    def declaration(self) -> DeclaredPlans:
        """Return the plans as the other processes may know them, in the order that the words count in."""
        return DeclaredPlans(
            tuple(
                DeclaredPlan(
                    plan.name,
                    len(plan.before_parking),
                    tuple(
                        DeclaredAction(action.name, action.deadline_s, action.collective) for action in plan
                    ),
                )
                for plan in self._plans
            )
        )

    def takes_up(self, plan: Plan | None) -> None:
        """Say which plan is at hand from now on; None: none."""
        place = self._numbers.get(id(plan))
        if place != self._plan:
            self._plan = place
            self._presence.does(Doing(place), self._clock.monotonic_ns())
        if self._wakes is not None:
            self._wakes()

    def wake(self) -> None:
        """Let the watchdog look: something begins that it may have to end."""
        if self._wakes is not None:
            self._wakes()

    def wakes(self, watchdog: Callable[[], object] | None) -> None:
        """Call `watchdog` from now on whenever it has to look; None: it has ended."""
        self._wakes = watchdog

    def found_stalled(self, sequence: int, error: WsmError | None) -> None:
        """Take in whether the controller of a command lets it wait beyond its deadline; for the watchdog."""
        self.stalled = None if error is None else (sequence, error)

    def stalled_in(self, sequence: int) -> WsmError | None:
        """Return why a command cannot be waited for although nothing is decided; None if it can."""
        stalled = self.stalled
        return stalled[1] if stalled is not None and stalled[0] == sequence else None

    def begins(self, action: Action, *, beside: bool = False) -> None:
        """Say that the rank is inside `action` from now on.

        One that runs `beside` the serving loop is named to others only: nothing may end it for its hanging,
        since what the loop itself is inside of is a step.
        """
        self._plan, place, index = self._places.get(id(action), (self._plan, None, None))
        now_ns = self._clock.monotonic_ns()
        self.interruption = None
        self.deadline_s = action.deadline_s
        self.running = None if beside else Running(action, index, now_ns)
        self._presence.does(Doing(self._plan, place), now_ns)

    def ends(self) -> None:
        """Say that the rank is inside no action any more. Idempotent."""
        self.running = None
        self._presence.does(Doing(self._plan), self._clock.monotonic_ns())

    def interrupted(self, running: Running, why: str) -> None:
        """Take in that the loop is called out of an action, if it is still inside; for the watchdog."""
        if self.running is running:
            self.interruption = why

    def elapsed_s(self, running: Running) -> float:
        """Seconds that an action has taken so far."""
        return (self._clock.monotonic_ns() - running.since_ns) / 1e9

    def check(self) -> None:
        """Show progress, and end an action that is past its deadline where it lets itself be ended.

        Raises
        ------
        ActionDeadlineError
            If it is.
        """
        now_ns = self._clock.monotonic_ns()
        self._presence.beat(now_ns)
        running = self.running
        if running is not None and (now_ns - running.since_ns) / 1e9 > running.action.deadline_s:
            raise ActionDeadlineError(
                rank=self._rank,
                action=running.action.name,
                seconds=(now_ns - running.since_ns) / 1e9,
                deadline_s=running.action.deadline_s,
            )


def _index(plan: Plan, place: int) -> int | None:
    """Return what status words call the action at `place` of all actions of `plan`."""
    if plan.staged:  # a hot update's status words name no action
        return None
    index = place - len(plan.before_parking)
    return index if 0 <= index < len(plan.actions) else None


class Watchdog:
    """Watches over one rank.

    Parameters
    ----------
    words : GroupWords
        The segment, seen by this rank; only read.
    watch : ActionWatch
        Which action the rank is inside of.
    groups : ProcessGroupSurface or None
        The engine's communicators.
    recorder : Recorder
        For what happened.
    state : callable
        Returns what the rank remembers of the protocol.
    abandoned : AbandonedCommands
        Of the group.
    """

    def __init__(
        self,
        words: GroupWords,
        watch: ActionWatch,
        groups: ProcessGroupSurface | None,
        recorder: Recorder,
        state: Callable[[], RankState],
        *,
        abandoned: AbandonedCommands,
    ) -> None:
        self._words = words
        self._watch = watch
        self._groups = groups if isinstance(groups, InterruptibleGroups) else None
        self._recorder = recorder
        self._state = state
        self._abandoned = abandoned
        self._log = log.logger("worker.watchdog", rank=words.rank)
        self._asks_at_s = 0.0  # the role; 0: nothing was due at the last look
        self._reported: Running | None = None
        # Ranks alone: a participant without steps is in no communicator.
        self._peers = tuple(peer for peer in range(words.segment.world_size) if peer != words.rank)
        self._liveness = Liveness(words.segment)
        self._deaths = DeathWatch(self._liveness, self._peers, self._peer_died, self._turn, LOOK_S)
        self._watched_epoch = 0
        watch.wakes(self._wake)
        self._wake()

    def peers_cannot_go_on(self, why: str) -> None:
        """Break the communicators of this rank: its step raised, so no rank will get out of that step."""
        self._interrupt(why)

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._watch.wakes(None)
        self._deaths.close()
        self._abandoned.close()
        self._liveness.close()

    def _wake(self) -> None:
        """Look soon. Other processes stand for the peers in a new epoch only, once it has a command."""
        state = self._state()
        if state.epoch == self._watched_epoch:
            self._deaths.turn_soon()
        elif self._deaths.refresh() and state.phase is not Phase.IDLE:
            self._watched_epoch = state.epoch

    def _peer_died(self) -> None:
        """Break what cannot work any more: no collective ends without the dead, now or later."""
        dead = self._dead()
        if dead:
            self._interrupt(f"the process of rank {', '.join(map(str, dead))} is gone")

    def _turn(self) -> float | None:
        """Look at the action at hand; return when to look again, None: only when woken."""
        running = self._watch.running
        if running is not None:
            self._look_at(running)
        lacks_a_word = self._look_at_command()
        idle = running is None and self._state().phase is Phase.IDLE
        return None if idle and not lacks_a_word else LOOK_S

    def _look_at_command(self) -> bool:
        """Do what is owed to a command whose controller does not come back; return whether it needs one."""
        try:
            if not self._abandoned.lacks_a_word:
                self._asks_at_s = 0.0
                self._watch.found_stalled(0, None)
                return False
            now = time.monotonic()
            if not self._asks_at_s:
                self._asks_at_s = now + ROLE_S * (1 + self._words.rank % _STAGGERED / _STAGGERED)
            if now >= self._asks_at_s:
                self._asks_at_s = now + ROLE_S
                stopped = self._abandoned.look()
                self._watch.found_stalled(0 if stopped is None else stopped.context["sequence"], stopped)
        except Exception as error:  # noqa: BLE001 - a damaged word, a full disk: this thread has to live on
            self._log.error(log.COMMAND_ABANDONED, error=repr(error))
            self._asks_at_s = time.monotonic() + _RETRY_S
        return True

    def _look_at(self, running: Running) -> None:
        elapsed_s = self._watch.elapsed_s(running)
        deadline_s = running.action.deadline_s
        overdue = elapsed_s > deadline_s
        why = f"its deadline of {deadline_s:g} s has passed" if overdue else None
        if running.action.collective:
            if elapsed_s < deadline_s + NAMING_S and not self._words.called_off(self._state().epoch):
                why = None
            why = self._cannot_return(running) or why
        if why is None:
            return
        if running.action.collective and self._groups is not None:
            self._watch.interrupted(running, why)
            self._interrupt(why)
        elif overdue and self._reported is not running:
            self._reported = running
            state = self._state()
            error = ActionDeadlineError(
                rank=state.rank,
                action=running.action.name,
                seconds=elapsed_s,
                deadline_s=running.action.deadline_s,
            )
            self._recorder.wait_expired(state.epoch, state.sequence, error)

    def _cannot_return(self, running: Running) -> str | None:
        """Say why a collective action can end no more, however long it is waited for; None if it may."""
        state = self._state()
        try:
            view = self._words.view()
        except WordFormatError:
            return None  # the loop finds that out, too, and says so
        if view.command.epoch != state.epoch:
            return f"epoch {view.command.epoch} has begun"
        if dead := self._dead():
            return f"the process of rank {', '.join(map(str, dead))} is gone"
        inside = [] if running.index is None else failed_inside(view, running.index)
        failed = [peer for peer in inside if peer != state.rank]
        return f"rank {', '.join(map(str, failed))} failed in it" if failed else None

    def _dead(self) -> list[int]:
        return [peer for peer in self._peers if self._liveness.look(peer) is Life.DEAD]

    def _interrupt(self, why: str) -> None:
        if self._groups is None or not self._groups.interrupt():
            return
        state = self._state()
        self._recorder.interrupted(state.epoch, state.sequence, why)
