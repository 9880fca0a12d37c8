"""What one participant can do next: it looks, does what the protocol tells it, or is met by others.

As the worker does it: one thing per look, then the protocol is told what came of that. Every way in which it
can end is a move; so are the deaths and late reads that strike it. A step and a collective action are real in
what matters: a participant that has entered stays inside until all have, or until one is gone. Each memory
is also shown commands of the past, and one that skips ahead: the first must move it nowhere, the second must
be an error for all to see.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from explorer import invariants
from explorer import rank_work as work
from explorer.admission import NAMED, POLICIES, Terms
from explorer.errors import RuleBrokenError, broken_by
from explorer.scope import Budget
from explorer.world import (
    COMMAND_WORD,
    Alternative,
    Intent,
    ParticipantState,
    Position,
    PublicState,
    Seen,
    pack,
    read_command,
    read_status,
    read_step,
    status_word,
    step_word,
    word_name,
)
from wsm.states import epochs
from wsm.states import joint as tables
from wsm.states import rank as protocol
from wsm.states.errors import EpochUsedError, ProtocolViolationError
from wsm.states.holding import held_after, in_flight_objection
from wsm.states.phases import Effect, Event, Happened, Move, Phase, RankState, Todo
from wsm.states.view import View
from wsm.states.vocabulary import After, InFlightPolicy, WeightState
from wsm.states.words import CommandWord, Operation, StatusCode, StepKind

#: What participants say that are not whole any more, or may not be.
_TOUCHED = frozenset((StatusCode.STOPPED_TOUCHED, StatusCode.DONE_CLEARED, StatusCode.DONE_FAULTED))

_QUIET = frozenset((Todo.WAIT, Todo.SERVE, Todo.JOIN))

#: What needs nothing to be done, or what a process may well put off.
_AT_ONCE = frozenset((Todo.LOOK, Todo.WAIT, Todo.SERVE, Todo.DRAIN))

#: What may bring a rank into a step.
STEPPING = frozenset((Todo.SERVE, Todo.DRAIN, Todo.STAGE, Todo.JOIN))

NO_INTENT = Intent()

#: Blocks are forgotten behind the decision of a hold; a seeded fault forgets them as soon as a rank stands.
blocks_are_forgotten_at_once = False


# -- looking ---------------------------------------------------------------------------------------


class Answer(NamedTuple):
    """What a participant was told.

    Attributes
    ----------
    state : RankState
        What it remembers now.
    todo : Todo
        What it is to do.
    step, status : int
        Packed words to store before; 0: none.
    label : str
        For the trace.
    broken : str
        Which rule it breaks by looking; empty: none.
    """

    state: RankState
    todo: Todo
    step: int = 0
    status: int = 0
    label: str = "looks"
    broken: str = ""


def view_as_read(command: int, words: Sequence[tuple[int, int]], ranks: int, seen: Seen) -> View:
    """Return the words of a group as one participant reads them.

    Parameters
    ----------
    command : int
        The packed command word.
    words : sequence of (int, int)
        Step word and status word of every participant.
    ranks : int
        How many participants are ranks; only their step words count.
    seen : Seen
        Which word it goes on seeing as it was.
    """
    hidden, value = seen
    return View(
        read_command(value if hidden == COMMAND_WORD else command),
        [
            read_step(value if hidden == step_word(index) else step)
            for index, (step, _) in enumerate(words[:ranks])
        ],
        [
            read_status(value if hidden == status_word(index) else status)
            for index, (_, status) in enumerate(words)
        ],
    )


def look(state: RankState, view: View, *, first: bool) -> Answer:
    """Ask the protocol; the `first` time with a memory, show it the other commands too."""
    try:
        move = protocol.advance(state, view)
        _check_ends_alike(state, move, view)
        _check_steps_can_end(move, view)
        _check_all_have_looked(move, view)
        if first:
            _check_other_commands(state, view)
        return answered(move)
    except Exception as error:  # noqa: BLE001 - whatever is raised here: a world that can be reached breaks it
        return Answer(state, Todo.WAIT, broken=broken_by(error))


def answered(move: Move) -> Answer:
    """Return a move of the protocol in packed words."""
    step = move.step.pack() if move.step else 0
    status = move.status.pack() if move.status else 0
    label = f"is {move.state.phase.value}" if move.status is None else f"says {move.status.code.name}"
    return Answer(move.state, move.todo, step, status, label)


def _check_ends_alike(before: RankState, move: Move, view: View) -> None:
    """Check how a participant that has stopped for an ABORT is told to end: it drops what one has touched."""
    if before.phase is not Phase.STOPPED or move.state.phase is not Phase.SETTLING:
        return
    said = [word.code for word in view.statuses if word[:2] == (before.epoch, before.sequence)]
    if len(said) < len(view.statuses) or min(said) < StatusCode.STOPPED_UNTOUCHED:
        raise RuleBrokenError(
            rule="no rank ends an aborted command before all have said whether they touched anything",
            seen=f"it ends, and of {len(view.statuses)} these have stopped: {[code.name for code in said]}",
        )
    if move.state.touched and not _TOUCHED.intersection(said):
        raise RuleBrokenError(
            rule="what no rank has touched is kept",
            seen=f"it drops its weights, and the others say {[code.name for code in said]}",
        )


def _check_steps_can_end(move: Move, view: View) -> None:
    """Check that no rank is sent into a step that not all can enter any more."""
    if move.todo not in (Todo.SERVE, Todo.JOIN):
        return
    for index, step in enumerate(view.steps):
        if step.epoch == move.state.epoch and step.kind is StepKind.BROKEN:
            raise RuleBrokenError(
                rule="no rank is sent into a step after one has raised in its epoch",
                seen=f"it is told to {move.todo.value}, and step {step.step} has raised on rank {index}",
            )


def _check_all_have_looked(move: Move, view: View) -> None:
    """Check that no rank stages what another has not looked at yet: its files may be replaced in between.

    What is loaded in place is loaded where all stand for it, which they have looked at before; a rank that
    runs its next action may read an old word of a peer again.
    """
    key = move.state.epoch, move.state.sequence
    late = [index for index in range(len(view.steps)) if view.statuses[index][:2] != key]
    if late and move.todo is Todo.STAGE:
        raise RuleBrokenError(
            rule="no rank reads before all have looked at what they are to load",
            seen=f"it is told to {move.todo.value}, and rank {late[0]} has not begun the command",
        )


def _check_other_commands(state: RankState, view: View) -> None:
    """Show a participant commands of the past, and one that skips ahead."""
    last = max(state.done, state.sequence)
    old = [CommandWord(state.epoch - 1, last, Operation.UPDATE)] if state.epoch > 1 else []
    if last:
        old += [
            CommandWord(state.epoch, last - 1, operation)
            for operation in (Operation.CLEAR, Operation.ABORT, Operation.COMMIT)
        ]
    for command in old:
        move = protocol.advance(state, replace(view, command=command))
        if move.state != state or move.todo not in _QUIET or move.step or move.status:
            raise RuleBrokenError(
                rule="a command of the past moves no rank",
                seen=f"it takes {tuple(command)} in and does {move.todo.value}",
            )
    if state.phase is Phase.IDLE or view.command.epoch != state.epoch:
        return
    skipping = CommandWord(state.epoch, state.sequence + 1, Operation.CLEAR)
    try:
        protocol.advance(state, replace(view, command=skipping))
    except ProtocolViolationError:
        return
    raise RuleBrokenError(
        rule="a command that begins before the last one is over is an error for all to see",
        seen=f"{state.phase.value} with sequence {state.sequence}, it takes {tuple(skipping)} for it",
    )


# -- moving ----------------------------------------------------------------------------------------


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
    version, tags : int
        What the command's arguments name, and what they say it is about.
    clears_half : bool
        Whether they say that it is a clear, of one half.
    restores : bool
        Whether they say that it restores what the group served.
    after : After
        What they say it leaves of admission.
    held, closed : bool
        Whether the committed word says that the group is held; whether a hold was decided last, in truth.
    hold, stands : Terms or None
        The hold that the command's arguments begin; the one that was decided last, in truth, if that matters.
    policy : int
        What they say about requests, as :data:`explorer.admission.POLICIES` and its neighbour say.
    others : tuple of PublicState
        All participants. Which parts of them may be read where is said by what moves are remembered by.
    ranks : int
        How many of them are ranks.
    fine, long_plans : bool
        As in :class:`explorer.scope.Scope`.
    affordable : frozenset of Budget
        What may still go wrong.
    overdue : bool
        Whether the command's controller is stopped, and its deadline has passed.
    late : bool
        Whether the owner of the group ends it, since it hangs.
    replaces : bool
        Whether the owner of the group ends FAULTED ranks: clearing them again has failed too often.
    requests : bool
        Whether requests run in a group that serves, and are told from none.
    """

    index: int
    command: int
    version: int
    tags: int
    clears_half: bool
    restores: bool
    after: After
    held: bool
    closed: bool
    hold: Terms | None
    stands: Terms | None
    policy: int
    others: tuple[PublicState, ...]
    ranks: int
    fine: bool
    long_plans: bool
    affordable: frozenset[Budget]
    overdue: bool = False
    late: bool = False
    replaces: bool = False
    requests: bool = False

    @property
    def in_flight(self) -> InFlightPolicy:
        """What becomes of requests."""
        return POLICIES[self.policy % NAMED]


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
        self._fine = around.fine

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
            move = self._joined(me, self._around.command)
        except EpochUsedError:
            return
        blank = ParticipantState(me.step, me.status, alive=True, position=Position.FREE, state=move.state)
        self.add("is started anew and joins the epoch", lambda: self._store(blank, answered(move)))

    def after_looking(self, answer: Answer) -> None:
        """Add what can come of what the participant was just told."""
        me = self._before
        if self._around.overdue and protocol.may_fail(me.state):
            label = f"fails while {me.state.phase.value}: its controller is stopped"
            self.add(label, lambda: self._failed(me))
        if answer.broken:
            self.found.append(Alternative("looks", b"", (), answer.broken))
        elif self._fine and (answer.step or answer.status or answer.todo not in _AT_ONCE):
            intent = Intent(answer.todo, answer.step, answer.status)
            self.add(
                f"looks and decides to {answer.todo.value}",
                lambda: me._replace(state=answer.state, intent=intent),
            )
        else:
            stored = me._replace(
                state=answer.state, step=answer.step or me.step, status=answer.status or me.status
            )
            if answer.todo in _AT_ONCE:
                self.add(answer.label, lambda: stored)
            self._do(answer.todo, stored)

    def join(self) -> None:
        """Add that it joins the new epoch, behind the teardown of what it held in the old one."""
        self._join(self._before)

    def carry_on(self) -> None:
        """Add the next part of what a process has decided to do."""
        me = self._before
        todo, step, status = me.intent
        if step:
            self.add("stores its step word", lambda: me._replace(step=step, intent=Intent(todo, 0, status)))
        elif status:
            self.add("stores its status word", lambda: me._replace(status=status, intent=Intent(todo)))
        else:
            self._do(todo, me._replace(intent=NO_INTENT))

    def inside_a_step(self) -> None:
        """Leave it when all ranks have entered; be torn out when one never will."""
        me, ranks = self._before, self._around.others[: self._around.ranks]
        free, step = me._replace(position=Position.FREE), me.state.step
        if not invariants.is_blocked(me, ranks):
            self.add(f"leaves step {step}", lambda: free)
        elif self._one_is_gone():
            self.add(f"is torn out of step {step}", lambda: self._broken(free))
        self.add(f"raises in step {step}", lambda: self._broken(free), Budget.BROKEN_STEPS)

    def inside_an_action(self) -> None:
        """Leave it, in any way, when all have entered; be torn out when one never will."""
        me, ranks = self._before, self._around.others[: self._around.ranks]
        free = me._replace(position=Position.FREE)
        self.add(
            "raises in the collective action", lambda: self._failed(work.tear(free)), Budget.BROKEN_STEPS
        )
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
            for other in self._around.others[: self._around.ranks]
        )

    # -- telling the protocol ----------------------------------------------------------------------

    def _store(self, me: ParticipantState, answer: Answer) -> ParticipantState:
        """Remember the state, store the words; two words in two moves of their own where moves are fine."""
        me = me._replace(state=answer.state)
        if self._fine and answer.step and answer.status:
            return me._replace(intent=Intent(Todo.LOOK, answer.step, answer.status))
        return me._replace(step=answer.step or me.step, status=answer.status or me.status)

    def _tell(
        self,
        me: ParticipantState,
        event: Event,
        *,
        collective: tuple[bool, ...] = (),
        touched: bool = False,
        serves: bool = True,
        held: bool | None = None,
    ) -> ParticipantState:
        """Tell the protocol what happened, with the machines' present codes."""
        weights, kv = int(me.joint.weights), int(me.joint.kv)
        happened = Happened(
            event, weights, kv, collective=collective, touched=touched, serves=serves, held=held
        )
        return self._store(me, answered(protocol.take_in(me.state, happened)))

    def _failed(self, me: ParticipantState) -> ParticipantState:
        """Tell machines and protocol that the command failed here."""
        me = work.fail(me)
        return self._tell(me, Event.FAILED, touched=me.torn)

    def _broken(self, me: ParticipantState) -> ParticipantState:
        """Say that the step raised; a command that waits for this rank to park fails with it."""
        me = self._tell(me, Event.BROKE)
        waits = me.state.phase is not Phase.IDLE and protocol.may_fail(me.state)
        return self._failed(me) if waits else me

    def _add_failure(self, label: str, me: ParticipantState) -> None:
        """Add that the command fails here, if something may still fail."""
        self.add(label, lambda: self._failed(me), Budget.FAILURES)

    def _finish_action(self, me: ParticipantState) -> ParticipantState:
        return self._tell(me, Event.ACTION_DONE, touched=me.torn)

    # -- what it is told to do ---------------------------------------------------------------------

    def _do(self, todo: Todo, me: ParticipantState) -> None:
        """Add what can come of doing it."""
        if todo is Todo.SERVE:
            self.add("has work", lambda: self._begin_step(me), Budget.STEPS)
        elif todo is Todo.JOIN:
            self.add(f"joins step {me.state.step + 1}", lambda: self._enter(me))
        elif todo is Todo.DRAIN and not self._can_drain(me):
            pass
        elif todo is Todo.DRAIN:
            self.add("has drained", lambda: self._tell(me, Event.DRAINED))
            if me.state.phase is Phase.DRAINING and _steps_meanwhile(me.state):
                self.add("has work left", lambda: self._begin_step(me), Budget.STEPS)
        elif todo in _DOES:
            _DOES[todo](self, me)
        if todo in (Todo.WAIT, Todo.DRAIN) and protocol.may_fail(me.state):
            self._add_failure(f"passes its deadline while {me.state.phase.value}", me)

    def _begin_step(self, me: ParticipantState) -> ParticipantState:
        return me._replace(intent=Intent(Todo.JOIN)) if self._fine else self._enter(me)

    def _enter(self, me: ParticipantState) -> ParticipantState:
        move = protocol.take_in(me.state, Happened(Event.ENTERED))
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
        return self._store(inside, answered(move))

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
        if not work.holds_something(me):
            self._join(me)
            return
        self.add("gives back what it held", lambda: work.leave(me)._replace(position=Position.LEAVING))
        self.add("fails to give back what it held, and ends", lambda: killed(me), Budget.FAILURES)

    def _join(self, me: ParticipantState) -> None:
        """Let the process live on into a new epoch, with nothing held."""
        hidden, value = me.seen

        def join() -> ParticipantState:
            move = self._joined(me, value if hidden == COMMAND_WORD else self._around.command)
            empty = work.lose(me)._replace(position=Position.FREE, ran=0, entered_action=0, step_version=0)
            empty = empty._replace(aside=False)
            return self._store(empty, answered(move))

        self.add("joins the new epoch", join)

    def _begin(self, me: ParticipantState) -> None:
        """Let it check that the command is legal here."""

        def begin() -> ParticipantState:
            ready = work.set_up(me, self._around.tags, self._around.version)
            ready = ready._replace(had_blocks=self._around.requests and bool(me.blocks))
            if not work.is_legal(ready):
                invariants.check_refusal(me)
                return self._tell(me, Event.REFUSED)
            if self._objects(me):
                return self._tell(me, Event.REFUSED)
            plan = work.plan_of(ready, long_plans=self._around.long_plans)
            row = protocol.find_outcome(ready.state, Event.BEGAN)
            if row is not None and row.change is Effect.ACCEPTS:
                ready = self._accepted(ready)
            return self._tell(ready, Event.BEGAN, collective=plan)

        self.add("begins", begin)
        self._add_failure("fails to begin", me)

    def _objects(self, me: ParticipantState) -> bool:
        """Whether it cannot honour the command's policy for requests."""
        set_aside, policy = int(me.aside), self._around.in_flight
        return in_flight_objection(policy, held=me.state.held, set_aside=set_aside) is not None

    def _can_drain(self, me: ParticipantState) -> bool:
        """Whether a rank that drains comes to an end: what stands still never does."""
        drains = self._around.in_flight is InFlightPolicy.DRAIN
        return not (self._around.requests and me.state.held and me.aside and drains)

    def _settled_requests(self, me: ParticipantState) -> ParticipantState:
        """Return what is left of the requests that a hold has set aside, once a command has ended them."""
        around = self._around
        if not me.aside or not me.state.held or around.in_flight is not InFlightPolicy.ABORT:
            return me
        invariants.check_requests_ended(named=around.policy >= NAMED, stands=around.stands)
        return me._replace(aside=False)

    def _accept(self, me: ParticipantState) -> None:
        """Let the transition begin: all stand at the same step."""
        self._add_failure("lacks what its plan needs", work.accept(me))

        self.add("accepts", lambda: self._tell(self._accepted(me), Event.ACCEPTED))

    def _accepted(self, me: ParticipantState) -> ParticipantState:
        invariants.check_accepts_once(me)
        begun = work.accept(self._settled_requests(me))
        return begun._replace(ran=me.state.sequence, entered_action=0)

    def _run(self, me: ParticipantState) -> None:
        """Let it run an action, or enter one that is collective."""
        if work.kind_of_action(me) is not work.ActionKind.MEET:
            self._end_action(me)
            return
        number = me.state.action
        self.add(
            f"enters collective action {number}",
            lambda: me._replace(position=Position.IN_ACTION, entered_action=number + 1),
        )

    def _end_action(self, me: ParticipantState) -> None:
        """Add every way in which an action can end."""
        version, kind = self._around.version, work.kind_of_action(me)
        if kind is work.ActionKind.LOAD:
            self.add("loads", lambda: self._finish_action(work.load_in_place(me, version)))
            if me.from_normal:
                self.add("loads beside the old", lambda: self._finish_action(work.load_beside(me, version)))
            other = work.load_in_place(me, _other(version))
            if me.state.steps:  # what a helper fetches for a version is its own business
                self.add("loads another version", lambda: self._finish_action(other), Budget.FAILURES)
            if self._around.restores and me.state.steps:
                self.add("finds its source overwritten", lambda: self._overwritten(me), Budget.FAILURES)
            self._add_failure("fails in the middle of loading", work.tear(me))
            self._add_failure("fails before it loads", me)
        elif kind is work.ActionKind.REBUILD:
            self.add("rebuilds the KV cache", lambda: self._finish_action(work.rebuild(me)))
            self._add_failure("fails to rebuild the KV cache", me)
        elif kind is work.ActionKind.RELEASE:
            self.add("releases", lambda: self._finish_action(work.release(me)))
            self._add_failure("fails to release", work.tear_off(me))
        elif kind is work.ActionKind.SETTLE:
            hold = self._around.hold
            early = blocks_are_forgotten_at_once and hold is not None and hold.drops
            settled = me._replace(blocks=0) if early else me
            self.add("ends or keeps what runs", lambda: self._finish_action(settled))
            self._add_failure("fails to end what runs", me)
        else:
            self.add("leaves the collective action", lambda: self._finish_action(me))
            self._add_failure("fails in the collective action", me)

    def _overwritten(self, me: ParticipantState) -> ParticipantState:
        """Load again what names no version, and find other weights there than the group committed."""
        other = epochs.is_other_content(promised="committed", found="other", named=False, restores=True)
        if other:
            return self._failed(work.tear(me))
        version = self._around.version
        return self._finish_action(work.load_in_place(me, _other(version))._replace(loaded=version))

    def _leave_vote(self, me: ParticipantState) -> None:
        """Let it fail because a peer never will be ready."""
        self.add("fails: a peer never will be ready", lambda: self._failed(me))

    def _finish(self, me: ParticipantState) -> None:
        """Let it say that all which can fail is done."""
        self.add("finishes its plan", lambda: self._tell(work.finish(me), Event.FINISHED))

    def _stage(self, me: ParticipantState) -> None:
        """Let it stage weights beside the ones that it serves."""
        version = self._around.version
        self.add("stages the new weights", lambda: self._tell(work.load_beside(me, version), Event.STAGED))
        if me.state.steps:  # what a helper fetches for a version is its own business
            other = work.load_beside(me, _other(version))
            self.add("stages another version", lambda: self._tell(other, Event.STAGED), Budget.FAILURES)
        self._add_failure("fails to stage", me)
        if _steps_meanwhile(me.state):
            self.add("has work beside the staging", lambda: self._begin_step(me), Budget.STEPS)

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
            committed = work.commit(after)
            serves = tables.serving(committed.joint.weights, committed.joint.kv)
            held = held_after(self._around.after, held=me.state.held)
            committed = self._of_hold(me, committed, held=held)
            return self._tell(committed, Event.COMMITTED, serves=serves, held=held)

        self.add("commits", commit)
        if me.state.operation.is_hot and me.state.steps:
            # What it holds now is unknown, and it never tries again: only a new epoch leads out.
            self.add(
                "breaks in the flip",
                lambda: self._tell(work.break_flip(me), Event.BROKE),
                Budget.BROKEN_STEPS,
            )

    def _of_hold(self, me: ParticipantState, committed: ParticipantState, *, held: bool) -> ParticipantState:
        """Take in what a hold makes of requests and blocks, and its end of the former."""
        hold = self._around.hold
        if not self._around.requests or not held or me.state.held or hold is None:
            return committed if held else committed._replace(aside=False)
        blocks = 0 if hold.drops else committed.blocks
        return committed._replace(aside=hold.keeps and me.from_normal, blocks=blocks)

    def _undo(self, me: ParticipantState) -> None:
        """Let it stop and take back what it can."""

        def stopped(after: ParticipantState) -> ParticipantState:
            return self._tell(after, Event.STOPPED, touched=after.torn)

        undone = work.undo(me)
        self.add("stops", lambda: stopped(undone))
        if me.began and not undone.torn:
            # Whatever an undo raises, the rank counts as touched; until it accepts, its weights are whole.
            torn = work.tear_off(me) if me.state.accepted else me._replace(torn=True)
            self.add("fails to undo", lambda: stopped(torn), Budget.FAILURES)

    def _keep(self, me: ParticipantState) -> None:
        """Let it end as it began."""
        lost = me.state.operation is Operation.HOLD and me.had_blocks and not me.blocks
        self.add("keeps what it had", lambda: self._settled(_kept(me, blocks_are_lost=lost)))

    def _drop(self, me: ParticipantState) -> None:
        """Let it end with nothing."""
        half = work.given_back(me, self._around.tags, clears_half=self._around.clears_half)
        self.add("drops its weights", lambda: self._settled(work.drop(me, half)))
        self.add(
            "fails to drop its weights",
            lambda: self._settled(work.drop(me, half, teardown_fails=True)),
            Budget.FAILURES,
        )

    def _settled(self, ended: tuple[ParticipantState, Event]) -> ParticipantState:
        return self._tell(*ended)


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


def _kept(me: ParticipantState, *, blocks_are_lost: bool) -> tuple[ParticipantState, Event]:
    if blocks_are_lost:
        raise RuleBrokenError(
            rule="a hold that fails leaves the KV cache as it was",
            seen="it is aborted, and the blocks that were there are forgotten",
        )
    return work.keep(me)


def _steps_meanwhile(state: RankState) -> bool:
    """Whether a rank may step while it drains or stages, as far as it knows by itself (`rank.meanwhile`)."""
    return state.steps and state.holds and not (state.held or state.broken)


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
