"""The exploration has teeth: each rule of the protocol, left out, leads to a group that it finds broken."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from small_world import explore, first_world

from wsm.states import decide, park, phases
from wsm.states import rank as protocol
from wsm.states.phases import Effect, Event, Look, Outcome, When
from wsm.states.rank import status_word, without_command
from wsm.states.rank_state import Move, Phase, Todo
from wsm.states.words import Operation, StatusCode

CLEAR, UPDATE, HOT = Operation.CLEAR, Operation.UPDATE, Operation.HOT_UPDATE


def before(patch, row):
    """Ask a row before all others of its phase."""
    patch.setitem(phases.ROWS, row.phase, (row, *phases.ROWS[row.phase]))


def deaf(patch, phase):
    """Let a rank wait where the phase has it join a step."""
    rows = phases.ROWS[phase]
    patch.setitem(
        phases.ROWS,
        phase,
        tuple(replace(row, todo=Todo.WAIT) if row.todo is Todo.JOIN else row for row in rows),
    )


def resume_at_once_on_abort(patch):
    """A rank that reads ABORT serves on, and waits for nobody."""
    at_once = {
        phase: (Look(phase, (When.ABORTED,), Todo.KEEP, Phase.SETTLING, change=Effect.UNTOUCHED), *rows)
        for phase, rows in phases.ROWS.items()
        if phase in phases.ABORTABLE
    }
    patch.setattr(phases, "ROWS", {**phases.ROWS, **at_once})


def a_deadline_ends_parked(patch):
    """A rank that is tired of waiting for the others says FAILED and walks away."""
    honest = protocol.take_in

    def walk_away(state, happened):
        move = honest(state, happened)
        if happened.event is not Event.FAILED or state.phase is not Phase.PARKING:
            return move
        return Move(without_command(state), Todo.LOOK, status=move.status)

    patch.setattr(protocol, "take_in", walk_away)


def a_deadline_after_prepared(patch):
    """PREPARED is no promise: a rank that waits too long for the decision says FAILED."""
    fails = [
        Outcome(Phase.PREPARED, event, (), Phase.FAILED, StatusCode.FAILED)
        for event in (Event.EXPIRED, Event.FAILED)
    ]
    patch.setattr(phases, "OUTCOMES", (*fails, *phases.OUTCOMES))


def a_vote_is_withdrawn_on_abort(patch):
    """A rank that has voted for a collective action leaves when it reads ABORT."""
    before(patch, Look(Phase.VOTING, (When.ABORTED,), Todo.UNDO, Phase.STOPPING))


def the_next_command_comes_too_early(patch):
    """The controller does not wait for ranks that are not done with the last command."""
    patch.setattr(decide, "waiting_on", lambda _view: {})


def the_next_command_forgets_the_committed_version(patch):
    """The next command is written before the version of the last one was."""
    patch.setattr(decide, "is_over", lambda view: not decide.waiting_on(view))


def every_rank_for_itself(patch):
    """After an ABORT each rank keeps or drops by what it has touched itself."""
    own = (
        Look(Phase.STOPPED, (When.TOUCHED,), Todo.DROP, Phase.SETTLING),
        Look(Phase.STOPPED, (), Todo.KEEP, Phase.SETTLING),
    )
    patch.setitem(phases.ROWS, Phase.STOPPED, own)


def no_step_is_joined_after_an_abort(patch):
    """A rank that has stopped leaves those alone who are in a later step."""
    deaf(patch, Phase.STOPPED)


def no_step_is_joined_while_parking(patch):
    """A rank that stands leaves those alone who are in a later step."""
    deaf(patch, Phase.PARKING)


def the_running_word_carries_no_sequence(patch):
    """Nobody can tell a rank that has finished a command from one that never saw it."""
    patch.setattr(park, "_has_finished", lambda _peer, _sequence: False)


def a_clear_is_never_decided(patch):
    """Where a rank fails to clear, the others are not told that some have cleared."""
    honest = decide.decision

    def undecided(view, *, agree, give_up):
        word = honest(view, agree=agree, give_up=give_up)
        return None if view.command.operation is CLEAR else word

    patch.setattr(decide, "decision", undecided)


def a_failure_is_no_reason_to_abort(patch):
    """The controller goes on waiting for PREPARED from a rank that said FAILED."""

    def commit_or_wait(view, **_):
        return decide._COMMIT_OF.get(view.command.operation) if decide.all_prepared(view) else None

    patch.setattr(decide, "decision", commit_or_wait)


def prepared_by_one_is_enough(patch):
    """COMMIT is decided when the first rank is PREPARED."""

    def hasty(view):
        return any(
            (status := view.of_command(rank)) is not None and status.code is StatusCode.PREPARED
            for rank in range(len(view.statuses))
        )

    patch.setattr(decide, "all_prepared", hasty)


def a_hot_commit_flips_at_once(patch):
    """New weights that were staged beside the old ones are taken without parking."""
    before(patch, Look(Phase.STAGED, (When.HOT_COMMITTED,), Todo.COMMIT, Phase.COMMITTING))


def failing_hides_the_vote(patch):
    """The word that says FAILED does not repeat the vote that was given before it."""
    honest = protocol.take_in

    def hide(state, happened):
        move = honest(state, happened)
        if happened.event is not Event.FAILED:
            return move
        return replace(move, status=status_word(replace(state, ready=0), StatusCode.FAILED))

    patch.setattr(protocol, "take_in", hide)


def a_command_may_be_done_twice(patch):
    """A rank that is done with a command takes it for a new one."""
    honest = protocol.take_in

    def forget(state, happened):
        move = honest(state, happened)
        if happened.event is not Event.FINISHED or state.done != 0:
            return move
        return replace(move, state=replace(move.state, done=move.state.done - 1))

    patch.setattr(protocol, "take_in", forget)


@dataclass(frozen=True)
class Case:
    """A fault, and the smallest group in which it shows."""

    fault: object
    commands: tuple[Operation, ...]
    work: int = 1
    fails: int = 0
    give_ups: int = 0


CASES = [
    Case(resume_at_once_on_abort, (UPDATE,), give_ups=1),
    Case(a_deadline_ends_parked, (UPDATE,), fails=1),
    Case(a_deadline_after_prepared, (UPDATE,), fails=1),
    Case(a_vote_is_withdrawn_on_abort, (UPDATE,), give_ups=1),
    Case(the_next_command_comes_too_early, (UPDATE, CLEAR)),
    Case(the_next_command_forgets_the_committed_version, (UPDATE, UPDATE), work=0, give_ups=1),
    Case(every_rank_for_itself, (UPDATE,), fails=1),
    Case(no_step_is_joined_after_an_abort, (UPDATE,), give_ups=1),
    Case(no_step_is_joined_while_parking, (UPDATE,)),
    Case(the_running_word_carries_no_sequence, (HOT,)),
    Case(a_clear_is_never_decided, (CLEAR,), fails=1),
    Case(a_failure_is_no_reason_to_abort, (UPDATE,), fails=1),
    Case(prepared_by_one_is_enough, (UPDATE,), fails=1),
    Case(a_hot_commit_flips_at_once, (HOT,)),
    Case(failing_hides_the_vote, (UPDATE,), fails=1),
    Case(a_command_may_be_done_twice, (CLEAR,), work=0),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.fault.__name__)
def test_every_order_of_events_finds_the_fault(monkeypatch, case):
    first = first_world(2, work=case.work, fails=case.fails, give_ups=case.give_ups, commands=case.commands)
    explore(first)  # sound as it is
    case.fault(monkeypatch)
    with pytest.raises(AssertionError):
        explore(first)
