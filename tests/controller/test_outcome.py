"""Who is to blame where a rank failed and another one was lost over it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from wsm.controller import outcome
from wsm.controller.errors import CommandTimeoutError, RankFailedError, RankLostError
from wsm.controller.outcome import Situation
from wsm.report import FailureReport, RankReport
from wsm.states.view import View
from wsm.states.words import CommandWord, CommittedWord, Operation, StepKind, StepWord

COMMAND = CommandWord(1, 2, Operation.ABORT)
FAILURE = FailureReport(rank=0, action="restart_tp_group", error="OSError", message="no route", traceback="…")
BROKEN_STEP = FailureReport(
    rank=0, action="step", error="RuntimeError", message="connection reset", traceback="…"
)


@pytest.fixture
def blame():
    """`blame(then)`: the error of a command in which rank 0 has failed, if `failed`."""

    def of(then: Situation, *, failed: bool = True, reported: FailureReport = FAILURE):
        def failure(rank, _command):
            return (reported, False) if failed and rank == 0 else None

        now = SimpleNamespace(sentence=lambda: "the group is CLEARED")
        group = SimpleNamespace(participants=2, failure=failure, report=lambda *_: None, status=lambda: now)
        return outcome.aborted(group, COMMAND, request_id="r", operation="update", then=then)

    return of


def test_a_rank_that_fails_is_named_before_one_whose_step_broke_over_it(blame):
    error = blame(Situation(lost=(1,), broken=(1,)))
    assert isinstance(error, RankFailedError)
    assert (error.rank, error.action) == (0, "restart_tp_group")
    assert error.others == {1: "its process is gone"}


def test_a_rank_that_died_is_named_before_one_that_failed_over_it(blame):
    error = blame(Situation(lost=(1,)))
    assert isinstance(error, RankLostError)
    assert error.ranks == (1,)


def test_a_rank_whose_step_broke_is_named_where_nobody_has_failed(blame):
    assert blame(Situation(lost=(1,), broken=(1,)), failed=False).ranks == (1,)


def test_a_rank_that_was_late_is_named_before_one_whose_step_broke_after_the_deadline(blame):
    """Whoever ends the late one's process breaks the step in which another waits for it."""
    error = blame(Situation(late={1: "has not answered"}, expired=True), reported=BROKEN_STEP)
    assert isinstance(error, CommandTimeoutError)
    assert list(error.context["waiting"]) == [1]


@pytest.mark.parametrize(
    "then", [Situation(late={1: "has not answered"}, expired=True, failed=(0,)), Situation()]
)
def test_a_rank_whose_step_broke_before_the_deadline_is_named(blame, then):
    error = blame(then, reported=BROKEN_STEP)
    assert isinstance(error, RankFailedError)
    assert (error.rank, error.action) == (0, "step")


def test_only_a_step_that_raised_in_this_epoch_counts_as_broken():
    steps = [
        StepWord(1, 1, StepKind.BROKEN, 7),
        StepWord(0, 9, StepKind.BROKEN, 7),
        StepWord(1, 1, StepKind.RUNNING, 8),
    ]
    view = View(COMMAND, steps, [], CommittedWord(0, None))
    assert outcome.broken(view, [0, 1, 2]) == (0,)


def prepared(rank, digest, scope="group"):
    return RankReport(rank, version=7, manifest_digest=digest, facts={"manifest_scope": scope})


@pytest.mark.parametrize("nothing", ["", None])
def test_ranks_that_name_no_publication_do_not_agree_on_one(nothing):
    assert outcome.agree([prepared(0, "m"), prepared(1, "m")])
    assert not outcome.agree([prepared(0, nothing), prepared(1, nothing)])
    assert outcome.agree([prepared(0, "a", "rank"), prepared(1, "b", "rank")])
    assert not outcome.agree([prepared(0, "m"), prepared(1, "m", "rank")])
