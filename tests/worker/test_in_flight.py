"""What becomes of requests that run when a command arrives: abort, drain, keep."""

from __future__ import annotations

import pytest
from living_group import eventually

from tests.incident import incident
from wsm import InFlightPolicy
from wsm.clock import ManualClock
from wsm.controller.errors import CommandTimeoutError, RankFailedError

pytestmark = pytest.mark.processes


def state(group, rank=0):
    group.programs[rank].tell("say")
    return group.programs[rank].says("state")


def begin_long_request(group, rank=0, steps=1_000_000):
    group.programs[rank].tell(f"submit {steps}")
    group.await_steps(5)


def test_abort_ends_running_requests_and_leaves_queued_ones_where_they_are(group):
    with group.boot() as controller:
        begin_long_request(group)
        receipt = controller.update(1, force=True, in_flight=InFlightPolicy.ABORT)
        assert receipt.ranks[0].facts["requests_aborted"] == 1
        assert state(group)["running"] == []
    assert [end["aborted"] for end in group.stop()] == [1, 0]


@incident("FastDeploy#7825")
def test_drain_lets_running_requests_finish_on_the_old_version(group):
    group.publish(2)
    with group.boot() as controller:
        begin_long_request(group, steps=150)
        controller.update(2, in_flight=InFlightPolicy.DRAIN)
    ended = group.stop()
    assert [end["finished"] for end in ended] == [1, 0]
    assert [version for _, version, _ in group.steps_of(0)] == [1] * 150
    group.assert_steps_are_pure([1])


def test_keep_freezes_running_requests_and_finishes_them_on_the_new_version(group):
    group.publish(2)
    with group.boot() as controller:
        begin_long_request(group, steps=2000)
        controller.clear(in_flight=InFlightPolicy.KEEP)
        frozen = state(group)
        assert len(frozen["frozen"]) == 1
        assert not frozen["admitting"]
        controller.update(2)
        group.await_steps(20)
    group.assert_steps_are_pure([1, 2])


@incident("FastDeploy#6239")
def test_a_drain_that_outlasts_its_caller_is_aborted_and_the_request_runs_on(group):
    group.publish(2)
    with group.boot():
        begin_long_request(group)
        clock = ManualClock()
        pending = group.controller(clock=clock).begin_update(2, in_flight=InFlightPolicy.DRAIN)
        pending.written(10)
        eventually(lambda: group.codes() == ["DRAINING", "PARKING"])
        clock.advance(1000)
        with pytest.raises(CommandTimeoutError, match=r"waiting for rank 0 \(is draining\)") as caught:
            pending.result()
        assert caught.value.gave_up is False
        now = state(group)
        assert len(now["running"]) == 1
        assert now["admitting"]
        group.await_steps()
        group.assert_steps_are_pure([1])


def test_a_drain_that_outlasts_the_ranks_own_deadline_fails_and_changes_nothing(group):
    group.publish(2)
    with group.boot() as controller:
        begin_long_request(group)
        pending = controller.begin_update(2, in_flight=InFlightPolicy.DRAIN)
        pending.written(10)
        eventually(lambda: group.codes() == ["DRAINING", "PARKING"])
        group.programs[0].tell("later 1000")
        with pytest.raises(RankFailedError, match="1 requests to finish") as caught:
            pending.result()
        assert (caught.value.rank, caught.value.error) == (0, "wait-expired")
        group.await_steps()
        group.assert_steps_are_pure([1])
        assert len(state(group)["running"]) == 1
