"""What a new epoch owes its group: the goal, the attempts, and their end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wsm.states.decide import decided
from wsm.states.epochs import (
    is_to_be_restored,
    owes_version_before,
    restored_version,
    unrestored,
)
from wsm.states.view import View
from wsm.states.vocabulary import KVState, OnFailure, WeightState
from wsm.states.words import CommandWord, CommittedWord, Operation, StatusCode, StatusWord, StepKind, StepWord


def after(operation: Operation, *, sequence: int = 5, version: int | None = 7, owes: bool = False) -> View:
    """An epoch that owes version 7, and whose last command came to `operation`; nobody holds anything."""
    return View(
        CommandWord(2, sequence, operation, owes=owes),
        [StepWord(2, 0, StepKind.PARKED, 0)] * 2,
        [StatusWord(2, sequence, StatusCode.DONE_CLEARED)] * 2,
        CommittedWord(4, version),
    )


def test_a_death_between_two_attempts_hands_the_debt_on():
    assert restored_version(after(Operation.ABORT, owes=True), asked="7", committed="7", served=True) == "7"
    assert restored_version(after(Operation.NONE), asked=None, committed="7", served=None) == "7"


def test_whoever_cleared_the_group_in_between_owns_its_memory():
    assert restored_version(after(Operation.CLEAR), asked=None, committed="7", served=True) is None
    empty = after(Operation.NONE, version=None)
    assert restored_version(empty, asked=None, committed=None, served=None) is None


def torn(code: StatusCode = StatusCode.DONE_FAULTED, *, epoch: int = 2) -> View:
    """Rank 0 has cleared, and the teardown of rank 1 has failed; `code` is what it says about the command."""
    view = after(Operation.ABORT)
    broken = StatusWord(epoch, 5, code, weights=WeightState.FAULTED)
    return replace(view, statuses=[view.statuses[0], broken])


def test_a_clear_that_repairs_leaves_what_the_group_is_owed():
    assert restored_version(after(Operation.CLEAR, owes=True), asked=None, committed="7", served=True) == "7"


@pytest.mark.parametrize("asked", [Operation.UPDATE, Operation.HOLD, Operation.RELEASE])
def test_only_the_commit_of_an_update_brings_what_is_owed(asked):
    view = after(asked, owes=True)
    for commit in (True, False):
        word = decided(view, commit=commit)
        brings = asked is Operation.UPDATE and commit
        assert unrestored(replace(view, command=CommandWord.unpack(word.pack()))) is not brings


@pytest.mark.parametrize("operation", Operation)
@pytest.mark.parametrize("on_failure", OnFailure)
@pytest.mark.parametrize("serves", [True, False])
@pytest.mark.parametrize("restorable", [True, False])
def test_only_an_update_in_place_of_a_group_that_serves_what_can_be_loaded_again_owes_it(
    operation, on_failure, serves, restorable
):
    owes = owes_version_before(operation, on_failure=on_failure, serves=serves, restorable=restorable)
    assert owes is (
        operation is Operation.UPDATE and on_failure is OnFailure.RESTORE and serves and restorable
    )


def holding(view: View, weights: WeightState, code: StatusCode) -> View:
    """The same group, whose ranks say `code` and hold these weights and a KV cache."""
    said = [status._replace(weights=weights, kv=KVState.NORMAL, code=code) for status in view.statuses]
    return replace(view, statuses=said)


def test_an_update_that_was_aborted_behind_its_first_byte_is_to_be_restored_once_it_is_over():
    view = after(Operation.ABORT, owes=True)
    assert unrestored(view)
    assert is_to_be_restored(view)
    assert not is_to_be_restored(holding(view, WeightState.CLEARED, StatusCode.STOPPED_TOUCHED))
    assert not is_to_be_restored(after(Operation.ABORT))
    assert not is_to_be_restored(after(Operation.ABORT, owes=True, version=None))
    assert not is_to_be_restored(after(Operation.NONE))  # that its recovery knows


def test_an_update_that_was_aborted_before_its_first_byte_owes_nothing():
    untouched = holding(after(Operation.ABORT, owes=True), WeightState.NORMAL, StatusCode.DONE_KEPT)
    assert not unrestored(untouched)
    assert not is_to_be_restored(untouched)


def test_a_rank_whose_teardown_failed_is_repaired_before_its_group_is_restored():
    view = torn()
    owing = replace(view, command=view.command._replace(owes=True))
    assert unrestored(owing)
    assert not is_to_be_restored(owing)
    assert is_to_be_restored(after(Operation.CLEAR, owes=True))
