"""A keeper and real rank processes: which one is replaced, what is loaded again, how often, what is told."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.raising import raising
from wsm import (
    BadInputError,
    Keeper,
    Outcome,
    RankFailedError,
    RecoveryConfig,
    RestartLimitError,
)
from wsm.controller import keeper
from wsm.journal import entry as kinds
from wsm.signals.liveness import ControllerRole
from wsm.signals.segment import SegmentImage
from wsm.status import explain, read_facts, reading
from wsm.status.reading import read_journal

sys.path.insert(0, str(Path(__file__).parent.parent / "worker"))
from kept_group import kept_group
from living_group import Program, eventually

pytestmark = pytest.mark.processes


@pytest.fixture
def kept_for(tmp_path):
    """`kept_for(**limits)`: a group that serves version 1 under a keeper with these limits."""
    with contextlib.ExitStack() as closing:
        yield lambda **limits: closing.enter_context(kept_group(tmp_path, **limits))


@pytest.fixture
def kept(kept_for):
    return kept_for()


def test_a_killed_rank_is_replaced_in_a_new_epoch_and_the_group_serves_what_it_served(kept):
    kept.kill(1)
    assert "was killed by SIGKILL in epoch 1" in kept.until_told("rank 1 (process")
    assert "(epoch 2, " in kept.until_told("serves version 1 again")
    kept.until_whole()
    assert kept.processes.gave == [(1, 2)]
    assert kept.keeper.recoveries == 1
    assert set(kept.recoveries_when_told) == {0}  # who sees one counted can read what was told of it
    status = kept.controller.status()
    assert (status.epoch, status.version, status.serving, status.controller_pid) == (2, "1", True, None)
    kept.group.await_steps()
    kept.group.assert_steps_are_pure([1])


def test_a_rank_that_is_stopped_is_replaced_where_the_keeper_is_told_to(kept_for):
    kept = kept_for(replace_stopped_after_s=0.1)
    kept.group.rest()  # no other rank waits for it in a step
    kept.group.programs[1].freeze()
    assert "it was stopped for 0.1 s" in kept.until_told("rank 1 (process")
    kept.until_told("serves version 1 again")


@pytest.fixture
def hanging(kept_for, monkeypatch):
    """`hanging(**limits)`: a group all of whose ranks are PREPARED, and the controller that hangs."""
    monkeypatch.setattr(reading, "CONTROLLER_GRACE_S", 0.2)
    programs = []

    def start(**limits):
        kept = kept_for(**limits)
        arguments = (kept.group.name, str(kept.group.directory), "hot", "2", "hang before decision")
        programs.append(Program(Path(__file__).with_name("controller_process.py"), *arguments))
        eventually(lambda: kept.controller.status().controller_hung)
        return kept, programs[-1]

    yield start
    for program in programs:
        program.close()


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [False, True])
def test_a_controller_that_does_not_go_on_is_ended_where_the_keeper_is_told_to(hanging, stopped):
    kept, program = hanging(end_hung_controller_s=2 if stopped else 0.2)  # it is frozen before it is ended
    if stopped:
        program.freeze()
    eventually(program.has_ended)
    assert program.code == -signal.SIGKILL
    eventually(lambda: kept.controller.status().over)
    assert (kept.controller.status().version, kept.controller.status().epoch) == ("2", 1)
    kept.group.await_steps()


@pytest.mark.slow
def test_a_controller_that_does_not_go_on_is_ended_by_no_process_by_default(hanging):
    kept, program = hanging()
    eventually(lambda: kept.controller.status().controller_unanswered_s > 1)
    assert not program.has_ended()
    assert kept.controller.status().operation == "HOT_UPDATE"


@pytest.mark.slow
def test_a_recovery_that_waits_for_a_stopped_controller_says_how_to_let_it_go_on(hanging, monkeypatch):
    monkeypatch.setattr(keeper, "_TELL_S", 0.1)
    kept, program = hanging()
    program.freeze()
    kept.kill(1)
    assert f"kill -CONT {program.pid}" in kept.until_told("the recovery waits: ")
    program.kill()
    kept.until_told("again")


def test_a_process_that_does_not_hold_the_role_is_not_ended(kept):
    role = ControllerRole(kept.segment)
    assert not role.end_holder(kept.group.programs[0].pid)
    with role.acquire(0):
        assert not role.end_holder(kept.group.programs[0].pid)
    assert not kept.group.programs[0].has_ended()


def test_deaths_that_do_not_end_are_given_up_with_all_of_them_named(tmp_path):
    with kept_group(tmp_path, restarts=1, restore_attempts=1) as kept:
        kept.kill(1)
        kept.until_told("serves version 1 again")
        kept.kill(0)
        eventually(lambda: kept.keeper.gave_up, "the keeper gives up")
        with pytest.raises(RestartLimitError, match="after 2 deaths, more than 1 restarts") as caught:
            kept.keeper.check()
        assert [death.rank for death in caught.value.deaths] == [1, 0]
        assert caught.value.code == "restart-limit"
        # Its owner has not closed it yet; nothing replaces a rank any more all the same, and status says so.
        eventually(lambda: kept.segment.supervisor is None, "no process says that it replaces ranks")
        explained = explain(read_facts(kept.segment.name, SegmentImage.of(kept.segment))).text()
        assert "No process replaces its ranks" in explained


@pytest.mark.slow
def test_a_survivor_is_spared_while_a_peer_dies_and_it_is_the_peer_that_is_ended(kept, monkeypatch):
    for ends_in_time, epoch in ((True, 2), (False, 3)):
        # The kernel takes the locks of a dying process first, then its sockets; its exit code comes last.
        kept.group.programs[1].tell("lose-place")
        eventually(lambda: not kept.keeper._group.liveness.has_place(1), "rank 1 has lost its lock")
        kept.group.order(0, "step", "raise once")
        eventually(
            lambda: kept.controller.status().ranks[0].step_kind == "broken", "the step of rank 0 breaks"
        )
        time.sleep(0.1)  # the keeper sees that
        if ends_in_time:
            kept.kill(1)
        eventually(lambda epoch=epoch: kept.controller.status().epoch == epoch, "the next epoch")
        kept.until_whole()
        assert not kept.keeper._since.get("left")  # the next one has all of its time again
        monkeypatch.setattr(keeper, "_LEAVE_S", 0.1)
    assert kept.processes.gave == [(1, 2), (1, 3)]
    assert "was killed by SIGKILL" in kept.told[0]
    kept.until_told("was ended because it left its place in the group")


def test_a_rank_that_dies_under_a_lease_ends_it_and_the_group_serves_what_it_served(kept):
    kept.controller.lease(2, request_id="leased")
    kept.kill(1)
    kept.until_told("serves version 1 again")
    kept.until_whole()
    with raising("not-prepared"):
        kept.controller.commit("leased")
    assert kept.controller.update(2).version == "2"


# -- processes that start ---------------------------------------------------------------------------


def test_a_rank_that_still_starts_is_not_ended_because_another_one_crashed_in_its_start(tmp_path):
    with kept_group(tmp_path, boots=False, rejoin_s=0.2) as kept:
        kept.group.order(0, "start", "hold")
        kept.group.order(1, "start", "raise once")
        first = kept.group.launch(0)
        kept.group.await_held(0, "start")
        kept.group.launch(1)
        kept.keep()
        kept.until_told("rank 1 (process")
        controller = kept.group.controller()
        eventually(lambda: controller.status().ranks[1].epoch == 1, "the successor of rank 1 joins")
        time.sleep(0.5)
        kept.group.revoke(0, "start")
        first.says("ready")
        kept.until_whole()
        assert kept.processes.gave == [(1, 1)]
        assert len(kept.told) == 2, kept.told
        replaced = [one for one in read_journal(kept.segment) if one.kind == kinds.RANK_REPLACED]
        assert [one.facts["replaced"] for one in replaced] == [1]


@pytest.mark.slow
def test_a_rank_that_hangs_in_each_of_its_starts_is_given_up_like_one_that_dies_in_each(tmp_path):
    with kept_group(tmp_path, boots=False, start_s=0.3, restarts=2, within_s=0.2) as kept:
        kept.group.launch(0).says("ready")
        kept.group.order(1, "start", "hold")
        kept.group.launch(1)
        kept.keep()
        eventually(lambda: kept.keeper.gave_up, "the keeper gives up")
        with pytest.raises(RestartLimitError, match="after 3 deaths, more than 2 restarts") as caught:
            kept.keeper.check()
        assert {death.rank for death in caught.value.deaths} == {1}
        assert {death.why for death in caught.value.deaths} == {"it did not join the epoch within 0.3 s"}
        kept.kill(0)


@pytest.mark.slow
def test_a_rank_that_hangs_as_it_gives_back_what_an_aborted_update_touched_is_replaced(tmp_path):
    with kept_group(tmp_path, hung_s=0.3) as kept:
        kept.group.order(0, "write", "raise once")
        kept.group.order(1, "release", "hold")
        with pytest.raises(RankFailedError, match="rank 0"):
            kept.controller.update(2, settle_s=0.1)
        kept.group.await_held(1, "release")
        assert "it did not end a decided command" in kept.until_told("rank 1 (process")
        kept.group.revoke(1, "release")
        kept.until_told("serves version 1 again")
        kept.until_whole()


# -- a restore that fails ---------------------------------------------------------------------------


def test_a_damaged_file_that_is_mended_in_time_is_loaded_after_all(kept):
    path, whole = kept.damage()
    kept.kill(1)
    assert "rank 1" in kept.until_told("is not restored yet, attempt 2 of 8")
    assert kept.controller.status().state == "CLEARED"
    path.write_bytes(whole)
    kept.until_told("serves version 1 again")
    assert kept.controller.update(1).outcome is Outcome.ALREADY_SERVED


@pytest.mark.parametrize("option", ["restore_attempts", "repair_attempts", "restarts"])
def test_limits_that_mean_nothing_are_refused(option):
    least = 1 if option == "restore_attempts" else 0
    RecoveryConfig(**{option: least})
    with pytest.raises(BadInputError, match=f"{option} is {least - 1}") as caught:
        RecoveryConfig(**{option: least - 1})
    assert caught.value.code == "bad-keyword"


def test_it_is_given_up_visibly_and_the_group_takes_other_commands_then(tmp_path):
    with kept_group(tmp_path, restore_attempts=3) as kept:
        kept.damage()
        kept.kill(1)
        kept.until_told("is not restored after 3 attempts and stays CLEARED until it is updated")
        kept.until_whole()
        assert sum("is not restored yet" in line for line in kept.told) == 2
        assert kept.controller.status().controller_pid is None
        assert kept.controller.update(2).version == "2"


def test_between_two_attempts_any_other_command_ends_the_restore(tmp_path):
    with kept_group(tmp_path, delay_s=0.5, longest_delay_s=0.5) as kept:
        path, whole = kept.damage()
        kept.kill(1)
        kept.until_told("is not restored yet, attempt 2")
        assert kept.controller.update(2).version == "2"
        kept.until_told("was given another command")
        status = kept.controller.status()
        assert (status.version, status.serving) == ("2", True)
        path.write_bytes(whole)


def test_another_controller_that_commands_at_the_moment_is_given_way(tmp_path):
    with kept_group(tmp_path, delay_s=3, longest_delay_s=3) as kept:  # the command comes within them
        kept.damage()
        kept.kill(1)
        kept.until_told("is not restored yet, attempt 2")
        kept.group.order(0, "write", "hold")
        pending = kept.controller.begin_update(2)
        kept.group.await_held(0, "write")
        said = len(kept.told)
        kept.group.revoke(0, "write")
        assert pending.result(60).version == "2"
        kept.until_told("was given another command")
        assert len(kept.told) == said + 1
        assert kept.controller.status().version == "2"


# -- a teardown that fails --------------------------------------------------------------------------


def fail_to_clear(kept) -> None:
    with pytest.raises(RankFailedError, match="release"):
        kept.controller.clear()


def test_a_cause_that_passes_is_repaired_by_another_clear(tmp_path):
    with kept_group(tmp_path, delay_s=0.5, repair_attempts=1000) as kept:
        kept.group.order(0, "release", "raise")
        fail_to_clear(kept)
        kept.until_told("is FAULTED, a teardown failed on rank 0; all ranks are cleared again in 0.1 s")
        assert "by itself" in explain(read_facts(kept.segment.name, SegmentImage.of(kept.segment))).text()
        kept.group.revoke(0, "release")
        kept.until_told("its teardown worked in the end")
        kept.until_whole()
        status = kept.controller.status()
        assert (status.state, status.controller_pid, kept.processes.gave) == ("CLEARED", None, [])
        assert kept.controller.update(2).version == "2"


def test_a_cause_that_stays_ends_the_process_after_as_many_attempts_as_are_allowed(tmp_path):
    with kept_group(tmp_path, repair_attempts=2) as kept:
        kept.group.order(0, "release", "raise")
        fail_to_clear(kept)
        kept.until_told("its teardown failed, and 2 times more when it was cleared")
        assert sum("clearing it again failed" in said for said in kept.told) == 2
        kept.group.revoke(0, "release")
        kept.until_told("is CLEARED, as it was before")  # what failed was a clear: nothing is owed
        kept.until_whole()
        assert kept.processes.gave == [(0, 2)]
        assert kept.controller.update(2).version == "2"


def test_another_controller_that_clears_first_repairs_the_group(tmp_path):
    with kept_group(tmp_path, delay_s=30, longest_delay_s=30) as kept:
        kept.group.order(0, "release", "raise")
        fail_to_clear(kept)
        kept.until_told("is FAULTED")
        kept.group.revoke(0, "release")
        kept.controller.clear()
        kept.until_whole()
        assert len(kept.told) == 1


def test_a_group_that_waits_to_be_restored_is_restored_after_it_was_repaired(kept):
    kept.group.order(0, "write", "raise once")
    kept.group.order(0, "release", "raise")
    kept.kill(1)
    kept.until_told("is FAULTED, a teardown failed on rank 0")
    kept.group.revoke(0, "release")
    kept.until_told("serves version 1 again")
    assert kept.controller.status().serving


CONTROLLER = Path(__file__).with_name("controller_process.py")

#: Where a caller can die whose update to version 2 fails: in that, between the two, in the restore.
POINTS = [
    "after command 1",
    "before decision 1",
    "after decision 1",
    "before command 2",
    "after command 2",
    "before decision 2",
    "after decision 2",
    "before record",
    "within record",
    "after record",
    "before committed",
    "after committed",
]


def caller(kept, point="never"):
    """A process that updates to version 2, and wants version 1 again if that fails."""
    return Program(CONTROLLER, kept.group.name, str(kept.group.directory), "restore", "2", point)


def assert_serves(kept, version):
    eventually(lambda: (now := kept.controller.status()).serving and now.version == version, "it serves")
    kept.until_whole()
    kept.group.await_steps()
    kept.group.assert_steps_are_pure([1])


@pytest.mark.slow_but
@pytest.mark.parametrize("point", POINTS)
def test_a_caller_whose_update_fails_may_die_anywhere_and_the_version_before_serves_again(kept, point):
    kept.damage(2)
    program = caller(kept, point)
    try:
        eventually(program.has_ended, "the caller has died")
        assert_serves(kept, "1")
    finally:
        program.close()
    kept.group.stop()
    kept.group.assert_journals_are_possible()


def left_owed(kept):
    """An update has failed, its caller has died before the restore, and nobody keeps the group."""
    kept.keeper.close()
    kept.damage(2)
    program = caller(kept, "before command 2")
    try:
        eventually(program.has_ended, "the caller has died")
    finally:
        program.close()
    assert not kept.controller.status().serving


@contextmanager
def next_keeper(kept):
    """Another keeper of the same group, and what it tells."""
    told = []
    with Keeper(kept.config, kept.segment, kept.processes, tell=told.append) as keeper:
        yield told, keeper


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_dies_in_the_restore_of_an_update_that_failed_changes_nothing_of_its_end(kept, rank):
    left_owed(kept)
    kept.group.order(rank, "write", "hold")
    with next_keeper(kept) as (_, keeper):
        kept.group.await_held(rank, "write")
        kept.kill(rank)
        kept.group.revoke(rank, "write")
        eventually(lambda: kept.controller.status().epoch == 2, "the next epoch")
        assert keeper.wait_until_whole(60)
        assert kept.controller.status().version == "1"
        kept.group.await_steps()
        kept.group.assert_steps_are_pure([1])


@pytest.mark.slow
def test_a_keeper_goes_on_with_the_restore_that_another_one_has_left(kept):
    left_owed(kept)
    kept.group.order(1, "write", "hold")
    with next_keeper(kept):
        kept.group.await_held(1, "write")
        goes_on = threading.Timer(0.3, kept.group.revoke, (1, "write"))  # once the keeper has given it up
        goes_on.start()
    goes_on.join()
    assert not kept.controller.status().serving
    with next_keeper(kept) as (told, _):
        eventually(lambda: kept.controller.status().serving, "it serves")
        eventually(lambda: told, "it is told")
    assert "serves version 1 again" in told[0]


def test_what_no_caller_could_restore_is_tried_by_the_keeper_until_it_works(kept):
    kept.damage(2)
    path, whole = kept.damage(1)
    with pytest.raises(RankFailedError) as caught:
        kept.controller.update(2, on_failure="restore")
    assert caught.value.not_restored == "rank-failed"
    assert "version 1 does not serve again" in str(caught.value)
    kept.until_told("is not restored yet, attempt 2 of 8")
    path.write_bytes(whole)
    assert_serves(kept, "1")


def test_what_can_never_be_restored_is_given_up_by_the_keeper_and_left_alone(tmp_path):
    with kept_group(tmp_path, restore_attempts=2) as kept:
        kept.damage(1)
        kept.damage(2)
        with pytest.raises(RankFailedError):
            kept.controller.update(2, on_failure="restore")
        kept.until_told("is not restored after 2 attempts and stays CLEARED")
        kept.until_whole()
        sequence = kept.controller.status().sequence
        time.sleep(0.3)
        assert kept.controller.status().sequence == sequence
        kept.group.publish(3)
        assert kept.controller.update(3).version == "3"


def test_a_lease_that_runs_out_in_place_gives_the_group_its_version_back(kept):
    kept.controller.lease(2, hot=False, lease_s=0.2, on_failure="restore")
    assert "serves version 1 again" in kept.until_told("after its update was left aborted")
    assert_serves(kept, "1")


def test_without_a_keeper_and_without_its_caller_the_group_stays_cleared_and_explain_says_so(kept):
    left_owed(kept)
    explained = explain(read_facts(kept.segment.name, SegmentImage.of(kept.segment))).text()
    assert "no process restores it; version 1 served before" in " ".join(explained.split())
    assert kept.controller.update(1).version == "1"
