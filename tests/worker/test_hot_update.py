"""A hot update on one rank: what it serves meanwhile, what a failure costs, and what the flip leaves."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest
from lone_rank import SPECS
from steered_load import SteeredLoad

import wsm
import wsm.worker.errors
from tests.incident import incident
from wsm import HOLD, SERVE, InFlightPolicy, KVPolicy
from wsm.actions.measuring import resident_digest
from wsm.actions.options import PlanOptions
from wsm.controller.errors import CommandRefusedError, CommandTimeoutError, RankFailedError
from wsm.controller.group_view import GroupView
from wsm.journal.replay import replay
from wsm.signals.errors import RoleBusyError
from wsm.states import epochs
from wsm.states.errors import CommandOpenError
from wsm.testing import InMemoryRunner


@pytest.fixture
def steered() -> SteeredLoad:
    return SteeredLoad()


@pytest.fixture
def rank(make_lone, steered):
    """A rank that serves version 1, whose loads are steered."""
    lone = make_lone(load=steered)
    lone.update(1)
    return lone


def digest(rank) -> str:
    return resident_digest(rank.runner.weights, lambda: None)


def step(rank) -> str:
    """Run one step; return the version that made it, and hold it to the bytes that are there."""
    while rank.worker.poll() is HOLD:
        pass
    with rank.worker.step() as permit:
        assert bytes(rank.runner.weights.readable("bias")) == bytes([int(permit.version)]) * 32
        return permit.version


def poll_until(rank, question) -> None:
    for _ in range(200_000):
        if question():
            return
        rank.worker.poll()
    pytest.fail(f"it never came true, the rank is {rank.worker.weights.name}")


def test_a_rank_serves_the_old_version_while_it_stages_and_the_new_one_after_the_flip(rank, steered):
    steered.hold()
    stop_admitting = rank.runner.requests.stop_admitting
    rank.runner.requests.stop_admitting = lambda: (stop_admitting(), rank.group.clock.advance(1e-6))
    pending = rank.controller.begin_update(2, hot=True)
    pending.written(10)
    poll_until(rank, steered.inside.is_set)
    for _ in range(50):
        assert step(rank) == "1"
    assert rank.worker.weights.name == "NORMAL"
    steered.release()
    served = []
    while not pending.over:
        served.append(step(rank))
    served.append(step(rank))
    assert served == sorted(served)
    assert served[-1] == "2"
    receipt = pending.result()
    assert (receipt.version, rank.worker.version) == ("2", "2")
    assert [action.name for action in receipt.ranks[0].actions][:6] == [
        "plan_staging_memory",
        "stage_weights",
        "verify_staged",
        "make_flip_ready",
        "declare_staged",
        "stop_admitting",
    ]
    assert 0 < receipt.ranks[0].pause_s <= receipt.seconds
    assert replay(rank.worker.journal).impossible is None


def test_a_loop_without_work_waits_while_it_stages_and_leaves_the_staging_thread_its_time(rank, steered):
    steered.hold()
    pending = rank.controller.begin_update(2, hot=True)
    pending.written(10)
    poll_until(rank, steered.inside.is_set)
    step(rank)
    assert rank.worker.wait(3600) is False  # and not an hour, for what ends a staging changes no word
    steered.release()
    rank.run(pending)
    assert pending.result().version == "2"


def test_the_loop_thread_loads_nothing(rank, steered):
    steered.threads.clear()
    rank.update(2, hot=True)
    assert steered.threads == {"wsm-stager-0"}


def test_a_loop_that_stands_in_a_long_step_holds_up_no_staging(rank, steered):
    """Everything up to PREPARED is done by the staging thread alone, once it has begun."""
    steered.hold()
    pending = rank.controller.begin_update(2, hot=True)
    pending.written(10)
    poll_until(rank, steered.inside.is_set)
    with rank.worker.step() as permit:
        steered.release()
        patience = threading.Event()
        for _ in range(6000):  # made ready for the flip, without one poll
            if steered.target._ready:
                break
            patience.wait(0.01)
        assert steered.target._ready
        assert permit.version == "1"
    assert bytes(rank.runner.weights.readable("bias")) == bytes([1]) * 32
    rank.run(pending)
    assert pending.result().version == "2"
    assert replay(rank.worker.journal).impossible is None


def test_there_and_back_again_is_equal_bit_by_bit(rank):
    first = digest(rank)
    receipts = [rank.update(version, hot=True) for version in (2, 1)]
    assert digest(rank) == first == receipts[-1].ranks[0].digest
    assert receipts[0].ranks[0].digest != first


def test_a_staging_that_raises_costs_nobody_a_token(rank, steered):
    before, held = digest(rank), rank.runner.memory.resident_bytes()
    steered.error = OSError("the disk is gone: 磁盘")
    pending = rank.controller.begin_update(2, hot=True)
    pending.written(10)
    while not pending.over:
        assert step(rank) == "1"
    with pytest.raises(RankFailedError, match="the disk is gone: 磁盘") as caught:
        pending.result()
    assert (caught.value.rank, caught.value.action, caught.value.error) == (0, "stage_weights", "OSError")
    assert "steered_load.py" in caught.value.remote_traceback
    assert (digest(rank), rank.runner.memory.resident_bytes()) == (before, held)
    assert step(rank) == "1"
    steered.error = None
    assert rank.update(2, hot=True).version == "2"  # and it harmed nothing
    assert replay(rank.worker.journal).impossible is None


def test_bytes_that_are_not_what_the_source_declared_are_never_served(rank, steered):
    before = digest(rank)
    steered.lies = True
    with pytest.raises(RankFailedError, match="digest") as caught:
        rank.update(2, hot=True)
    assert caught.value.action == "verify_staged"
    assert digest(rank) == before
    assert step(rank) == "1"


def test_a_caller_that_gives_up_stops_the_staging_and_the_old_version_serves_on(rank, steered):
    steered.hold()
    pending = rank.controller.begin_update(2, hot=True)
    pending.written(10)
    poll_until(rank, steered.inside.is_set)
    pending.give_up()
    while not pending.over:
        assert step(rank) == "1"
    with pytest.raises(CommandTimeoutError):
        pending.result()
    assert replay(rank.worker.journal).impossible is None
    steered.release()
    assert rank.update(3, hot=True).version == "3"


def test_a_second_command_while_one_stages_is_refused(rank, steered):
    steered.hold()
    pending = rank.controller.begin_update(2, hot=True)
    pending.written(10)
    poll_until(rank, steered.inside.is_set)
    for refused in (rank.controller.begin_clear(), rank.controller.begin_update(3)):
        with pytest.raises((RoleBusyError, CommandOpenError)):
            refused.result(30)
    steered.release()
    rank.run(pending)
    assert pending.result().version == "2"


def test_a_staging_past_its_deadline_fails_by_name_and_holds_up_only_hot_updates(make_lone, steered):
    rank = make_lone(load=steered, deadlines=wsm.Deadlines(action_s={"stage_weights": 0.02}))
    rank.update(1)
    steered.hold()
    steered.hears = False  # as a read from a file server that is gone
    with pytest.raises(wsm.errors.GroupError, match="stage_weights"):  # the rank says so, or the controller
        rank.update(2, hot=True)
    assert step(rank) == "1"
    with pytest.raises(CommandRefusedError, match="an earlier one hangs") as refused:
        rank.update(2, hot=True)
    assert refused.value.error == "staging-unfinished"
    steered.release()
    assert rank.update(4).version == "4"  # in place it goes on all the same
    poll_until(rank, lambda: "wsm-stager-0" not in alive())
    assert rank.update(5, hot=True).version == "5"
    assert replay(rank.worker.journal).impossible is None


def alive() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


@incident("vllm#15254")
def test_weights_that_cannot_be_staged_are_refused_hot_and_updated_in_place(make_lone, steered):
    runner = InMemoryRunner(SPECS)
    whole = runner.weights

    class Plain:
        specs, writable, readable = whole.specs, whole.writable, whole.readable
        release, held = whole.release, whole.held

    runner.weights = Plain()
    rank = make_lone(runner=runner, load=steered)
    rank.update(1)
    with pytest.raises(CommandRefusedError, match="cannot stage") as caught:
        rank.update(2, hot=True)
    assert caught.value.error == "staging-unsupported"
    assert step(rank) == "1"


@pytest.mark.parametrize(
    ("policy", "forgotten"), [(KVPolicy.DROP, 1), (KVPolicy.KEEP, 0), (KVPolicy.KEEP_IN_FLIGHT, 0)]
)
def test_the_kv_policy_says_what_becomes_of_blocks(tmp_path, make_lone, policy, forgotten):
    runner = InMemoryRunner(SPECS)
    options = PlanOptions.from_runner(runner, kv_policies=frozenset(KVPolicy))
    rank = make_lone(runner=runner, plan_options=options)
    rank.update(1)
    before = runner.kv_cache.forgotten
    rank.update(2, hot=True, kv_policy=policy)
    assert runner.kv_cache.forgotten - before == forgotten
    assert rank.worker.kv.name == "NORMAL"
    assert replay(rank.worker.journal).impossible is None


@pytest.mark.parametrize(
    ("policy", "steps", "ends"),
    [
        (InFlightPolicy.DRAIN, 30, (1, 0)),
        (InFlightPolicy.ABORT, 10**9, (0, 1)),
        (InFlightPolicy.KEEP, 10**9, (0, 0)),
    ],
)
def test_the_in_flight_policy_is_honoured_at_the_flip_only(rank, steered, policy, steps, ends):
    requests = rank.runner.requests
    steered.hold()
    pending = rank.controller.begin_update(2, hot=True, in_flight=policy)
    pending.written(10)
    poll_until(rank, steered.inside.is_set)
    requests.submit(1)
    step(rank)
    requests.advance()
    assert requests.finished == 1  # admitted and answered while it stages
    requests.submit(steps)
    requests.advance()
    steered.release()
    while not pending.over:
        step(rank)
        if rank.worker.version == "1":
            requests.advance()
    assert (requests.finished - 1, requests.aborted) == ends
    assert requests.admitting
    if policy is InFlightPolicy.KEEP:
        assert requests.frozen


def test_a_flip_that_raises_leaves_a_rank_that_never_steps_again_in_its_epoch(rank, steered, monkeypatch):
    """It cannot happen; what happens all the same must be loud, and must not serve."""
    steered.hold()
    pending = rank.controller.begin_update(2, hot=True, settle_s=0.5)
    pending.written(10)
    poll_until(rank, steered.inside.is_set)

    def flip() -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(steered.target, "flip", flip)
    steered.release()
    with pytest.raises(wsm.worker.errors.FlipFailedError, match="a bug") as caught:
        poll_until(rank, lambda: pending.over)
    assert (caught.value.rank, caught.value.action) == (0, "flip_weights")
    for _ in range(20):
        assert rank.worker.poll() is HOLD
    with pytest.raises(wsm.worker.errors.NotServingError):
        rank.worker.step().__enter__()
    assert rank.controller.status().ranks[0].step_kind == "broken"
    with pytest.raises(wsm.errors.WsmError):
        pending.result()
    assert replay(rank.worker.journal).impossible is None


def test_admission_that_fails_to_resume_is_tried_again_with_the_new_version_whole(rank, monkeypatch):
    requests = rank.runner.requests
    resume, raised = requests.resume_admitting, []

    def fail_once() -> None:
        if not raised:
            raised.append(True)
            raise OSError("not yet")
        resume()

    monkeypatch.setattr(requests, "resume_admitting", fail_once)
    pending = rank.controller.begin_update(2, hot=True)
    pending.written(10)
    with pytest.raises(OSError, match="not yet"):
        poll_until(rank, lambda: pending.over)
    poll_until(rank, lambda: pending.over)
    assert pending.result().version == "2"
    assert requests.admitting
    assert step(rank) == "2"


def test_a_worker_that_leaves_in_the_middle_of_staging_leaves_no_thread(make_lone, steered):
    rank = make_lone(load=steered)
    rank.update(1)
    steered.hold()
    rank.controller.begin_update(2, hot=True, settle_s=0.1).written(10)
    poll_until(rank, steered.inside.is_set)
    rank.worker.close()
    assert "wsm-stager-0" not in alive()


def test_a_new_epoch_stops_the_staging_of_the_old_one(rank, steered):
    steered.hold()
    rank.controller.begin_update(2, hot=True, settle_s=0.1).written(10)
    poll_until(rank, steered.inside.is_set)
    with closing(GroupView(rank.segment)) as group:
        group.write_command(epochs.next_epoch(group.view()))
    poll_until(rank, lambda: rank.worker.weights.name == "CLEARED")
    assert "wsm-stager-0" not in alive()


def test_an_idle_loop_that_stages_waits_in_poll_and_is_told_to_serve(rank, steered):
    steered.hold()
    pending = rank.controller.begin_update(2, hot=True)
    pending.written(10)
    poll_until(rank, steered.inside.is_set)
    assert [rank.worker.poll() for _ in range(5)] == [SERVE] * 5
    steered.release()
    rank.run(pending)
    assert pending.result().version == "2"
