"""Incidents in which a command was lost, missed, done twice, or never done with."""

from __future__ import annotations

import pytest
from living_group import eventually

from wsm import Outcome
from wsm.clock import ManualClock
from wsm.config import EngineWordsConfig
from wsm.controller.errors import CommandTimeoutError, UnsettledError
from wsm.signals.errors import RoleBusyError
from wsm.signals.fastdeploy import EngineWordKind
from wsm.states.errors import CommandOpenError
from wsm.states.vocabulary import InFlightPolicy, WeightState

pytestmark = pytest.mark.processes

NORMAL, CLEARED = int(WeightState.NORMAL), int(WeightState.CLEARED)
CLEARING, UPDATING = int(WeightState.CLEARING), int(WeightState.UPDATING)
WEIGHTS, KV_CACHE, PREFIX_TREE = EngineWordKind.WEIGHTS, EngineWordKind.KV_CACHE, EngineWordKind.PREFIX_TREE


@pytest.mark.needs("libatomic")
def test_fastdeploy_5487_and_5493_an_update_asked_while_a_clear_runs_is_not_overwritten(served):
    with served.engine_words() as words, served.bridge().start():
        word = words[WEIGHTS, 1]
        served.group.order(0, "release", "hold")
        word.store(CLEARING)
        served.group.await_held(0, "release")
        version = served.publish()
        word.store(UPDATING)  # the engine did not wait for CLEARED, which a worker would now write over it
        served.group.revoke(0, "release")
        eventually(lambda: word.read() == NORMAL, "the update that was asked is done")
        assert served.controller.status().version == str(version)
    assert {served.actions_started(rank, served.commands_seen(rank)[-2])[-1] for rank in range(2)} == {
        "declare_cleared"
    }


def test_fastdeploy_5637_and_c2_1_a_rank_that_sleeps_over_a_state_misses_no_command(served):
    """Who looks for the level CLEARED now and then never sees it if UPDATING comes between two looks."""
    first = served.commands_seen(1)[-1]
    for _ in range(3):
        served.group.order(1, "release_kv", "hold")
        pending = served.controller.begin_clear()
        served.group.await_held(1, "release_kv")
        eventually(lambda: served.rank(0).weights == "CLEARED")
        with pytest.raises((RoleBusyError, CommandOpenError)):
            served.controller.update(served.newest)
        served.group.programs[1].freeze()
        served.group.revoke(1, "release_kv")
        served.group.programs[1].thaw()
        pending.result()
        served.controller.update(served.newest)
    for rank in range(2):
        assert served.commands_seen(rank)[-6:] == list(range(first + 1, first + 7))


def test_fastdeploy_5710_a_faster_rank_does_not_clear_twice_while_a_slower_one_is_clearing(
    served_with_communicators,
):
    served = served_with_communicators
    meetings = served.group.directory / "meetings"
    before = len(list(meetings.glob("shut-down-*")))
    served.group.order(0, "release", "hold")
    pending = served.controller.begin_clear()
    served.group.await_held(0, "release")
    slow = served.rank(0).status.action
    eventually(lambda: served.rank(1).status.action > slow, "rank 1 waits with the shutdown for rank 0")
    beats = served.rank(1).heartbeat
    eventually(lambda: served.rank(1).heartbeat > beats + 20, "rank 1 looks at the command again and again")
    served.group.revoke(0, "release")
    receipt = pending.result()
    assert served.controller.clear().outcome is Outcome.ALREADY_CLEARED
    for rank in range(2):
        actions = served.actions_started(rank, receipt.sequence)
        assert actions.count("shut_down_tp_group") == actions.count("release_weights") == 1
    assert len(list(meetings.glob("shut-down-*"))) == before + 2, "one meeting of two ranks"


def test_fastdeploy_5433_5523_and_5527_nobody_steps_between_a_clear_and_the_next_update(
    served_with_communicators,
):
    served = served_with_communicators
    served.group.await_steps(5)
    served.controller.clear()
    before = [len(served.group.steps_of(rank)) for rank in range(2)]
    for rank in range(2):
        assert served.refuses_to_step(rank) == "NotServingError"
    assert [len(served.group.steps_of(rank)) for rank in range(2)] == before
    served.controller.update(served.publish())
    served.group.await_steps(5)


def test_fastdeploy_5249_a_cleared_worker_is_in_its_own_loop_again(served):
    served.controller.clear()
    for rank in range(2):
        served.group.programs[rank].tell("say")
        assert served.group.programs[rank].says("state")["admitting"] is False


def test_fastdeploy_c2_4_a_cleared_rank_still_shows_that_it_lives(served):
    served.controller.clear()
    for rank in range(2):
        beats = served.rank(rank).heartbeat
        eventually(lambda rank=rank, beats=beats: served.rank(rank).heartbeat > beats)


def test_fastdeploy_7545_and_7592_serving_needs_no_meeting_of_the_ranks(make_group):
    group = make_group()  # without load: nothing but poll()
    group.boot()
    group.programs[1].freeze()
    for _ in range(3):
        group.programs[0].tell("say")
        assert group.programs[0].says("state")["admitting"] is True


@pytest.mark.needs("libatomic")
def test_fastdeploy_5930_one_data_parallel_part_decides_and_each_is_answered(served):
    kinds = (WEIGHTS, KV_CACHE, PREFIX_TREE)
    with served.engine_words((1, 2), kinds) as words, served.bridge((1, 2)) as bridge:
        words[WEIGHTS, 2].store(CLEARING)
        bridge.turn()
        assert served.controller.status().serving, "the other part alone clears nobody"
        assert words[WEIGHTS, 2].read() == CLEARING
        for word in words.values():
            word.store(CLEARING)
        bridge.turn()
        assert {word.read() for word in words.values()} == {CLEARED}
        for word in words.values():
            word.store(UPDATING)
        bridge.turn()
        assert {word.read() for word in words.values()} == {NORMAL}
        assert served.controller.status().serving


@pytest.mark.needs("libatomic")
def test_fastdeploy_4212_cleared_is_not_said_before_the_slowest_rank_has_cleared(served):
    with served.engine_words((1,), (KV_CACHE,)) as words, served.bridge() as bridge:
        served.group.order(1, "release_kv", "hold")
        pending = served.controller.begin_clear()
        for word in words.values():
            word.store(CLEARING)
        served.group.await_held(1, "release_kv")
        eventually(lambda: served.rank(0).kv == "CLEARED")
        bridge.turn()
        assert {word.read() for word in words.values()} == {CLEARING}
        served.group.revoke(1, "release_kv")
        pending.result()
        bridge.turn()
        assert {word.read() for word in words.values()} == {CLEARED}


@pytest.mark.needs("libatomic")
def test_fastdeploy_c2_9_an_engine_sees_the_commands_that_came_by_another_way(served):
    """There, a group put to sleep over the newer path kept its word at NORMAL, and took requests."""
    with served.engine_words() as words:
        (word,) = words.values()
        controller = served.group.controller(engine_words=EngineWordsConfig(suffixes=(1,)))
        served.group.order(0, "release", "hold")
        pending = controller.begin_clear()
        served.group.await_held(0, "release")
        assert word.read() == CLEARING
        served.group.revoke(0, "release")
        pending.result()
        assert word.read() == CLEARED
        controller.update(served.newest)
        assert word.read() == NORMAL


def test_fastdeploy_7430_an_answer_that_comes_before_anybody_waits_is_not_lost(served):
    pending = served.controller.begin_clear(request_id="a fast one")
    eventually(lambda: served.group.controller().status().state == "CLEARED" and pending.over)
    assert (pending.result().request_id, pending.result().outcome) == ("a fast one", Outcome.CLEARED)


def test_fastdeploy_c2_2_after_a_timeout_the_group_is_neither_stuck_nor_unnamed(served):
    served.group.order(1, "release", "hold")
    clock = ManualClock()
    pending = served.group.controller(clock=clock).begin_clear(deadline_s=10, settle_s=10)
    served.group.await_held(1, "release")
    clock.advance(20)
    eventually(lambda: served.controller.status().operation == "ABORT", "the deadline has passed")
    clock.advance(20)
    with pytest.raises((CommandTimeoutError, UnsettledError), match="rank 1"):
        pending.result()
    served.group.revoke(1, "release")
    eventually(lambda: served.controller.status().over, "the group settles on its own")
    assert len({rank.weights for rank in served.controller.status().ranks}) == 1
    served.controller.update(served.publish())
    served.group.await_steps(5)


def test_fastdeploy_c2_3_a_second_caller_is_told_at_once_who_is_busy(served):
    served.group.order(0, "release", "hold")
    pending = served.controller.begin_clear()
    served.group.await_held(0, "release")
    with pytest.raises((RoleBusyError, CommandOpenError)):
        served.group.controller().update(served.newest)
    assert not pending.over
    served.group.revoke(0, "release")
    pending.result()


def test_fastdeploy_7753_and_7825_a_drain_counts_live_requests_and_no_marks_of_ended_ones(served):
    served.group.programs[0].tell("submit 100000")
    served.group.await_steps(5)
    aborted = served.controller.update(served.newest, force=True)
    assert sum(report.facts["requests_aborted"] for report in aborted.ranks) == 1
    drained = served.controller.update(served.newest, force=True, in_flight=InFlightPolicy.DRAIN)
    assert drained.outcome is Outcome.UPDATED
