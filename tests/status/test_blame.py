"""Who is to blame where a rank failed and another one was lost over it."""

from __future__ import annotations

import pytest
from situations import SITUATIONS

from wsm.controller.errors import CommandTimeoutError
from wsm.report import FailureReport
from wsm.status.blame import Hang, Late, Situation, blame

FAILURE = FailureReport(rank=0, action="restart_tp_group", error="OSError", message="no route", traceback="…")
BROKEN_STEP = FailureReport(
    rank=0, action="step", error="RuntimeError", message="connection reset", traceback="…"
)
LATE = Late({1: "has not answered"}, (1,))


def test_a_rank_that_fails_is_named_before_one_whose_step_broke_over_it():
    found = blame(Situation(lost=(1,), broken=(1,)), {0: (FAILURE, False)})
    assert found.failure is FAILURE
    assert found.others == {1: "its process is gone"}


def test_a_rank_that_died_is_named_before_one_that_failed_over_it():
    assert blame(Situation(lost=(1,)), {0: (FAILURE, False)}).lost == (1,)


def test_a_rank_whose_step_broke_is_named_where_none_has_failed():
    assert blame(Situation(lost=(1,), broken=(1,)), {}).lost == (1,)


def test_a_rank_that_was_late_is_named_before_one_whose_step_broke_after_the_deadline():
    """The end of the late one's process breaks the step in which another waits for it."""
    found = blame(Situation(late=LATE, expired=True), {0: (BROKEN_STEP, False)})
    assert found.failure is None
    error = CommandTimeoutError(
        request_id="r", operation="update", deadline_s=1, gave_up=False, late=LATE, group=""
    )
    assert list(error.context["waiting"]) == [1]


@pytest.mark.parametrize("then", [Situation(late=LATE, expired=True, failed=(0,)), Situation()])
def test_a_rank_whose_step_broke_before_the_deadline_is_named(then):
    assert blame(then, {0: (BROKEN_STEP, False)}).failure is BROKEN_STEP


def test_an_echo_is_the_cause_of_nothing_and_a_wait_only_where_no_rank_failed_of_itself():
    echo = FailureReport(0, "votes", "peer-never-ready", "rank 1 will not come")
    wait = FailureReport(1, "park", "wait-expired", "rank 0 never came")
    assert blame(Situation(), {0: (echo, False)}).failure is None
    assert blame(Situation(), {0: (echo, False), 1: (wait, False)}).failure is wait
    assert blame(Situation(), {0: (FAILURE, False), 1: (wait, False)}).failure is FAILURE


def test_what_was_reported_only_after_the_decision_is_not_blamed_for_it():
    first = FailureReport(1, "load_weights", "OSError", "too many open files")
    found = blame(Situation(failed=(1,)), {0: (FAILURE, False), 1: (first, False)})
    assert found.failure is first
    assert found.others == {0: "no route"}


def test_of_several_hangs_the_stopped_one_is_named_and_the_others_beside_it():
    hangs = (
        Hang(0, "load_weights", 90.0, 60.0, stopped=False),
        Hang(1, "load_weights", 80.0, 60.0, stopped=True),
    )
    found = blame(Situation(hangs=hangs), {})
    assert found.hang is hangs[1]
    assert found.others == {0: "is in load_weights, too"}


def test_a_stopped_rank_is_named_alone_and_the_others_wait_for_it():
    assert Late.of(SITUATIONS["two that have not answered, one stopped"]).sentence() == (
        "rank 1 (has not answered; its process is stopped); rank 0 waits for it"
    )
