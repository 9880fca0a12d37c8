"""A rank's side of every command, as a pure state machine over the words it reads.

Two inputs, both plain values: :func:`advance` looks at a :class:`View` and says what to do, :func:`take_in`
takes in what :class:`Happened`, the end of that thing to do or a step. Both walk the tables of
:mod:`.phases`. Each returns a :class:`Move`: the new state, the words to write (the step word first, then the
status word), and the next thing to do. Nothing here knows what an action is or what a weight is; the shell
fires the state machines of :mod:`wsm.states`.
"""

from __future__ import annotations

from dataclasses import replace

from wsm.errors import InternalError
from wsm.states import phases
from wsm.states.errors import EpochUsedError, ProtocolViolationError
from wsm.states.phases import Effect, Event, Happened, LookRow, Move, OutcomeRow, Phase, RankState, Todo
from wsm.states.view import View
from wsm.states.words import CommandWord, Operation, StatusCode, StatusWord, StepKind, StepWord


def join(rank: int, command: CommandWord, step: StepWord, status: StatusWord, *, steps: bool = True) -> Move:
    """Enter the epoch that the command word names, with nothing resident.

    Parameters
    ----------
    rank : int
        The slot.
    command : CommandWord
        What the controller's word says now.
    step, status : StepWord, StatusWord
        What stands in the slot's own words; no process writes the step word of a helper.
    steps : bool
        False for a helper.

    Raises
    ------
    EpochUsedError
        If the slot was used in this epoch: another process has answered there, and its answers
        must not be taken for this one's.
    """
    if command.epoch in (step.epoch, status.epoch):
        raise EpochUsedError(rank=rank, epoch=command.epoch)
    open_command = command.operation is not Operation.NONE
    state = RankState(rank=rank, epoch=command.epoch, done=command.sequence - open_command, steps=steps)
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
    row = phases.find_look(state, view)
    if row.broken:
        raise ProtocolViolationError(
            rank=state.rank,
            rule=row.broken,
            seen=f"{command.operation.name} of sequence {command.sequence}, which it never prepared",
        )
    if row.to is None and row.says is None and row.change is None:
        return Move(state, row.todo)
    return _written(phases.changed(state, row, view), row, row.todo)


def _written(moved: RankState, row: LookRow | OutcomeRow, todo: Todo) -> Move:
    """Return the move of a row that was taken: what is remembered now, and the words that say so."""
    step = None
    if row.change is Effect.STANDS:
        step = StepWord(moved.epoch, moved.sequence, StepKind.PARKED, moved.step)
    return Move(moved, todo, step, None if row.says is None else status_word(moved, row.says))


def take_in(state: RankState, happened: Happened) -> Move:
    """Take in what came of a thing to do: the row of its event, or of a step its own word.

    Raises
    ------
    InternalError
        If nothing of the kind can happen in the phase of `state`.
    """
    event, state = happened.event, _told(state, happened)
    if event is Event.ENTERED:
        moved = replace(state, step=happened.step or state.step + 1, parked=False)
        return Move(moved, Todo.LOOK, StepWord(state.epoch, state.done, StepKind.RUNNING, moved.step))
    if event is Event.BROKE:
        word = StepWord(state.epoch, state.done, StepKind.BROKEN, state.step)
        return Move(replace(state, broken=True), Todo.LOOK, word)
    row = phases.find_outcome(state, event)
    if row is None:
        raise InternalError(f"rank {state.rank} heard {event.name} in {state.phase.name}, which has no row")
    moved = phases.changed(state, row, None)
    if row.to is not Phase.IDLE:
        return _written(moved, row, Todo.LOOK)
    # The last word about a command carries its number and its votes, which are forgotten behind it.
    said = None if row.says is None else status_word(moved, row.says)
    holds = (event is Event.COMMITTED and happened.serves) or (event is Event.KEPT and state.holds)
    return Move(replace(without_command(moved), holds=holds), Todo.LOOK, status=said)


def may_fail(state: RankState) -> bool:
    """Whether a deadline may still make this rank say FAILED.

    Not once it has voted (a vote is withdrawn only when a peer will never be ready), not after
    PREPARED, and not for a commit: those waits end by a word, and what expires is a report.
    """
    return phases.find_outcome(state, Event.EXPIRED) is not None


def _told(state: RankState, happened: Happened) -> RankState:
    """Return what the rank remembers with what it is told beside the event."""
    weights = state.weights if happened.weights is None else happened.weights
    kv = state.kv if happened.kv is None else happened.kv
    touched = state.touched or happened.touched
    collective = happened.collective if happened.event is Event.BEGAN else state.collective
    if (weights, kv, touched, collective) == (state.weights, state.kv, state.touched, state.collective):
        return state
    return replace(state, weights=weights, kv=kv, touched=touched, collective=collective)


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
    )
