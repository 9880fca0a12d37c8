"""What one participant can do next: it looks, does what the protocol tells it, or is met by others.

As the worker does it: one thing per look, then the protocol is told how that ended. Every way in which it
can end is a move; so are the deaths and late reads that strike it. A step and a collective action are real in
what matters: a participant that has entered stays inside until all have, or until one is gone. What is done
next says :func:`wsm.states.rank.step`, and which events are fired, on the way out, too,
:mod:`wsm.states.command_events`, as for a worker; here an action is one assignment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from explorer import invariants
from explorer.answers import check_refusals
from explorer.errors import RuleBrokenError, broken_by
from explorer.scope import Budget, Scope
from explorer.world import (
    COMMAND_WORD,
    Alternative,
    Arguments,
    Intent,
    ParticipantState,
    Position,
    PublicState,
    Seen,
    Terms,
    pack,
    read_command,
    read_status,
    read_step,
    status_word,
    step_word,
    word_name,
)
from wsm.states import command_events, epochs
from wsm.states import joint as tables
from wsm.states import rank as protocol
from wsm.states.command_events import Asked, CacheChange, Course, WayOut
from wsm.states.errors import EpochUsedError
from wsm.states.holding import held_after, in_flight_objection
from wsm.states.phases import Do, Effect, Event, Happened, Move, Phase, RankState, Todo
from wsm.states.plan_key import Half
from wsm.states.vocabulary import InFlightPolicy, KVState, Tag, WeightState
from wsm.states.words import Operation

#: What needs nothing to be done, or what a process may well put off.
_AT_ONCE = frozenset((Todo.LOOK, Todo.WAIT, Todo.SERVE, Todo.DRAIN))

#: What brings a rank into a step.
STEPPING = frozenset((Todo.SERVE, Todo.JOIN))

_WORK_BESIDE = {Todo.DRAIN: "has work left", Todo.STAGE: "has work beside the staging"}

#: What a turn may leave undone, or do in part: arguments are late, a commit raises, a teardown takes turns.
_PUT_OFF = frozenset((Todo.BEGIN, Todo.COMMIT, Todo.UNDO, Todo.KEEP, Todo.DROP))

#: What may not have come to its end within a turn.
_LASTS = frozenset((Todo.BEGIN, Todo.DRAIN, Todo.STAGE))

NO_INTENT = Intent()

#: Blocks are forgotten behind the decision of a hold; a seeded fault forgets them as soon as a rank stands.
blocks_are_forgotten_at_once = False


@dataclass(frozen=True)
class Surroundings:
    """What matters for what a participant does next, besides itself.

    Two worlds in which these are alike are alike for the participant: its moves are remembered by them.

    Parameters
    ----------
    index : int
        Its place.
    command : int
        The command word as it is now.
    says : Arguments
        The command's arguments.
    held, closed : bool
        Whether the committed word says that the group is held; whether a hold was decided last, in truth.
    stands : Terms or None
        The hold that was decided last, in truth.
    overdue : bool
        Whether the command's controller is stopped, and its deadline has passed.
    late : bool
        Whether the owner of the group ends it, since it hangs.
    replaces : bool
        Whether the owner of the group ends FAULTED ranks: clearing them again has failed too often.
    affordable : frozenset of Budget
        What may still go wrong.
    others : tuple of PublicState
        All participants. Which parts of them may be read where is said by what moves are remembered by.
    scope : Scope
        The bounds.
    """

    index: int
    command: int
    says: Arguments
    held: bool
    closed: bool
    stands: Terms | None
    overdue: bool
    late: bool
    replaces: bool
    affordable: frozenset[Budget]
    others: tuple[PublicState, ...]
    scope: Scope


class RankMoves:
    """Everything that one participant can do in one world, and what can be done to it.

    Parameters
    ----------
    before : ParticipantState
        As it is; moves that change nothing are none.
    around : Surroundings
        What matters besides.

    Attributes
    ----------
    found : list of Alternative
        The moves.
    """

    def __init__(self, before: ParticipantState, around: Surroundings) -> None:
        self.found: list[Alternative] = []
        self._before = before
        self._around = around
        self._says = around.says
        self._fine = around.scope.fine
        self._ranks = around.others[: around.scope.ranks]

    def add(
        self, label: str, act: Callable[[], ParticipantState | None], spends: Budget | None = None
    ) -> None:
        """Try a move. One that changes nothing, or that cannot be afforded, is no move."""
        if spends is not None and spends not in self._around.affordable:
            return
        before, paid = self._before, () if spends is None else (spends,)
        try:
            after = act()
            if after is None or after == before:
                return
            invariants.check_words(before, after)
            if after.state is not before.state or after.joint is not before.joint:
                invariants.check_beside(after)
        except Exception as error:  # noqa: BLE001 - whatever is raised here: a world that can be reached breaks it
            self.found.append(Alternative(label, b"", paid, broken_by(error)))
            return
        changed = []
        if before.step != after.step:
            changed.append((step_word(self._around.index), before.step))
        if before.status != after.status:
            changed.append((status_word(self._around.index), before.status))
        self.found.append(Alternative(label, pack(after), paid, "", tuple(changed)))

    def add_strikes(self) -> None:
        """Add that it sees a hidden word at last, that its process hangs, dies, or is ended."""
        me = self._before
        if not me.alive:
            return
        if me.hung:
            if self._around.late:
                self.add("is ended, since it hangs", lambda: killed(me))
            return
        self.add("hangs", lambda: me._replace(hung=True), Budget.HANGS)
        if me.seen.word:
            self.add(f"sees {word_name(me.seen.word)} as it is", lambda: me._replace(seen=Seen()))
        self.add("dies", lambda: killed(me), Budget.RANK_CRASHES)
        if self._around.replaces and read_status(me.status).weights == WeightState.FAULTED:
            self.add("is ended, since its teardown fails", lambda: killed(me))

    def start(self) -> None:
        """A new process takes the slot, if no process has used it in this epoch."""
        me = self._before
        try:
            joined = self._joined(me, self._around.command)
        except EpochUsedError:
            return
        state = joined.state
        blank = ParticipantState(me.step, me.status, alive=True, position=Position.FREE, state=state)
        self.add("is started anew and joins the epoch", lambda: self._store(blank, joined))

    def after_looking(self, do: Do) -> None:
        """Add what can come of what the participant was just told."""
        me, move = self._before, do.move
        step, status = _packed(move)
        if self._around.overdue and protocol.may_fail(me.state):
            label = f"fails while {me.state.phase.value}: its controller is stopped"
            self.add(label, lambda: self._failed(me, Event.EXPIRED))
        if self._fine and (step or status or do.todo not in _AT_ONCE):
            intent = Intent(do.todo, step, status, do.meanwhile)
            label = f"looks and decides to {do.todo.value}"
            self.add(label, lambda: me._replace(state=move.state, intent=intent))
            return
        stored = me._replace(state=move.state, step=step or me.step, status=status or me.status)
        if do.todo in _AT_ONCE:
            says = f"is {move.state.phase.value}" if move.status is None else f"says {move.status.code.name}"
            self.add(says, lambda: stored)
        self._do(do.todo, do.meanwhile, stored)

    def join(self) -> None:
        """Add that it joins the new epoch, behind the teardown of what it held in the old one."""
        self._join(self._before)

    def carry_on(self) -> None:
        """Add the next part of what a process has decided to do."""
        me = self._before
        left = me.intent
        if left.step:
            stored = me._replace(step=left.step, intent=left._replace(step=0))
            self.add("stores its step word", lambda: stored)
        elif left.status:
            stored = me._replace(status=left.status, intent=left._replace(status=0))
            self.add("stores its status word", lambda: stored)
        else:
            free = me._replace(intent=NO_INTENT)
            if left.todo in _PUT_OFF:
                self.add(f"does not come to {left.todo.value} in this turn", lambda: free, Budget.FAILURES)
            self._do(left.todo, left.meanwhile, free)

    def inside_a_step(self) -> None:
        """Leave it when all ranks have entered; be torn out when one never will."""
        me = self._before
        free, step = me._replace(position=Position.FREE), me.state.step
        if not invariants.is_blocked(me, self._ranks):
            self.add(f"leaves step {step}", lambda: free)
        elif self._one_is_gone():
            self.add(f"is torn out of step {step}", lambda: self._broken(free))
        self.add(f"raises in step {step}", lambda: self._broken(free), Budget.BROKEN_STEPS)

    def inside_an_action(self) -> None:
        """Leave it, in any way, when all have entered; be torn out when one never will."""
        me, ranks = self._before, self._ranks
        free = me._replace(position=Position.FREE)
        self.add("raises in the collective action", lambda: self._failed(_torn(free)), Budget.BROKEN_STEPS)
        if invariants.one_raised_beside(me, ranks):
            self.add("is torn out of the collective action", lambda: self._failed(free))
        if invariants.all_inside(me, ranks):
            self._end_action(free)
        elif self._one_is_gone():
            self.add("is torn out of the collective action", lambda: self._failed(free))
        else:
            self.add(
                "waits in the collective action",
                lambda: invariants.check_collective(me, ranks, self._around.index),
            )

    def _one_is_gone(self) -> bool:
        """Whether what needs all of the epoch will never be whole: a death, a broken step, a new epoch.

        So it is beside one that hangs: the deadline of the action, or of the engine's step, finds that out.
        """
        epoch = self._before.state.epoch
        return read_command(self._around.command).epoch > epoch or any(
            (other.epoch == epoch and (other.hung or not other.alive))
            or invariants.is_broken(other.step, epoch)
            for other in self._ranks
        )

    # -- telling the protocol ----------------------------------------------------------------------

    def _store(self, me: ParticipantState, move: Move) -> ParticipantState:
        """Remember the state, store the words; two words in two moves of their own where moves are fine."""
        me, (step, status) = me._replace(state=move.state), _packed(move)
        if self._fine and step and status:
            return me._replace(intent=Intent(Todo.LOOK, step, status))
        return me._replace(step=step or me.step, status=status or me.status)

    def _tell(self, me: ParticipantState, event: Event, **known: Any) -> ParticipantState:
        """Tell the protocol what happened, with the machines' present codes."""
        happened = Happened(event, int(me.joint.weights), int(me.joint.kv), **known)
        return self._store(me, protocol.step(me.state, happened).move)

    def _failed(self, me: ParticipantState, event: Event = Event.FAILED) -> ParticipantState:
        """Tell machines and protocol that the command failed here."""
        me = _fired(me, command_events.fail)
        return self._tell(me, event, touched=me.torn)

    def _broken(self, me: ParticipantState) -> ParticipantState:
        """Say that the step raised; a command that waits for this rank to park fails with it."""
        me = self._tell(me, Event.BROKE)
        waits = me.state.phase is not Phase.IDLE and protocol.may_fail(me.state)
        return self._failed(me) if waits else me

    def _add_failure(self, label: str, me: ParticipantState, event: Event = Event.FAILED) -> None:
        """Add that the command fails here, if something may still fail."""
        self.add(label, lambda: self._failed(me, event), Budget.FAILURES)

    def _finish_action(self, me: ParticipantState) -> ParticipantState:
        return self._tell(me, Event.ACTION_DONE, touched=me.torn)

    # -- what it is told to do ---------------------------------------------------------------------

    def _do(self, todo: Todo, meanwhile: Todo, me: ParticipantState) -> None:
        """Add what can come of doing it, and what goes on meanwhile."""
        drains = todo is not Todo.DRAIN or self._can_drain(me)
        if todo is Todo.DRAIN and drains:
            self.add("has drained", lambda: self._tell(me, Event.DRAINED))
        elif todo in _DOES:
            _DOES[todo](self, me)
        goes_on = meanwhile if todo in _LASTS and drains else todo
        if goes_on is Todo.SERVE:
            label = _WORK_BESIDE.get(todo, "has work")
            self.add(label, lambda: self._begin_step(me), Budget.STEPS)
        elif goes_on is Todo.JOIN:
            self.add(f"joins step {me.state.step + 1}", lambda: self._enter(me))
        if todo in (Todo.WAIT, Todo.BEGIN, Todo.DRAIN) and protocol.may_fail(me.state):
            self._add_failure(f"passes its deadline while {me.state.phase.value}", me, Event.EXPIRED)

    def _begin_step(self, me: ParticipantState) -> ParticipantState:
        return me._replace(intent=Intent(Todo.JOIN)) if self._fine else self._enter(me)

    def _enter(self, me: ParticipantState) -> ParticipantState:
        move = protocol.step(me.state, Happened(Event.ENTERED)).move
        if not me.state.holds or me.state.accepted or me.state.broken:
            raise RuleBrokenError(
                rule="only a rank that holds weights, has not accepted and is not broken may step",
                seen=f"it is told to enter step {move.state.step}",
            )
        entering = me._replace(state=move.state)
        command = read_command(self._around.command)
        parks_still = command.operation is Operation.HOT_COMMIT and me.state.done < command.sequence
        invariants.check_admission(self._around.closed and not parks_still, entering.state)
        invariants.check_entry(entering, self._around.others, self._around.index)
        inside = entering._replace(position=Position.IN_STEP, step_version=me.content, blocks=me.content)
        return self._store(inside, move)

    def _joined(self, me: ParticipantState, command: int) -> Move:
        return protocol.join(
            self._around.index,
            read_command(command),
            read_step(me.step),
            read_status(me.status),
            steps=me.state.steps,
            held=self._around.held,
        )

    def _rejoin(self, me: ParticipantState) -> None:
        """Let the process give back what it held, in the old epoch; if that fails, it never joins."""
        if command_events.leave(Course(me.joint)).plan is None:
            self._join(me)
            return
        left = _fired(me, command_events.leave, _RELEASED)._replace(content=0, version=0, blocks=0)
        self.add("gives back what it held", lambda: left._replace(position=Position.LEAVING))
        self.add("fails to give back what it held, and ends", lambda: killed(me), Budget.FAILURES)

    def _join(self, me: ParticipantState) -> None:
        """Let the process live on into a new epoch, with nothing held."""
        hidden, value = me.seen

        def join() -> ParticipantState:
            joined = self._joined(me, value if hidden == COMMAND_WORD else self._around.command)
            empty = _forgotten(_fired(me, command_events.freed, command_events.lose))
            empty = empty._replace(content=0, version=0, blocks=0, aside=False)
            empty = empty._replace(position=Position.FREE, ran=0, entered_action=0, step_version=0)
            return self._store(empty, joined)

        self.add("joins the new epoch", join)

    def _begin(self, me: ParticipantState) -> None:
        """Let it check that the command is legal here."""

        def begin() -> ParticipantState:
            asked = self._asked(me)
            about, had_blocks = _in_order(asked.tags), self._around.scope.requests and bool(me.blocks)
            ready = me._replace(about=about, before=me.joint, torn=False, loaded=0, had_blocks=had_blocks)
            if me.state.broken or command_events.objection(asked, Course(me.joint)) is not None:
                invariants.check_refusal(me)
                return self._tell(me, Event.REFUSED)
            if self._objects(me):
                return self._tell(me, Event.REFUSED)
            plan = votes_of(asked, steps=me.state.steps, long_plans=self._around.scope.long_plans)
            row = protocol.find_outcome(ready.state, Event.BEGAN)
            if row is not None and row.change is Effect.ACCEPTS:
                ready = self._accepted(ready)
            return self._tell(ready, Event.BEGAN, collective=plan)

        self.add("begins", begin)
        self._add_failure("fails to begin", me)

    def _asked(self, me: ParticipantState) -> Asked:
        """Return what is asked; a rank that lacks its KV cache alone keeps weights of the same version."""
        request, tags, version = me.state.operation, frozenset(self._says.tags), self._says.version
        same = version == me.version
        about = command_events.narrowed(request, tags, me.joint, same_version=same, reload=False)
        if about != tags and not same:
            raise RuleBrokenError(
                rule="weights are left alone only in the version that is asked for",
                seen=f"it keeps version {me.version} for an update to version {version}",
            )
        return Asked(request, about, me.joint)

    def _objects(self, me: ParticipantState) -> bool:
        """Whether it cannot honour the command's policy for requests."""
        policy, set_aside = self._says.in_flight, int(me.aside)
        return in_flight_objection(policy, held=me.state.held, set_aside=set_aside) is not None

    def _can_drain(self, me: ParticipantState) -> bool:
        """Whether a rank that drains comes to an end: what stands still never does."""
        drains = self._says.in_flight is InFlightPolicy.DRAIN
        return not (self._around.scope.requests and me.state.held and me.aside and drains)

    def _settled_requests(self, me: ParticipantState) -> ParticipantState:
        """Return what is left of the requests that a hold has set aside, once a command has ended them."""
        if not me.aside or not me.state.held or self._says.in_flight is not InFlightPolicy.ABORT:
            return me
        invariants.check_requests_ended(named=self._says.names_policy, stands=self._around.stands)
        return me._replace(aside=False)

    def _accept(self, me: ParticipantState) -> None:
        """Let the transition begin: all stand at the same step."""
        self._add_failure("lacks what its plan needs", _begun(me))

        self.add("accepts", lambda: self._tell(self._accepted(me), Event.ACCEPTED))

    def _accepted(self, me: ParticipantState) -> ParticipantState:
        invariants.check_accepts_once(me)
        begun = _begun(self._settled_requests(me))
        return begun._replace(ran=me.state.sequence, entered_action=0)

    def _run(self, me: ParticipantState) -> None:
        """Let it run an action, or enter one that is collective."""
        if not me.state.collective[me.state.action]:
            self._end_action(me)
            return
        number = me.state.action
        self.add(
            f"enters collective action {number}",
            lambda: me._replace(position=Position.IN_ACTION, entered_action=number + 1),
        )

    def _end_action(self, me: ParticipantState) -> None:
        """Add every way in which an action can end."""
        tags = asked_of(me).tags
        if me.state.collective[me.state.action]:
            self.add("leaves the collective action", lambda: self._finish_action(me))
            self._add_failure("fails in the collective action", me)
        elif me.state.operation is Operation.CLEAR:
            self.add("releases", lambda: self._finish_action(_released(me)))
            self._add_failure("fails to release", _torn_off(me))
        elif me.state.operation.is_of_admission:
            hold = self._says.hold
            early = blocks_are_forgotten_at_once and hold is not None and hold.drops
            settled = me._replace(blocks=0) if early else me
            self.add("ends or keeps what runs", lambda: self._finish_action(settled))
            self._add_failure("fails to end what runs", me)
        elif Tag.WEIGHTS in tags:
            self._load(me)
        else:
            rebuilt = me._replace(blocks=0, loaded=me.content)
            self.add("rebuilds the KV cache", lambda: self._finish_action(rebuilt))
            self._add_failure("fails to rebuild the KV cache", me)

    def _load(self, me: ParticipantState) -> None:
        """Add every way in which a load can end."""
        version = self._says.version
        self.add("loads", lambda: self._finish_action(_loaded(me, version)))
        if tables.serving(me.before.weights, me.before.kv):
            beside = me._replace(staged=version, loaded=version)
            self.add("loads beside the old", lambda: self._finish_action(beside))
        if me.state.steps:  # what a helper fetches for a version is its own business
            other = _loaded(me, _other(version))
            self.add("loads another version", lambda: self._finish_action(other), Budget.FAILURES)
        if self._says.restores and me.state.steps:
            self.add("finds its source overwritten", lambda: self._overwritten(me), Budget.FAILURES)
        self._add_failure("fails in the middle of loading", _torn(me))
        self._add_failure("fails before it loads", me)

    def _overwritten(self, me: ParticipantState) -> ParticipantState:
        """Load again what names no version, and find other weights there than the group committed."""
        other = epochs.is_other_content(promised="committed", found="other", named=False, restores=True)
        if other:
            return self._failed(_torn(me))
        version = self._says.version
        return self._finish_action(_loaded(me, _other(version))._replace(loaded=version))

    def _leave_vote(self, me: ParticipantState) -> None:
        """Let it fail because a peer never will be ready."""
        self.add("fails: a peer never will be ready", lambda: self._failed(me))

    def _finish(self, me: ParticipantState) -> None:
        """Let it say that all which can fail is done."""
        self.add("finishes its plan", lambda: self._tell(_finished(me), Event.FINISHED))

    def _stage(self, me: ParticipantState) -> None:
        """Let it stage weights beside the ones that it serves."""
        version = self._says.version
        staged = me._replace(staged=version, loaded=version)
        self.add("stages the new weights", lambda: self._tell(staged, Event.STAGED))
        if me.state.steps:  # what a helper fetches for a version is its own business
            other = me._replace(staged=_other(version), loaded=_other(version))
            self.add("stages another version", lambda: self._tell(other, Event.STAGED), Budget.FAILURES)
        self._add_failure("fails to stage", me)

    def _commit(self, me: ParticipantState) -> None:
        """Let it serve what was decided."""

        def commit() -> ParticipantState:
            command = read_command(self._around.command)
            at_hand = (command.epoch, command.sequence) == (me.state.epoch, me.state.sequence)
            if at_hand and not command.operation.is_commit:
                raise RuleBrokenError(
                    rule="no rank serves a version before the group has decided for it",
                    seen=f"it commits, and the command word says {command.operation.name}",
                )
            after = me
            if me.state.operation.is_hot:
                invariants.check_accepts_once(me)
                after = self._settled_requests(me)._replace(ran=me.state.sequence, entered_action=0)
            committed = _committed(after)
            serves = tables.serving(committed.joint.weights, committed.joint.kv)
            held = held_after(self._says.after, held=me.state.held)
            committed = self._of_hold(me, committed, held=held)
            return self._tell(committed, Event.COMMITTED, serves=serves, held=held)

        self.add("commits", commit)
        if me.state.operation.is_hot and me.state.steps:
            # What it holds now is unknown, and it never tries again: only a new epoch leads out.
            mixed = _torn(_fired(_begun(me), command_events.fail))._replace(staged=0)
            self.add("breaks in the flip", lambda: self._tell(mixed, Event.BROKE), Budget.BROKEN_STEPS)

    def _of_hold(self, me: ParticipantState, committed: ParticipantState, *, held: bool) -> ParticipantState:
        """Take in what a hold makes of requests and blocks, and its end of the former."""
        hold = self._says.hold
        if not self._around.scope.requests or not held or me.state.held or hold is None:
            return committed if held else committed._replace(aside=False)
        blocks = 0 if hold.drops else committed.blocks
        served = tables.serving(me.before.weights, me.before.kv)
        return committed._replace(aside=hold.keeps and served, blocks=blocks)

    def _undo(self, me: ParticipantState) -> None:
        """Let it stop and take back what it can."""

        def stopped(after: ParticipantState) -> ParticipantState:
            return self._tell(after, Event.STOPPED, touched=after.torn)

        torn = me.torn or (me.asked is not None and command_events.is_torn(me.joint))
        undone = me if me.asked is None else me._replace(torn=torn, staged=me.staged if torn else 0)
        self.add("stops", lambda: stopped(undone))
        if me.asked is not None and not torn:
            # Whatever an undo raises, the rank counts as touched; until it accepts, its weights are whole.
            failed = _torn_off(me) if me.state.accepted else me._replace(torn=True)
            self.add("fails to undo", lambda: stopped(failed), Budget.FAILURES)

    def _ending(self, me: ParticipantState) -> Asked:
        """Return the command that is brought to its end; of one that has not begun, what others give back."""
        if me.asked is not None:
            return me.asked
        tags, clears = self._says.tags, self._says.clears_half
        called_off = command_events.called_off(frozenset(tags), clears=clears, of_admission=not tags)
        return Asked(*called_off, me.joint)

    def _keep(self, me: ParticipantState) -> None:
        """Let it end as it began."""
        lost = me.state.operation is Operation.HOLD and me.had_blocks and not me.blocks

        def keep() -> ParticipantState:
            if lost:
                raise RuleBrokenError(
                    rule="a hold that fails leaves the KV cache as it was",
                    seen="it is aborted, and the blocks that were there are forgotten",
                )
            after, end = _ended(me, partial(command_events.keep, self._ending(me)), Event.KEPT)
            if after.joint.weights is WeightState.NORMAL and after.content != after.version:
                raise RuleBrokenError(
                    rule="only weights that no rank touched are kept",
                    seen=f"it keeps version {me.version} and holds {after.content}",
                )
            return self._tell(_settled(after), end)

        self.add("keeps what it had", keep)

    def _drop(self, me: ParticipantState) -> None:
        """Let it end with nothing."""

        def drop(*, teardown_fails: bool = False) -> ParticipantState:
            way_out = partial(command_events.drop, self._ending(me))
            after, end = _ended(me, way_out, Event.CLEARED, teardown_fails=teardown_fails)
            return self._tell(_settled(after), end)

        self.add("drops its weights", drop)
        self.add("fails to drop its weights", partial(drop, teardown_fails=True), Budget.FAILURES)


_DOES: dict[Todo, Callable[[RankMoves, ParticipantState], None]] = {
    Todo.REJOIN: RankMoves._rejoin,
    Todo.BEGIN: RankMoves._begin,
    Todo.ACCEPT: RankMoves._accept,
    Todo.RUN: RankMoves._run,
    Todo.LEAVE_VOTE: RankMoves._leave_vote,
    Todo.FINISH: RankMoves._finish,
    Todo.STAGE: RankMoves._stage,
    Todo.COMMIT: RankMoves._commit,
    Todo.UNDO: RankMoves._undo,
    Todo.KEEP: RankMoves._keep,
    Todo.DROP: RankMoves._drop,
}


def killed(me: ParticipantState) -> ParticipantState:
    """Return what is left of a participant whose process died: its words, and where others met it."""
    state = me.state
    return ParticipantState(
        me.step,
        me.status,
        alive=False,
        position=Position.FREE,
        state=RankState(rank=state.rank, epoch=state.epoch, step=state.step, steps=state.steps),
        loaded=me.loaded,
        step_version=me.step_version,
        ran=me.ran,
        entered_action=me.entered_action,
    )


def _other(version: int) -> int:
    return version + 1


def _in_order(tags: frozenset[Tag]) -> tuple[Tag, ...]:
    return tuple(tag for tag in Tag if tag in tags)


def _packed(move: Move) -> tuple[int, int]:
    """Return the step word and the status word that a move stores; 0: none."""
    return move.step.pack() if move.step else 0, move.status.pack() if move.status else 0


# -- an action is one assignment -------------------------------------------------------------------

_RELEASED = partial(command_events.followed, CacheChange.RELEASED)


def asked_of(me: ParticipantState) -> Asked:
    """Return the command at hand.

    Raises
    ------
    RuleBrokenError
        If its work was never set up.
    """
    if me.asked is None:
        raise RuleBrokenError(
            rule="the work of a command is set up before it is done", seen=f"it is {me.state.phase.value}"
        )
    return me.asked


def votes_of(asked: Asked, *, steps: bool, long_plans: bool) -> tuple[bool, ...]:
    """Return which actions of a command's plan need a vote.

    One vote before the first touched byte (communicators restarted), one after it (graphs captured), and,
    in long plans, one in a teardown (communicators shut down). A helper is in no communicator.
    """
    plan = asked.plan
    if plan is None or plan.operation is Operation.HOT_UPDATE:
        return ()
    votes: tuple[bool, ...] = (False,)
    if plan.loads:
        votes = (False, True) if plan.weights is Half.REPLACED else (True, False)
    elif long_plans and plan.operation is Operation.CLEAR and plan.weights is Half.GOES:
        votes = (False, True)
    return votes if steps else tuple(vote for vote in votes if not vote)


def _begun(me: ParticipantState) -> ParticipantState:
    return _fired(me._replace(begun=True), partial(command_events.begin, replace(asked_of(me), begun=True)))


def _released(me: ParticipantState) -> ParticipantState:
    tags = asked_of(me).tags
    if Tag.WEIGHTS in tags:
        me = me._replace(torn=True, content=0)
    return _fired(me._replace(torn=True, blocks=0), _RELEASED) if Tag.KV_CACHE in tags else me


def _loaded(me: ParticipantState, version: int) -> ParticipantState:
    return me._replace(torn=True, content=version, loaded=version)


def _torn(me: ParticipantState) -> ParticipantState:
    """Leave weights of which nothing is known."""
    return me._replace(torn=True, content=0)


def _torn_off(me: ParticipantState) -> ParticipantState:
    """Leave the middle of a release."""
    return _torn(me) if Tag.WEIGHTS in asked_of(me).tags else me._replace(torn=True, blocks=0)


def _finished(me: ParticipantState) -> ParticipantState:
    """Declare that all which can fail is done; a KV cache that comes back with it is empty."""
    asked, at_work = asked_of(me), me.joint.kv is not KVState.NORMAL
    me = _fired(me, partial(command_events.finish, asked))
    if at_work and me.joint.kv is KVState.NORMAL:
        me = me._replace(blocks=0)
    if asked.request is not Operation.CLEAR:
        return me
    if (Tag.WEIGHTS in asked.tags and me.content) or (Tag.KV_CACHE in asked.tags and me.blocks):
        raise RuleBrokenError(
            rule="CLEARED is said after the memory is free",
            seen=f"it says CLEARED and holds version {me.content}",
        )
    return _settled(me)


def _committed(me: ParticipantState) -> ParticipantState:
    """Serve what is prepared."""
    if me.state.operation.is_hot:
        me = _finished(_begun(me))
    loads = me.joint.weights is WeightState.PREPARED
    me = _fired(me, command_events.commit)
    if not loads:
        return _settled(me)
    content = me.staged or me.content
    if not me.loaded or content != me.loaded:
        raise RuleBrokenError(
            rule="only what was loaded and verified is committed",
            seen=f"it commits version {me.loaded} and holds {content}",
        )
    return _forgotten(me)._replace(content=content, version=content)


def _ended(
    me: ParticipantState,
    way_out: Callable[[Course], WayOut],
    end: Event,
    *,
    teardown_fails: bool = False,
) -> tuple[ParticipantState, Event]:
    """Take a way out to its end; return how the command has ended."""
    ending, had_cache = way_out(Course(me.joint)), me.joint.kv is not KVState.CLEARED
    me = _fired(me, way_out)
    if had_cache and me.joint.kv is KVState.CLEARED:
        me = me._replace(blocks=0)
    faulted = ending.faulted
    if ending.plan is not None:
        if Tag.WEIGHTS in ending.plan.gone:
            me = me._replace(content=0)
        if Tag.KV_CACHE in ending.plan.gone:
            me = me._replace(blocks=0)
        me = _fired(me, command_events.not_freed if teardown_fails else command_events.freed)
        if teardown_fails:
            me = me._replace(content=0)
        faulted = teardown_fails
    return me, Event.FAULTED if faulted or me.joint.weights is WeightState.FAULTED else end


def _settled(me: ParticipantState) -> ParticipantState:
    """Forget the command, and the version of weights that are not held any more."""
    held = me.joint.weights is WeightState.NORMAL
    return _forgotten(me)._replace(version=me.version if held else 0)


def _forgotten(me: ParticipantState) -> ParticipantState:
    return me._replace(
        about=None, before=tables.START, begun=False, torn=False, had_blocks=False, staged=0, loaded=0
    )


def _fired(me: ParticipantState, *moments: Callable[[Course], object]) -> ParticipantState:
    """Take the events of moments in; each state on the way is shown every event."""
    course = Course.led(me.joint, *moments)
    for _, joint in course.fired:
        check_refusals(joint)
    return me._replace(joint=course.joint)
