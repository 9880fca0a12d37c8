"""A rank's side of every command, as a pure state machine over the words it reads.

:func:`advance` looks at a view and says what to do (what it looks for in each phase is in :mod:`.phases`);
the functions below it take in what came of that (``began``, ``drained``, ``action_finished`` ...). Each
returns a :class:`Move`: the new state, the words to write (the step word first, then the status word), and
the next thing to do. Nothing here knows what an action is or what a weight is; the shell fires the state
machines of :mod:`wsm.states`.

The life of one command, by phases::

    IDLE -> BEGINNING -> DRAINING -> PARKING -> WORKING <-> VOTING -> PREPARED -> COMMITTING -> IDLE
              |             |           |         |           |          |
              v             v           v         v           v          | ABORT
            FAILED <--------+-----------+---------+-----------+          |
              | ABORT (from any of them)                                 v
              +----------------------------> STOPPING -> STOPPED -> SETTLING -> IDLE

and of a hot update, which stages while the rank serves::

    IDLE -> STAGING -> STAGED -> PARKING -> COMMITTING -> IDLE
"""

from __future__ import annotations

from dataclasses import replace

from wsm.protocol import phases
from wsm.protocol.errors import EpochUsedError, ProtocolViolationError
from wsm.protocol.rank_state import Move, Phase, RankState, Todo
from wsm.protocol.rank_words import stand, tell, tell_end, without_command
from wsm.protocol.view import View
from wsm.signals.word import CommandWord, Operation, StatusCode, StatusWord, StepKind, StepWord


def join(rank: int, command: CommandWord, step: StepWord, status: StatusWord, *, steps: bool = True) -> Move:
    """Enter the epoch that the command word names, with empty hands.

    Parameters
    ----------
    rank : int
        The slot.
    command : CommandWord
        What the controller's word says now.
    step, status : StepWord, StatusWord
        What stands in the slot's own words; a helper's step word is one that nobody writes.
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
    if state.phase is Phase.IDLE:
        return phases.idle(state, view, new=not stale and command.sequence > state.done)
    if stale:
        return Move(state, Todo.WAIT)
    if command.sequence != state.sequence:
        raise ProtocolViolationError(
            rank=state.rank,
            rule="the next command is written only when every rank is terminal for the last one",
            seen=f"sequence {command.sequence} while it worked on {state.sequence}",
        )
    return phases.look(state, view)


def began(state: RankState, collective: tuple[bool, ...]) -> Move:
    """Take in that the command is legal here; `collective` says which actions of its plan need a vote."""
    phase = Phase.DRAINING if state.steps else Phase.PARKING
    code = StatusCode.DRAINING if state.steps else StatusCode.PARKING
    moved = replace(state, collective=collective, phase=Phase.STAGING if state.operation.is_hot else phase)
    return tell(moved, Todo.LOOK, code)


def refused(state: RankState) -> Move:
    """Take in that the command is illegal here; the group will abort it and nothing has changed."""
    return tell(replace(state, phase=Phase.FAILED), Todo.LOOK, StatusCode.REFUSED)


def drained(state: RankState) -> Move:
    """Take in that the in-flight policy is satisfied and every launched step has retired."""
    return stand(replace(state, phase=Phase.PARKING))


def accepted(state: RankState) -> Move:
    """Take in that the transition has begun: the state machines have left their old state."""
    moved = replace(state, accepted=True, phase=Phase.WORKING)
    return tell(moved, Todo.LOOK, StatusCode.ACCEPTED)


def action_finished(state: RankState, *, touched: bool) -> Move:
    """Take in that the current action is done."""
    moved = replace(state, action=state.action + 1, touched=state.touched or touched, phase=Phase.WORKING)
    return Move(moved, Todo.LOOK)


def finished(state: RankState) -> Move:
    """Take in that everything which can fail is behind the rank: PREPARED, or DONE_CLEARED for a clear."""
    if state.operation is Operation.CLEAR:
        return tell_end(replace(without_command(state), holds=False), state, StatusCode.DONE_CLEARED)
    return tell(replace(state, phase=Phase.PREPARED), Todo.LOOK, StatusCode.PREPARED)


def may_fail(state: RankState) -> bool:
    """Whether a deadline may still make this rank say FAILED.

    Not once it has voted (a vote is withdrawn only when a peer will never be ready), not after
    PREPARED, and not for a commit: those waits end by a word, and what expires is a report.
    """
    follows_commit = state.operation.is_hot and state.phase in (Phase.DRAINING, Phase.PARKING)
    return state.phase in phases.FAILABLE and not follows_commit


def failed(state: RankState, *, touched: bool = False) -> Move:
    """Take in that an action, the drain or a deadline failed. The rank stays where it is."""
    moved = replace(state, phase=Phase.FAILED, touched=state.touched or touched)
    return tell(moved, Todo.LOOK, StatusCode.FAILED)


def staged(state: RankState) -> Move:
    """Take in that the new weights are verified beside the old ones."""
    return tell(replace(state, phase=Phase.STAGED), Todo.LOOK, StatusCode.PREPARED)


def committed(state: RankState, *, serves: bool = True) -> Move:
    """Take in that this rank has what was asked for; `serves`: and nothing that a step needs is missing."""
    moved = replace(without_command(state), holds=serves)
    return tell_end(moved, state, StatusCode.DONE_COMMITTED)


def stopped(state: RankState, *, touched: bool) -> Move:
    """Take in that the rank has stopped and undone what it could; `touched`: its weights are not whole."""
    moved = replace(state, phase=Phase.STOPPED, touched=state.touched or touched)
    code = StatusCode.STOPPED_TOUCHED if moved.touched else StatusCode.STOPPED_UNTOUCHED
    return tell(moved, Todo.LOOK, code)


def settled(state: RankState, code: StatusCode) -> Move:
    """Take in how the rank ended: DONE_KEPT, DONE_CLEARED or DONE_FAULTED."""
    holds = state.holds and code is StatusCode.DONE_KEPT
    return tell_end(replace(without_command(state), holds=holds), state, code)


def entered(state: RankState) -> Move:
    """Enter the next step: the word to store before the first collective of it."""
    moved = replace(state, step=state.step + 1, parked=False)
    return Move(moved, Todo.LOOK, StepWord(state.epoch, state.done, StepKind.RUNNING, moved.step))


def broke(state: RankState) -> Move:
    """Take in that the step raised: nobody knows which collectives of it were run."""
    moved = replace(state, broken=True)
    return Move(moved, Todo.LOOK, StepWord(state.epoch, state.done, StepKind.BROKEN, state.step))
