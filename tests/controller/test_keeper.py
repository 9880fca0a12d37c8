"""A keeper and real rank processes: which one is replaced, what is loaded again, how often, what is told."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tests.raising import raising
from wsm import BadInputError, Outcome, RankFailedError, RankLostError, RecoveryConfig, RestartLimitError
from wsm.command import CommandArguments
from wsm.controller import errors, keeper
from wsm.controller._transaction import due_decision, write_decision
from wsm.controller.group_view import GroupView
from wsm.errors import WsmError
from wsm.signals.segment import SegmentImage
from wsm.states.decide import next_command
from wsm.states.vocabulary import WeightState
from wsm.states.words import Decider, Operation
from wsm.status import explain, read_facts

sys.path.insert(0, str(Path(__file__).parent.parent / "worker"))
from kept_group import kept_group
from living_group import eventually

pytestmark = pytest.mark.processes


@pytest.fixture
def kept(tmp_path):
    with kept_group(tmp_path) as kept:
        yield kept


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


def test_all_ranks_at_once_are_replaced_in_one_epoch(kept):
    kept.kill(0, 1)
    kept.until_told("serves version 1 again")
    kept.until_whole()
    assert kept.controller.update(2).version == "2"


def test_a_cleared_group_stays_cleared_and_is_owed_nothing(kept):
    kept.controller.clear()
    kept.kill(0)
    kept.until_told("is CLEARED, as it was before")
    kept.until_whole()
    assert kept.controller.status().state == "CLEARED"
    assert kept.controller.update(2).version == "2"


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


def test_a_survivor_is_spared_while_a_peer_dies_and_it_is_the_peer_that_is_ended(kept, monkeypatch):
    for ends_in_time, epoch in ((True, 2), (False, 3)):
        # The kernel takes the locks of a dying process first, then its sockets; its exit code comes last.
        kept.group.programs[1].tell("lose-place")
        eventually(lambda: not kept.keeper._group.has_place(1), "rank 1 has lost its lock")
        kept.group.order(0, "step", "raise once")
        eventually(
            lambda: kept.controller.status().ranks[0].step_kind == "broken", "the step of rank 0 breaks"
        )
        time.sleep(0.1)  # the keeper sees that
        if ends_in_time:
            kept.kill(1)
        eventually(lambda epoch=epoch: kept.controller.status().epoch == epoch, "the next epoch")
        kept.until_whole()
        assert kept.keeper._leaving_since is None  # the next one has all of its time again
        monkeypatch.setattr(keeper, "_LEAVE_S", 0.1)
    assert kept.processes.gave == [(1, 2), (1, 3)]
    assert "was killed by SIGKILL" in kept.told[0]
    kept.until_told("was ended because it left its place in the group")


@pytest.mark.parametrize("commits", [True, False])
def test_a_rank_that_dies_beside_a_decision_made_outside_is_replaced_once_that_is_known(kept, commits):
    group = GroupView(kept.segment)
    with group.role.acquire(5):
        found = group.view()
        arguments = CommandArguments("outside", "2", before=WeightState.NORMAL, deadline_s=0.1)
        group.open(found, next_command(found, Operation.HOT_UPDATE, Decider.OUTSIDE), arguments)
        eventually(lambda: set(kept.group.codes()) == {"PREPARED"}, "all have prepared")
    kept.kill(1)
    assert "made outside" in kept.until_told("the recovery waits")
    time.sleep(0.3)  # neither the deadline nor the keeper decides it meanwhile
    status = kept.controller.status()
    assert (status.epoch, status.operation, status.serving) == (1, "HOT_UPDATE", False)
    assert kept.processes.gave == []
    with pytest.raises(WsmError):
        kept.controller.update(2)
    if commits:
        with group.role.acquire(5):
            view = group.view()
            write_decision(group, view, due_decision(group, view, give_up=False, verdict=True))
    else:
        with pytest.raises(RankLostError):
            kept.controller.abort("outside", wait_s=5)
    group.close()
    kept.until_told(f"serves version {2 if commits else 1} again")
    kept.until_whole()
    assert kept.processes.gave == [(1, 2)]
    assert kept.controller.status().version == ("2" if commits else "1")
    kept.group.await_steps()
    kept.group.assert_steps_are_pure([1])


def test_a_rank_that_dies_under_a_lease_ends_it_and_the_group_serves_what_it_served(kept):
    kept.controller.lease(2, request_id="leased")
    kept.kill(1)
    kept.until_told("serves version 1 again")
    kept.until_whole()
    with raising(errors.not_prepared):
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
    assert caught.value.code == "recovery-limit"


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


def test_a_clear_between_two_attempts_means_that_nothing_is_loaded_any_more(tmp_path):
    with kept_group(tmp_path, delay_s=0.5, longest_delay_s=0.5) as kept:
        path, whole = kept.damage()
        kept.kill(1)
        kept.until_told("is not restored yet, attempt 2")
        assert kept.controller.clear().outcome is Outcome.CLEARED
        path.write_bytes(whole)
        kept.until_told("was given another command")
        assert kept.controller.status().state == "CLEARED"


def test_another_controller_that_commands_at_the_moment_is_given_way(tmp_path):
    with kept_group(tmp_path, delay_s=0.2, longest_delay_s=0.2) as kept:
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
    with kept_group(tmp_path, delay_s=0.5) as kept:
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
    with kept_group(tmp_path, delay_s=0.5, longest_delay_s=0.5) as kept:
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
