"""A thread that sees what the loop cannot see while it is blocked: its deadline, a dead peer, a new epoch.

It calls the loop out of a collective that cannot end any more, where the engine's communicators can be
interrupted, and reports what it cannot end. It writes no word of the rank and beats no heart, which would
hide the very hang that it is there for. Where the controller of a command does not come back, it does for the
group what is owed to the command (:mod:`wsm.controller.recovery`). While nothing is under way it sleeps
until a process of the group dies.
"""

from __future__ import annotations

import time
from typing import Protocol

from wsm import log
from wsm.actions.surfaces import InterruptibleGroups, ProcessGroupSurface
from wsm.controller.recovery import AbandonedCommands
from wsm.signals.liveness import DeathWatch, Life, Liveness
from wsm.states.errors import WordFormatError
from wsm.states.rank_state import Phase, RankState
from wsm.states.view import View
from wsm.states.words import StatusCode
from wsm.worker.errors import ActionDeadlineError
from wsm.worker.group_words import GroupWords
from wsm.worker.recording import Recorder
from wsm.worker.watch import ActionWatch, Running

#: Seconds beyond its deadline in which a controller may name who holds a collective action up.
NAMING_S = 0.25

#: Time between two looks while a command is under way, in seconds.
LOOK_S = 0.02

#: Time between two looks at the controller role while a decision is due, in seconds; each rank begins at
#: another moment of it, so that mostly one of them finds out.
ROLE_S = 0.1

_STAGGERED = 8
_RETRY_S = 1.0


class Loop(Protocol):
    """What the watchdog may know of the loop's own state."""

    @property
    def state(self) -> RankState:
        """What the protocol remembers."""
        ...


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
    loop : Loop
        The rank's driver.
    abandoned : AbandonedCommands
        Of the group.
    """

    def __init__(
        self,
        words: GroupWords,
        watch: ActionWatch,
        groups: ProcessGroupSurface | None,
        recorder: Recorder,
        loop: Loop,
        *,
        abandoned: AbandonedCommands,
    ) -> None:
        self._words = words
        self._watch = watch
        self._groups = groups if isinstance(groups, InterruptibleGroups) else None
        self._recorder = recorder
        self._loop = loop
        self._abandoned = abandoned
        self._log = log.logger("worker.watchdog", rank=words.rank)
        self._asks_at_s = 0.0  # the role; 0: nothing was due at the last look
        self._reported: Running | None = None
        # Ranks alone: a participant without steps is in no communicator.
        self._peers = tuple(peer for peer in range(words.segment.world_size) if peer != words.rank)
        self._liveness = Liveness(words.segment)
        self._deaths = DeathWatch(self._liveness, self._peers, self._somebody_died, self._turn)
        watch.on_plan = self._deaths.refresh
        self._deaths.refresh()

    def peers_cannot_go_on(self, why: str) -> None:
        """Break the communicators of this rank: its step raised, so nobody will get out of that step."""
        self._interrupt(why)

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._watch.on_plan = None
        self._deaths.close()
        self._abandoned.close()
        self._liveness.close()

    def _somebody_died(self) -> None:
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
        idle = running is None and self._loop.state.phase is Phase.IDLE
        return None if idle and not lacks_a_word else LOOK_S

    def _look_at_command(self) -> bool:
        """Do what is owed to a command whose controller does not come back; return whether it needs one."""
        try:
            if not self._abandoned.lacks_a_word:
                self._asks_at_s, self._watch.stalled = 0.0, None
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
        elapsed_s = self._watch.elapsed_s(running)
        deadline_s = running.action.deadline_s
        overdue = elapsed_s > deadline_s
        why = f"its deadline of {deadline_s:g} s has passed" if overdue else None
        if running.action.collective:
            if elapsed_s < deadline_s + NAMING_S and not self._words.called_off(self._loop.state.epoch):
                why = None
            why = self._hopeless(running) or why
        if why is None:
            return
        if running.action.collective and self._groups is not None:
            self._watch.interrupted(running, why)
            self._interrupt(why)
        elif overdue and self._reported is not running:
            self._reported = running
            state = self._loop.state
            error = ActionDeadlineError(
                rank=state.rank,
                action=running.action.name,
                seconds=elapsed_s,
                deadline_s=running.action.deadline_s,
            )
            self._recorder.wait_expired(state.epoch, state.sequence, error)

    def _hopeless(self, running: Running) -> str | None:
        """Say why a collective action can end no more, however long it is waited for; None if it may."""
        state = self._loop.state
        try:
            view = self._words.view()
        except WordFormatError:
            return None  # the loop finds that out, too, and says so
        if view.command.epoch != state.epoch:
            return f"epoch {view.command.epoch} has begun"
        if dead := self._dead():
            return f"the process of rank {', '.join(map(str, dead))} is gone"
        failed = [peer for peer in self._peers if _failed_inside(view, peer, running)]
        return f"rank {', '.join(map(str, failed))} failed in it" if failed else None

    def _dead(self) -> list[int]:
        return [peer for peer in self._peers if self._liveness.look(peer) is Life.DEAD]

    def _interrupt(self, why: str) -> None:
        if self._groups is None or not self._groups.interrupt():
            return
        state = self._loop.state
        self._recorder.interrupted(state.epoch, state.sequence, why)


def _failed_inside(view: View, peer: int, running: Running) -> bool:
    """Whether a peer failed in the same action, after it had voted for it."""
    status = view.of_command(peer)
    return (
        running.index is not None
        and status is not None
        and StatusCode.FAILED <= status.code <= StatusCode.STOPPED_TOUCHED
        and status.action == running.index
        and status.ready > running.index
    )
