"""A held group stands still with all that it has: held, released, renewed and refused, on real processes."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from living_group import Program, eventually

import wsm
from tests.raising import raising
from wsm import CommandTimeoutError, InFlightPolicy, RefusedError, RoleBusyError
from wsm.controller.errors import RankFailedError
from wsm.receipt import Outcome
from wsm.states.vocabulary import Tag

pytestmark = pytest.mark.processes

PROGRAM = Path(__file__).with_name("controller_process.py")


@pytest.fixture
def group(make_group):
    return make_group(load=0.5)


@pytest.fixture
def controller(group):
    return group.boot()


def test_a_held_group_stands_with_its_memory_and_goes_on_after_the_release(group, controller) -> None:
    group.await_steps()
    held = controller.hold(owner="trainer")
    assert (held.outcome, held.serving, held.missing) == (Outcome.HELD, False, ())
    assert held.hold is not None
    assert held.hold.owner == "trainer"
    before = [len(group.steps_of(rank)) for rank in range(group.ranks)]
    status = controller.status()
    assert not status.serving
    assert "is held by trainer" in status.headline
    group.publish(2)
    updated = controller.update(2, hold=held.hold.hold_id)
    assert (updated.serving, updated.version) == (False, "2")
    assert [len(group.steps_of(rank)) for rank in range(group.ranks)] == before, "a step between the two"
    released = controller.release(owner="trainer", hold=held.hold.hold_id)
    assert (released.outcome, released.serving, released.hold) == (Outcome.RELEASED, True, None)
    group.await_steps()
    group.assert_steps_are_pure([1, 2])
    assert controller.release().outcome is Outcome.ALREADY_OPEN
    group.stop()
    group.assert_journals_are_possible()


def test_a_hold_is_its_owners_and_a_release_wants_what_can_serve(group, controller) -> None:
    held = controller.hold(owner="trainer", lease_s=60)
    assert controller.hold(owner="trainer", lease_s=90).outcome is Outcome.HOLD_RENEWED
    assert controller.status().hold.lease_s == 90
    for refused in (lambda: controller.hold(owner="operator"), lambda: controller.release(owner="operator")):
        with pytest.raises(RefusedError, match="'trainer'") as caught:
            refused()
        assert caught.value.code == "held-by-another"
    controller.clear(tags=[Tag.KV_CACHE])
    with pytest.raises(RefusedError, match="KV cache") as caught:
        controller.release(owner="trainer")
    assert caught.value.code == "cannot-serve"
    assert controller.status().hold.hold_id == held.request_id
    controller.update(tags=[Tag.KV_CACHE])
    assert controller.release(owner="operator", force=True).serving
    with pytest.raises(RefusedError) as caught:
        controller.clear(hold=held.request_id)
    assert caught.value.code == "hold-not-in-force"
    group.await_steps()


def test_pause_update_and_resume_may_be_one_command_each_way(group, controller) -> None:
    group.publish(2)
    held = controller.update(2, after="held", owner="trainer")
    assert (held.outcome, held.serving, held.version) == (Outcome.UPDATED, False, "2")
    again = controller.update(2, after="serve", owner="trainer")
    assert (again.outcome, again.serving, again.version) == (Outcome.RELEASED, True, "2")
    assert controller.update(2, after="held", owner="trainer").outcome is Outcome.HELD
    served = controller.update(1, after="serve", owner="trainer")
    assert (served.serving, served.version) == (True, "1")
    group.await_steps()


def test_a_cleared_group_is_held_and_an_update_that_serves_brings_all_that_is_missing(
    group, controller
) -> None:
    controller.clear()
    controller.hold(in_flight=InFlightPolicy.KEEP)
    with pytest.raises(RefusedError) as caught:
        controller.update(1, tags=[Tag.WEIGHTS], after="serve")
    assert caught.value.code == "cannot-serve"
    assert controller.update(1).serving is False
    assert controller.release().serving
    group.await_steps()


@pytest.mark.slow
def test_nine_holds_in_a_row_and_five_at_once_succeed(group, controller) -> None:
    found = [controller.hold(owner="trainer").outcome for _ in range(9)]
    assert found == [Outcome.HELD, *[Outcome.HOLD_RENEWED] * 8]
    controller.release(owner="trainer")
    processes = [
        Program(PROGRAM, group.name, str(group.directory), "hold", "0", "nowhere", "60") for _ in range(2)
    ]
    others = [group.controller() for _ in range(4)]
    together = threading.Barrier(5)

    def ask(one: wsm.Controller) -> Outcome:
        together.wait()
        return one.hold(owner="trainer").outcome

    with ThreadPoolExecutor(5) as pool:
        outcomes = list(pool.map(ask, [controller, *others]))
    assert [process.process.wait(60) for process in processes] == [0, 0]
    for process in processes:
        process.close()
    assert {one.name for one in outcomes} <= {"HELD", "HOLD_RENEWED"}
    assert len(outcomes) == 5

    async def releases() -> list[Outcome]:
        return [
            one.outcome
            for one in await asyncio.gather(
                *(c.begin_release(owner="trainer") for c in (controller, *others))
            )
        ]

    assert sorted(one.name for one in asyncio.run(releases())) == [*["ALREADY_OPEN"] * 4, "RELEASED"]
    group.await_steps()


@pytest.mark.slow
def test_a_hold_waits_for_its_turn_up_to_its_deadline(group, controller) -> None:
    group.publish(2)
    group.order(1, "write", "hold")
    update = controller.begin_update(2)
    group.await_held(1, "write")
    other = group.controller()
    with pytest.raises(RoleBusyError, match="update to version 2"):
        other.hold(owner="trainer", deadline_s=0.1)
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(other.hold, owner="trainer", deadline_s=60)
        group.revoke(1, "write")
        assert held.result(60).outcome is Outcome.HELD
    assert update.result(60).version == "2"
    assert other.release(owner="trainer").serving


@pytest.mark.slow
def test_a_group_with_a_rank_that_is_faulted_is_held_and_repaired_under_the_hold(group, controller) -> None:
    group.order(1, "release", "raise")
    with pytest.raises(RankFailedError):
        controller.clear()
    held = controller.hold(owner="trainer")
    assert (held.outcome, held.serving) == (Outcome.HELD, False)
    with pytest.raises(RefusedError) as caught:
        controller.release(owner="trainer")
    assert caught.value.code == "cannot-serve"
    group.revoke(1, "release")
    assert controller.clear().hold == held.hold
    assert controller.update(1).serving is False
    assert controller.release(owner="trainer").serving
    group.await_steps()


@pytest.mark.slow
def test_to_cancel_the_await_of_a_hold_leaves_it_and_to_give_it_up_aborts_it(group, controller) -> None:
    async def cancelled(awaited: Awaitable[object]) -> None:
        task = asyncio.ensure_future(awaited)
        await asyncio.to_thread(group.await_held, 1, "stop_admitting")
        task.cancel()
        with raising(asyncio.CancelledError):
            await task

    told: list[dict[str, object]] = []

    async def cancel() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, said: told.append(said))
        group.order(1, "stop_admitting", "hold")
        await cancelled(controller.begin_hold(request_id="mine"))
        group.revoke(1, "stop_admitting")
        await asyncio.to_thread(eventually, lambda: controller.status().hold is not None)
        assert controller.status().hold.hold_id == "mine"
        await controller.begin_release(hold="mine")
        group.order(1, "stop_admitting", "hold")
        pending = controller.begin_hold()
        await cancelled(pending)
        pending.give_up()
        group.revoke(1, "stop_admitting")
        with pytest.raises(CommandTimeoutError):
            await pending
        assert controller.status().hold is None

    asyncio.run(cancel())
    gc.collect()
    assert not told, "an error that nobody took"
    group.await_steps()
