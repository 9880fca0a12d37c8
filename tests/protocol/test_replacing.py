"""Whose process is replaced, and when what failed is tried again: the rules, without processes or clocks."""

from __future__ import annotations

import pytest

from wsm.states.epochs import Backoff, Cause, hung, late, restart_delay_s, whom_to_replace
from wsm.states.view import View
from wsm.states.words import CommandWord, Operation, StatusCode, StatusWord, StepKind, StepWord

BACKOFF = Backoff(0.5, 2.0)


def view(
    operation: Operation = Operation.NONE,
    codes: tuple[StatusCode, ...] = (StatusCode.ATTACHED, StatusCode.ATTACHED),
    broken: tuple[int, ...] = (),
) -> View:
    steps = [
        StepWord(1, 1, StepKind.BROKEN if rank in broken else StepKind.RUNNING, 5)
        for rank in range(len(codes))
    ]
    return View(
        CommandWord(1, 1, operation),
        steps,
        [StatusWord.unpack(0)._replace(epoch=1, sequence=1, code=code) for code in codes],
    )


def test_a_group_without_a_loss_is_left_alone():
    assert whom_to_replace(view(), ended=(), stopped=()) == {}


def test_a_process_that_ended_is_the_cause_of_the_steps_that_broke():
    found = whom_to_replace(view(broken=(0,)), ended=(1,), stopped=())
    assert found == {1: Cause.ENDED}


def test_a_step_that_broke_by_itself_ends_its_process():
    found = whom_to_replace(view(broken=(0,)), ended=(), stopped=())
    assert found == {0: Cause.BROKEN}


def test_a_stopped_process_is_the_cause_of_the_steps_that_broke():
    found = whom_to_replace(view(broken=(0,)), ended=(), stopped=(1,))
    assert found == {1: Cause.STOPPED}


def test_steps_that_break_while_a_rank_leaves_end_no_other_process():
    assert whom_to_replace(view(broken=(0,)), ended=(), stopped=(), left=(1,), leaving=True) == {}
    found = whom_to_replace(view(broken=(0,)), ended=(), stopped=(), left=(1,), leaving=False)
    assert found == {1: Cause.LEFT}


def test_only_a_rank_that_keeps_a_decided_command_from_its_end_is_late():
    working, done = StatusCode.PREPARED, StatusCode.DONE_COMMITTED
    assert late(view(Operation.UPDATE, (working, working))) == []
    assert late(view(Operation.COMMIT, (working, done))) == [0]
    stopped = view(Operation.ABORT, (StatusCode.STOPPED_UNTOUCHED, StatusCode.RUNNING))
    assert late(stopped) == [1]
    settling = view(Operation.ABORT, (StatusCode.STOPPED_UNTOUCHED, StatusCode.DONE_KEPT))
    assert late(settling) == [0]  # nothing keeps it from its end but itself


@pytest.mark.parametrize(("waited_s", "found"), [(9, {}), (10, {0: Cause.HUNG})])
def test_a_late_rank_is_replaced_once_it_has_had_its_time(waited_s, found):
    seen = view(Operation.COMMIT, (StatusCode.PREPARED, StatusCode.DONE_COMMITTED))
    assert hung(seen, (), waited_s=waited_s, limit_s=10, drain_s=5) == found


@pytest.mark.parametrize(("waited_s", "found"), [(12, [1]), (15, [0, 1])])
def test_after_a_hot_decision_ranks_may_drain_but_a_stopped_one_does_not(waited_s, found):
    seen = view(Operation.HOT_COMMIT, (StatusCode.PREPARED, StatusCode.PREPARED))
    assert sorted(hung(seen, (1,), waited_s=waited_s, limit_s=10, drain_s=5)) == found


def test_waits_double_up_to_the_longest():
    assert [BACKOFF.after(failures) for failures in range(5)] == [0.0, 0.5, 1.0, 2.0, 2.0]
    assert BACKOFF.after(100_000) == 2.0


def test_the_first_recovery_is_at_once_and_too_many_within_the_window_are_the_end():
    def delay(*began_s: float) -> float | None:
        return restart_delay_s(began_s, 100.0, restarts=2, within_s=60.0, backoff=BACKOFF)

    assert delay() == 0.0
    assert delay(30.0) == 0.0  # outside of the window
    assert delay(50.0) == 0.5
    assert delay(50.0, 60.0) is None
    assert restart_delay_s((), 0.0, restarts=0, within_s=60.0, backoff=BACKOFF) is None
