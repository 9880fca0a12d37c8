"""Incidents in which a part of a group failed, died or hung, and the rest served on or waited for ever."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from living_group import LivingGroup, eventually, shard_of

from tests.raising import raising
from wsm import Outcome
from wsm.clock import ManualClock
from wsm.controller.errors import CommandTimeoutError, RankFailedError, RankLostError, UnsettledError
from wsm.strategies import publish_snapshot

pytestmark = pytest.mark.processes


def states(served) -> set[str]:
    return {rank.weights for rank in served.controller.status().ranks}


# -- partial application ----------------------------------------------------------------------------


def test_sglang_omni_784_and_fastdeploy_c2_11_half_loaded_weights_do_not_serve_again(served):
    """There, a `finally` resumed the engine after an update that had failed half-way."""
    version = served.publish()
    served.group.order(1, "write", "raise once")
    with pytest.raises(RankFailedError) as caught:
        served.controller.update(version)
    assert (caught.value.rank, caught.value.action) == (1, "load_weights")
    assert "失败" in caught.value.remote_traceback
    assert states(served) == {"CLEARED"}
    assert {served.refuses_to_step(rank) for rank in range(2)} == {"NotServingError"}


def test_fastdeploy_6761_and_6974_a_failure_names_request_rank_action_and_cause(served):
    served.group.order(0, "rebuild", "raise once")
    served.controller.clear()
    with pytest.raises(RankFailedError) as caught:
        served.controller.update(served.newest, request_id="trainer step 17")
    error = caught.value
    assert (error.request_id, error.rank, error.action) == ("trainer step 17", 0, "rebuild_kv_cache")
    assert error.error == "OSError"
    assert "rank_process.py" in error.remote_traceback
    assert served.journal(0, "action_failed")[-1]["facts"]["name"] == "rebuild_kv_cache"


def test_nemo_rl_3274_a_retry_after_half_an_update_gives_the_published_bytes(served):
    version = served.publish()
    served.group.order(0, "write", "raise once")
    with pytest.raises(RankFailedError):
        served.controller.update(version)
    receipt = served.controller.update(version)
    assert {r.rank: r.digest for r in receipt.ranks} == served.group.published[version].digests


def test_fastdeploy_c2_2_an_exception_in_an_update_ends_no_worker(served):
    pids = [rank.pid for rank in served.controller.status().ranks]
    for point in ("write", "rebuild"):
        served.controller.clear()
        served.group.order(0, point, "raise once")
        with pytest.raises(RankFailedError):
            served.controller.update(served.newest)
    served.controller.update(served.newest)
    assert [(rank.pid, rank.life) for rank in served.controller.status().ranks] == [
        (pid, "alive") for pid in pids
    ]


def test_dynamo_9131_no_fleet_is_split_when_one_rank_prepared_and_another_failed(served):
    before = served.controller.status().version
    served.controller.clear()
    version = served.publish()
    served.group.order(1, "write", "hold")
    served.group.order(1, "rebuild", "raise once")
    pending = served.controller.begin_update(version)
    served.group.await_held(1, "write")
    eventually(lambda: served.rank(0).weights == "PREPARED")
    served.group.revoke(1, "write")
    with pytest.raises(RankFailedError, match="rank 1 in rebuild_kv_cache"):
        pending.result()
    assert states(served) == {"CLEARED"}
    assert served.controller.status().version in (None, before), "the version that failed is not committed"
    assert version not in {made_with for rank in range(2) for _, made_with, _ in served.group.steps_of(rank)}


def test_fastdeploy_6052_an_update_that_no_rank_can_begin_leaves_the_old_version_serving(served):
    before = served.controller.status().version
    version = served.publish()
    for rank in range(2):
        for file in served.group.shard_files(version, rank):
            file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(RankFailedError, match="load_weights"):
        served.controller.update(version)
    assert served.controller.status().serving
    assert served.controller.status().version == before
    served.group.await_steps(5)
    served.group.publish(version + 1)


def test_rtp_llm_1151_and_fastdeploy_3773_nobody_serves_before_the_last_rank_is_ready(served):
    version = served.publish()
    served.group.order(1, "rebuild", "hold")
    served.controller.clear()
    pending = served.controller.begin_update(version)
    served.group.await_held(1, "rebuild")
    eventually(lambda: served.rank(0).weights == "PREPARED")
    assert served.refuses_to_step(0) == "NotServingError"
    served.group.programs[0].tell("say")
    assert served.group.programs[0].says("state")["admitting"] is False
    assert not served.controller.status().serving
    served.group.revoke(1, "rebuild")
    pending.result()
    served.group.await_steps(5)


# -- different weights, different work --------------------------------------------------------------


def test_fastdeploy_c2_10_and_dynamo_13912_ranks_that_prepared_different_weights_are_not_committed(
    make_group,
):
    group = make_group()
    group.publish(1)
    elsewhere = shutil.copytree(group.snapshots, group.directory / "elsewhere")
    group.publish(2)
    other = {rank: shard_of(2, rank, "of another run") for rank in range(2)}
    publish_snapshot(elsewhere, 2, other, durable=False)
    group.launch(0)
    snapshot = {**group.config["snapshot"], "directory": str(elsewhere)}
    group.launch(1, config={"snapshot": snapshot})
    for program in group.programs.values():
        program.says("ready")
    with group.controller() as controller:
        controller.update(1)
        with raising("manifest-mismatch") as caught:
            controller.update(2)
        assert len(set(caught.value.found.values())) == 2
        assert not controller.status().serving
        assert controller.status().version in (None, "1")


def test_slime_2331_ranks_with_other_collective_work_are_not_commanded_at_all(make_group):
    group = make_group(without_kv=[1])
    group.publish(1)
    group.start()
    with group.controller() as controller, raising("plans-differ", match="rank 1"):
        controller.update(1)


def test_miles_1724_and_xtuner_2027_a_rank_that_just_came_serves_nothing_and_says_so(make_group):
    group = make_group()
    group.publish(1)
    group.start()
    with group.controller() as controller:
        status = controller.status()
        assert (status.state, status.serving, status.version) == ("CLEARED", False, None)
        for program in group.programs.values():
            program.tell("step")
            assert program.says("no step")["error"] == "NotServingError"
        controller.update(1)
        assert controller.status().serving
        for program in group.programs.values():
            program.tell("rest")


# -- hangs and deaths have a name -------------------------------------------------------------------


def test_verl_6967_and_areal_1439_a_rank_that_hangs_is_named_with_the_action_that_it_hangs_in(served):
    version = served.publish()
    served.group.order(1, "write", "hold")
    clock = ManualClock()
    pending = served.group.controller(clock=clock).begin_update(version, deadline_s=60, settle_s=60)
    served.group.await_held(1, "write")
    eventually(lambda: served.group.codes()[0] == "PREPARED", "rank 0 waits for rank 1")
    clock.advance(100)
    eventually(lambda: served.controller.status().operation == "ABORT", "the deadline has passed")
    clock.advance(100)
    with pytest.raises((CommandTimeoutError, UnsettledError), match="rank 1") as caught:
        pending.result()
    assert list(caught.value.waiting) == [1]
    assert "load_weights" in caught.value.waiting[1]
    assert served.actions_started(1, served.commands_seen(1)[-1])[-1] == "load_weights"


def test_trl_2923_and_prime_rl_1492_a_stopped_rank_keeps_nobody_inside_a_collective(make_group):
    # Without load: a rank that is stopped inside a step holds the others in that step, in any engine.
    group = make_group(config={"shut_down_groups": True})
    with group.boot() as controller:
        group.programs[1].freeze()
        with pytest.raises((CommandTimeoutError, UnsettledError), match="rank 1"):
            controller.clear(deadline_s=0.2, settle_s=0.2)
        beats = controller.status().ranks[0].heartbeat
        eventually(
            lambda: controller.status().ranks[0].heartbeat > beats,
            "rank 0 is in its own loop, in no collective",
        )
        assert controller.status().ranks[0].weights == "NORMAL", (
            "it let nothing go for a vote that never came"
        )
        group.programs[1].thaw()
        eventually(lambda: controller.status().over, "the last command is over")
        assert controller.status().serving


def test_peers_4_4_a_rank_that_dies_in_an_update_is_named_and_the_others_do_not_serve(make_group):
    group = make_group(load=0.3)
    with group.boot() as controller:
        group.publish(2)
        group.order(1, "write", "hold")
        pending = controller.begin_update(2)
        group.await_held(1, "write")
        group.programs[1].kill()
        with pytest.raises(RankLostError) as caught:
            pending.result()
        assert caught.value.ranks == (1,)
        group.programs[0].tell("step")
        assert group.programs[0].says("no step")["error"] == "NotServingError"
        with pytest.raises(RankLostError, match="rank 1"):
            controller.update(2)


def test_fastdeploy_5529_and_5661_a_rank_that_was_gone_before_the_command_is_named_at_once(make_group):
    group = make_group()
    with group.boot() as controller:
        group.programs[1].kill()
        with pytest.raises(RankLostError, match="rank 1"):
            controller.clear()
        assert controller.status().ranks[1].life == "dead"


# -- the one who commands ---------------------------------------------------------------------------

COMMANDER = """
import sys, wsm
wsm.Controller(sys.argv[1], directory=sys.argv[2]).update(int(sys.argv[3]))
"""


def command_in_process(group: LivingGroup, version: int) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    arguments = [group.name, str(group.directory), str(version)]
    return subprocess.Popen([sys.executable, "-c", COMMANDER, *arguments], env=environment)


@pytest.mark.parametrize("point", ["write", "rebuild"])
def test_nemo_rl_3929_and_trl_5892_a_trainer_that_dies_in_an_update_leaves_nobody_paused(served, point):
    served.controller.clear()
    version = served.publish()
    served.group.order(1, point, "hold")
    with command_in_process(served.group, version) as trainer:
        served.group.await_held(1, point)
        trainer.kill()
    served.group.revoke(1, point)
    receipt = served.controller.update(version)
    assert (receipt.outcome, receipt.version) in {
        (Outcome.UPDATED, str(version)),
        (Outcome.ALREADY_SERVED, str(version)),
    }
    served.group.await_steps(5)


def test_prime_rl_2773_a_caller_that_gives_up_is_followed_by_the_group(served):
    version = served.publish()
    served.group.order(1, "release", "hold")
    pending = served.controller.begin_clear(deadline_s=60)
    served.group.await_held(1, "release")
    pending.give_up()
    eventually(lambda: served.controller.status().operation == "ABORT")
    served.group.revoke(1, "release")
    with pytest.raises(CommandTimeoutError) as caught:
        pending.result()
    assert caught.value.gave_up
    assert len(states(served)) == 1
    assert served.controller.update(version).version == str(version)
