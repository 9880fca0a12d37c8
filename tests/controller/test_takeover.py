"""A controller is killed at every point of a command, or stopped: the group ends the command by itself."""

from __future__ import annotations

import contextlib
import json
import signal
from pathlib import Path

import pytest
from living_group import Program, eventually

from tests.incident import incident
from wsm import Outcome
from wsm.command import CommandArguments, CommandArgumentsError
from wsm.journal import entry as kinds
from wsm.journal.entry import read_ndjson
from wsm.journal.replay import replay
from wsm.signals.errors import RoleBusyError
from wsm.signals.liveness import ControllerRole
from wsm.signals.segment import Segment, SegmentImage
from wsm.states.errors import CommandOpenError
from wsm.status import explain, read_facts

pytestmark = pytest.mark.processes

PROGRAM = Path(__file__).with_name("controller_process.py")


@pytest.fixture
def dying(make_group):
    """`dying(group, command, version, point)`: start a controller that kills itself at that point."""
    programs = []

    def start(group, command, version, point, *, deadline_s=60):
        arguments = (group.name, str(group.directory), command, str(version), point, str(deadline_s))
        programs.append(Program(PROGRAM, *arguments))
        return programs[-1]

    yield start
    for program in programs:
        program.close()


def killed(group, dying, command, version, point):
    program = dying(group, command, version, point)
    assert program.process.wait(60) == -9


def codes(controller):
    return [rank.code for rank in controller.status().ranks]


def explained(group):
    """What `wsm explain` says, of the running group."""
    with contextlib.closing(Segment.attach(group.name, directory=group.directory)) as segment:
        explanation = explain(read_facts(group.name, SegmentImage.of(segment), lock_file=segment.lock_file))
    return " ".join((explanation.headline, *explanation.advice))


def test_a_deadline_travels_with_its_command_and_one_that_is_none_is_a_typed_error():
    for seconds in (None, 0.5, 3):
        written = CommandArguments("r", deadline_s=seconds)
        assert CommandArguments.from_bytes(written.to_bytes()) == written
    for nonsense in ("3", True, []):
        fields = {**json.loads(CommandArguments("r").to_bytes()), "deadline_s": nonsense}
        with pytest.raises(CommandArgumentsError):
            CommandArguments.from_bytes(json.dumps(fields).encode())


def test_a_death_between_arguments_and_word_costs_a_few_sequences_and_no_more(group, dying):
    group.publish(2)
    with group.boot() as controller:
        for _ in range(2):
            killed(group, dying, "update", 2, "before command")
        assert controller.status().sequence == 1
        receipt = controller.update(2)
        assert receipt.outcome is Outcome.UPDATED
        assert 1 < receipt.sequence <= 4
        controller.clear()
        controller.update(1)
    group.stop()
    group.assert_journals_are_possible()


@pytest.mark.slow_but
@incident("NeMo-RL#3929")
@pytest.mark.parametrize("command", ["update", "hot"])
@pytest.mark.parametrize(
    "point",
    [
        "before decision",
        "after decision",
        "before record",
        "within record",
        "before committed",
        "after committed",
    ],
)
def test_an_update_that_all_ranks_prepared_is_committed_although_nobody_commands_any_more(
    make_group, dying, point, command
):
    group = make_group(load=0.3)
    with group.boot() as controller:
        group.publish(2)
        group.await_steps()
        killed(group, dying, command, "newest" if command == "update" else 2, point)
        eventually(lambda: controller.status().over and controller.status().version == "2")
        group.await_steps()
        assert controller.update(2).outcome is Outcome.ALREADY_SERVED
    group.stop()
    group.assert_steps_are_pure([1, 2])
    group.assert_journals_are_possible()
    journal_of_controllers_tells_of_commits_only(group, kept_to_itself=point == "after decision")


def journal_of_controllers_tells_of_commits_only(group, *, kept_to_itself):
    """A kill behind a word may take the line about it; no line is about a word that was not stored."""
    with (group.directory / "journals" / "controller.ndjson").open() as lines:
        entries = read_ndjson(lines)
    assert replay(entries).impossible is None
    decided = [(one.sequence, one.facts["operation"]) for one in entries if one.kind == kinds.DECISION]
    assert {operation for _, operation in decided} <= {"COMMIT", "HOT_COMMIT"}
    assert [sequence for sequence, _ in decided] == ([1] if kept_to_itself else [1, 2])


@pytest.mark.slow_but
@pytest.mark.parametrize("command", ["clear", "update", "hot"])
def test_a_command_whose_controller_dies_at_once_comes_to_an_end_that_the_outcome_rule_knows(
    make_group, dying, command
):
    group = make_group(load=0.3)
    with group.boot() as controller:
        group.publish(2)
        killed(group, dying, command, 2, "after command")
        eventually(lambda: controller.status().over)
        status = controller.status()
        assert (status.serving, status.state) in ((True, "NORMAL"), (False, "CLEARED"))
        assert status.serving or command != "hot"
        assert controller.update(2).version == "2"
        group.await_steps()
    group.stop()
    group.assert_steps_are_pure([2])
    group.assert_journals_are_possible()


def test_a_hot_update_that_a_rank_still_stages_is_aborted_by_the_group_and_nothing_happened(
    make_group, dying
):
    group = make_group(load=0.3)
    group.publish(2)
    with group.boot() as controller:
        group.order(1, "stage", "hold")
        killed(group, dying, "hot", 2, "after command")
        eventually(lambda: controller.status().operation == "HOT_ABORT")
        group.await_steps()
        group.revoke(1, "stage")
        eventually(lambda: controller.status().over)
        assert controller.update(2, hot=True).version == "2"
        group.await_steps()
    group.stop()
    group.assert_steps_are_pure([1, 2])
    group.assert_journals_are_possible()


@pytest.mark.slow_but
@incident("NeMo-RL#3929")
@pytest.mark.parametrize(
    ("point", "kept"), [("stop_admitting", True), ("write", False)], ids=["before the load", "in the load"]
)
def test_an_update_that_not_all_prepared_is_aborted_by_the_group(make_group, dying, point, kept):
    group = make_group(load=0.3)
    group.publish(2)
    with group.boot() as controller:
        group.order(1, point, "hold")
        killed(group, dying, "update", 2, "after command")
        eventually(lambda: controller.status().operation == "ABORT")
        group.revoke(1, point)
        eventually(lambda: controller.status().over)
        # Where nobody had touched anything, version 1 is served still; else all hold nothing.
        assert controller.status().serving is kept
        assert controller.status().state == ("NORMAL" if kept else "CLEARED")
        assert controller.status().controller_pid is None
        controller.update(1)
        group.await_steps()
    group.stop()
    group.assert_steps_are_pure([1])
    group.assert_journals_are_possible()


def test_a_clear_that_one_rank_has_finished_is_finished_by_all(group, dying):
    with group.boot() as controller:
        group.order(1, "release", "hold")
        killed(group, dying, "clear", "-", "after command")
        eventually(lambda: controller.status().operation == "ABORT")
        group.revoke(1, "release")
        eventually(lambda: controller.status().over)
        assert controller.status().state == "CLEARED"
        assert controller.clear().outcome is Outcome.ALREADY_CLEARED
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
        assert controller.status().version == "2"  # the decision is completed as far as it can be
        group.revoke(1, "resume_admitting")
        eventually(lambda: controller.status().over)
        assert controller.update(2).outcome is Outcome.ALREADY_SERVED


@pytest.mark.slow
@pytest.mark.parametrize("command", ["update", "hot"])
def test_the_deadline_of_a_command_counts_although_its_controller_is_stopped(group, dying, command):
    group.publish(2)
    with group.boot() as controller:
        point = "stage" if command == "hot" else "write"
        group.order(1, point, "hold")
        program = dying(group, command, 2, "never", deadline_s=2)
        group.await_held(1, point)
        program.freeze()
        if command == "update":  # the loop itself is held: it finds its deadline gone when it comes back
            eventually(lambda: codes(controller)[0] == "PREPARED")
            eventually(lambda: controller.status().ranks[0].since_s > 2.5)
            group.revoke(1, point)
        eventually(lambda: controller.status().operation in ("ABORT", "HOT_ABORT"))
        group.revoke(1, point)
        eventually(lambda: controller.status().over)
        assert controller.status().state == ("NORMAL" if command == "hot" else "CLEARED")
        with pytest.raises(
            RoleBusyError, match=rf"is stopped: let it go on \(kill -CONT {program.pid}\)"
        ) as caught:
            controller.update(1)
        assert (caught.value.pid, caught.value.stopped) == (program.pid, True)
        program.thaw()  # what it would have written stands there already
        assert "rank 1" in program.says("failed")["error"]
        assert controller.update(2).version == "2"


@pytest.mark.slow
def test_a_rank_that_hangs_beside_a_stopped_controller_is_named_and_the_end_of_both_is_enough(
    make_group, dying
):
    group = make_group(config={"deadlines": {"action_s": {"load_weights": 60.0}}}, load=0.5)
    group.publish(2)
    with group.boot() as controller:
        group.order(1, "write", "hold")
        program = dying(group, "update", 2, "never", deadline_s=2)
        group.await_held(1, "write")
        program.freeze()
        eventually(lambda: codes(controller)[0] == "PREPARED")
        eventually(lambda: controller.status().ranks[0].since_s > 2.5)
        group.seems_inside_since_the_host_began(1)
        assert "rank 1, which is past the deadline of load_weights" in explained(group)
        with pytest.raises(RoleBusyError) as caught:
            controller.clear(wait_s=0.1)
        assert (caught.value.pid, caught.value.stopped) == (program.pid, True)
        assert controller.status().operation == "UPDATE"  # only rank 1 could fail it, and it hangs
        program.kill()
        eventually(lambda: controller.status().operation == "ABORT")
        assert "rank 1, which is past the deadline of load_weights" in explained(group)
        group.revoke(1, "write")
        eventually(lambda: controller.status().over)


@pytest.mark.slow
def test_a_stopped_controller_of_a_command_that_all_ranks_prepared_is_named_and_its_end_is_enough(
    group, dying
):
    group.publish(2)
    with group.boot() as controller:
        group.order(1, "write", "hold")
        program = dying(group, "update", 2, "never", deadline_s=2)
        group.await_held(1, "write")
        program.freeze()
        with pytest.raises(RoleBusyError) as caught:
            controller.clear(wait_s=0.1)
        assert caught.value.pid == program.pid
        group.revoke(1, "write")
        eventually(lambda: codes(controller) == ["PREPARED"] * 2)
        eventually(lambda: controller.status().ranks[0].since_s > 2.5)  # its deadline passes, too
        assert controller.status().operation == "UPDATE"  # it may be about to write COMMIT
        assert f"kill -9 {program.pid}" in " ".join(controller.status().advice)
        assert f"kill -9 {program.pid}" in explained(group)
        program.kill()
        eventually(lambda: controller.status().over)
        assert controller.status().version == "2"
        assert controller.status().serving


@pytest.mark.slow
def test_a_hung_controller_is_named_and_no_process_decides_in_its_place_until_it_wakes_up_or_ends(
    make_group, dying
):
    """It lives, and is about to write COMMIT: an ABORT of another process would split the decision."""
    group = make_group(load=0.3)
    group.publish(2)
    with group.boot() as controller:
        program = dying(group, "update", 2, "hang before decision", deadline_s=2)
        eventually(lambda: codes(controller) == ["PREPARED"] * 2)
        eventually(lambda: controller.status().controller_hung)
        eventually(lambda: controller.status().controller_unanswered_s > 6.5)  # the group counts no longer
        status = controller.status()
        assert (status.controller_pid, status.controller_stopped) == (program.pid, False)
        assert status.operation == "UPDATE"
        told = f"its controller, process {program.pid}, which does not go on"
        assert told in status.headline
        assert told in explained(group)
        for said in (" ".join(status.advice), explained(group)):
            assert f"kill -9 {program.pid}" in said
            assert "CONT" not in said
        assert "has not answered for" in rank_says(group)
        with pytest.raises(RoleBusyError, match=f"has not answered for .*kill -9 {program.pid}") as caught:
            controller.clear()
        assert caught.value.context["unanswered_s"] > 6.5
        program.signal(signal.SIGUSR1)
        eventually(lambda: controller.status().over)
        assert (controller.status().version, controller.status().serving) == ("2", True)
        group.await_steps()
    group.stop()
    group.assert_steps_are_pure([1, 2])
    group.assert_journals_are_possible()
    journal_of_controllers_tells_of_commits_only(group, kept_to_itself=False)


def rank_says(group):
    with contextlib.closing(Segment.attach(group.name, directory=group.directory)) as segment:
        facts = read_facts(group.name, SegmentImage.of(segment), lock_file=segment.lock_file)
    return " ".join(explain(facts).sentences)


@pytest.mark.slow
def test_no_command_is_written_while_another_may_still_decide_the_last_one_in_its_place(group):
    """A decision that is written late would else fall on a command that it is not about."""
    with group.boot() as controller, Segment.attach(group.name, directory=group.directory) as segment:
        hold = ControllerRole(segment).try_to_stand_in()
        with hold, pytest.raises(RoleBusyError):
            controller.clear()
        assert controller.status().sequence == 1
        assert controller.status().serving
        assert controller.clear().outcome is Outcome.CLEARED
