"""What a new epoch owes its group: the goal, the attempts, and their end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wsm.states.decide import decided
from wsm.states.epochs import Attempt, faulted, goal, next_attempt, next_repair, unrestored
from wsm.states.rerun import JUDGEMENTS
from wsm.states.view import View
from wsm.states.vocabulary import WeightState
from wsm.states.words import CommandWord, CommittedWord, Operation, StatusCode, StatusWord, StepKind, StepWord


def after(operation: Operation, *, sequence: int = 5, version: int | None = 7, owes: bool = False) -> View:
    """An epoch that owes version 7, and whose last command came to `operation`; nobody holds anything."""
    return View(
        CommandWord(2, sequence, operation, owes=owes),
        [StepWord(2, 0, StepKind.PARKED, 0)] * 2,
        [StatusWord(2, sequence, StatusCode.DONE_CLEARED)] * 2,
        CommittedWord(4, version),
    )


def test_the_first_attempt_is_made_at_once():
    view = after(Operation.NONE)
    assert next_attempt(view, failed=0, limit=3) is Attempt.MAKE


@pytest.mark.parametrize(("failed", "follows"), [(1, Attempt.MAKE), (2, Attempt.MAKE), (3, Attempt.GIVE_UP)])
def test_a_restore_that_failed_is_made_again_as_often_as_is_allowed(failed, follows):
    view = after(Operation.ABORT, owes=True)
    assert next_attempt(view, failed=failed, limit=3) is follows


@pytest.mark.parametrize("operation", [Operation.ABORT, Operation.COMMIT, Operation.CLEAR])
def test_another_command_between_two_attempts_ends_them(operation):
    view = after(operation)
    assert next_attempt(view, failed=1, limit=3) is Attempt.OVERTAKEN
    assert next_attempt(view, failed=3, limit=3) is Attempt.OVERTAKEN


def test_a_death_between_two_attempts_hands_the_debt_on():
    assert goal(after(Operation.ABORT, owes=True), asked="7", committed="7", served=True) == "7"
    assert goal(after(Operation.NONE), asked=None, committed="7", served=None) == "7"


def test_whoever_cleared_the_group_in_between_owns_its_memory():
    assert goal(after(Operation.CLEAR), asked=None, committed="7", served=True) is None
    empty = after(Operation.NONE, version=None)
    assert goal(empty, asked=None, committed=None, served=None) is None


def torn(code: StatusCode = StatusCode.DONE_FAULTED, *, epoch: int = 2) -> View:
    """Rank 0 has cleared, and the teardown of rank 1 has failed; `code` is what it says about the command."""
    view = after(Operation.ABORT)
    broken = StatusWord(epoch, 5, code, weights=WeightState.FAULTED)
    return replace(view, statuses=[view.statuses[0], broken])


@pytest.mark.parametrize(("failed", "follows"), [(0, Attempt.MAKE), (1, Attempt.MAKE), (2, Attempt.GIVE_UP)])
def test_a_group_with_a_rank_that_is_faulted_is_cleared_again_and_then_the_rank_goes(failed, follows):
    assert faulted(torn()) == [1]
    assert next_repair(torn(), failed=failed, limit=2) is follows


def test_nothing_is_repaired_while_a_command_is_open_or_where_no_rank_of_the_epoch_is_faulted():
    assert next_repair(torn(StatusCode.FAILED), failed=0, limit=2) is Attempt.WAIT
    assert next_repair(after(Operation.ABORT), failed=0, limit=2) is Attempt.NONE
    assert next_repair(torn(epoch=1), failed=0, limit=2) is Attempt.NONE


def test_a_clear_that_repairs_leaves_what_the_group_is_owed():
    assert next_attempt(after(Operation.CLEAR, owes=True), failed=1, limit=3) is Attempt.MAKE
    assert goal(after(Operation.CLEAR, owes=True), asked=None, committed="7", served=True) == "7"


@pytest.mark.parametrize("asked", [Operation.UPDATE, Operation.HOLD, Operation.RELEASE])
def test_only_the_commit_of_an_update_brings_what_is_owed(asked):
    view = after(asked, owes=True)
    for decision in (Operation.COMMIT, Operation.ABORT):
        word = decided(view, decision)
        brings = (asked, decision) == (Operation.UPDATE, Operation.COMMIT)
        assert unrestored(replace(view, command=CommandWord.unpack(word.pack()))) is not brings


def test_what_the_journal_of_an_older_build_says_of_a_debt_is_answered_as_it_was():
    known = {"asked": "7", "committed": "7", "served": False, "of_admission": True}
    judge = JUDGEMENTS["goal"]
    for operation in (Operation.ABORT, Operation.COMMIT):
        assert judge(after(operation), {**known, "restores": True}) == "7"
        assert judge(after(operation), {**known, "restores": False}) is None
    assert judge(after(Operation.COMMIT, owes=True), known) == "7"
    assert judge(after(Operation.CLEAR), {**known, "of_admission": False, "restores": True}) == "7"
