"""What a successor finds, and how a group gets a new incarnation."""

from __future__ import annotations

import pytest
from words import says, view

from tests.incident import incident
from wsm.labels import version_id
from wsm.states.epochs import first_epoch, goal_word, next_epoch
from wsm.states.errors import EpochUsedError
from wsm.states.group import GroupState, GroupTodo, Known, May
from wsm.states.group import advance as follow
from wsm.states.phases import RankState, Todo
from wsm.states.rank import advance, join
from wsm.states.words import CommandWord, CommittedWord, Operation, StatusCode, StatusWord, StepKind, StepWord

CLEAR, UPDATE, COMMIT, ABORT = Operation.CLEAR, Operation.UPDATE, Operation.COMMIT, Operation.ABORT
RUNNING, PREPARED, DONE = StatusCode.RUNNING, StatusCode.PREPARED, StatusCode.DONE_COMMITTED
CLEARED, KEPT = StatusCode.DONE_CLEARED, StatusCode.DONE_KEPT
NEVER_USED = StepWord.unpack(0), StatusWord.unpack(0)


SUCCESSOR = Known(May.DRIVE, agree=True, version="7")


def test_a_command_that_is_over_leaves_nothing_to_do():
    for operation, code in ((CLEAR, CLEARED), (ABORT, KEPT), (ABORT, CLEARED)):
        found = view(operation, says(code), says(code))
        assert follow(GroupState.of(found), found, SUCCESSOR).todo is GroupTodo.GIVE_ROLE_BACK


@pytest.mark.parametrize("operation", [op for op in Operation if op.is_decision])
def test_a_decision_that_stands_is_completed_and_never_made_again(operation):
    for code in (RUNNING, PREPARED):
        found = view(operation, says(code), says(PREPARED))
        move = follow(GroupState.of(found), found, SUCCESSOR)
        assert move.command is None
        assert (move.committed is not None) is operation.is_commit


def test_a_commit_whose_version_is_not_stored_is_completed_although_all_are_done():
    found = view(COMMIT, says(DONE), says(DONE))
    assert follow(GroupState.of(found), found, SUCCESSOR).committed == CommittedWord(1, version_id("7"))


def test_a_commit_is_stored_before_its_epoch_ends():
    """Else recovery would load the version before it."""
    assert goal_word(view(COMMIT, says(DONE), sequence=5), "8") == CommittedWord(5, version_id("8"))
    stored = view(COMMIT, says(DONE), sequence=5, committed=CommittedWord(5, version_id("8")))
    assert goal_word(stored, "8") is None
    assert goal_word(view(ABORT, says(KEPT), sequence=5), "8") is None


def test_a_new_epoch_begins_without_a_command_and_sequences_go_on():
    assert next_epoch(view(COMMIT, says(DONE), sequence=5, epoch=2)) == CommandWord(3, 5, Operation.NONE)
    assert first_epoch() == CommandWord(1, 0, Operation.NONE)


def test_a_rank_joins_an_epoch_with_empty_hands():
    move = join(2, CommandWord(3, 5, Operation.NONE), *NEVER_USED)
    assert move.state == RankState(rank=2, epoch=3, done=5)
    assert not move.state.holds
    assert move.step == StepWord(3, 0, StepKind.PARKED, 0)
    assert move.status == StatusWord(3, 0, StatusCode.ATTACHED)


@incident("vllm#39366")
def test_a_rank_that_joins_late_does_not_take_an_old_command_for_a_new_one():
    state = join(0, CommandWord(3, 5, Operation.NONE), *NEVER_USED).state
    move = advance(state, view(Operation.NONE, says(StatusCode.ATTACHED), sequence=5, epoch=3))
    assert move.todo is Todo.WAIT
    assert advance(state, view(UPDATE, move.status or says(RUNNING), sequence=6, epoch=3)).todo is Todo.BEGIN


@pytest.mark.parametrize(
    "words", [(StepWord(3, 0, StepKind.PARKED, 0), NEVER_USED[1]), (NEVER_USED[0], StatusWord(3, 5, KEPT))]
)
def test_a_slot_that_was_used_in_an_epoch_is_not_taken_again_in_it(words):
    with pytest.raises(EpochUsedError) as caught:
        join(1, CommandWord(3, 5, Operation.NONE), *words)
    assert (caught.value.rank, caught.value.epoch) == (1, 3)


def test_a_new_epoch_ends_whatever_a_rank_was_doing():
    for state in (RankState(0, 1), RankState(0, 1, holds=True, sequence=4, accepted=True)):
        assert advance(state, view(Operation.NONE, says(RUNNING), epoch=2)).todo is Todo.REJOIN
