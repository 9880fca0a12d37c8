"""Commands that are refused or fail: nothing changes, or all ranks end alike, and the culprit is named."""

from __future__ import annotations

import threading

import pytest
from living_group import eventually

from tests.incident import incident
from wsm import InFlightPolicy
from wsm.controller._drive import Drive
from wsm.controller.errors import CommandRefusedError, MixedGroupError, RankFailedError
from wsm.states.group import GroupTodo

pytestmark = pytest.mark.processes


def assert_serves_on(group, controller, version=1):
    assert controller.status().serving
    group.await_steps()
    group.assert_steps_are_pure([version])
    assert group.steps_of(0)[-1][1] == version


def assert_takes_a_good_update(group, controller, version=9):
    group.publish(version)
    assert controller.update(version).version == str(version)
    group.await_steps()
    group.assert_steps_are_pure([version])
    group.stop()
    group.assert_journals_are_possible()


@incident("sglang-omni#784")
@pytest.mark.parametrize("culprit", [0, 1])
def test_one_missing_shard_clears_all_ranks_because_another_had_begun_to_load(make_group, culprit):
    group = make_group(load=0.3)
    group.publish(2)
    for path in group.shard_files(2, culprit):
        path.unlink()
    with group.boot() as controller:
        group.order(culprit, "settle", "hold")
        pending = controller.begin_update(2)
        eventually(lambda: group.codes()[1 - culprit] == "PREPARED")
        group.revoke(culprit, "settle")
        with pytest.raises(RankFailedError, match="holds no weights") as caught:
            pending.result()
        assert caught.value.rank == culprit
        assert {rank.weights for rank in controller.status().ranks} == {"CLEARED"}
        assert_takes_a_good_update(group, controller)


def test_an_action_that_fails_before_anything_is_taken_away_is_undone(make_group):
    """What stops admission raises on one rank; the other one must admit again."""
    group = make_group(load=0.3)
    with group.boot() as controller:
        group.order(1, "stop_admitting", "raise once")
        with pytest.raises(CommandRefusedError) as caught:
            controller.update(1, force=True)
        assert caught.value.rank == 1
        assert_serves_on(group, controller)
        assert [end["admitting"] for end in group.stop()] == [True, True]


def test_a_teardown_that_fails_leaves_its_rank_faulted_until_the_group_is_cleared_again(group):
    with group.boot() as controller:
        group.order(1, "release", "raise")
        with pytest.raises(RankFailedError, match="could not release") as caught:
            controller.clear()
        assert (caught.value.rank, caught.value.action) == (1, "release_weights")
        assert [rank.weights for rank in controller.status().ranks] == ["CLEARED", "FAULTED"]
        with pytest.raises(MixedGroupError, match="rank 1 FAULTED"):
            controller.update(1)
        with pytest.raises(RankFailedError):
            controller.clear()  # still broken
        group.revoke(1, "release")
        controller.clear()
        assert controller.status().state == "CLEARED"
        assert controller.update(1).version == "1"
        group.stop()
        group.assert_journals_are_possible()


def test_a_teardown_that_fails_once_is_finished_by_the_groups_own_clear(group):
    with group.boot() as controller:
        group.order(1, "release", "raise once")
        with pytest.raises(RankFailedError, match="holds no weights"):
            controller.clear()
        assert controller.status().state == "CLEARED"
        assert [end["held"] for end in group.stop()] == [[], []]


def test_a_rank_that_never_parks_is_named_by_the_one_that_waited(make_group):
    group = make_group(load=0.3)
    with group.boot() as controller:
        group.rest()  # or rank 0 may be in a step already, which rank 1 would never enter
        group.order(1, "stop_admitting", "hold")
        pending = controller.begin_update(1, force=True)
        eventually(lambda: group.codes()[0] == "PARKING")
        group.programs[0].tell("later 1000")
        eventually(lambda: controller.status().operation == "ABORT")
        group.revoke(1, "stop_admitting")
        group.work()
        with pytest.raises(RankFailedError, match="rank 1 to park") as caught:
            pending.result()
        assert (caught.value.rank, caught.value.action) == (0, "parking")
        assert_serves_on(group, controller)


@incident("trl#2923")
def test_a_rank_that_fails_before_a_collective_action_frees_the_ones_that_voted_for_it(make_group):
    group = make_group(3, config={"shut_down_groups": True}, load=0.3)
    with group.boot() as controller:
        group.await_steps(3)
        group.order(1, "release_kv", "raise once")
        with pytest.raises(RankFailedError, match="holds no weights") as caught:
            controller.clear()
        assert (caught.value.rank, caught.value.action) == (1, "release_kv_cache")
        assert all("will never enter it" in message for message in caught.value.others.values())
        assert_takes_a_good_update(group, controller)


def test_a_rank_that_raises_in_a_collective_because_it_failed_on_another_is_not_the_one_that_is_named(
    make_group, monkeypatch
):
    """Before the controller comes to look, as on a busy machine, both have failed."""
    group = make_group(config={"shut_down_groups": True})
    with group.boot() as controller:
        controller.clear()
        looks, turn = threading.Event(), Drive.turn

        def turn_later(drive, kind):
            return turn(drive, kind) if looks.is_set() or not drive.state.mine else GroupTodo.WAIT

        monkeypatch.setattr(Drive, "turn", turn_later)
        group.order(0, "restart", "hold and raise")
        group.order(1, "restart", "raise once")
        pending = controller.begin_update(1)
        group.await_held(0, "restart")
        eventually(lambda: group.codes()[1] == "FAILED")
        group.revoke(0, "restart")
        eventually(lambda: group.codes() == ["FAILED", "FAILED"])
        looks.set()
        with pytest.raises(RankFailedError, match="失败") as caught:
            pending.result(60)
        assert (caught.value.rank, caught.value.action) == (1, "restart_tp_group")
        assert "after it had failed on rank 1" in caught.value.others[0]
        assert "connection closed by peer" in caught.value.others[0]
        assert controller.update(1).version == "1"


def test_a_failed_clear_with_requests_kept_lets_the_group_go_on(group):
    with group.boot() as controller:
        group.order(0, "release", "raise once")
        with pytest.raises(RankFailedError):
            controller.clear(in_flight=InFlightPolicy.KEEP)
        controller.update(1)
        assert controller.status().serving
