"""A rank's side of every command, as a pure state machine over the words it reads.

Two inputs, both plain values: :func:`advance` looks at a :class:`View` and says what to do, :func:`take_in`
takes in what :class:`Happened`, the end of that thing to do or a step. Both walk the tables of
:mod:`.phases`; what the conditions of its rows mean is said at the end. Each returns a :class:`Move`: the new
state, the words to write (the step word first, then the status word), and the next thing to do.
:func:`step` is what a loop asks, the worker's and the explorer's: it says besides what goes on meanwhile.
Nothing here knows what an action is or what a weight is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from operator import attrgetter
from typing import Any

from wsm.errors import InternalError
from wsm.states.errors import EpochUsedError, ProtocolViolationError
from wsm.states.phases import (
    LOOKS,
    OUTCOMES,
    Do,
    Effect,
    Event,
    Happened,
    LookRow,
    Move,
    OutcomeRow,
    Phase,
    RankState,
    Todo,
    When,
)
from wsm.states.view import (
    View,
    all_answered,
    all_ready,
    all_stand,
    all_stopped,
    any_accepted,
    any_broken,
    any_committed,
    any_touched,
    is_behind,
    never_ready,
)
from wsm.states.words import CommandWord, Operation, StatusCode, StatusWord, StepKind, StepWord, step_in_word


def join(
    rank: int,
    command: CommandWord,
    step: StepWord,
    status: StatusWord,
    *,
    steps: bool = True,
    held: bool = False,
) -> Move:
    """Enter the epoch that the command word names, with nothing resident.

    `command`: what the controller's word says now. `step`, `status`: what stands in the slot's own words; no
    process writes the step word of a helper. `steps`: false for a helper. `held`: what the committed word
    says: whether the group is held, as its epoch before was.

    Raises
    ------
    EpochUsedError
        If the slot was used in this epoch: another process has answered there, and its answers
        must not be taken for this one's.
    """
    if command.epoch in (step.epoch, status.epoch):
        raise EpochUsedError(
            f"rank {rank} was already taken in epoch {command.epoch}, and a replacement joins only an epoch "
            "that its slot never used; restart the group",
            rank=rank,
            epoch=command.epoch,
        )
    open_command = command.operation is not Operation.NONE
    done = command.sequence - open_command
    state = RankState(rank=rank, epoch=command.epoch, done=done, steps=steps, held=held)
    return Move(
        state,
        Todo.LOOK,
        StepWord(command.epoch, 0, StepKind.PARKED, 0) if steps else None,
        StatusWord(command.epoch, 0, StatusCode.ATTACHED),
    )


def advance(state: RankState, view: View) -> Move:
    """Say what to do, given the words that were read. May be called at any time, any number of times.

    Raises
    ------
    ProtocolViolationError
        If a word says what the rules exclude.
    """
    command = view.command
    if command.epoch > state.epoch:
        return Move(state, Todo.REJOIN)
    stale = command.epoch < state.epoch or command.sequence < max(state.done, state.sequence)
    if state.phase is not Phase.IDLE:
        if stale:
            return Move(state, Todo.WAIT)
        if command.sequence != state.sequence:
            raise ProtocolViolationError(
                rank=state.rank,
                rule="the next command is written only when every rank is terminal for the last one",
                seen=f"sequence {command.sequence} while it worked on {state.sequence}",
            )
    row = find_look(state, view)
    if row.broken:
        raise ProtocolViolationError(
            rank=state.rank,
            rule=row.broken,
            seen=f"{command.operation.name} of sequence {command.sequence}, which it never prepared",
        )
    if row.to is None and row.says is None and row.change is None:
        return Move(state, row.todo)
    return _written(_changed(state, row, view), row, row.todo)


def _written(moved: RankState, row: LookRow | OutcomeRow, todo: Todo) -> Move:
    step = None
    if row.change is Effect.STANDS:
        step = StepWord(moved.epoch, moved.sequence, StepKind.PARKED, step_in_word(moved.step))
    return Move(moved, todo, step, None if row.says is None else status_word(moved, row.says))


def take_in(state: RankState, happened: Happened) -> Move:
    """Take in how a thing to do ended: the row of its event, or of a step its own word.

    Raises
    ------
    InternalError
        If nothing of the kind can happen in the phase of `state`.
    """
    event = happened.event
    state = _but(
        state,
        weights=state.weights if happened.weights is None else happened.weights,
        kv=state.kv if happened.kv is None else happened.kv,
        touched=state.touched or happened.touched,
        collective=happened.collective if event is Event.BEGAN else state.collective,
    )
    if event is Event.ENTERED:
        moved = _but(state, step=happened.step or state.step + 1, parked=False)
        word = StepWord(state.epoch, state.done, StepKind.RUNNING, step_in_word(moved.step))
        return Move(moved, Todo.LOOK, word)
    if event is Event.BROKE:
        word = StepWord(state.epoch, state.done, StepKind.BROKEN, step_in_word(state.step))
        return Move(_but(state, broken=True), Todo.LOOK, word)
    row = find_outcome(state, event)
    if row is None:
        raise InternalError(f"rank {state.rank} heard {event.name} in {state.phase.name}, which has no row")
    moved = _changed(state, row, None)
    if row.to is not Phase.IDLE:
        return _written(moved, row, Todo.LOOK)
    # The last word about a command carries its number and its votes, which are forgotten behind it.
    said = None if row.says is None else status_word(moved, row.says)
    holds = (event is Event.COMMITTED and happened.serves) or (event is Event.KEPT and state.holds)
    held = state.held if happened.held is None else happened.held
    return Move(_but(without_command(moved), holds=holds, held=held), Todo.LOOK, status=said)


def may_fail(state: RankState) -> bool:
    """Whether a deadline may still make this rank say FAILED.

    Not once it has voted (a vote is withdrawn only when a peer will never be ready), not after
    PREPARED, and not for a commit: those waits end by a word, and what expires is a report.
    """
    return find_outcome(state, Event.EXPIRED) is not None


def status_word(state: RankState, code: StatusCode) -> StatusWord:
    """Say how far this rank is, with every vote that it has given."""
    return StatusWord(state.epoch, state.sequence, code, state.action, state.ready, state.weights, state.kv)


def without_command(state: RankState) -> RankState:
    """Forget the command at hand; the rank is terminal for it."""
    return RankState(
        rank=state.rank,
        epoch=state.epoch,
        step=state.step,
        done=state.sequence,
        holds=state.holds,
        broken=state.broken,
        weights=state.weights,
        kv=state.kv,
        parked=state.parked,
        steps=state.steps,
        held=state.held,
    )


def may_step(state: RankState, view: View) -> bool:
    """Whether this rank can take part in steps: not while held, without weights, nor where none can end."""
    may = state.steps and state.holds and not state.held and not state.broken
    return may and not any_broken(view.steps, epoch=state.epoch)


def step(state: RankState, seen: View | Happened, *, idle: bool = False) -> Do:
    """Take one input in, and say what a rank's loop does next.

    Ranks step on while a hot update is begun and staged, so a rank that is always a little late would find
    them ahead for ever. It looks after those two before it joins; to the others it is as if they had entered
    that step a moment later.

    `idle`: whether it has not stepped since it looked last; what it was to begin then it has tried already.
    """
    if isinstance(seen, Happened):
        return Do(take_in(state, seen), Todo.LOOK)
    move = advance(state, seen)
    todo, after = move.todo, move.state
    if todo is Todo.JOIN:
        begins = after.phase is Phase.BEGINNING and after.operation.is_hot and not idle
        stages = after.phase is Phase.STAGING and all_answered(seen)
        first = Todo.STAGE if stages else Todo.BEGIN if begins else Todo.JOIN
        return Do(move, first, Todo.JOIN)
    beside = todo in (Todo.DRAIN, Todo.STAGE) and may_step(after, seen)
    return Do(move, todo, Todo.SERVE if beside else Todo.WAIT)


def find_look(state: RankState, view: View) -> LookRow:
    """Return the row that a rank takes which has read `view`; every phase has one that always holds."""
    for row in ROWS[state.phase]:
        for condition in row.when:
            about = OF_THE_RANK.get(condition)
            if not (about(state) if about is not None else OF_THE_WORDS[condition](state, view)):
                break
        else:
            return row
    raise InternalError(f"no row of {state.phase.name} answers rank {state.rank}")


def find_outcome(state: RankState, event: Event) -> OutcomeRow | None:
    """Return the row that an event takes, or None where the phase knows no such event."""
    for row in OUTCOMES:
        if row.event is not event or row.phase is not state.phase:
            continue
        for condition in row.when:
            if not OF_THE_RANK[condition](state):
                break
        else:
            return row
    return None


def _changed(state: RankState, row: LookRow | OutcomeRow, view: View | None) -> RankState:
    changes: dict[str, Any] = {} if row.to is None or row.to is Phase.IDLE else {"phase": row.to}
    match row.change:
        case Effect.TAKES_COMMAND if view is not None:
            changes |= {"sequence": view.command.sequence, "operation": view.command.operation}
        case Effect.STANDS:
            changes["parked"] = True
        case Effect.VOTES:
            changes["ready"] = state.action + 1
        case Effect.ACCEPTS:
            changes["accepted"] = True
        case Effect.TOUCHED | Effect.UNTOUCHED:
            changes["touched"] = row.change is Effect.TOUCHED
        case Effect.NEXT_ACTION:
            changes["action"] = state.action + 1
    return _but(state, **changes) if changes else state


def _but(state: RankState, **changes: Any) -> RankState:
    """Return a state with some fields changed, as :func:`dataclasses.replace`; in a fifth of its time."""
    changed = object.__new__(RankState)
    changed.__dict__.update(state.__dict__, **changes)
    return changed


def _is(field: attrgetter[Any], value: object, state: RankState) -> bool:
    return bool(field(state) == value)


def _says(operation: Operation, _state: RankState, view: View) -> bool:
    return view.command.operation is operation


#: Conditions of the rank itself; an outcome depends on these alone.
OF_THE_RANK: dict[When, Callable[[RankState], bool]] = {
    When.HOT: attrgetter("operation.is_hot"),
    When.IN_PLACE: partial(_is, attrgetter("operation.is_hot"), False),
    When.CLEARS: partial(_is, attrgetter("operation"), Operation.CLEAR),
    When.RELEASES: partial(_is, attrgetter("operation"), Operation.RELEASE),
    When.HELD: attrgetter("held"),
    When.IS_HELPER: partial(_is, attrgetter("steps"), False),
    When.BROKEN: attrgetter("broken"),
    When.WALKS: partial(_is, attrgetter("parked", "broken"), (False, False)),
    When.NOT_ACCEPTED: partial(_is, attrgetter("accepted"), False),
    When.TOUCHED: attrgetter("touched"),
    When.PLAN_DONE: lambda state: state.action == len(state.collective),
    When.COLLECTIVE_NEXT: lambda state: state.collective[state.action],
}

#: Conditions of the words that the rank has read.
OF_THE_WORDS: dict[When, Callable[[RankState, View], bool]] = {
    When.NEW: lambda state, view: (
        view.command.epoch == state.epoch and view.command.sequence > max(state.done, state.sequence)
    ),
    When.ABORTED: partial(_says, Operation.ABORT),
    When.HOT_ABORTED: partial(_says, Operation.HOT_ABORT),
    When.COMMITTED: partial(_says, Operation.COMMIT),
    When.HOT_COMMITTED: partial(_says, Operation.HOT_COMMIT),
    When.MAY_STEP: may_step,
    When.BEHIND: lambda state, view: (
        may_step(state, view)
        and is_behind(
            view.steps, rank=state.rank, epoch=state.epoch, step=state.step, sequence=state.sequence
        )
    ),
    When.ALL_ANSWERED: lambda _state, view: all_answered(view),
    When.ALL_STAND: lambda state, view: all_stand(
        view.steps,
        rank=state.rank,
        epoch=state.epoch,
        step=state.step,
        sequence=state.sequence,
        follow=view.command.operation.is_commit,
    ),
    When.ANY_ACCEPTED: lambda _state, view: any_accepted(view),
    When.ANY_COMMITTED: lambda _state, view: any_committed(view),
    When.ALL_READY: lambda state, view: all_ready(view, state.action),
    When.NEVER_READY: lambda state, view: bool(never_ready(view, state.action)),
    When.ALL_STOPPED: lambda _state, view: all_stopped(view),
    When.ALL_STOPPED_ANY_TOUCHED: lambda _state, view: all_stopped(view) and any_touched(view),
}


def by_phase(rows: Iterable[LookRow]) -> dict[Phase, tuple[LookRow, ...]]:
    """Return the rows of each phase, in the order in which they are asked."""
    return {phase: tuple(row for row in rows if row.phase is phase) for phase in Phase}


#: :data:`LOOKS` by phase.
ROWS = by_phase(LOOKS)
