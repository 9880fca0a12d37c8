"""Votes for collective actions, and the count of those who have stopped after an ABORT."""

from __future__ import annotations

import pytest
from words import says, view

from tests.incident import incident
from wsm.states.view import all_ready, all_stopped, any_touched, never_ready
from wsm.states.words import Operation, StatusCode

UPDATE, ABORT = Operation.UPDATE, Operation.ABORT
RUNNING, FAILED, PREPARED = StatusCode.RUNNING, StatusCode.FAILED, StatusCode.PREPARED


@incident("FastDeploy#5710")
def test_a_collective_action_is_entered_when_every_participant_has_voted_for_it():
    assert all_ready(view(UPDATE, says(RUNNING, ready=3), says(RUNNING, ready=3)), 2)
    assert not all_ready(view(UPDATE, says(RUNNING, ready=3), says(RUNNING, ready=2)), 2)


def test_a_vote_is_seen_however_far_its_rank_has_come_since():
    assert all_ready(view(UPDATE, says(RUNNING, ready=3), says(PREPARED, ready=5)), 2)
    assert all_ready(view(UPDATE, says(RUNNING, ready=3), says(FAILED, ready=3)), 2)


def test_a_vote_for_another_command_is_none():
    assert not all_ready(view(UPDATE, says(RUNNING, ready=3), says(RUNNING, ready=3, sequence=2)), 2)
    assert not all_ready(view(UPDATE, says(RUNNING, ready=3), says(RUNNING, ready=3, epoch=2)), 2)


@pytest.mark.parametrize(
    "code",
    [
        FAILED,
        StatusCode.REFUSED,
        StatusCode.STOPPED_UNTOUCHED,
        StatusCode.STOPPED_TOUCHED,
        StatusCode.DONE_KEPT,
    ],
)
def test_whoever_has_failed_or_stopped_without_the_vote_will_never_give_it(code):
    assert never_ready(view(UPDATE, says(RUNNING, ready=3), says(code, ready=2)), 2) == [1]


def test_whoever_failed_after_the_vote_has_entered():
    assert never_ready(view(UPDATE, says(RUNNING, ready=3), says(FAILED, ready=3)), 2) == []


def test_whoever_is_only_slow_may_still_vote():
    slow = [says(code) for code in StatusCode if code < FAILED]
    assert never_ready(view(UPDATE, *slow), 0) == []
    assert never_ready(view(UPDATE, says(RUNNING, ready=3), says(FAILED, sequence=2)), 2) == []


def test_all_have_stopped_when_each_says_so_for_this_command():
    untouched, kept = says(StatusCode.STOPPED_UNTOUCHED), says(StatusCode.DONE_KEPT)
    assert all_stopped(view(ABORT, untouched, kept))
    assert not all_stopped(view(ABORT, untouched, says(FAILED)))
    assert not all_stopped(view(ABORT, untouched, says(StatusCode.DONE_KEPT, sequence=2)))


@pytest.mark.parametrize(
    "code", [StatusCode.STOPPED_TOUCHED, StatusCode.DONE_CLEARED, StatusCode.DONE_FAULTED]
)
def test_one_touched_rank_is_enough_and_it_stays_visible_to_the_end(code):
    assert any_touched(view(ABORT, says(StatusCode.STOPPED_UNTOUCHED), says(code)))


def test_nobody_is_touched_where_all_stopped_in_time():
    assert not any_touched(view(ABORT, says(StatusCode.STOPPED_UNTOUCHED), says(StatusCode.DONE_KEPT)))
    assert not any_touched(
        view(ABORT, says(StatusCode.STOPPED_UNTOUCHED), says(StatusCode.DONE_CLEARED, sequence=2))
    )
