"""Several controllers and threads, callers that give up or leave: one command at a time, none undecided."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from living_group import eventually

from tests.incident import incident
from tests.raising import raising
from wsm import Controller, Outcome
from wsm.clock import ManualClock
from wsm.command import MAX_REPORT_BYTES
from wsm.controller.errors import (
    CommandWithdrawnError,
    RankLostError,
    UnsettledError,
)
from wsm.signals.errors import RoleBusyError, SegmentClosedError, SegmentMissingError
from wsm.states.errors import CommandOpenError

pytestmark = pytest.mark.processes


@pytest.fixture
def held(group):
    """A group whose update to version 2 is open: rank 0 stands, and rank 1 holds before all accept."""
    group.publish(2)
    controller = group.boot()
    group.order(1, "stop_admitting", "hold")
    pending = controller.begin_update(2)
    group.await_held(1, "stop_admitting")
    eventually(lambda: controller.status().ranks[0].code == "PARKING")
    return group, controller, pending


def test_a_controller_waits_for_a_living_group_where_the_segment_of_a_dead_one_lies_or_none(make_group):
    group = make_group()
    with pytest.raises(SegmentMissingError):
        group.controller(wait_s=0.01)
    with group.boot():
        pass
    for program in group.programs.values():
        program.close()
    with group.controller(wait_s=0.01) as stale, pytest.raises(RankLostError):
        stale.clear()
    waits = ThreadPoolExecutor(1).submit(group.controller, wait_s=60)
    group.start()
    assert waits.result(60).update(1).version == "1"


def test_a_second_controller_that_waits_gets_its_turn(held):
    group, _, pending = held
    receipts = []
    other = group.controller()
    thread = threading.Thread(target=lambda: receipts.append(other.clear(wait_s=60)))
    thread.start()
    group.revoke(1, "stop_admitting")
    thread.join(60)
    assert pending.result(60).outcome is Outcome.UPDATED
    assert receipts[0].outcome is Outcome.CLEARED
    assert receipts[0].sequence > pending.result().sequence


def test_a_command_that_is_no_longer_wanted_when_its_turn_comes_is_not_written(held):
    group, _, pending = held
    other, wanted, results = group.controller(), threading.Event(), []

    def clear():
        try:
            other.begin_clear(wait_s=60, still_wanted=wanted.is_set).result()
        except CommandWithdrawnError as error:
            results.append(error)

    thread = threading.Thread(target=clear)
    thread.start()
    group.revoke(1, "stop_admitting")
    thread.join(60)
    assert len(results) == 1
    assert other.status().sequence == pending.result().sequence
    assert other.clear().outcome is Outcome.CLEARED


@incident("prime-rl#2773")
def test_giving_up_after_the_decision_changes_nothing(group):
    group.publish(2)
    with group.boot() as controller:
        group.order(1, "resume_admitting", "hold")
        pending = controller.begin_update(2)
        group.await_held(1, "resume_admitting")
        pending.give_up()
        with pytest.raises(TimeoutError, match="it goes on"):
            pending.result(0.1)
        group.revoke(1, "resume_admitting")
        assert pending.result(60).version == "2"


def test_a_committed_rank_that_hangs_is_named_and_no_other_command_is_taken(group):
    group.publish(2)
    with group.boot() as controller:
        group.order(1, "resume_admitting", "hold")
        clock = ManualClock()
        pending = group.controller(clock=clock).begin_update(2)
        group.await_held(1, "resume_admitting")
        eventually(lambda: group.codes()[0] == "DONE_COMMITTED")
        clock.advance(1000)
        with pytest.raises(UnsettledError, match="decided to COMMIT, which is final") as caught:
            pending.result()
        assert set(caught.value.waiting) == {1}
        assert controller.status().version == "2"
        with pytest.raises(CommandOpenError):
            controller.clear(settle_s=0.2)
        group.revoke(1, "resume_admitting")
        eventually(lambda: controller.status().serving)
        assert controller.clear().outcome is Outcome.CLEARED


def test_a_command_outlives_the_controller_that_began_it(held):
    """A trainer may leave the `with` and compute; nobody may be left undecided."""
    group, controller, pending = held
    controller.close()
    with pytest.raises(SegmentClosedError):
        controller.status()
    with pytest.raises(SegmentClosedError):
        controller.clear()
    group.revoke(1, "stop_admitting")
    assert pending.result(60).version == "2"
    with group.controller() as other:
        assert other.clear().outcome is Outcome.CLEARED
    controller.close()


def test_a_signal_that_ends_the_callers_wait_leaves_the_command_under_way(group):
    class InterruptedCallerError(Exception):
        """What a caller's own signal handler raises: not an error of wsm."""

    def interrupt(_number, _frame):
        raise InterruptedCallerError

    group.publish(2)
    with group.boot() as controller:
        group.order(1, "write", "hold")
        before = signal.signal(signal.SIGUSR1, interrupt)
        try:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(lambda: (group.await_held(1, "write"), os.kill(os.getpid(), signal.SIGUSR1)))
                with pytest.raises(InterruptedCallerError):
                    controller.update(2)
        finally:
            signal.signal(signal.SIGUSR1, before)
        with pytest.raises(RoleBusyError):
            controller.clear()
        group.revoke(1, "write")
        eventually(lambda: controller.status().version == "2" and controller.status().serving)
        assert controller.clear(wait_s=10).outcome is Outcome.CLEARED


def test_the_group_decides_while_a_signal_handler_of_its_caller_runs(group):
    group.publish(2)
    with group.boot() as controller:
        group.order(1, "write", "hold")

        def handle(_number, _frame):
            group.revoke(1, "write")
            eventually(lambda: (controller.status().version, controller.status().serving) == ("2", True))

        before = signal.signal(signal.SIGUSR1, handle)
        try:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(lambda: (group.await_held(1, "write"), os.kill(os.getpid(), signal.SIGUSR1)))
                assert controller.update(2).version == "2"
        finally:
            signal.signal(signal.SIGUSR1, before)


def test_a_command_that_cannot_be_written_leaves_the_role_to_others(group, monkeypatch):
    monkeypatch.setattr("wsm.command.MAX_REQUEST_ID", 4 * MAX_REPORT_BYTES)
    with group.boot() as controller:
        with raising("payload-too-large"):
            controller.clear(request_id="x" * 2 * MAX_REPORT_BYTES)
        assert controller.status().controller_pid is None
        assert controller.clear().outcome is Outcome.CLEARED


@pytest.mark.slow
def test_one_controller_may_be_used_by_many_threads(group):
    with group.boot() as controller, ThreadPoolExecutor() as pool:
        stop = threading.Event()

        def look():
            looks = 0
            while not stop.is_set():
                controller.status()
                looks += 1
            return looks

        def command():
            return [controller.update(1, force=True, wait_s=60).outcome for _ in range(10)]

        lookers = [pool.submit(look) for _ in range(3)]
        commanders = [pool.submit(command) for _ in range(2)]
        try:
            assert [each.result(60) for each in commanders] == [[Outcome.UPDATED] * 10] * 2
        finally:
            stop.set()
        assert all(each.result(60) > 0 for each in lookers)


def test_coroutines_await_commands_and_their_errors_while_their_event_loop_goes_on(held):
    group, controller, pending = held
    turns = 0

    async def look_around() -> None:
        nonlocal turns
        while not pending.over:
            turns += 1
            await asyncio.sleep(0)

    async def commands() -> list[object]:
        beside = asyncio.create_task(look_around())
        with pytest.raises(RoleBusyError):
            await controller.begin_clear()
        group.revoke(1, "stop_admitting")
        updated = await pending
        await beside
        return [updated, await controller.begin_update(2, force=True), await controller.begin_clear()]

    updated, again, cleared = asyncio.run(commands())
    assert (updated.outcome, again.outcome, cleared.outcome) == (
        Outcome.UPDATED,
        Outcome.UPDATED,
        Outcome.CLEARED,
    )
    assert turns > 1


def test_a_coroutine_that_is_cancelled_leaves_its_command_under_way(held):
    group, _, pending = held
    told: list[object] = []
    pending.add_done_callback(told.append)

    async def give_in() -> None:
        waiting = asyncio.ensure_future(pending)
        await asyncio.sleep(0.01)
        waiting.cancel()
        with raising(asyncio.CancelledError):
            await waiting

    asyncio.run(give_in())
    assert not pending.over
    group.revoke(1, "stop_admitting")
    assert pending.result(60).outcome is Outcome.UPDATED
    assert told == [pending]


@pytest.mark.parametrize(
    "name", ["clear", "update", "hold", "release", "prepare", "lease", "commit", "abort"]
)
def test_every_form_of_a_command_says_the_same_keywords_in_help(name):
    plain = inspect.signature(getattr(Controller, name))
    begun = inspect.signature(getattr(Controller, f"begin_{name}"))
    assert plain.parameters == begun.parameters
    assert next(iter(plain.parameters)) == "self"
    for keyword in list(plain.parameters)[1:]:
        assert keyword in getattr(Controller, name).__doc__, f"{name} does not say what {keyword} means"
