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

import functools
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from wsm import log
from wsm.actions.base import Action, Plan, Plans
from wsm.actions.surfaces import InterruptibleGroups, ProcessGroupSurface
from wsm.clock import Clock
from wsm.command import AT_HAND_KIND, AtHand
from wsm.controller.abandoned_commands import AbandonedCommands
from wsm.errors import WsmError
from wsm.payload import encode
from wsm.signals.layout import PayloadSlot
from wsm.signals.liveness import DeathWatch, Life, Liveness
from wsm.signals.presence import PresenceWords
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

    `index`: what status words call it; None for one before parking or of the commit. `since_ns`: when it
    began, by the worker's clock.
    """

    action: Action
    index: int | None
    since_ns: int


class ActionWatch:
    """The action at hand of one rank.

    `deadline_s`: of the action that began last. `interruption`: why the watchdog called the loop out of the
    last action; None if it did not. `stalled`: the command whose controller lets it wait beyond its deadline,
    and how; None: there is none. `wake`: lets the watchdog look, since something begins that it may have to
    end.
    """

    def __init__(
        self, rank: int, slot: PayloadSlot, presence: PresenceWords, plans: Plans, clock: Clock
    ) -> None:
        self.running: Running | None = None
        self._rank = rank
        self._slot = slot
        self._presence = presence
        self._clock = clock
        self.interruption: str | None = None
        self.deadline_s = 0.0
        self.wake: Callable[[], object] = bool
        self.stalled: tuple[int, WsmError] | None = None
        self._epoch = 0
        self._plan: str | None = None
        self._named: Action | None = None
        equal = [(plan.name, [(action.name, action.collective) for action in plan]) for plan in plans]
        self._digest = hashlib.blake2b(repr(equal).encode(), digest_size=8).hexdigest()
        self._places = {
            id(action): (plan.name, _index(plan, place))
            for plan in plans
            for place, action in enumerate(plan)
        }

    def joins(self, epoch: int) -> None:
        """Say in an epoch, before this rank's first word of it, what plans the rank has."""
        self._epoch, self._plan = epoch, None
        self._presence.inside(0)  # a predecessor may have died inside of an action
        self._write()

    def takes_up(self, plan: Plan) -> None:
        """Say which plan is at hand from now on."""
        if plan.name != self._plan:
            self._plan = plan.name
            self._write(plan.name)
        self.wake()

    def _write(self, *said: Any, action: Action | None = None) -> None:
        self._named = action
        self._slot.write_over(self._epoch, 0, AT_HAND_KIND, _text_of(self._digest, *said))

    def stalled_in(self, sequence: int) -> WsmError | None:
        """Return why a command cannot be waited for although nothing is decided; None if it can."""
        stalled = self.stalled
        return stalled[1] if stalled is not None and stalled[0] == sequence else None

    def begins(self, action: Action, *, beside: bool = False) -> None:
        """Say that the rank is inside `action` from now on.

        One that runs `beside` the serving loop is named to others only: nothing may end it for its hanging,
        since what the loop itself is inside of is a step.
        """
        self._plan, index = self._places.get(id(action), (self._plan, None))
        if self._named is not action:
            deadline_s, collective = float(action.deadline_s), bool(action.collective)
            self._write(self._plan, action.name, deadline_s, collective, action=action)
        now_ns = self._clock.monotonic_ns()
        self.interruption = None
        self.deadline_s = action.deadline_s
        self.running = None if beside else Running(action, index, now_ns)
        self._presence.inside(now_ns)

    def ends(self) -> None:
        """Say that the rank is inside no action any more. Idempotent."""
        self.running = None
        self._presence.inside(0)

    def overdue(self, action: Action, since_ns: int) -> ActionDeadlineError | None:
        """Return how long an action has taken beyond its deadline; None: it is within."""
        seconds = (self._clock.monotonic_ns() - since_ns) / 1e9
        if seconds <= action.deadline_s:
            return None
        return ActionDeadlineError(
            f"{action.name} took {seconds:.3g} s on rank {self._rank}, and its deadline is "
            f"{action.deadline_s:.3g} s; see what it waits for, or configure a longer one (deadlines: "
            "action_s)",
            rank=self._rank,
            action=action.name,
            seconds=seconds,
            deadline_s=action.deadline_s,
        )

    def check(self) -> None:
        """Show progress, and end an action that is past its deadline where it lets itself be ended.

        Raises
        ------
        ActionDeadlineError
            If it is.
        """
        self._presence.beat(self._clock.monotonic_ns())
        running = self.running
        late = None if running is None else self.overdue(running.action, running.since_ns)
        if late is not None:
            raise late


@functools.lru_cache(maxsize=256)
def _text_of(*what: Any) -> bytes:
    """Return what others read of an action, which is the same in every command."""
    return encode(AtHand(*what))


def _index(plan: Plan, place: int) -> int | None:
    """Return what status words call the action at `place` of all actions of `plan`."""
    if plan.staged:  # a hot update's status words name no action
        return None
    index = place - len(plan.before_parking)
    return index if 0 <= index < len(plan.actions) else None


class Watchdog:
    """Watches over one rank."""

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
        watch.wake = self._wake
        self._wake()

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._watch.wake = bool
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
            self.interrupt(f"the process of rank {', '.join(map(str, dead))} is gone")

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
                self._watch.stalled = None
                return False
            now = time.monotonic()
            if not self._asks_at_s:
                self._asks_at_s = now + ROLE_S * (1 + self._words.rank % _STAGGERED / _STAGGERED)
            if now >= self._asks_at_s:
                self._asks_at_s = now + ROLE_S
                stopped = self._abandoned.look()
                self._watch.stalled = None if stopped is None else (stopped.context["sequence"], stopped)
        except Exception as error:  # noqa: BLE001 - a damaged word, a full disk: this thread has to live on
            self._log.error(log.COMMAND_ABANDONED, error=repr(error))
            self._asks_at_s = time.monotonic() + _RETRY_S
        return True

    def _look_at(self, running: Running) -> None:
        state, action = self._state(), running.action
        overdue = self._watch.overdue(action, running.since_ns)
        why = None if overdue is None else f"its deadline of {action.deadline_s:g} s has passed"
        if action.collective:
            # The controller may name first who holds the action up.
            named = self._watch.overdue(action, running.since_ns + int(NAMING_S * 1e9))
            if named is None and not self._words.called_off(state.epoch):
                why = None
            why = self._cannot_return(running) or why
        if why is not None and action.collective and self._groups is not None:
            if self._watch.running is running:
                self._watch.interruption = why
            self.interrupt(why)
        elif why is not None and overdue is not None and self._reported is not running:
            self._reported = running
            self._recorder.wait_expired(state.epoch, state.sequence, overdue)

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

    def interrupt(self, why: str) -> None:
        """Break the communicators of this rank, where they can be: no collective on them ends any more."""
        if self._groups is None or not self._groups.interrupt():
            return
        state = self._state()
        self._recorder.interrupted(state.epoch, state.sequence, why)
