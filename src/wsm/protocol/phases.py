"""What a rank looks for in each phase of a command, and what it does when it finds it. For :mod:`.rank`.

Each function is asked after an ABORT, a stale word and a new epoch have been dealt with.
"""

from __future__ import annotations

from dataclasses import replace

from wsm.protocol.errors import ProtocolViolationError
from wsm.protocol.park import all_stand, any_broken, is_behind
from wsm.protocol.rank_state import Move, Phase, RankState, Todo
from wsm.protocol.rank_words import stand, tell
from wsm.protocol.view import View
from wsm.protocol.votes import (
    all_ready,
    all_stopped,
    any_accepted,
    any_committed,
    any_touched,
    never_ready,
)
from wsm.signals.word import Operation, StatusCode


def look(state: RankState, view: View) -> Move:
    """Say what follows in the phase of a command that `state` is in; `view` belongs to the same command."""
    if view.command.operation.is_abort and state.phase in _ABORTABLE:
        return _aborted(state, view.command.operation)
    return _LOOKS[state.phase](state, view)


def idle(state: RankState, view: View, *, new: bool) -> Move:
    """Say what a rank does that has no command at hand; `new`: the view holds one that it has not seen."""
    command = view.command
    if not new:
        if not may_step(state, view):
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
    if state.broken:
        return Move(state, Todo.WAIT)  # what it did last was no whole step: it stands nowhere
    return Move(state, Todo.JOIN if _behind(state, view) else Todo.DRAIN)


def _parking(state: RankState, view: View) -> Move:
    if not state.steps:
        return _following(state, view)
    if not state.parked and not state.broken:
        return stand(state)
    if _behind(state, view):
        return Move(state, Todo.JOIN)
    follow = view.command.operation.is_commit
    if state.broken or not all_stand(
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


def _following(state: RankState, view: View) -> Move:
    """Say what a helper does that waits for the ranks to stand: what one of them did proves that all do."""
    if not view.command.operation.is_commit:
        return Move(state, Todo.ACCEPT if any_accepted(view) else Todo.WAIT)
    if not any_committed(view):
        return Move(state, Todo.WAIT)
    return Move(replace(state, accepted=True, phase=Phase.COMMITTING), Todo.COMMIT)


def _working(state: RankState, _view: View) -> Move:
    if state.action == len(state.collective):
        return Move(state, Todo.FINISH)
    if not state.collective[state.action]:
        return tell(state, Todo.RUN, StatusCode.RUNNING)
    moved = replace(state, phase=Phase.VOTING, ready=state.action + 1)
    return tell(moved, Todo.LOOK, StatusCode.RUNNING)


def _voting(state: RankState, view: View) -> Move:
    if all_ready(view, state.action):
        return Move(state, Todo.RUN)
    return Move(state, Todo.FORSAKEN if never_ready(view, state.action) else Todo.WAIT)


def _prepared(state: RankState, view: View) -> Move:
    if view.command.operation is Operation.COMMIT:
        return Move(replace(state, phase=Phase.COMMITTING), Todo.COMMIT)
    return Move(state, Todo.WAIT)


def _committing(state: RankState, _view: View) -> Move:
    # A flip that broke is not tried again: nobody knows what the rank holds.
    return Move(state, Todo.WAIT if state.broken else Todo.COMMIT)


def _failed(state: RankState, view: View) -> Move:
    if not state.accepted and _behind(state, view):
        return Move(state, Todo.JOIN)
    serves = state.operation.is_hot and may_step(state, view)
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
        return Move(replace(state, phase=Phase.DRAINING if state.steps else Phase.PARKING), Todo.LOOK)
    if _behind(state, view):
        return Move(state, Todo.JOIN)
    return Move(state, Todo.SERVE if may_step(state, view) else Todo.WAIT)


def may_step(state: RankState, view: View) -> bool:
    """Whether this rank can take part in steps at all: not without weights, nor where one can never end."""
    return state.steps and state.holds and not state.broken and not any_broken(view.steps, epoch=state.epoch)


def _behind(state: RankState, view: View, sequence: int | None = None) -> bool:
    """Whether a later step needs this rank."""
    return may_step(state, view) and is_behind(
        view.steps,
        rank=state.rank,
        epoch=state.epoch,
        step=state.step,
        sequence=state.sequence if sequence is None else sequence,
    )


_LOOKS = {
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
FAILABLE = frozenset((Phase.BEGINNING, Phase.DRAINING, Phase.PARKING, Phase.WORKING, Phase.STAGING))
