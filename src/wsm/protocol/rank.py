"""A rank's side of every command, as a pure state machine over the words it reads.

:func:`advance` looks at a view and says what to do; the functions below it take in what came of that
(``began``, ``drained``, ``action_finished`` ...). Each returns a :class:`Move`: the new state, the words
to write (the step word first, then the status word), and the next thing to do. Nothing here knows
what an action is or what a weight is; the shell fires the state machines of :mod:`wsm.states`.

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

from wsm.protocol.errors import EpochUsedError, ProtocolViolationError
from wsm.protocol.park import all_stand, is_behind
from wsm.protocol.rank_state import Move, Phase, RankState, Todo
from wsm.protocol.view import View
from wsm.protocol.votes import all_ready, all_stopped, any_touched, never_ready
from wsm.signals.word import CommandWord, Operation, StatusCode, StatusWord, StepKind, StepWord


def join(rank: int, command: CommandWord, step: StepWord, status: StatusWord) -> Move:
    """Enter the epoch that the command word names, with empty hands.

    Parameters
    ----------
    rank : int
        The slot.
    command : CommandWord
        What the controller's word says now.
    step, status : StepWord, StatusWord
        What stands in the slot's own words.

    Raises
    ------
    EpochUsedError
        If the slot was used in this epoch: another process has answered there, and its answers
        must not be taken for this one's.
    """
    if command.epoch in (step.epoch, status.epoch):
        raise EpochUsedError(rank=rank, epoch=command.epoch)
    open_command = command.operation is not Operation.NONE
    state = RankState(rank=rank, epoch=command.epoch, done=command.sequence - open_command)
    return Move(
        state,
        Todo.LOOK,
        StepWord(command.epoch, 0, StepKind.PARKED, 0),
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
        return _idle(state, view, new=not stale and command.sequence > state.done)
    if stale:
        return Move(state, Todo.WAIT)
    if command.sequence != state.sequence:
        raise ProtocolViolationError(
            rank=state.rank,
            rule="the next command is written only when every rank is terminal for the last one",
            seen=f"sequence {command.sequence} while it worked on {state.sequence}",
        )
    if command.operation.is_abort and state.phase in _ABORTABLE:
        return _aborted(state, command.operation)
    return _PHASES[state.phase](state, view)


def began(state: RankState, collective: tuple[bool, ...]) -> Move:
    """Take in that the command is legal here; `collective` says which actions of its plan need a vote."""
    hot = state.operation.is_hot
    moved = replace(state, collective=collective, phase=Phase.STAGING if hot else Phase.DRAINING)
    return _tell(moved, Todo.LOOK, StatusCode.DRAINING)


def refused(state: RankState) -> Move:
    """Take in that the command is illegal here; the group will abort it and nothing has changed."""
    return _tell(replace(state, phase=Phase.FAILED), Todo.LOOK, StatusCode.REFUSED)


def drained(state: RankState) -> Move:
    """Take in that the in-flight policy is satisfied and every launched step has retired."""
    return _park(replace(state, phase=Phase.PARKING))


def accepted(state: RankState) -> Move:
    """Take in that the transition has begun: the state machines have left their old state."""
    moved = replace(state, accepted=True, phase=Phase.WORKING)
    return _tell(moved, Todo.LOOK, StatusCode.ACCEPTED)


def action_finished(state: RankState, *, touched: bool) -> Move:
    """Take in that the current action is done."""
    moved = replace(state, action=state.action + 1, touched=state.touched or touched, phase=Phase.WORKING)
    return Move(moved, Todo.LOOK)


def finished(state: RankState) -> Move:
    """Take in that everything which can fail is behind the rank: PREPARED, or DONE_CLEARED for a clear."""
    if state.operation is Operation.CLEAR:
        return _tell_done(replace(_over(state), holds=False), state, StatusCode.DONE_CLEARED)
    return _tell(replace(state, phase=Phase.PREPARED), Todo.LOOK, StatusCode.PREPARED)


def may_fail(state: RankState) -> bool:
    """Whether a deadline may still make this rank say FAILED.

    Not once it has voted (a vote is withdrawn only when a peer will never be ready), not after
    PREPARED, and not for a commit: those waits end by a word, and what expires is a report.
    """
    follows_commit = state.operation.is_hot and state.phase in (Phase.DRAINING, Phase.PARKING)
    return state.phase in _FAILABLE and not follows_commit


def failed(state: RankState, *, touched: bool = False) -> Move:
    """Take in that an action, the drain or a deadline failed. The rank stays where it is."""
    moved = replace(state, phase=Phase.FAILED, touched=state.touched or touched)
    return _tell(moved, Todo.LOOK, StatusCode.FAILED)


def staged(state: RankState) -> Move:
    """Take in that the new weights are verified beside the old ones."""
    return _tell(replace(state, phase=Phase.STAGED), Todo.LOOK, StatusCode.PREPARED)


def committed(state: RankState) -> Move:
    """Take in that this rank serves the new version."""
    moved = replace(_over(state), holds=True)
    return _tell_done(moved, state, StatusCode.DONE_COMMITTED)


def stopped(state: RankState, *, touched: bool) -> Move:
    """Take in that the rank has stopped and undone what it could; `touched`: its weights are not whole."""
    moved = replace(state, phase=Phase.STOPPED, touched=state.touched or touched)
    code = StatusCode.STOPPED_TOUCHED if moved.touched else StatusCode.STOPPED_UNTOUCHED
    return _tell(moved, Todo.LOOK, code)


def settled(state: RankState, code: StatusCode) -> Move:
    """Take in how the rank ended: DONE_KEPT, DONE_CLEARED or DONE_FAULTED."""
    holds = state.holds and code is StatusCode.DONE_KEPT
    return _tell_done(replace(_over(state), holds=holds), state, code)


def entered(state: RankState) -> Move:
    """Enter the next step: the word to store before the first collective of it."""
    moved = replace(state, step=state.step + 1, parked=False)
    return Move(moved, Todo.LOOK, StepWord(state.epoch, state.done, StepKind.RUNNING, moved.step))


def broke(state: RankState) -> Move:
    """Take in that the step raised: nobody knows which collectives of it were run."""
    moved = replace(state, broken=True)
    return Move(moved, Todo.LOOK, StepWord(state.epoch, state.done, StepKind.BROKEN, state.step))


def _idle(state: RankState, view: View, *, new: bool) -> Move:
    command = view.command
    if not new:
        if state.broken or not state.holds:
            return Move(state, Todo.WAIT)
        return Move(state, Todo.JOIN if _behind(state, view, sequence=0) else Todo.SERVE)
    moved = replace(state, sequence=command.sequence, operation=command.operation)
    if command.operation.is_abort:
        return _aborted(moved, command.operation)
    if command.operation.is_decision:
        raise ProtocolViolationError(
            rank=state.rank,
            rule="nothing is committed before every rank is PREPARED",
            seen=f"{command.operation.name} of sequence {command.sequence}, which it never prepared",
        )
    return Move(replace(moved, phase=Phase.BEGINNING), Todo.BEGIN)


def _aborted(state: RankState, decision: Operation) -> Move:
    """Stop for an ABORT; a hot update has touched nothing, so nobody needs to wait for anybody."""
    if decision is Operation.HOT_ABORT:
        return Move(replace(state, phase=Phase.SETTLING), Todo.KEEP)
    return Move(replace(state, phase=Phase.STOPPING), Todo.UNDO)


def _beginning(state: RankState, view: View) -> Move:
    return Move(state, Todo.JOIN if _behind(state, view) else Todo.BEGIN)


def _draining(state: RankState, view: View) -> Move:
    return Move(state, Todo.JOIN if _behind(state, view) else Todo.DRAIN)


def _parking(state: RankState, view: View) -> Move:
    if not state.parked:
        return _park(state)
    if _behind(state, view):
        return Move(state, Todo.JOIN)
    follow = view.command.operation.is_commit
    if not all_stand(
        view.steps,
        rank=state.rank,
        epoch=state.epoch,
        step=state.step,
        sequence=state.sequence,
        follow=follow,
    ):
        return Move(state, Todo.WAIT)
    if follow:
        return Move(replace(state, accepted=True, phase=Phase.COMMITTING), Todo.COMMIT)
    return Move(state, Todo.ACCEPT)


def _working(state: RankState, _view: View) -> Move:
    if state.action == len(state.collective):
        return Move(state, Todo.FINISH)
    if not state.collective[state.action]:
        return Move(state, Todo.RUN)
    moved = replace(state, phase=Phase.VOTING, ready=state.action + 1)
    return _tell(moved, Todo.LOOK, StatusCode.RUNNING)


def _voting(state: RankState, view: View) -> Move:
    if all_ready(view, state.action):
        return Move(state, Todo.RUN)
    return Move(state, Todo.FORSAKEN if never_ready(view, state.action) else Todo.WAIT)


def _prepared(state: RankState, view: View) -> Move:
    if view.command.operation is Operation.COMMIT:
        return Move(replace(state, phase=Phase.COMMITTING), Todo.COMMIT)
    return Move(state, Todo.WAIT)


def _committing(state: RankState, _view: View) -> Move:
    return Move(state, Todo.COMMIT)


def _failed(state: RankState, view: View) -> Move:
    if not state.accepted and _behind(state, view):
        return Move(state, Todo.JOIN)
    serves = state.operation.is_hot and state.holds and not state.broken
    return Move(state, Todo.SERVE if serves else Todo.WAIT)


def _stopping(state: RankState, _view: View) -> Move:
    return Move(state, Todo.UNDO)


def _stopped(state: RankState, view: View) -> Move:
    if not all_stopped(view):
        behind = not state.accepted and _behind(state, view)
        return Move(state, Todo.JOIN if behind else Todo.WAIT)
    return _settling(replace(state, phase=Phase.SETTLING, touched=any_touched(view)), view)


def _settling(state: RankState, _view: View) -> Move:
    return Move(state, Todo.DROP if state.touched else Todo.KEEP)


def _staging(state: RankState, view: View) -> Move:
    return Move(state, Todo.JOIN if _behind(state, view) else Todo.STAGE)


def _staged(state: RankState, view: View) -> Move:
    if view.command.operation is Operation.HOT_COMMIT:
        return Move(replace(state, phase=Phase.DRAINING), Todo.LOOK)
    return Move(state, Todo.JOIN if _behind(state, view) else Todo.SERVE)


def _behind(state: RankState, view: View, sequence: int | None = None) -> bool:
    """Whether a later step needs this rank; a rank without weights, or a broken one, follows nobody."""
    if not state.holds or state.broken:
        return False
    return is_behind(
        view.steps,
        rank=state.rank,
        epoch=state.epoch,
        step=state.step,
        sequence=state.sequence if sequence is None else sequence,
    )


def _park(state: RankState) -> Move:
    """Say that this rank stands, before it looks at the others again."""
    moved = replace(state, parked=True)
    word = StepWord(state.epoch, state.sequence, StepKind.PARKED, state.step)
    return Move(moved, Todo.LOOK, word, _status(moved, StatusCode.PARKING))


def _over(state: RankState, done: int | None = None) -> RankState:
    """Forget the command at hand."""
    return RankState(
        rank=state.rank,
        epoch=state.epoch,
        step=state.step,
        done=state.sequence if done is None else done,
        holds=state.holds,
        broken=state.broken,
        weights=state.weights,
        kv=state.kv,
        parked=state.parked,
    )


def _status(state: RankState, code: StatusCode) -> StatusWord:
    return StatusWord(state.epoch, state.sequence, code, state.action, state.ready, state.weights, state.kv)


def _tell(state: RankState, todo: Todo, code: StatusCode) -> Move:
    return Move(state, todo, status=_status(state, code))


def _tell_done(moved: RankState, before: RankState, code: StatusCode) -> Move:
    return Move(moved, Todo.LOOK, status=_status(before, code))


_PHASES = {
    Phase.BEGINNING: _beginning,
    Phase.DRAINING: _draining,
    Phase.PARKING: _parking,
    Phase.WORKING: _working,
    Phase.VOTING: _voting,
    Phase.PREPARED: _prepared,
    Phase.COMMITTING: _committing,
    Phase.FAILED: _failed,
    Phase.STOPPING: _stopping,
    Phase.STOPPED: _stopped,
    Phase.SETTLING: _settling,
    Phase.STAGING: _staging,
    Phase.STAGED: _staged,
}

#: Phases that an ABORT ends. Not VOTING: READY is withdrawn only once a peer will never be ready.
_ABORTABLE = frozenset(
    (
        Phase.BEGINNING,
        Phase.DRAINING,
        Phase.PARKING,
        Phase.WORKING,
        Phase.PREPARED,
        Phase.FAILED,
        Phase.STAGING,
        Phase.STAGED,
    )
)

#: Phases in which an expired deadline makes a rank say FAILED.
_FAILABLE = frozenset((Phase.BEGINNING, Phase.DRAINING, Phase.PARKING, Phase.WORKING, Phase.STAGING))
