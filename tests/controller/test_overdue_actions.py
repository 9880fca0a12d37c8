"""A rank that does not come out of an action: named, with the action, its deadline, and who waits for it."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from living_group import eventually

from tests.incident import incident
from wsm import Outcome
from wsm.clock import ManualClock
from wsm.controller.errors import ActionOverdueError, CommandTimeoutError
from wsm.states.errors import CommandOpenError

pytestmark = pytest.mark.processes


def inside(controller, rank: int, action: str):
    return lambda: controller.status().ranks[rank].doing == action


@incident("verl#6967")
def test_a_rank_that_hangs_in_its_load_is_named_with_the_action_and_those_who_wait(make_group):
    group = make_group(3)
    group.publish(2)
    with group.boot() as controller:
        group.order(1, "write", "hold")
        clock = ManualClock()
        pending = group.controller(clock=clock).begin_update(2, deadline_s=10_000)
        group.await_held(1, "write")
        eventually(lambda: [group.codes()[rank] for rank in (0, 2)] == ["PREPARED"] * 2)
        assert controller.status().ranks[1].doing == "load_weights"
        late = wait_until_it_was_seen(group, clock)
        group.revoke(1, "write")
        with pytest.raises(ActionOverdueError) as caught:
            pending.result(60)
        error = caught.value
        eventually(lambda: controller.status().over)
        assert controller.status().state == "CLEARED"
        assert late == "ABORT"
        assert (error.rank, error.action, error.deadline_s) == (1, "load_weights", 600.0)
        assert error.seconds > 600
        assert not error.stopped
        assert error.waiting == {0: "is prepared", 2: "is prepared"}
        assert controller.update(2).version == "2"


def wait_until_it_was_seen(group, clock) -> str:
    """Advance until the controller has decided: it counts from when it first saw the action."""
    controller = group.controllers[0]

    def decided() -> bool:
        clock.advance(301)
        return controller.status().operation == "ABORT"

    eventually(decided)
    return controller.status().operation


@pytest.mark.slow_but
@pytest.mark.parametrize("point", ["write", "rebuild"])
def test_a_stopped_process_is_said_to_be_stopped_and_nobody_waits_out_the_settle_time(make_group, point):
    group = make_group(2)
    with group.boot() as controller:
        controller.clear()
        group.publish(2)
        group.order(1, point, "hold")
        clock = ManualClock()
        pending = group.controller(clock=clock).begin_update(2, deadline_s=10_000, settle_s=10_000)
        group.await_held(1, point)
        group.programs[1].freeze()
        eventually(lambda: group.codes()[0] == "PREPARED")
        wait_until_it_was_seen(group, clock)
        with pytest.raises(ActionOverdueError, match=r"its process is stopped;.*kill -CONT") as caught:
            pending.result(60)
        assert caught.value.stopped
        assert caught.value.rank == 1
        assert "still open" in caught.value.group
        group.revoke(1, point)
        group.programs[1].thaw()
        eventually(lambda: controller.status().over)
        assert controller.update(2).version == "2"


@incident("trl#2923")
def test_in_a_collective_action_the_one_who_never_came_is_named(make_group):
    group = make_group(3, config={"shut_down_groups": True})
    with group.boot() as controller:
        controller.clear()
        group.order(1, "restart", "hold")
        clock = ManualClock()
        pending = group.controller(clock=clock).begin_update(1, deadline_s=10_000, settle_s=10_000)
        group.await_held(1, "restart")
        group.programs[1].freeze()
        for rank in (0, 2):
            eventually(inside(controller, rank, "restart_tp_group"))
        wait_until_it_was_seen(group, clock)
        with pytest.raises(ActionOverdueError) as caught:
            pending.result(60)
        error = caught.value
        assert (error.rank, error.action, error.stopped) == (1, "restart_tp_group", True)
        assert error.waiting == dict.fromkeys((0, 2), "is running restart_tp_group")


def test_a_longer_deadline_lets_a_slow_action_finish(make_group):
    group = make_group(2, config={"deadlines": {"action_s": {"load_weights": 5000}}})
    group.publish(2)
    with group.boot():
        group.order(1, "write", "hold")
        clock = ManualClock()
        pending = group.controller(clock=clock).begin_update(2, deadline_s=10_000)
        group.await_held(1, "write")
        eventually(lambda: group.codes()[0] == "PREPARED")
        clock.advance(4000)
        group.revoke(1, "write")
        assert pending.result(60).version == "2"


def test_a_command_whose_controller_died_with_a_stopped_rank_does_not_hold_the_next_caller_up(make_group):
    """The next one settles what can be settled; a stopped process is not waited for by the clock."""
    group = make_group(2)
    group.publish(2)
    with group.boot() as controller:
        group.order(1, "write", "hold")
        clock = ManualClock()
        first = group.controller(clock=clock)
        pending = first.begin_update(2, deadline_s=100, settle_s=0.1)
        group.await_held(1, "write")
        group.programs[1].freeze()
        eventually(lambda: group.codes()[0] == "PREPARED")
        clock.advance(200)
        with pytest.raises(CommandTimeoutError):
            pending.result(60)
        standing_clock = ManualClock()  # with it, a wait by the clock would never end
        stopped = f"its process is stopped: 'kill -CONT {group.programs[1].pid}'"
        with pytest.raises(CommandOpenError, match=f"still at command .* {stopped}"):
            group.controller(clock=standing_clock).begin_clear().result(50)
        waits = ThreadPoolExecutor(1).submit(controller.clear, wait_s=50)  # for a stopped one, too
        eventually(lambda: controller.status().controller_pid == os.getpid())
        group.revoke(1, "write")
        group.programs[1].thaw()
        assert waits.result(50).outcome in (Outcome.CLEARED, Outcome.ALREADY_CLEARED)
