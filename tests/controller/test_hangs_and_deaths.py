"""Ranks that stop or die: the caller is told which, no half of a group serves, a stopped rank comes back."""

from __future__ import annotations

import pytest
from living_group import eventually

from tests.incident import incident
from wsm.clock import ManualClock
from wsm.controller.errors import ActionOverdueError, CommandTimeoutError, RankLostError
from wsm.states.errors import CommandOpenError

pytestmark = pytest.mark.processes


def stands_ahead(rank, other):
    """Whether a rank is inside a step that the other has not entered."""
    return rank.step_kind == "running" and rank.step > other.step


@pytest.mark.slow_but
@incident("4.8-2")
@pytest.mark.parametrize("command", ["clear", "update"])
def test_a_stopped_rank_is_named_and_the_group_recovers_when_it_goes_on(make_group, command):
    group = make_group(3, load=0.2)
    group.publish(2)
    with group.boot() as controller:
        group.await_steps(3)
        group.rest()  # a rank that waits for the stopped one inside a step could not stand either
        group.programs[1].freeze()
        clock = ManualClock()
        impatient = group.controller(clock=clock)
        pending = impatient.begin_clear() if command == "clear" else impatient.begin_update(2)
        eventually(lambda: [group.codes()[rank] for rank in (0, 2)] == ["PARKING"] * 2)
        clock.advance(1000)
        eventually(lambda: [group.codes()[rank] for rank in (0, 2)] == ["STOPPED_UNTOUCHED"] * 2)
        clock.advance(1000)
        with pytest.raises(
            CommandTimeoutError, match=r"waiting for rank 1 \(has not answered; its process is stopped\)"
        ) as caught:
            pending.result()
        assert set(caught.value.waiting) == {1}
        assert "still open" in caught.value.group
        assert controller.status().ranks[1].life == "stopped"  # which is not dead
        with pytest.raises(CommandOpenError, match="rank 1: has not answered"):
            controller.clear(settle_s=0.1)
        group.programs[1].thaw()
        eventually(lambda: controller.status().over)
        assert controller.status().serving  # nobody had touched anything
        group.work()
        group.await_steps()
        controller.update(2)
        group.await_steps()
    group.stop()
    group.assert_steps_are_pure([1, 2])
    group.assert_journals_are_possible()


@pytest.mark.slow_but
@pytest.mark.parametrize("later_s", [40, 1000])  # the command's deadline; the staging action's, too
def test_a_stopped_rank_that_has_staged_is_named_and_not_the_one_alone_that_it_holds_inside_a_step(
    make_group, later_s
):
    group = make_group(2, load=1)
    group.publish(2)
    with group.boot() as controller:
        group.await_steps()
        group.order(0, "stage", "hold")
        clock = ManualClock()
        pending = group.controller(clock=clock).begin_update(2, hot=True, deadline_s=30)
        group.await_held(0, "stage")
        eventually(lambda: group.codes() == ["STAGING", "PREPARED"])
        group.programs[1].freeze()
        eventually(lambda: stands_ahead(*controller.status().ranks))
        group.revoke(0, "stage")  # inside that step it cannot say that it has staged
        clock.advance(later_s)
        eventually(lambda: controller.status().operation == "HOT_ABORT", "the decision")
        clock.advance(100)
        with pytest.raises(
            (CommandTimeoutError, ActionOverdueError), match=r"rank 1 .*its process is stopped"
        ):
            pending.result(60)
        group.programs[1].thaw()
        eventually(lambda: controller.status().over)
        assert controller.update(2, hot=True).version == "2"
    group.stop()
    group.assert_steps_are_pure([1, 2])


@pytest.mark.slow_but
@incident("peers' class 4.4 (vllm#40646 and others)")
@pytest.mark.parametrize("point", ["stop_admitting", "write"])
def test_a_rank_that_dies_within_a_command_is_named_and_the_others_do_not_serve(make_group, point):
    group = make_group(3, load=0.2)
    group.publish(2)
    with group.boot() as controller:
        group.await_steps(3)
        group.rest()
        group.order(1, point, "hold")
        pending = controller.begin_update(2, settle_s=30)
        group.await_held(1, point)
        group.programs[1].kill()
        with pytest.raises(RankLostError, match="rank 1 is gone") as caught:
            pending.result(20)  # and not after the settle time
        assert caught.value.ranks == (1,)
        assert {controller.status().ranks[rank].code for rank in (0, 2)} <= {
            "STOPPED_UNTOUCHED",
            "STOPPED_TOUCHED",
        }
        steps = [rank.step for rank in controller.status().ranks]
        with pytest.raises(RankLostError):
            controller.clear()
        assert [rank.step for rank in controller.status().ranks] == steps
        group.assert_steps_are_pure()


@pytest.mark.slow
def test_a_dead_rank_is_named_although_another_waits_for_it_inside_a_step(group):
    group.publish(2)
    with group.boot() as controller:
        group.order(0, "step", "hold")
        group.order(1, "stop_admitting", "hold")
        group.programs[0].tell("submit 1")
        group.await_held(0, "step")
        group.programs[1].freeze()  # so that it does not join
        pending = controller.begin_update(2, settle_s=60)
        group.programs[1].kill()
        with pytest.raises(RankLostError, match="rank 1 is gone"):
            pending.result(30)


def test_a_rank_that_dies_after_the_decision_does_not_undo_it(group):
    group.publish(2)
    with group.boot() as controller:
        group.order(1, "resume_admitting", "hold")
        pending = controller.begin_update(2, settle_s=30)
        group.await_held(1, "resume_admitting")
        group.programs[1].kill()
        with pytest.raises(RankLostError, match="rank 1 is gone"):
            pending.result(20)
        assert controller.status().version == "2"
        assert controller.status().operation == "COMMIT"
