"""The controller's one decision per command, and when a command is over."""

from __future__ import annotations

import pytest
from words import decision, says, view

from tests.incident import incident
from wsm.labels import version_id
from wsm.states.decide import committed, decided, is_over, next_command, waiting_on
from wsm.states.errors import CommandOpenError
from wsm.states.words import CommandWord, CommittedWord, Operation, StatusCode

CLEAR, UPDATE, HOT = Operation.CLEAR, Operation.UPDATE, Operation.HOT_UPDATE
COMMIT, ABORT = Operation.COMMIT, Operation.ABORT
RUNNING, PREPARED, FAILED = StatusCode.RUNNING, StatusCode.PREPARED, StatusCode.FAILED
DONE = StatusCode.DONE_COMMITTED


def decide(operation, *statuses, agree=True, give_up=False):
    return decision(view(operation, *statuses), agree=agree, give_up=give_up)


@pytest.mark.parametrize(("asked", "answer"), [(UPDATE, COMMIT), (HOT, Operation.HOT_COMMIT)])
def test_an_update_is_committed_when_all_are_prepared_and_agree(asked, answer):
    assert decide(asked, says(PREPARED), says(PREPARED)) is answer
    assert decide(asked, says(PREPARED), says(PREPARED), give_up=True) is answer


@incident("dynamo#13912")
@pytest.mark.parametrize(("asked", "answer"), [(UPDATE, ABORT), (HOT, Operation.HOT_ABORT)])
def test_an_update_is_aborted_when_the_ranks_prepared_different_weights(asked, answer):
    assert decide(asked, says(PREPARED), says(PREPARED), agree=False) is answer


@incident("rtp-llm#1151")
@pytest.mark.parametrize("other", [says(RUNNING), says(PREPARED, sequence=2), says(PREPARED, epoch=2)])
def test_nothing_is_decided_while_one_rank_may_still_prepare(other):
    assert decide(UPDATE, says(PREPARED), other) is None


@incident("dynamo#9131")
@pytest.mark.parametrize("operation", [CLEAR, UPDATE])
@pytest.mark.parametrize(
    "code", [FAILED, StatusCode.REFUSED, StatusCode.STOPPED_UNTOUCHED, StatusCode.STOPPED_TOUCHED]
)
def test_one_failure_or_refusal_aborts_the_command(operation, code):
    assert decide(operation, says(RUNNING), says(code)) is ABORT


@pytest.mark.parametrize("operation", [CLEAR, UPDATE])
def test_a_caller_without_patience_aborts_what_is_not_decided(operation):
    assert decide(operation, says(RUNNING), says(RUNNING)) is None
    assert decide(operation, says(RUNNING), says(RUNNING), give_up=True) is ABORT


def test_a_clear_that_all_have_finished_needs_no_decision():
    cleared = says(StatusCode.DONE_CLEARED)
    assert decide(CLEAR, cleared, cleared, give_up=True) is None
    assert decide(CLEAR, cleared, says(RUNNING), give_up=True) is ABORT


@pytest.mark.parametrize("operation", [*[op for op in Operation if op.is_decision], Operation.NONE])
def test_a_decision_is_final(operation):
    assert decide(operation, says(FAILED), says(PREPARED), give_up=True) is None


def test_a_decision_is_written_over_the_operation_and_nothing_else():
    before = view(UPDATE, says(PREPARED), sequence=9, epoch=4)
    assert decided(before, commit=True) == CommandWord(4, 9, COMMIT)
    assert committed(before, "12") == CommittedWord(9, version_id("12"))


def test_a_command_is_over_when_everybody_is_done_with_it():
    assert is_over(view(CLEAR, says(StatusCode.DONE_CLEARED), says(StatusCode.DONE_CLEARED)))
    assert not is_over(view(CLEAR, says(StatusCode.DONE_CLEARED), says(RUNNING)))
    assert not is_over(view(CLEAR, says(StatusCode.DONE_CLEARED), says(StatusCode.DONE_CLEARED, sequence=0)))


def test_a_commit_is_over_only_with_its_version_in_its_own_word():
    assert not is_over(view(COMMIT, says(DONE), says(DONE)))
    assert not is_over(view(COMMIT, says(DONE), says(DONE), committed=CommittedWord(0, 5)))
    assert is_over(view(COMMIT, says(DONE), says(DONE), committed=CommittedWord(1, 5)))


def test_those_who_are_not_done_are_named_with_what_they_say():
    assert waiting_on(view(UPDATE, says(DONE), says(RUNNING), says(RUNNING, sequence=0))) == {
        1: says(RUNNING),
        2: None,
    }


def test_a_new_epoch_waits_until_everybody_has_joined_it():
    attached, absent = says(StatusCode.ATTACHED, sequence=0, epoch=3), says(DONE, epoch=2)
    assert is_over(view(Operation.NONE, attached, attached, epoch=3))
    assert waiting_on(view(Operation.NONE, attached, absent, epoch=3)) == {1: None}


def test_words_that_nobody_has_written_yet_are_no_group():
    """An epoch that has not begun is 0 everywhere, which must not be taken for agreement."""
    zero = says(StatusCode.NONE, sequence=0, epoch=0)
    assert waiting_on(view(Operation.NONE, zero, zero, sequence=0, epoch=0)) == {0: None, 1: None}
    with pytest.raises(CommandOpenError, match="has not joined"):
        next_command(view(Operation.NONE, zero, sequence=0, epoch=0), CLEAR)


def test_the_next_command_has_the_next_sequence_of_the_same_epoch():
    over = view(ABORT, says(StatusCode.DONE_KEPT), sequence=1, epoch=1)
    assert next_command(over, UPDATE) == CommandWord(1, 2, UPDATE)


@incident("FastDeploy#5637")
def test_the_next_command_is_refused_while_somebody_works_on_the_last_one():
    with pytest.raises(CommandOpenError, match="rank 1: RUNNING, rank 2: has not answered") as caught:
        next_command(view(UPDATE, says(PREPARED), says(RUNNING), says(DONE, sequence=0)), CLEAR)
    assert caught.value.waiting == {0: "PREPARED", 1: "RUNNING", 2: "has not answered"}
