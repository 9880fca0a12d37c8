"""Who is to blame where a rank failed and another one was lost over it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from wsm.controller import outcome
from wsm.controller.errors import RankFailedError, RankLostError
from wsm.controller.outcome import Situation
from wsm.protocol.view import View
from wsm.report import FailureReport
from wsm.signals.word import CommandWord, CommittedWord, Operation, StepKind, StepWord

COMMAND = CommandWord(1, 2, Operation.ABORT)
FAILURE = FailureReport(rank=0, action="restart_tp_group", error="OSError", message="no route", traceback="…")


@pytest.fixture
def blame(monkeypatch):
    """`blame(then)`: the error of a command in which rank 0 has failed, if `failed`."""
    monkeypatch.setattr(
        outcome, "read_status", lambda _: SimpleNamespace(sentence=lambda: "the group is CLEARED")
    )

    def of(then: Situation, *, failed: bool = True):
        def failure(rank, _command):
            return (FAILURE, False) if failed and rank == 0 else None

        group = SimpleNamespace(participants=2, failure=failure)
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


def test_only_a_step_that_raised_in_this_epoch_counts_as_broken():
    steps = [
        StepWord(1, 1, StepKind.BROKEN, 7),
        StepWord(0, 9, StepKind.BROKEN, 7),
        StepWord(1, 1, StepKind.RUNNING, 8),
    ]
    view = View(COMMAND, steps, [], CommittedWord(0, None))
    assert outcome.broken(view, [0, 1, 2]) == (0,)
