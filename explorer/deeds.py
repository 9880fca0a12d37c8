"""What can come of what a participant was told to do: the shell of a rank, in miniature.

As :class:`wsm.worker.driver.RankDriver` does it: one thing, then the protocol is told what came of that.
Every way in which it can end is a move. Where others stand matters here only for who enters which step.
"""

from __future__ import annotations

from collections.abc import Callable

from explorer import invariants, work
from explorer.errors import RuleBrokenError
from explorer.looking import Told, told
from explorer.outcomes import Outcome, Outcomes
from explorer.participant import (
    COMMAND_WORD,
    Participant,
    Pending,
    Place,
    read_command,
    read_status,
    read_step,
)
from explorer.scope import Budget
from explorer.situation import Situation
from explorer.storing import failed, store, tell
from wsm.states import joint as tables
from wsm.states import rank as protocol
from wsm.states.phases import Event, Happened
from wsm.states.rank_state import Phase, Todo

#: What needs nothing to be done, or what a process may well put off.
_AT_ONCE = frozenset((Todo.LOOK, Todo.WAIT, Todo.SERVE, Todo.DRAIN))

#: What may bring a rank into a step.
STEPPING = frozenset((Todo.SERVE, Todo.DRAIN, Todo.STAGE, Todo.JOIN))


def after_looking(me: Participant, answer: Told, situation: Situation) -> list[Outcome]:
    """Return what can come of what the participant was just told."""
    doer = Doer(me, situation)
    if situation.overdue and protocol.may_fail(me.state):
        label = f"fails while {me.state.phase.value}: its controller is stopped"
        doer.add(label, lambda: failed(me, fine=situation.fine))
    if answer.broken:
        doer.outcomes.found.append(Outcome("looks", None, None, answer.broken))
    elif situation.fine and (answer.step or answer.status or answer.todo not in _AT_ONCE):
        pending = Pending(answer.todo, answer.step, answer.status)
        doer.add(
            f"looks and decides to {answer.todo.value}",
            lambda: me._replace(state=answer.state, pending=pending),
        )
    else:
        if answer.todo in _AT_ONCE:
            doer.add(answer.label, lambda: store(me, answer, fine=False))
        doer.do(answer.todo, store(me, answer, fine=False))
    return doer.outcomes.found


def carry_on(me: Participant, situation: Situation) -> list[Outcome]:
    """Return the next part of what a process has made up its mind to do."""
    doer = Doer(me, situation)
    todo, step, status = me.pending
    if step:
        doer.add("stores its step word", lambda: me._replace(step=step, pending=Pending(todo, 0, status)))
    elif status:
        doer.add("stores its status word", lambda: me._replace(status=status, pending=Pending(todo)))
    else:
        doer.do(todo, me._replace(pending=Pending()))
    return doer.outcomes.found


class Doer:
    """One participant in one situation.

    Parameters
    ----------
    before : Participant
        As it is; moves that change nothing are none.
    situation : Situation
        What matters.
    """

    def __init__(self, before: Participant, situation: Situation) -> None:
        self.outcomes = Outcomes(before, situation.affordable)
        self.add = self.outcomes.add
        self._situation = situation

    def do(self, todo: Todo, me: Participant) -> None:
        """Add what can come of doing it."""
        if todo is Todo.SERVE:
            self.add("has work", lambda: self._begin_step(me), Budget.STEPS)
        elif todo is Todo.JOIN:
            self.add(f"joins step {me.state.step + 1}", lambda: self._enter(me))
        elif todo is Todo.DRAIN:
            self.add("has drained", lambda: self._tell(me, Event.DRAINED))
            if me.state.phase is Phase.DRAINING and me.state.holds and not me.state.broken:
                self.add("has work left", lambda: self._begin_step(me), Budget.STEPS)
        elif todo in _DEEDS:
            _DEEDS[todo](self, me)
        if todo in (Todo.WAIT, Todo.DRAIN) and protocol.may_fail(me.state):
            self.add_failure(f"passes its deadline while {me.state.phase.value}", me)

    def come_out(self, me: Participant) -> None:
        """Add every way in which an action can end."""
        version, kind = self._situation.version, work.kind_of_action(me)
        if kind is work.Kind.LOAD:
            self.add("loads", lambda: self._finish_action(work.load_in_place(me, version)))
            if me.from_normal:
                self.add("loads beside the old", lambda: self._finish_action(work.load_beside(me, version)))
            other = work.load_in_place(me, _other(version))
            if me.state.steps:  # what a helper fetches for a version is its own business
                self.add("loads another version", lambda: self._finish_action(other), Budget.FAILURES)
            self.add_failure("fails in the middle of loading", work.tear(me))
            self.add_failure("fails before it loads", me)
        elif kind is work.Kind.REBUILD:
            self.add("rebuilds the KV cache", lambda: self._finish_action(work.rebuild(me)))
            self.add_failure("fails to rebuild the KV cache", me)
        elif kind is work.Kind.RELEASE:
            self.add("releases", lambda: self._finish_action(work.release(me)))
            self.add_failure("fails to release", work.tear_off(me))
        else:
            self.add("leaves the collective action", lambda: self._finish_action(me))
            self.add_failure("fails in the collective action", me)

    def add_failure(self, label: str, me: Participant) -> None:
        """Add that the command fails here, if something may still fail."""
        self.add(label, lambda: failed(me, fine=self._situation.fine), Budget.FAILURES)

    # -- steps -------------------------------------------------------------------------------------

    def _begin_step(self, me: Participant) -> Participant:
        return me._replace(pending=Pending(Todo.JOIN)) if self._situation.fine else self._enter(me)

    def _enter(self, me: Participant) -> Participant:
        move = protocol.take_in(me.state, Happened(Event.ENTERED))
        if not me.state.holds or me.state.accepted or me.state.broken:
            raise RuleBrokenError(
                rule="only a rank that holds weights, has not accepted and is not broken may step",
                seen=f"it is told to enter step {move.state.step}",
            )
        entering = me._replace(state=move.state)
        invariants.check_entry(entering, self._situation.entered, self._situation.index)
        inside = entering._replace(place=Place.IN_STEP, step_version=me.content, blocks=me.content)
        return store(inside, told(move), fine=self._situation.fine)

    # -- the life of a command ---------------------------------------------------------------------

    def rejoin(self, me: Participant) -> None:
        """Let the process live on into a new epoch, with empty hands."""
        hidden, value = me.seen
        command = read_command(value if hidden == COMMAND_WORD else self._situation.command)

        def join() -> Participant:
            move = protocol.join(
                self._situation.index,
                command,
                read_step(me.step),
                read_status(me.status),
                steps=me.state.steps,
            )
            empty = work.lose(me)._replace(ran=0, entered_action=0, step_version=0)
            return store(empty, told(move), fine=self._situation.fine)

        self.add("joins the new epoch", join)

    def begin(self, me: Participant) -> None:
        """Let it check that the command is legal here."""

        def begin() -> Participant:
            ready = work.set_up(me, self._situation.tags)
            if not work.is_legal(ready):
                return self._tell(me, Event.REFUSED)
            plan = work.plan_of(ready, long_plans=self._situation.long_plans)
            return self._tell(ready, Event.BEGAN, collective=plan)

        self.add("begins", begin)
        self.add_failure("fails to begin", me)

    def accept(self, me: Participant) -> None:
        """Let the transition begin: all stand at the same step."""
        self.add_failure("lacks what its plan needs", work.accept(me))

        def accept() -> Participant:
            invariants.check_accepts_once(me)
            begun = work.accept(me)._replace(ran=me.state.sequence, entered_action=0)
            return self._tell(begun, Event.ACCEPTED)

        self.add("accepts", accept)

    def run(self, me: Participant) -> None:
        """Let it run an action, or enter one that is collective."""
        if work.kind_of_action(me) is not work.Kind.MEET:
            self.come_out(me)
            return
        number = me.state.action
        self.add(
            f"enters collective action {number}",
            lambda: me._replace(place=Place.IN_ACTION, entered_action=number + 1),
        )

    def forsaken(self, me: Participant) -> None:
        """Let it fail because a peer never will be ready."""
        self.add("fails: a peer never will be ready", lambda: failed(me, fine=self._situation.fine))

    def finish(self, me: Participant) -> None:
        """Let it say that all which can fail is done."""
        self.add("finishes its plan", lambda: self._tell(work.finish(me), Event.FINISHED))

    def stage(self, me: Participant) -> None:
        """Let it stage weights beside the ones that it serves."""
        version = self._situation.version
        self.add("stages the new weights", lambda: self._stage(me, version))
        if me.state.steps:  # what a helper fetches for a version is its own business
            other = _other(version)
            self.add("stages another version", lambda: self._stage(me, other), Budget.FAILURES)
        self.add_failure("fails to stage", me)
        if me.state.holds and me.state.steps and not me.state.broken:
            self.add("has work beside the staging", lambda: self._begin_step(me), Budget.STEPS)

    def _stage(self, me: Participant, version: int) -> Participant:
        return self._tell(work.load_beside(me, version), Event.STAGED)

    def commit(self, me: Participant) -> None:
        """Let it serve what was decided."""

        def commit() -> Participant:
            command = read_command(self._situation.command)
            standing = (command.epoch, command.sequence) == (me.state.epoch, me.state.sequence)
            if standing and not command.operation.is_commit:
                raise RuleBrokenError(
                    rule="nobody serves a version before the group has decided for it",
                    seen=f"it commits, and the command word says {command.operation.name}",
                )
            after = me
            if me.state.operation.is_hot:
                invariants.check_accepts_once(me)
                after = me._replace(ran=me.state.sequence, entered_action=0)
            committed = work.commit(after)
            serves = tables.serving(committed.joint.weights, committed.joint.kv)
            return self._tell(committed, Event.COMMITTED, serves=serves)

        self.add("commits", commit)
        if me.state.operation.is_hot and me.state.steps:
            # Nobody knows what it holds now, and it never tries again: only a new epoch leads out.
            self.add(
                "breaks in the flip",
                lambda: self._tell(work.break_flip(me), Event.BROKE),
                Budget.BROKEN_STEPS,
            )

    def undo(self, me: Participant) -> None:
        """Let it stop and take back what it can."""
        after = work.undo(me)
        self.add("stops", lambda: self._tell(after, Event.STOPPED, touched=after.torn))
        if me.began and not after.torn:
            # Whatever an undo raises, the rank counts as touched; until it accepts, its weights are whole.
            torn = work.tear_off(me) if me.state.accepted else me._replace(torn=True)
            self.add(
                "fails to undo",
                lambda: self._tell(torn, Event.STOPPED, touched=True),
                Budget.FAILURES,
            )

    def keep(self, me: Participant) -> None:
        """Let it end as it began."""
        self.add("keeps what it had", lambda: self._settled(work.keep(me)))

    def drop(self, me: Participant) -> None:
        """Let it end with nothing."""
        situation = self._situation
        half = work.given_back(me, situation.tags, clears_half=situation.clears_half)
        self.add("drops its weights", lambda: self._settled(work.drop(me, half)))
        self.add(
            "fails to drop its weights",
            lambda: self._settled(work.drop(me, half, teardown_fails=True)),
            Budget.FAILURES,
        )

    def _settled(self, ended: tuple[Participant, Event]) -> Participant:
        return self._tell(*ended)

    def _finish_action(self, me: Participant) -> Participant:
        return self._tell(me, Event.ACTION_DONE, touched=me.torn)

    def _tell(
        self,
        me: Participant,
        event: Event,
        *,
        collective: tuple[bool, ...] = (),
        touched: bool = False,
        serves: bool = True,
    ) -> Participant:
        return tell(
            me, event, fine=self._situation.fine, collective=collective, touched=touched, serves=serves
        )


_DEEDS: dict[Todo, Callable[[Doer, Participant], None]] = {
    Todo.REJOIN: Doer.rejoin,
    Todo.BEGIN: Doer.begin,
    Todo.ACCEPT: Doer.accept,
    Todo.RUN: Doer.run,
    Todo.FORSAKEN: Doer.forsaken,
    Todo.FINISH: Doer.finish,
    Todo.STAGE: Doer.stage,
    Todo.COMMIT: Doer.commit,
    Todo.UNDO: Doer.undo,
    Todo.KEEP: Doer.keep,
    Todo.DROP: Doer.drop,
}


def _other(version: int) -> int:
    return version + 1
