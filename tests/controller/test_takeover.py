"""A controller is killed at every point of a command; its successor completes what the words say."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from living_group import Program, eventually

from wsm import Outcome
from wsm.protocol.errors import CommandOpenError
from wsm.signals.errors import RoleBusyError

pytestmark = pytest.mark.processes

PROGRAM = Path(__file__).with_name("controller_process.py")


@pytest.fixture
def dying(make_group):
    """`dying(group, command, version, point)`: start a controller that kills itself at that point."""
    programs = []

    def start(group, command, version, point):
        arguments = (group.name, str(group.directory), command, str(version), point)
        programs.append(Program(PROGRAM, *arguments))
        return programs[-1]

    yield start
    for program in programs:
        program.close()


def killed(group, dying, command, version, point):
    program = dying(group, command, version, point)
    assert program._process.wait(60) == -9


def codes(controller):
    return [rank.code for rank in controller.status().ranks]


def test_a_death_between_arguments_and_word_costs_one_sequence_and_no_more(group, dying):
    group.publish(2)
    with group.boot() as controller:
        for _ in range(2):
            killed(group, dying, "update", 2, "before command")
        assert controller.status().sequence == 1
        receipt = controller.update(2)
        assert receipt.outcome is Outcome.UPDATED
        assert receipt.sequence > 2
        controller.clear()
        controller.update(1)
    group.stop()
    group.assert_journals_are_possible()


@pytest.mark.parametrize("version", [2, "newest"])
@pytest.mark.parametrize("point", ["after command", "before decision", "after decision", "after committed"])
def test_an_update_that_all_ranks_prepared_is_committed_by_the_successor(make_group, dying, point, version):
    group = make_group(load=0.3)
    with group.boot() as controller:
        group.publish(2)
        killed(group, dying, "update", version, point)
        done = "DONE_COMMITTED" if point in ("after decision", "after committed") else "PREPARED"
        eventually(lambda: codes(controller) == [done] * 2, done)
        receipt = controller.update(2, settle_s=20)  # completes what is open, then finds it served
        assert receipt.outcome is Outcome.ALREADY_SERVED
        assert controller.status().version == 2
        group.await_steps()
    group.stop()
    group.assert_steps_are_pure([2])
    group.assert_journals_are_possible()


@pytest.mark.parametrize("point", ["after command", "before decision", "after decision", "after committed"])
def test_a_hot_update_that_all_ranks_staged_is_committed_by_the_successor(make_group, dying, point):
    group = make_group(load=0.3)
    with group.boot() as controller:
        group.publish(2)
        group.await_steps()
        killed(group, dying, "hot", 2, point)
        done = "DONE_COMMITTED" if point in ("after decision", "after committed") else "PREPARED"
        eventually(lambda: codes(controller) == [done] * 2, done)
        receipt = controller.update(2, hot=True, settle_s=20)  # completes what is open, then finds it served
        assert receipt.outcome is Outcome.ALREADY_SERVED
        group.await_steps()
    group.stop()
    group.assert_steps_are_pure([1, 2])
    group.assert_journals_are_possible()


def test_a_hot_update_that_a_rank_still_stages_is_aborted_by_the_successor_and_nothing_happened(
    make_group, dying
):
    group = make_group(load=0.3)
    group.publish(2)
    with group.boot() as controller:
        group.order(1, "stage", "hold")
        killed(group, dying, "hot", 2, "after command")
        group.await_held(1, "stage")
        group.await_steps()  # nobody decides, and the group serves on
        thread, results = begin_in_thread(lambda: controller.update(1, settle_s=30))
        eventually(lambda: controller.status().operation == "HOT_ABORT")
        group.revoke(1, "stage")
        thread.join(60)
        assert results[0].outcome is Outcome.ALREADY_SERVED
        assert controller.update(2, hot=True).version == 2
        group.await_steps()
    group.stop()
    group.assert_steps_are_pure([1, 2])
    group.assert_journals_are_possible()


def begin_in_thread(action):
    """Run a blocking command beside the test; returns (thread, results)."""
    results = []

    def run():
        try:
            results.append(action())
        except Exception as error:  # noqa: BLE001 - the test looks at it
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results


@pytest.mark.parametrize(
    ("point", "kept"), [("stop_admitting", True), ("write", False)], ids=["before the load", "in the load"]
)
def test_an_update_that_not_all_prepared_is_aborted_by_the_successor(make_group, dying, point, kept):
    group = make_group(load=0.3)
    group.publish(2)
    with group.boot() as controller:
        group.order(1, point, "hold")
        killed(group, dying, "update", 2, "after command")
        group.await_held(1, point)
        thread, results = begin_in_thread(lambda: controller.update(1, settle_s=30))
        eventually(lambda: controller.status().operation == "ABORT")
        group.revoke(1, point)
        thread.join(60)
        # Where nobody had touched anything, version 1 is served still; else it is loaded again.
        assert results[0].outcome is (Outcome.ALREADY_SERVED if kept else Outcome.UPDATED)
        group.await_steps()
    group.stop()
    group.assert_steps_are_pure([1])
    group.assert_journals_are_possible()


def test_a_clear_that_nobody_decided_is_finished_by_the_ranks_themselves(group, dying):
    with group.boot() as controller:
        killed(group, dying, "clear", "-", "after command")
        eventually(lambda: codes(controller) == ["DONE_CLEARED"] * 2)
        assert controller.clear().outcome is Outcome.ALREADY_CLEARED
        controller.update(1)


def test_a_clear_that_one_rank_has_finished_is_finished_by_all(group, dying):
    with group.boot() as controller:
        group.order(1, "release", "hold")
        killed(group, dying, "clear", "-", "after command")
        eventually(lambda: codes(controller)[0] == "DONE_CLEARED")
        thread, results = begin_in_thread(lambda: controller.clear(settle_s=30))
        eventually(lambda: controller.status().operation == "ABORT")
        group.revoke(1, "release")
        thread.join(60)
        assert results[0].outcome is Outcome.ALREADY_CLEARED
        assert [end["held"] for end in group.stop()] == [[], []]


def test_a_successor_waits_no_longer_than_it_is_told_for_a_rank_that_hangs_in_a_decided_command(group, dying):
    """The decision is a dead controller's; the deadline is the living one's."""
    group.publish(2)
    with group.boot() as controller:
        group.order(1, "resume_admitting", "hold")
        killed(group, dying, "update", 2, "after decision")
        group.await_held(1, "resume_admitting")
        eventually(lambda: codes(controller)[0] == "DONE_COMMITTED")
        with pytest.raises(CommandOpenError, match="rank 1: PREPARED") as caught:
            controller.clear(settle_s=0.2)
        assert set(caught.value.waiting) == {1}
        assert controller.status().version == 2  # the decision is completed as far as it can be
        group.revoke(1, "resume_admitting")
        eventually(lambda: controller.status().over)
        assert controller.update(2).outcome is Outcome.ALREADY_SERVED


def test_a_controller_that_is_only_stopped_keeps_the_role(group, dying):
    group.publish(2)
    with group.boot() as controller:
        group.order(1, "write", "hold")
        program = dying(group, "update", 2, "never")
        group.await_held(1, "write")
        program.freeze()
        with pytest.raises(RoleBusyError) as caught:
            controller.clear(wait_s=0.1)
        assert caught.value.pid == program.pid
        group.revoke(1, "write")
        eventually(lambda: codes(controller) == ["PREPARED"] * 2)
        assert controller.status().operation == "UPDATE"  # nobody decides in its place
        program.thaw()
        assert program._process.wait(60) == 0
        assert controller.status().version == 2
