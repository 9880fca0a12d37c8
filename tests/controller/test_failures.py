"""Commands that fail: all ranks end alike, and the culprit is named."""

from __future__ import annotations

import threading

import pytest
from living_group import eventually

from tests.incident import incident
from tests.strict_engine import StrictEngine
from wsm import Deadlines, InFlightPolicy
from wsm.controller._drive import Drive
from wsm.controller.errors import MixedGroupError, RankFailedError, RankLostError
from wsm.states.group import GroupTodo
from wsm.strategies.tensor import TensorSpec
from wsm.testing import Fault, InMemoryRunner, LocalGroup, load_bytes

SPECS = (TensorSpec("weight", "F32", (8, 8)),)


@pytest.fixture
def local(tmp_path):
    """Two ranks in this thread, which serve version 1; a rank waits a second for the others to stand."""
    configuration = {"deadlines": Deadlines(park_s=1.0)}
    with LocalGroup(lambda _: InMemoryRunner(SPECS), tmp_path, configuration=configuration) as made:
        made.update(1)
        yield made
        made.check_journals()


def states(local):
    return [rank.weights for rank in local.controller.status().ranks]


@pytest.mark.slow_but
@incident("sglang-omni#784")
@pytest.mark.parametrize("culprit", [0, 1])
def test_a_load_that_fails_clears_all_ranks_where_another_has_loaded_already(tmp_path, culprit):
    def load(context, target):
        if (context.rank, context.version) == (culprit, "2"):
            raise OSError("a shard is missing")
        return load_bytes(context, target)

    def meanwhile(seconds):
        if group.controller.status().ranks[1 - culprit].code == "PREPARED":
            group.resume(culprit)
        group.turn(seconds)

    with LocalGroup(lambda _: InMemoryRunner(SPECS), tmp_path, load=load, meanwhile=meanwhile) as group:
        group.update(1)
        group.hold_load(culprit)
        with pytest.raises(RankFailedError, match="holds no weights") as caught:
            group.update(2)
        assert caught.value.rank == culprit
        assert states(group) == ["CLEARED"] * 2
        assert group.update(9).version == "9"
        assert group.step() == "9"
        group.check_journals()


def test_loads_that_fail_each_for_itself_are_told_each_by_its_own_cause(tmp_path):
    def load(context, target):
        if context.version == "2":
            raise OSError(f"disk {context.rank} is full")
        return load_bytes(context, target)

    def meanwhile(seconds):
        group.turn(seconds)
        actions = [rank.action for rank in group.controller.status().ranks]
        if all(action is not None and action.name == "load_weights" for action in actions):
            group.resume(0)
            group.resume(1)

    with LocalGroup(lambda _: InMemoryRunner(SPECS), tmp_path, load=load, meanwhile=meanwhile) as group:
        group.update(1)
        group.hold_load(0)
        group.hold_load(1)
        with pytest.raises(RankFailedError, match="disk") as caught:
            group.update(2)
        (other,) = {0, 1} - {caught.value.rank}
        assert f"disk {other} is full" in caught.value.others[other]
        assert "after it had failed" not in caught.value.others[other]


def test_a_rank_that_lives_has_stopped_before_it_is_said_that_another_is_gone(tmp_path, caplog):
    begun, dead_for = False, 0

    def meanwhile(seconds):
        nonlocal dead_for
        if begun and group.controller.status().ranks[1].code == "PREPARED":
            group.die(1)
            dead_for += 1
        if dead_for == 5:
            group.resume(0)
        group.turn(seconds)

    with LocalGroup(lambda _: InMemoryRunner(SPECS), tmp_path, meanwhile=meanwhile) as group:
        group.update(1)
        group.hold_load(0)
        begun = True
        with pytest.raises(RankLostError, match="rank 1"):
            group.update(2)
        assert group.controller.status().ranks[0].code == "STOPPED_TOUCHED"
    assert "rank.lost epoch=1 sequence=2 rank=1 " in caplog.text


def test_a_teardown_that_fails_leaves_its_rank_faulted_until_the_group_is_cleared_again(local, monkeypatch):
    def cannot() -> int:
        raise OSError("the device does not answer")

    monkeypatch.setattr(local.runners[1].weights, "release", cannot)
    for _ in range(2):
        with pytest.raises(RankFailedError, match="could not release") as caught:
            local.clear()
        assert (caught.value.rank, caught.value.action) == (1, "release_weights")
        assert states(local) == ["CLEARED", "FAULTED"]
        with pytest.raises(MixedGroupError, match="rank 1 FAULTED"):
            local.update(1)
    monkeypatch.undo()
    local.clear()
    assert local.controller.status().state == "CLEARED"
    assert local.update(1).version == "1"


def test_a_rank_that_never_parks_is_named_by_the_one_that_waited(local):
    local.stop(1, turns=200)
    with pytest.raises(RankFailedError, match="rank 1 to park") as caught:
        local.update(1, force=True)
    assert (caught.value.rank, caught.value.action) == (0, "parking")
    assert local.step() == "1"


@incident("trl#2923")
def test_a_rank_that_fails_before_a_collective_action_frees_the_ones_that_voted_for_it(tmp_path, caplog):
    def meanwhile(seconds):
        for rank in (1, 0, 2, 0, 2):  # the others wait for rank 1 when it fails
            group.move(rank)
        group.clock.advance(seconds)

    configuration = {"shut_down_groups": True}
    engines = (lambda _: StrictEngine(), tmp_path)
    with LocalGroup(*engines, ranks=3, configuration=configuration, meanwhile=meanwhile) as group:
        group.update(1)
        with pytest.raises(RankFailedError, match="holds no weights") as caught:
            group.clear(fault=Fault("clear", "release_kv_cache", rank=1))
        assert (caught.value.rank, caught.value.action) == (1, "release_kv_cache")
        for rank in (0, 2):
            left = (
                f"rank {rank} gave shut_down_ep_group up because rank 1 will never enter it; the cause is in"
            )
            assert f"action=shut_down_ep_group error={left}" in caplog.text
        assert group.update(9).version == "9"
        assert group.step() == "9"


@pytest.mark.processes
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


def test_a_failed_clear_with_requests_kept_lets_the_group_go_on(local):
    with pytest.raises(RankFailedError):
        local.clear(in_flight=InFlightPolicy.KEEP, fault=Fault("clear", "release_weights"))
    local.update(1)
    assert local.step() == "1"
