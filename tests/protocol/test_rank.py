"""Single rules of a rank that the exploration cannot point at by name."""

from __future__ import annotations

from dataclasses import replace

import pytest
from words import broken, parked, running, says, view

from tests.incident import incident
from wsm.states import rank as protocol
from wsm.states.errors import ProtocolViolationError
from wsm.states.phases import Event, Happened, Phase, RankState, Todo
from wsm.states.view import View
from wsm.states.words import Operation, StatusCode, StepKind

UPDATE, ABORT, COMMIT = Operation.UPDATE, Operation.ABORT, Operation.COMMIT
SERVING = RankState(rank=0, epoch=1, step=3, done=4, holds=True, parked=False)
WORKING = replace(
    SERVING, phase=Phase.WORKING, sequence=5, operation=UPDATE, accepted=True, collective=(False, True)
)
#: In the middle of the first command, which it steps beside.
LATE = replace(SERVING, done=0, sequence=1)


def look(state, operation, *, sequence=5, epoch=1, steps=None, status=StatusCode.RUNNING, ready=0):
    status = says(status, sequence=sequence, epoch=epoch, ready=ready)
    steps = steps or [running(3, done=4), running(3, done=4)]
    return protocol.advance(
        state, view(operation, status, status, steps=steps, sequence=sequence, epoch=epoch)
    )


@incident("FastDeploy#7545")
def test_a_quiet_rank_serves_and_writes_nothing():
    move = look(SERVING, COMMIT, sequence=4)
    assert (move.todo, move.step, move.status) == (Todo.SERVE, None, None)


def test_a_rank_without_weights_serves_nothing_and_follows_nobody():
    empty = replace(SERVING, holds=False)
    assert look(empty, COMMIT, sequence=4, steps=[running(3), running(9)]).todo is Todo.WAIT


def test_nobody_begins_or_joins_a_step_beside_a_broken_rank():
    assert look(SERVING, COMMIT, sequence=4, steps=[running(3), broken(3)]).todo is Todo.WAIT
    assert look(SERVING, COMMIT, sequence=4, steps=[running(3), broken(4)]).todo is Todo.WAIT
    assert look(SERVING, COMMIT, sequence=4, steps=[running(3), broken(3, epoch=0)]).todo is Todo.SERVE


@pytest.mark.parametrize("phase", [Phase.DRAINING, Phase.PARKING])
def test_a_broken_rank_never_says_that_it_stands(phase):
    state = replace(SERVING, broken=True, phase=phase, sequence=5, operation=UPDATE)
    move = look(state, UPDATE, steps=[broken(3, done=4), parked(3, sequence=5)])
    assert (move.todo, move.step) == (Todo.WAIT, None)


def test_a_step_that_raises_is_told_with_its_number():
    move = protocol.take_in(protocol.take_in(SERVING, Happened(Event.ENTERED)).state, Happened(Event.BROKE))
    assert move.step is not None
    assert (move.step.kind, move.step.step, move.step.sequence) == (StepKind.BROKEN, 4, 4)
    assert move.state.broken


def test_every_action_is_announced_before_it_runs():
    first = look(WORKING, UPDATE)
    assert first.todo is Todo.RUN
    assert first.status is not None
    assert (first.status.code, first.status.action, first.status.ready) == (StatusCode.RUNNING, 0, 0)
    second = protocol.take_in(first.state, Happened(Event.ACTION_DONE)).state
    vote = look(second, UPDATE)
    assert vote.todo is Todo.LOOK
    assert vote.status is not None
    assert (vote.status.code, vote.status.action, vote.status.ready) == (StatusCode.RUNNING, 1, 2)


def test_a_rank_that_has_voted_is_not_stopped_by_an_abort():
    voting = look(replace(WORKING, action=1), UPDATE).state
    assert look(voting, ABORT).todo is Todo.WAIT
    assert look(voting, ABORT, ready=2).todo is Todo.RUN
    assert look(voting, ABORT, status=StatusCode.STOPPED_UNTOUCHED).todo is Todo.LEAVE_VOTE


def test_a_deadline_ends_waits_that_no_word_ends_and_work_between_two_actions():
    may = {phase for phase in Phase if protocol.may_fail(replace(WORKING, phase=phase))}
    assert may == {Phase.BEGINNING, Phase.DRAINING, Phase.PARKING, Phase.WORKING, Phase.STAGING}


def test_a_hot_commit_is_followed_without_a_deadline():
    hot = replace(WORKING, operation=Operation.HOT_UPDATE)
    assert not protocol.may_fail(replace(hot, phase=Phase.DRAINING))
    assert not protocol.may_fail(replace(hot, phase=Phase.PARKING))
    assert protocol.may_fail(replace(hot, phase=Phase.STAGING))


@pytest.mark.parametrize("operation", [COMMIT, Operation.HOT_COMMIT])
def test_a_commit_of_what_this_rank_never_prepared_is_a_broken_rule(operation):
    with pytest.raises(ProtocolViolationError, match="rank 0 read"):
        look(SERVING, operation)


def test_a_command_that_comes_before_the_last_one_is_over_is_a_broken_rule():
    with pytest.raises(ProtocolViolationError, match="sequence 6 while it worked on 5"):
        look(WORKING, UPDATE, sequence=6)


@incident("FastDeploy#5710", "vllm#39366")
@pytest.mark.parametrize(("sequence", "epoch"), [(4, 1), (3, 1), (9, 0)])
def test_an_old_word_changes_nothing(sequence, epoch):
    assert look(WORKING, UPDATE, sequence=sequence, epoch=epoch).todo is Todo.WAIT
    assert look(SERVING, UPDATE, sequence=sequence, epoch=epoch).todo is Todo.SERVE


def test_an_abort_of_a_command_that_this_rank_never_saw_stops_it_all_the_same():
    assert look(SERVING, ABORT).todo is Todo.UNDO
    assert look(SERVING, Operation.HOT_ABORT).todo is Todo.KEEP


def test_what_is_remembered_of_a_command_ends_with_it():
    committing = replace(WORKING, phase=Phase.COMMITTING, action=2, ready=2)
    done = protocol.take_in(committing, Happened(Event.COMMITTED)).state
    assert done == replace(SERVING, done=5)


def test_a_rank_steps_beside_a_drain_and_a_staging_and_nothing_else():
    reading = view(UPDATE, *[says(StatusCode.DRAINING)] * 2, steps=[running(3)] * 2)
    states = [replace(LATE, phase=phase, operation=UPDATE, collective=(False,)) for phase in Phase]
    may = {state.phase for state in states if protocol.step(state, reading).meanwhile is Todo.SERVE}
    assert may == {Phase.DRAINING, Phase.STAGING}
    raised = replace(LATE, phase=Phase.STAGING, operation=UPDATE, broken=True)
    assert protocol.step(raised, reading).meanwhile is Todo.WAIT


def test_a_rank_serves_on_while_new_weights_stand_beside_the_old():
    staged = replace(SERVING, phase=Phase.STAGED, sequence=5, operation=Operation.HOT_UPDATE)
    assert look(staged, Operation.HOT_UPDATE, status=StatusCode.PREPARED).todo is Todo.SERVE


def test_a_rank_that_is_late_looks_after_a_hot_update_before_it_joins_a_step():
    hot = replace(LATE, phase=Phase.BEGINNING, operation=Operation.HOT_UPDATE)
    ahead = [running(3), running(4)]
    heard = view(Operation.HOT_UPDATE, *[says(StatusCode.DRAINING)] * 2, steps=ahead)

    def first(state: RankState, reading: View = heard, *, idle: bool) -> Todo:
        do = protocol.step(state, reading, idle=idle)
        assert do.meanwhile is Todo.JOIN
        return do.todo

    assert first(hot, idle=False) is Todo.BEGIN
    assert first(hot, idle=True) is Todo.JOIN  # it has tried since its last step
    assert first(replace(hot, operation=UPDATE), idle=False) is Todo.JOIN
    staging = replace(hot, phase=Phase.STAGING)
    assert first(staging, idle=True) is Todo.STAGE
    silent = view(
        Operation.HOT_UPDATE, says(StatusCode.DRAINING), says(StatusCode.ATTACHED, sequence=0), steps=ahead
    )
    assert first(staging, silent, idle=True) is Todo.JOIN


def test_no_rank_stages_before_every_rank_has_answered_the_hot_update():
    staging = replace(SERVING, phase=Phase.STAGING, operation=Operation.HOT_UPDATE, done=0, sequence=1)
    steps = [running(3)] * 2
    waits = view(Operation.HOT_UPDATE, says(StatusCode.DRAINING), says(StatusCode.ATTACHED, sequence=0))
    assert protocol.advance(staging, replace(waits, steps=steps)).todo is Todo.SERVE
    assert protocol.advance(replace(staging, holds=False), replace(waits, steps=steps)).todo is Todo.WAIT
    for code in (StatusCode.DRAINING, StatusCode.PREPARED, StatusCode.FAILED, StatusCode.REFUSED):
        heard = view(Operation.HOT_UPDATE, says(StatusCode.DRAINING), says(code), steps=steps)
        assert protocol.advance(staging, heard).todo is Todo.STAGE
