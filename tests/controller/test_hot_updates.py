"""Updates that are asked for hot: the old version serves until the switch, and no failure touches it."""

from __future__ import annotations

import os

import pytest
from living_group import eventually

from tests.incident import incident
from tests.raising import raising
from wsm import HotFallback, Outcome
from wsm.controller.errors import CommandTimeoutError, RankFailedError, RankLostError
from wsm.signals.errors import RoleBusyError
from wsm.typed import bad_keyword

pytestmark = pytest.mark.processes

#: What two ranks of the smallest model would need, reserves included, is more than this.
SCANT = {"0": 1_000_000}


@pytest.fixture
def serving(make_group):
    """`serving(**settings)`: a group that steps with version 1 and can load version 2, and its controller."""

    def boot(**settings):
        group = make_group(**{"load": 0.5, **settings})
        group.publish(2)
        controller = group.boot()
        if settings.get("load") != 0:
            group.await_steps()
        return group, controller

    return boot


def assert_nothing_happened(group, controller):
    """Version 1 serves on, untouched, and a good hot update works."""
    assert controller.status().serving
    group.await_steps()
    assert {version for _, version, _ in group.steps_of(0)} == {1}
    assert controller.update(2, hot=True).version == "2"
    group.await_steps()
    group.stop()
    group.assert_steps_are_pure([1, 2])
    group.assert_journals_are_possible()


def test_the_receipt_says_that_it_was_hot_and_how_long_it_staged(serving):
    group, controller = serving()
    receipt = controller.update(2, hot=True)
    assert (receipt.outcome, receipt.version, receipt.previous_version) == (Outcome.UPDATED, "2", "1")
    assert (receipt.hot, receipt.loaded, receipt.fallback) == (True, True, None)
    assert 0 < receipt.staging_s < receipt.seconds
    assert {report.rank: report.digest for report in receipt.ranks} == group.published[2].digests
    assert "while serving" in receipt.sentence()
    group.await_steps()
    assert not controller.update(1).hot
    group.await_steps()
    group.stop()
    group.assert_steps_are_pure([1, 2])
    group.assert_journals_are_possible()


def test_the_group_steps_with_the_old_version_for_as_long_as_a_rank_stages(serving):
    group, controller = serving()
    group.order(1, "stage", "hold")
    pending = controller.begin_update(2, hot=True)
    group.await_held(1, "stage")
    group.await_steps()
    assert {version for _, version, _ in group.steps_of(0)} == {1}
    assert controller.status().serving
    eventually(lambda: group.codes() == ["PREPARED", "STAGING"])
    group.revoke(1, "stage")
    assert pending.result(60).version == "2"
    group.await_steps()
    group.stop()
    group.assert_steps_are_pure([1, 2])


def test_while_ranks_stage_every_other_command_is_refused_as_busy(serving):
    group, controller = serving()
    group.order(0, "stage", "hold")
    pending = controller.begin_update(2, hot=True)
    group.await_held(0, "stage")
    with group.controller() as other, pytest.raises(RoleBusyError) as caught:
        other.update(1, hot=True, force=True)
    assert caught.value.pid == os.getpid()
    group.revoke(0, "stage")
    assert pending.result(60).version == "2"


def test_a_rank_that_dies_while_it_stages_is_named_and_the_others_end_the_command(serving):
    group, controller = serving(load=0)  # nobody stands in a step that the dead one would have to enter
    group.order(1, "stage", "hold")
    pending = controller.begin_update(2, hot=True)
    group.await_held(1, "stage")
    group.programs[1].kill()
    with pytest.raises(RankLostError, match="rank 1 is gone"):
        pending.result(60)
    eventually(lambda: group.codes()[0] == "DONE_KEPT")
    assert controller.status().ranks[0].weights == "NORMAL"


@incident("vllm#15254")
def test_too_little_memory_is_no_reason_to_fail_where_the_caller_allows_in_place(serving):
    group, controller = serving(available_bytes=SCANT)
    receipt = controller.update(2, hot=True, hot_fallback="in_place", request_id="either way")
    assert (receipt.outcome, receipt.version, receipt.previous_version) == (Outcome.UPDATED, "2", "1")
    assert (receipt.hot, receipt.staging_s, receipt.request_id) == (False, 0, "either way")
    assert "refused by rank 0" in receipt.fallback
    assert receipt.sequence == 3  # the boot, the refused one, this one
    assert controller.status().controller_pid is None
    group.await_steps()
    group.stop()
    group.assert_steps_are_pure([1, 2])
    group.assert_journals_are_possible()


@incident("sglang#14092")
def test_memory_that_runs_out_in_the_middle_of_staging_costs_nothing_but_the_update(serving):
    group, controller = serving()
    group.order(1, "stage", "exhaust")
    with pytest.raises(RankFailedError, match="memory ran out on rank 1 in stage_weights") as caught:
        controller.update(2, hot=True)
    assert (caught.value.error, caught.value.no_room) == ("staging-exhausted", True)
    assert "the group serves version 1" in caught.value.group
    assert "MemoryError" in caught.value.remote_traceback
    group.revoke(1, "stage")
    assert_nothing_happened(group, controller)


def test_memory_that_runs_out_in_the_middle_of_staging_is_no_reason_to_fail_where_in_place_is_allowed(
    serving,
):
    group, controller = serving()
    group.order(1, "stage", "exhaust")
    receipt = controller.update(2, hot=True, hot_fallback="in_place", request_id="either way")
    assert (receipt.outcome, receipt.version, receipt.previous_version) == (Outcome.UPDATED, "2", "1")
    assert (receipt.hot, receipt.request_id) == (False, "either way")
    assert "memory ran out on rank 1" in receipt.fallback
    group.await_steps()
    group.stop()
    group.assert_steps_are_pure([1, 2])
    group.assert_journals_are_possible()


def test_giving_up_counts_for_the_fallback_too(serving):
    group, controller = serving(available_bytes=SCANT)
    group.order(1, "write", "hold")
    pending = controller.begin_update(2, hot=True, hot_fallback="in_place")
    group.await_held(1, "write")
    pending.give_up()
    eventually(lambda: controller.status().operation == "ABORT")
    group.revoke(1, "write")
    with pytest.raises(CommandTimeoutError, match=r"^update was aborted because its caller gave up"):
        pending.result(60)
    assert controller.update(2).version == "2"


def test_a_fallback_that_does_not_exist_is_refused_before_anything_is_written(group):
    with group.boot() as controller:
        with raising(bad_keyword, match="'maybe'; it must be one of refuse, in_place"):
            controller.update(1, hot=True, hot_fallback="maybe", force=True)
        assert controller.status().sequence == 1


def test_a_group_that_serves_nothing_cannot_be_updated_hot(group):
    with group.boot() as controller:
        controller.clear()
        with raising("nothing-served", match="every rank is CLEARED"):
            controller.update(1, hot=True)
        assert (controller.status().sequence, controller.status().controller_pid) == (2, None)
        assert controller.update(1).version == "1"


def test_a_group_that_serves_nothing_is_updated_in_place_where_that_is_allowed_and_the_receipt_says_why(
    group,
):
    with group.boot() as controller:
        controller.clear()
        receipt = controller.update(1, hot=True, hot_fallback=HotFallback.IN_PLACE, request_id="either way")
        assert (receipt.outcome, receipt.hot, receipt.staging_s) == (Outcome.UPDATED, False, 0)
        assert receipt.request_id == "either way"
        assert "every rank is CLEARED" in receipt.fallback
        assert controller.status().serving
