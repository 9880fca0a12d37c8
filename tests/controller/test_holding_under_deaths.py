"""Ranks, controllers and keepers die around a hold: it is what was decided, its memory is what was before."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from living_group import Program, eventually
from recovered_group import recovered

from wsm.controller.errors import RankLostError
from wsm.receipt import Outcome
from wsm.states.vocabulary import InFlightPolicy

pytestmark = pytest.mark.processes

PROGRAM = Path(__file__).with_name("controller_process.py")


@pytest.fixture
def kept(make_group):
    """`kept()`: a group that serves version 1, and its supervisor's part."""
    contexts = []

    def make(ranks: int = 2, **options):
        contexts.append(recovered(make_group(ranks, load=0.5, **options)))
        kept = contexts[-1].__enter__()
        kept.controller = kept.group.boot()
        kept.group.publish(2)
        return kept

    yield make
    for context in contexts:
        context.__exit__(None, None, None)


def assert_stands(kept, *, version: int | None = 1) -> None:
    """No step begins, whatever is asked besides, until the release; then a good update works."""
    controller, group = kept.controller, kept.group
    before = [len(group.steps_of(rank)) for rank in range(group.ranks)]
    status = controller.status()
    assert (status.serving, status.hold is None, status.version) == (False, False, str(version))
    assert controller.update(2).serving is False
    assert [len(group.steps_of(rank)) for rank in range(group.ranks)] == before
    assert controller.release(owner="trainer").serving
    group.await_steps()


def assert_serves(kept) -> None:
    kept.group.await_steps()
    assert kept.controller.update(2).serving
    kept.group.await_steps()


def end(kept) -> None:
    kept.group.stop()
    kept.group.assert_steps_are_pure()
    kept.group.assert_journals_are_possible()


@pytest.mark.slow_but
@pytest.mark.parametrize("command", ["hold", "release"])
@pytest.mark.parametrize(
    "point", ["after command", "before decision", "after decision", "within record", "before committed"]
)
def test_a_hold_whose_controller_dies_is_what_was_decided_and_aborted_where_nothing_was(
    make_group, command: str, point: str
) -> None:
    group = make_group(load=0.5)
    with group.boot() as controller:
        group.publish(2)
        if command == "release":
            controller.hold(owner="trainer")
        program = Program(PROGRAM, group.name, str(group.directory), command, "0", point, "60")
        assert program.process.wait(60) == -9
        program.close()
        eventually(lambda: controller.status().over)
        decided = point in ("after decision", "within record", "before committed")
        held = (command == "hold") is decided
        eventually(lambda: (controller.status().hold is not None) is held)
        if held:
            before = [len(group.steps_of(rank)) for rank in range(group.ranks)]
            assert controller.update(2).serving is False
            assert [len(group.steps_of(rank)) for rank in range(group.ranks)] == before
            assert controller.release(owner="trainer", force=True).serving
        group.await_steps()
        assert controller.update(2).version == "2"
    group.stop()
    group.assert_journals_are_possible()


@pytest.mark.slow_but
@pytest.mark.parametrize(
    ("command", "point"),
    [("hold", "stop_admitting"), ("hold", "settle"), ("release", "resume_admitting")],
)
def test_a_rank_that_dies_in_a_hold_or_a_release_leaves_what_was_decided(kept, command, point) -> None:
    kept = kept()
    if command == "release":
        kept.controller.hold(owner="trainer")
    kept.group.order(1, point, "hold")
    if command == "hold":
        pending = kept.controller.begin_hold(owner="trainer")
    else:
        pending = kept.controller.begin_release(owner="trainer")
    kept.group.await_held(1, point)
    kept.kill(1)
    kept.group.revoke(1, point)
    with pytest.raises(RankLostError):
        pending.result(60)
    assert kept.recover(1).version == "1"
    assert_serves(kept)
    end(kept)


def test_a_new_epoch_begins_held_and_its_restore_loads_under_the_hold(kept) -> None:
    kept = kept()
    held = kept.controller.hold(owner="trainer", in_flight=InFlightPolicy.KEEP)
    kept.kill(1)
    receipt = kept.recover(1)
    assert (receipt.version, receipt.serving, receipt.epoch) == ("1", False, 2)
    assert kept.controller.status().hold.hold_id == held.request_id
    assert_stands(kept)
    end(kept)


@pytest.mark.slow
def test_a_hold_of_a_group_that_waits_to_be_restored_takes_no_debt_away(kept) -> None:
    kept = kept()
    kept.kill(1)
    kept.begin(1)
    kept.replace(1)
    kept.recovery.release()
    held = kept.controller.hold(owner="trainer")
    assert (held.serving, set(held.missing)) == (False, {"weights", "kv_cache"})
    assert kept.is_owed
    # Two controllers that die between arguments and word: those of the hold, which say what is owed, stay.
    for _ in range(2):
        group = kept.group
        program = Program(PROGRAM, group.name, str(group.directory), "update", "2", "before command", "60")
        assert program.process.wait(60) == -9
        program.close()
    assert kept.is_owed
    kept.kill(0)
    assert kept.recover(0).version == "1"
    assert_stands(kept)
    end(kept)


def test_a_cleared_group_stays_held_and_cleared_over_a_death(kept) -> None:
    kept = kept()
    kept.controller.hold(owner="trainer")
    kept.controller.clear()
    kept.kill(0)
    assert kept.recover(0) is None
    status = kept.controller.status()
    assert (status.state, status.hold is None) == ("CLEARED", False)
    assert kept.controller.update(2, after="serve", owner="trainer").serving
    kept.group.await_steps()
    end(kept)


@pytest.mark.slow
def test_a_lease_that_runs_out_lets_serve_what_is_whole_and_nothing_else(make_group) -> None:
    group = make_group(load=0.5)
    with group.boot() as controller:
        controller.hold(owner="trainer", lease_s=0.2, on_lease="serve")
        eventually(lambda: controller.status().serving)
        group.await_steps()
        controller.hold(owner="trainer", lease_s=0.2)
        eventually(lambda: re.search(r"the lease of trainer ran out \d+ s ago", controller.status().because))
        assert controller.status().hold.owner == "trainer"
        controller.hold(owner="trainer", lease_s=5, on_lease="serve")  # the clear comes within it
        controller.clear()
        eventually(lambda: "ran out" in controller.status().because)
        assert not controller.status().serving
        assert controller.update(1).outcome is Outcome.UPDATED
        eventually(lambda: controller.status().serving)
    group.stop()
    group.assert_journals_are_possible()


@pytest.mark.slow
def test_the_keeper_ends_a_lease_where_there_is_one(kept) -> None:
    kept = kept()
    kept.controller.hold(owner="trainer", lease_s=0.1, on_lease="serve")

    def serves() -> bool:
        kept.recovery.look()
        return kept.controller.status().serving and not kept.recovery.drive.has_role

    eventually(serves)
    assert_serves(kept)
    end(kept)
