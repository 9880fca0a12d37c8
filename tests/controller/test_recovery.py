"""A rank is killed at every point of a command; a new epoch restores the last commanded state, no other."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from living_group import Program, eventually
from recovered_group import recovered

from tests.incident import incident
from wsm import Outcome
from wsm.committed_record import committed_record
from wsm.controller import _drive as drive
from wsm.controller.errors import CommandRefusedError, RankFailedError, RankLostError
from wsm.journal import entry
from wsm.signals.errors import RoleBusyError
from wsm.signals.segment import Segment
from wsm.states import epochs
from wsm.states.group import GroupTodo
from wsm.strategies.files.snapshot_directory import is_leased

pytestmark = pytest.mark.processes

CONTROLLER = Path(__file__).with_name("controller_process.py")


@pytest.fixture
def kept(make_group):
    """`kept(ranks, ...)`: a group that serves version 1 and could serve 2, and its supervisor's part."""
    contexts = []

    def make(ranks: int = 2, **options):
        group = make_group(ranks, **options)
        contexts.append(recovered(group))
        kept = contexts[-1].__enter__()
        group.boot()
        group.publish(2)
        return kept

    yield make
    for context in contexts:
        context.__exit__(None, None, None)


def commander(kept):
    return kept.group.controllers[0]


def load_of(kept):
    """How the version that is served was to be loaded, as the group has it on record."""
    with Segment.attach(
        kept.group.name, world_size=kept.group.ranks, directory=kept.group.directory
    ) as segment:
        return committed_record(segment).load


def assert_all_hold(kept, version):
    """Every rank's bytes are those that were published, as the ranks have measured them."""
    status = commander(kept).status()
    assert (status.version, status.serving) == (str(version), True)
    found = commander(kept).update(version)
    assert found.outcome is Outcome.ALREADY_SERVED
    assert {report.rank: report.digest for report in found.ranks} == dict(
        kept.group.published[version].digests
    )


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_group_that_served_serves_the_same_version_again(kept, victim):
    kept = kept(3, load=0.3)
    kept.group.await_steps()
    kept.kill(victim)
    receipt = kept.recover(victim)
    assert (receipt.outcome, receipt.version, receipt.epoch) == (Outcome.UPDATED, "1", 2)
    assert_all_hold(kept, 1)
    kept.group.await_steps()
    assert commander(kept).update(2).version == "2"
    kept.group.await_steps()
    kept.group.stop()
    kept.group.assert_steps_are_pure([1, 2])
    kept.group.assert_journals_are_possible()


@pytest.mark.slow
def test_a_version_is_restored_as_its_command_said_that_it_is_loaded(kept):
    kept = kept()
    commander(kept).update(2, verify_checksum=False)
    commander(kept).hold()
    for victim in (0, 1):
        kept.kill(victim)
        assert kept.recover(victim).version == "2"
        assert load_of(kept) == {"verify_checksum": False}
    commander(kept).update(1)
    assert load_of(kept) == {}


@pytest.mark.slow
def test_several_ranks_that_die_at_once_are_one_recovery(kept):
    kept = kept(3, load=0.3)
    kept.kill(0, 2)
    assert kept.recover(0, 2).epoch == 2
    assert_all_hold(kept, 1)


@incident("the other way round of peers' class 4.4")
def test_a_cleared_group_stays_cleared_and_is_no_longer_owed_a_version(kept):
    kept = kept()
    commander(kept).clear()
    kept.kill(1)
    assert kept.recover(1) is None
    status = commander(kept).status()
    assert (status.state, status.version, status.serving) == ("CLEARED", None, False)
    receipt = commander(kept).update(2)
    assert (receipt.version, receipt.previous_version) == ("2", None)


@pytest.mark.slow_but("after the decision, in place")
@incident("vllm#40646")
@pytest.mark.parametrize(
    ("point", "began", "serves"),
    [
        pytest.param("stop_admitting", "serving", 1, id="before anything was touched"),
        pytest.param("write", "serving", 1, id="in place, weights half written"),
        pytest.param("write", "cleared", None, id="from cleared, weights half written"),
        pytest.param("rebuild", "cleared", None, id="from cleared, after the weights"),
        pytest.param("resume_admitting", "serving", 2, id="after the decision, in place"),
        pytest.param("resume_admitting", "cleared", 2, id="after the decision, from cleared"),
    ],
)
def test_a_death_within_an_update_restores_what_was_decided_or_what_was_before(kept, point, began, serves):
    kept = kept()
    if began == "cleared":
        commander(kept).clear()
    kept.group.order(1, point, "hold")
    pending = commander(kept).begin_update(2)
    kept.group.await_held(1, point)
    kept.kill(1)
    kept.group.revoke(1, point)
    with pytest.raises(RankLostError) as caught:
        pending.result(60)
    assert caught.value.retryable
    receipt = kept.recover(1)
    if serves is None:
        assert receipt is None
        assert commander(kept).status().state == "CLEARED"
        assert commander(kept).update(2).version == "2"
    else:
        assert_all_hold(kept, serves)


@pytest.mark.slow_but
@pytest.mark.parametrize("point", ["settle", "release", "release_kv"])
def test_a_death_within_a_clear_restores_what_was_before_since_its_caller_was_told_so(kept, point):
    kept = kept()
    kept.group.order(1, point, "hold")
    pending = commander(kept).begin_clear()
    kept.group.await_held(1, point)
    kept.kill(1)
    kept.group.revoke(1, point)
    with pytest.raises(RankLostError):
        pending.result(60)
    assert kept.recover(1).version == "1"
    assert_all_hold(kept, 1)
    assert commander(kept).clear().outcome is Outcome.CLEARED


def test_a_death_of_the_controller_and_of_a_prepared_rank_commits_what_all_had_prepared(kept):
    """Whether a rank has decided it by then, or whoever raises the epoch does: as any successor does."""
    kept = kept()
    arguments = (kept.group.name, str(kept.group.directory), "update", "2", "before decision")
    controller = Program(CONTROLLER, *arguments)
    try:
        assert controller.process.wait(60) == -9
    finally:
        controller.close()
    kept.kill(1)
    assert kept.recover(1).version == "2"
    assert_all_hold(kept, 2)


def test_the_owner_ends_a_command_of_a_dead_controller_where_no_rank_can(kept, monkeypatch):
    kept = kept()
    at_the_file = []

    def open_to_append(path, **how):
        at_the_file.append((commander(kept).status().operation, kept.recovery.group.role.holder()))
        return opened(path, **how)

    opened = entry.open_to_append
    kept.group.order(1, "write", "hold")
    arguments = (kept.group.name, str(kept.group.directory), "update", "2", "never")
    controller = Program(CONTROLLER, *arguments)
    try:
        kept.group.await_held(1, "write")
        for program in kept.group.programs.values():
            program.freeze()
        controller.kill()
    finally:
        controller.close()
    assert commander(kept).status().operation == "UPDATE"
    monkeypatch.setattr(entry, "open_to_append", open_to_append)
    kept.recovery.look()
    monkeypatch.undo()
    assert commander(kept).status().operation == "ABORT"
    assert set(at_the_file) == {("ABORT", None)}, "a file that hangs keeps neither the word nor the role"
    assert kept.recovery.take_role(0)  # it was held for the one word only
    kept.recovery.release()
    kept.group.revoke(1, "write")
    for program in kept.group.programs.values():
        program.thaw()
    eventually(lambda: commander(kept).status().over)
    assert commander(kept).status().state == "CLEARED"


def test_a_rank_that_is_stopped_with_the_role_is_named(kept, monkeypatch):
    kept = kept()
    monkeypatch.setattr(drive, "ENDING_S", 0.01)
    role = kept.recovery._group.role
    with role.acquire(0):
        monkeypatch.setattr(type(role), "holder", lambda _: kept.group.programs[1].pid)
        kept.group.programs[1].freeze()
        with pytest.raises(RoleBusyError, match="rank 1, which is ending command 1") as caught:
            commander(kept).clear()
        kept.group.programs[1].thaw()
    assert (caught.value.pid, caught.value.stopped) == (kept.group.programs[1].pid, True)


def test_a_second_death_before_the_group_is_restored_does_not_make_it_forget_its_version(kept):
    kept = kept(3)
    kept.kill(1)
    kept.begin(1)
    kept.replace(1)
    kept.kill(2)  # in the new epoch, before anything was commanded in it
    assert kept.begin(2) == 3
    kept.replace(2)
    assert kept.restore().version == "1"
    assert_all_hold(kept, 1)


def test_a_death_within_the_restoring_update_itself_is_recovered_from(kept):
    kept = kept(2)
    kept.kill(1)
    kept.begin(1)
    kept.group.order(0, "write", "hold")
    kept.replace(1)
    eventually(lambda: kept.recovery.turn() and kept.recovery.own, "the restore is given")
    kept.group.await_held(0, "write")
    kept.kill(0)
    kept.group.revoke(0, "write")
    assert kept.recover(0).version == "1"
    assert_all_hold(kept, 1)


def test_whoever_died_before_it_joined_is_replaced_in_the_same_epoch(kept):
    kept = kept(3)
    kept.kill(0, 1)
    assert [kept.begin(0, 1), kept.begin(0, 1)] == [2, 2]  # nobody has joined: nothing ended
    kept.replace(0, 1)
    assert kept.restore().epoch == 2
    assert_all_hold(kept, 1)


def test_a_rank_whose_step_raised_is_replaced_like_a_dead_one(kept):
    kept = kept()
    kept.group.order(1, "step", "raise once")
    kept.group.programs[0].tell("submit 1")
    eventually(lambda: epochs.ended_by(kept.recovery.group.view(), ()) == [1], "rank 1 is broken")
    kept.kill(1)
    assert kept.recover(1).version == "1"
    assert_all_hold(kept, 1)


def test_others_get_a_refusal_that_can_be_retried_while_a_group_recovers(kept):
    kept = kept()
    with kept.group.controller() as other:
        kept.kill(1)
        for _ in range(2):
            with pytest.raises(RankLostError) as lost:
                other.clear()
            assert lost.value.retryable
        kept.begin(1)
        with pytest.raises(RoleBusyError) as busy:
            other.clear()
        assert busy.value.retryable
        kept.replace(1)
        kept.restore()
        assert other.clear().epoch == 2  # the same object, in the new epoch
        assert other.update(2).version == "2"


def test_a_group_whose_supervisor_died_between_epoch_and_restore_is_owed_its_version_still(kept):
    kept = kept()
    kept.kill(1)
    kept.begin(1)
    kept.recovery.close()
    kept.replace(1)  # by whoever comes after it
    kept.begin_anew()
    view = commander(kept).status()
    assert (view.operation, view.version, view.state) == ("NONE", "1", "CLEARED")
    kept.kill(1)
    assert kept.recover(1).version == "1"


def test_recovery_loads_the_committed_version_although_a_newer_one_is_announced(kept):
    kept = kept()  # version 2 is the one that version.yaml names
    kept.kill(1)
    assert kept.recover(1).version == "1"
    assert_all_hold(kept, 1)


def published(kept) -> list[str]:
    return sorted(
        path.name for path in (kept.group.snapshots / "versions").iterdir() if path.name.isdecimal()
    )


def await_no_pin(kept, version: int) -> None:
    """Wait until ranks and keeper, which look by themselves, have let go of a version."""
    eventually(lambda: not is_leased(kept.group.snapshots / "versions" / str(version)), "nobody pins it")


def test_what_a_group_serves_is_not_retired_however_much_is_published_meanwhile(kept):
    kept = kept()
    kept.group.publish(3)
    kept.group.publish(4)
    assert published(kept) == ["1", "3", "4"]
    kept.kill(1)
    assert kept.recover(1).version == "1"
    assert_all_hold(kept, 1)
    commander(kept).update(4)
    await_no_pin(kept, 1)
    kept.group.publish(5)
    assert published(kept) == ["4", "5"]


@pytest.mark.slow_but
@pytest.mark.parametrize("hot", [False, True])
def test_what_an_open_update_names_is_not_retired_before_it_is_committed(kept, hot):
    kept = kept()
    kept.group.order(1, "stage" if hot else "write", "hold")
    pending = commander(kept).begin_update(2, hot=hot)
    kept.group.await_held(1, "stage" if hot else "write")
    for version in (3, 4):
        kept.group.publish(version)
    assert published(kept) == ["1", "2", "3", "4"]
    kept.group.revoke(1, "stage" if hot else "write")
    pending.result(60)
    kept.kill(1)
    assert kept.recover(1).version == "2"
    await_no_pin(kept, 1)
    kept.group.publish(5)
    assert published(kept) == ["2", "4", "5"]


def test_what_a_failed_update_named_is_kept_no_longer(kept):
    kept = kept()
    kept.group.order(1, "stage", "raise once")
    with pytest.raises(RankFailedError):
        commander(kept).update(2, hot=True)
    for version in (3, 4):
        kept.group.publish(version)
    assert published(kept) == ["1", "3", "4"]


def test_a_version_that_is_gone_leaves_the_group_cleared_with_an_error_that_says_so(kept):
    kept = kept()
    kept.group.publish(3)
    shutil.rmtree(kept.group.snapshots / "versions" / "1")
    kept.kill(1)
    with pytest.raises((CommandRefusedError, RankFailedError), match="1"):
        kept.recover(1)
    assert commander(kept).status().state == "CLEARED"
    assert commander(kept).update(3).version == "3"
    assert_all_hold(kept, 3)


def fail_to_restore(kept):
    """Lose rank 1, and let the update that was to restore the group fail on it."""
    kept.group.order(1, "write", "raise once")
    kept.kill(1)
    with pytest.raises(RankFailedError, match="the test wants write to fail"):
        kept.recover(1)
    assert commander(kept).status().state == "CLEARED"


def test_a_restoring_update_that_failed_leaves_the_debt_and_can_be_tried_again(kept):
    kept = kept()
    fail_to_restore(kept)
    assert kept.is_owed
    assert kept.restore().version == "1"
    assert not kept.is_owed
    assert_all_hold(kept, 1)


@pytest.mark.slow
def test_a_death_after_a_restoring_update_failed_does_not_make_the_group_forget_its_version(kept):
    kept = kept()
    fail_to_restore(kept)
    kept.kill(0)
    assert kept.recover(0).version == "1"
    assert_all_hold(kept, 1)


@pytest.mark.slow_but
@pytest.mark.parametrize("command", ["clear", "update"])
def test_any_other_command_ends_what_a_group_is_owed(kept, command):
    kept = kept()
    fail_to_restore(kept)
    if command == "clear":
        assert commander(kept).clear().outcome is Outcome.CLEARED  # not "already": it counts
    else:
        assert commander(kept).update(2).version == "2"
    assert not kept.is_owed
    assert kept.restore() is None
    kept.kill(1)
    after = kept.recover(1)
    assert (after and after.version) == (None if command == "clear" else "2")


def test_a_command_of_the_old_epoch_writes_nothing_into_the_new_one(kept):
    """A controller that is stopped in the middle keeps the role: nobody can begin an epoch beside it."""
    kept = kept()
    kept.group.order(1, "write", "hold")
    arguments = (kept.group.name, str(kept.group.directory), "update", "2", "never")
    controller = Program(CONTROLLER, *arguments)
    try:
        kept.group.await_held(1, "write")
        controller.freeze()
        kept.kill(1)
        kept.recovery.dead.add(1)
        assert kept.recovery.turn() is GroupTodo.TAKE_ROLE
        controller.thaw()
        assert controller.process.wait(60) != 0
    finally:
        controller.close()
    kept.group.revoke(1, "write")
    assert kept.recover(1).version == "1"
    assert_all_hold(kept, 1)
