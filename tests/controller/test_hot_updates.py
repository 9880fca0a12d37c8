"""Updates that are asked for hot: the old version serves until the switch, and no failure touches it."""

from __future__ import annotations

import contextlib
import os

import pytest
from living_group import eventually

import wsm
from tests.incident import incident
from tests.raising import raising
from wsm import HotFallback, Outcome
from wsm.controller.errors import CommandTimeoutError, RankFailedError, RankLostError
from wsm.signals.errors import RoleBusyError
from wsm.strategies.tensor import TensorSpec
from wsm.testing import InMemoryMemory, InMemoryRunner, LocalGroup, load_bytes
from wsm.typed import bad_keyword

SPECS = (TensorSpec("weight", "F32", (8, 8)),)
EITHER_WAY = {"hot": True, "hot_fallback": "in_place", "request_id": "either way"}


class ScantMemory(InMemoryMemory):
    """A host on which there is no room for a second version."""

    shared_by_ranks = True

    def available_bytes(self) -> int:
        return 1


@pytest.fixture
def make_local(tmp_path):
    """`make_local(...)`: two ranks in this thread that serve version 1."""
    with contextlib.ExitStack() as undo:

        def make(**options):
            group = LocalGroup(lambda _: InMemoryRunner(SPECS), tmp_path, **options)
            undo.enter_context(group)
            group.update(1)
            return group

        yield make


@pytest.fixture
def local(make_local):
    return make_local()


def scant(local):
    local.runners[0].memory = ScantMemory(local.runners[0])
    return local


def while_rank_1_stages(directory, then):
    """Update hot; return what `then` finds when rank 0 has staged and rank 1 is at it."""
    found = []

    def meanwhile(seconds):
        codes = [rank.code for rank in group.controller.status().ranks]
        if codes == ["PREPARED", "STAGING"] and not found:
            found.append(then(group))
            group.resume(1)
        group.turn(seconds)

    with LocalGroup(lambda _: InMemoryRunner(SPECS), directory, meanwhile=meanwhile) as group:
        group.update(1)
        group.hold_load(1)
        assert group.update(2, hot=True).version == "2"
        assert group.step() == "2"
    return found


def test_the_receipt_says_that_it_was_hot_and_how_long_it_staged(make_local):
    def load_for_three_seconds(context, target):
        if context.version == "2":
            local.clock.advance(3)
        return load_bytes(context, target)

    local = make_local(load=load_for_three_seconds)
    receipt = local.update(2, hot=True)
    assert (receipt.outcome, receipt.version, receipt.previous_version) == (Outcome.UPDATED, "2", "1")
    assert (receipt.hot, receipt.loaded, receipt.fallback) == (True, True, None)
    assert 3 <= receipt.staging_s <= receipt.seconds
    assert "while serving" in receipt.sentence()
    assert local.step() == "2"
    assert not local.update(1).hot
    assert local.step() == "1"
    local.check_journals()


def test_the_group_steps_with_the_old_version_for_as_long_as_a_rank_stages(tmp_path):
    def steps(group):
        return group.step(), group.controller.status().serving

    assert while_rank_1_stages(tmp_path, steps) == [("1", True)]


def test_while_ranks_stage_every_other_command_is_refused_as_busy(tmp_path):
    def commands(_group):
        with wsm.Controller("tested", directory=tmp_path) as other, pytest.raises(RoleBusyError) as caught:
            other.update(1, hot=True, force=True)
        return caught.value.pid

    assert while_rank_1_stages(tmp_path, commands) == [os.getpid()]


@pytest.mark.processes
def test_a_rank_that_dies_while_it_stages_is_named_and_the_others_end_the_command(group):
    group.publish(2)
    controller = group.boot()
    group.order(1, "stage", "hold")
    pending = controller.begin_update(2, hot=True)
    group.await_held(1, "stage")
    group.programs[1].kill()
    with pytest.raises(RankLostError, match="rank 1 is gone"):
        pending.result(60)
    eventually(lambda: group.codes()[0] == "DONE_KEPT")
    assert controller.status().ranks[0].weights == "NORMAL"


@incident("vllm#15254")
def test_too_little_memory_is_no_reason_to_fail_where_the_caller_allows_in_place(local):
    receipt = scant(local).update(2, **EITHER_WAY)
    assert (receipt.outcome, receipt.version, receipt.previous_version) == (Outcome.UPDATED, "2", "1")
    assert (receipt.hot, receipt.staging_s, receipt.request_id) == (False, 0, "either way")
    assert "refused by rank 0" in receipt.fallback
    assert receipt.sequence == 3  # the boot, the refused one, this one
    assert local.controller.status().controller_pid is None
    assert local.step() == "2"
    local.check_journals()


def runs_out(make_local, error):
    """Return a group whose rank 1 has no memory left as it stages for the first time."""
    left = [error]

    def load(context, target):
        if (context.rank, context.version) == (1, "2") and left:
            raise left.pop()
        return load_bytes(context, target)

    return make_local(load=load)


@incident("sglang#14092")
def test_memory_that_runs_out_in_the_middle_of_staging_costs_nothing_but_the_update(make_local):
    local = runs_out(make_local, MemoryError())
    with pytest.raises(RankFailedError, match="memory ran out on rank 1 in stage_weights") as caught:
        local.update(2, hot=True)
    assert (caught.value.error, caught.value.no_room) == ("staging-exhausted", True)
    assert "the group serves version 1" in caught.value.group
    assert "MemoryError" in caught.value.remote_traceback
    assert local.step() == "1"
    assert local.update(2, hot=True).version == "2"
    assert local.step() == "2"
    local.check_journals()


def test_memory_that_runs_out_in_the_middle_of_staging_is_no_reason_to_fail_where_in_place_is_allowed(
    make_local,
):
    local = runs_out(make_local, MemoryError("no block of 9 GB"))
    receipt = local.update(2, **EITHER_WAY)
    assert (receipt.outcome, receipt.version, receipt.previous_version) == (Outcome.UPDATED, "2", "1")
    assert (receipt.hot, receipt.request_id) == (False, "either way")
    assert "memory ran out on rank 1" in receipt.fallback
    assert "beside the version that serves: no block of 9 GB; " in receipt.fallback
    assert local.step() == "2"


@pytest.mark.processes
def test_giving_up_counts_for_the_fallback_too(make_group):
    group = make_group(available_bytes={"0": 1_000_000})
    group.publish(2)
    controller = group.boot()
    group.order(1, "write", "hold")
    pending = controller.begin_update(2, hot=True, hot_fallback="in_place")
    group.await_held(1, "write")
    pending.give_up()
    eventually(lambda: controller.status().operation == "ABORT")
    group.revoke(1, "write")
    with pytest.raises(CommandTimeoutError, match=r"^update was aborted because its caller gave up"):
        pending.result(60)
    assert controller.update(2).version == "2"


def test_a_fallback_that_does_not_exist_is_refused_before_anything_is_written(local):
    with raising(bad_keyword, match="'maybe'; it must be one of refuse, in_place"):
        local.update(1, hot=True, hot_fallback="maybe", force=True)
    assert local.controller.status().sequence == 1


def test_a_group_that_serves_nothing_is_updated_hot_only_where_in_place_is_allowed_and_is_told_why(local):
    local.clear()
    with raising("nothing-served", match="every rank is CLEARED"):
        local.update(1, hot=True)
    status = local.controller.status()
    assert (status.sequence, status.controller_pid) == (2, None)
    receipt = local.update(1, **{**EITHER_WAY, "hot_fallback": HotFallback.IN_PLACE})
    assert (receipt.outcome, receipt.hot, receipt.staging_s) == (Outcome.UPDATED, False, 0)
    assert receipt.request_id == "either way"
    assert "every rank is CLEARED" in receipt.fallback
    assert local.controller.status().serving
