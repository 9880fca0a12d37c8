"""A decision that the caller holds: prepared on every rank, then committed, aborted, or left behind."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path

import pytest
from living_group import Program, eventually

from tests.incident import incident
from tests.raising import raising
from wsm import Controller, HotFallback, Outcome
from wsm.clock import ManualClock
from wsm.controller.errors import CommandRefusedError, CommandTimeoutError, DecisionHeldError
from wsm.errors import GroupError
from wsm.journal.entry import read_ndjson
from wsm.journal.replay import replay
from wsm.signals.errors import RoleBusyError
from wsm.signals.liveness import ControllerRole
from wsm.signals.segment import Segment
from wsm.states.vocabulary import After, InFlightPolicy
from wsm.states.words import StatusWord

pytestmark = pytest.mark.processes

PROGRAM = Path(__file__).with_name("holder_process.py")
LONG_S = "60"
POINTS = [
    "before command",
    "after command",
    "prepared",
    "before decision",
    "after decision",
    "after committed",
]


@pytest.fixture
def serving(make_group):
    """A group that serves version 1 and can load version 2, and its controller."""
    group = make_group(load=0.5)
    group.publish(2)
    controller = group.boot()
    group.await_steps()
    return group, controller


@pytest.fixture
def holder(serving):
    """`holder(how, point)`: start a process that prepares version 2 and holds its decision."""
    programs = []

    def start(how, point, lease=LONG_S):
        group, _ = serving
        programs.append(Program(PROGRAM, group.name, str(group.directory), how, lease, point))
        return programs[-1]

    yield start
    for program in programs:
        program.close()


def assert_journals_are_possible(group):
    group.stop()
    group.assert_journals_are_possible()
    with (group.directory / "journals" / "controller.ndjson").open() as lines:
        entries = read_ndjson(lines)
    assert replay(entries).impossible is None


def assert_serves(group, controller, version):
    eventually(lambda: (controller.status().serving, controller.status().version) == (True, str(version)))
    group.await_steps()


def assert_stands(group):
    steps = [group.steps_of(rank) for rank in range(2)]
    time.sleep(0.05)
    assert [group.steps_of(rank) for rank in range(2)] == steps


def test_the_old_version_serves_until_the_caller_commits(serving):
    group, controller = serving
    prepared = controller.prepare(2)
    assert prepared.receipt.outcome is Outcome.PREPARED
    assert (prepared.receipt.version, prepared.receipt.previous_version) == ("2", "1")
    assert prepared.receipt.staged_bytes == sum(report.bytes for report in prepared.receipt.ranks) > 0
    assert_serves(group, controller, 1)
    receipt = prepared.commit()
    assert (receipt.outcome, receipt.version, receipt.hot) == (Outcome.UPDATED, "2", True)
    assert prepared.commit() == receipt
    with raising("decided-otherwise"):
        prepared.abort()
    assert_serves(group, controller, 2)
    group.assert_steps_are_pure([1, 2])
    assert_journals_are_possible(group)


def test_while_a_decision_is_held_every_other_command_is_busy_by_name(serving):
    group, controller = serving
    other = group.controller()
    with controller.prepare(2) as prepared:
        for command in (
            other.clear,
            lambda: other.update(2),
            lambda: other.prepare(2),
            lambda: other.hold(wait_s=0),
            lambda: other.release(deadline_s=0.1),
            other.abort,
        ):
            with pytest.raises(RoleBusyError) as caught:
                command()
            assert "update to version 2" in str(caught.value)
        assert "decision" in other.status().sentence()
    assert prepared.over
    assert controller.update(2).outcome is Outcome.UPDATED


def test_what_is_taken_back_leaves_the_old_version_serving(serving):
    group, controller = serving
    receipt = controller.prepare(2).abort()
    assert (receipt.outcome, receipt.version, receipt.missing) == (Outcome.ABORTED, "1", ())
    assert "still serves version 1" in receipt.sentence()
    with controller.prepare(2):
        pass
    assert_serves(group, controller, 1)
    assert controller.prepare(2).commit().version == "2"
    assert_journals_are_possible(group)


def test_in_place_the_old_weights_are_gone_and_everything_says_so(serving):
    _group, controller = serving
    prepared = controller.prepare(2, hot=False)
    assert "the old weights are gone" in prepared.receipt.sentence()
    receipt = prepared.abort()
    assert (receipt.outcome, receipt.version) == (Outcome.ABORTED, None)
    assert "weights" in receipt.missing
    assert "holds no weights" in receipt.sentence()
    assert controller.prepare(2, hot=False).commit().version == "2"


def test_a_teardown_that_fails_as_a_command_is_taken_back_is_an_error_that_names_the_rank(serving):
    group, controller = serving
    prepared = controller.prepare(2, hot=False).wait()
    group.order(1, "release", "raise")
    with raising("not-given-back") as caught:
        prepared.abort()
    assert (caught.value.context["ranks"], caught.value.context["request_id"]) == ((1,), prepared.request_id)
    assert "wsm clear" in str(caught.value)
    group.revoke(1, "release")
    controller.clear()
    assert controller.update(2).serving


def test_a_lease_that_is_over_aborts_and_the_caller_is_told(serving):
    group, controller = serving
    prepared = controller.prepare(2, lease_s=0.05)
    eventually(lambda: prepared.over)
    with raising("lease-over") as caught:
        prepared.commit()
    assert "0.05 s" in str(caught.value)
    assert (caught.value.group, caught.value.lease_s) == (group.name, 0.05)
    assert_serves(group, controller, 1)


def test_a_commit_that_is_said_after_the_lease_is_over_comes_too_late(serving):
    group, _ = serving
    clock = ManualClock()
    with Controller(group.name, directory=group.directory, clock=clock) as controller:
        prepared = controller.prepare(2, lease_s=5)
        clock.advance(6)  # as for a process that was stopped, and says it before another thread of it looks
        with raising("lease-over"):
            prepared.commit()
        assert_serves(group, controller, 1)
        prepared = controller.prepare(2, lease_s=5).wait()
        prepared._verdict.decide(commit=True)  # in time, and the thread that writes it looks later
        clock.advance(6)
        assert prepared.commit().version == "2"


def test_a_commit_that_was_said_in_time_and_that_no_rank_can_be_asked_for_any_more_is_given_up(serving):
    """A word that was damaged since all were PREPARED is no answer to the command."""
    group, controller = serving
    prepared = controller.prepare(2, lease_s=3600, settle_s=0.2)
    with Segment.attach(group.name, directory=group.directory) as segment:
        index = segment.layout.status[0]
        word = StatusWord.unpack(segment.words[index])
        segment.words[index] = word._replace(sequence=word.sequence - 1).pack()
    with pytest.raises(CommandTimeoutError, match=r"waiting for rank 0 \(has not answered\)"):
        prepared.begin_commit().result(30)
    eventually(lambda: controller.status().over)
    assert_serves(group, controller, 1)


@pytest.mark.slow
@pytest.mark.parametrize("hot", [True, False])
def test_only_a_commit_changes_admission_as_the_caller_asked(serving, hot):
    group, controller = serving
    here, other = 1, 2
    for held in (False, True):
        for after in After:
            if held is not (controller.status().hold is not None):
                controller.hold(in_flight=InFlightPolicy.KEEP) if held else controller.release()
            asked = {"hot": hot, "hot_fallback": "in_place", "after": after}
            prepared = controller.prepare(other, **asked)
            assert prepared.receipt.outcome is Outcome.PREPARED
            assert (controller.status().hold is not None) is held
            aborted = prepared.abort()
            assert (aborted.hold is not None, aborted.version) == (held, str(here) if hot else None)
            receipt = controller.prepare(other, **asked).commit()
            stays = held if after is After.AS_BEFORE else after is After.HELD
            assert (receipt.version, receipt.hold is not None) == (str(other), stays)
            assert receipt.serving is not stays
            if stays:
                assert_stands(group)
            here, other = other, here
    group.await_steps()
    group.assert_steps_are_pure([1, 2])
    assert_journals_are_possible(group)


@pytest.mark.slow_but
@pytest.mark.parametrize("how", ["prepare", "lease"])
@pytest.mark.parametrize("version", [1, None])
def test_a_hold_or_release_alone_waits_for_the_decision_too(serving, version, how):
    group, controller = serving
    for held in (False, True):
        after = After.SERVE if held else After.HELD
        for commits in (False, True):
            if how == "lease":
                receipt = controller.begin_lease(version, after=after, request_id="alone").result()
                decide = partial(controller.commit if commits else controller.abort, "alone", wait_s=5)
            else:
                prepared = controller.prepare(version, after=after)
                receipt, decide = prepared.receipt, prepared.commit if commits else prepared.abort
            assert receipt.outcome is Outcome.PREPARED
            assert receipt.version == "1"
            assert (controller.status().hold is not None) is held
            receipt = decide()
            assert (receipt.hold is not None) is (held is not commits)
            assert receipt.version == "1"
            assert (controller.status().hold is not None) is (held is not commits)
    assert_serves(group, controller, 1)
    assert_journals_are_possible(group)


def test_another_owner_prepares_under_a_hold_and_may_not_end_it(serving):
    group, controller = serving
    held = controller.hold(owner="trainer")
    with raising("held-by-another"):
        controller.prepare(2, after=After.SERVE, owner="another")
    with raising("hold-not-in-force"):
        controller.prepare(2, hold="an older one")
    assert controller.prepare(2, hold=held.request_id).commit().hold is not None
    assert_stands(group)


def test_what_is_served_already_needs_no_decision(serving):
    _group, controller = serving
    prepared = controller.prepare(1)
    assert prepared.over
    assert prepared.receipt.outcome is Outcome.ALREADY_SERVED
    assert prepared.commit().outcome is Outcome.ALREADY_SERVED


def test_a_preparation_that_fails_raises_as_an_update_does_and_changes_nothing(serving):
    group, controller = serving
    with pytest.raises(CommandRefusedError, match="no snapshot"):
        controller.prepare(77)
    assert_serves(group, controller, 1)


def test_hot_where_there_is_no_room_falls_back_under_the_same_decision(make_group):
    group = make_group(load=0, available_bytes={"0": 1_000_000})
    group.publish(2)
    controller = group.boot()
    prepared = controller.prepare(2, hot_fallback=HotFallback.IN_PLACE)
    assert prepared.receipt.fallback
    assert not prepared.receipt.hot
    assert prepared.commit().version == "2"


def test_a_coroutine_prepares_and_decides(serving):
    group, controller = serving

    async def decide():
        async with await controller.begin_prepare(2) as left:
            pass
        assert (await left.begin_abort()).outcome is Outcome.ABORTED
        with pytest.raises(ZeroDivisionError):
            async with controller.begin_prepare(2):
                raise ZeroDivisionError
        with raising("lease-over"):
            async with controller.begin_prepare(2, lease_s=0.01) as late:
                await asyncio.to_thread(eventually, lambda: late.over)
        await controller.begin_lease(2, request_id="two")
        await controller.begin_abort("two", wait_s=5)
        async with controller.begin_prepare(2) as prepared:
            assert prepared.receipt.outcome is Outcome.PREPARED
            return await prepared.begin_commit()

    assert asyncio.run(decide()).version == "2"
    assert_serves(group, controller, 2)
    assert_journals_are_possible(group)


def test_to_cancel_an_await_leaves_the_command_under_its_request_id(serving):
    group, controller = serving

    async def cancelled(begin, *arguments, **options):
        group.order(0, "stage", "hold")
        task = asyncio.ensure_future(begin(*arguments, **options))
        await asyncio.to_thread(group.await_held, 0, "stage")
        task.cancel()
        with raising(asyncio.CancelledError):
            await task
        group.revoke(0, "stage")
        eventually(lambda: {rank.code for rank in controller.status().ranks} == {"PREPARED"})

    async def cancel():
        await cancelled(controller.begin_prepare, 2, request_id="mine")
        assert (await controller.begin_abort("mine")).outcome is Outcome.ABORTED
        await cancelled(controller.begin_prepare, 2, request_id="mine")
        assert (await controller.begin_commit("mine")).version == "2"
        assert (await controller.begin_commit("mine", wait_s=5)).version == "2"
        await cancelled(controller.begin_lease, 1, request_id="leased")
        assert (await controller.begin_abort("leased", wait_s=5)).outcome is Outcome.ABORTED

    asyncio.run(cancel())
    assert_serves(group, controller, 2)
    assert_journals_are_possible(group)


@incident("prime-rl#2773")
def test_what_is_given_up_before_all_have_prepared_is_aborted_and_cannot_be_committed(serving):
    group, controller = serving
    group.order(0, "stage", "hold")
    prepared = controller.begin_prepare(2)
    prepared.give_up()
    group.revoke(0, "stage")
    eventually(lambda: prepared.over)
    with raising("decided-otherwise"):
        prepared.commit()
    assert_serves(group, controller, 1)


@pytest.mark.slow
def test_a_rank_that_dies_ends_a_callers_command(serving):
    group, controller = serving
    prepared = controller.prepare(2)
    group.programs[1].kill()
    with pytest.raises(GroupError) as caught:
        prepared.commit()
    assert caught.value.code in {"rank-lost", "epoch-ended"}


@pytest.mark.slow
def test_a_caller_that_dies_between_two_commits_leaves_groups_that_differ_and_each_says_what_it_serves(
    make_group,
):
    groups = [make_group(load=0.5), make_group(load=0.5)]
    for group in groups:
        group.publish(2)
    first, second = (group.boot() for group in groups)
    one, other = ((group.name, str(group.directory)) for group in groups)
    program = Program(PROGRAM, *one, "@".join(other), LONG_S, "between")
    try:
        eventually(program.has_ended)
        assert_serves(groups[0], first, 2)
        assert_serves(groups[1], second, 1)
    finally:
        program.close()
    assert "version 2" in first.status().sentence()
    assert "version 1" in second.status().sentence()
    assert second.update(2).version == "2"


@pytest.mark.slow_but
@pytest.mark.parametrize("how", ["hot", "in place"])
@pytest.mark.parametrize(
    "point",
    ["before command", "after command", "prepared", "before decision", "after decision", "after committed"],
)
def test_a_caller_may_be_killed_at_every_moment(serving, holder, how, point):
    group, controller = serving
    program = holder(how, "obeys" if point == "prepared" else point)
    if point == "prepared":
        program.says("prepared")
        program.kill()
    eventually(program.has_ended)
    committed = point in {"after decision", "after committed"}
    if committed or how == "hot" or point == "before command":
        assert_serves(group, controller, 2 if committed else 1)
    else:
        untouched = {"NORMAL"} if point == "after command" else set()  # by any rank before its death was seen
        eventually(lambda: (now := controller.status()).over and now.state in {"CLEARED", *untouched})
    eventually(lambda: controller.update(2, wait_s=5).version == "2")
    group.await_steps()
    group.assert_steps_are_pure([1, 2])
    assert_journals_are_possible(group)


@pytest.mark.slow
def test_a_stopped_holder_is_named_and_decides_when_it_goes_on(serving, holder):
    group, controller = serving
    program = holder("hot", "obeys", "0.3")
    program.says("prepared")
    program.freeze()
    with pytest.raises(RoleBusyError) as caught:
        group.controller().abort()
    assert caught.value.context["pid"] == program.pid
    eventually(lambda: str(program.pid) in controller.status().sentence())
    assert {rank.code for rank in controller.status().ranks} == {"PREPARED"}
    program.thaw()
    eventually(lambda: {rank.code for rank in controller.status().ranks} == {"DONE_KEPT"})
    program.tell("commit")
    assert program.says("failed")["code"] == "lease-over"  # it was over while the process stood
    assert_serves(group, controller, 1)


@pytest.mark.slow
def test_a_lease_holds_the_decision_while_no_process_does(serving, holder):
    group, controller = serving
    program = holder("lease", "obeys")
    assert program.says("prepared")["outcome"] == "prepared"
    eventually(program.has_ended)
    for command in (controller.clear, lambda: controller.update(2)):
        with pytest.raises(DecisionHeldError) as caught:
            command()
        assert "held" in str(caught.value)
    with raising("not-prepared"):
        controller.commit("another")
    assert_serves(group, controller, 1)
    assert controller.commit("held").version == "2"
    assert controller.commit("held").version == "2"
    with raising("decided-otherwise"):
        controller.abort("held")
    assert_serves(group, controller, 2)
    assert_journals_are_possible(group)


@pytest.mark.slow
def test_a_lease_is_ended_by_the_group_and_a_commit_after_it_is_refused(serving):
    group, controller = serving
    controller.begin_lease(2, lease_s=0.2, request_id="late").result()
    eventually(lambda: {rank.code for rank in controller.status().ranks} == {"DONE_KEPT"})
    with raising("decided-otherwise"):
        controller.commit("late")
    assert_serves(group, controller, 1)
    controller.begin_lease(2, request_id="again").result()
    assert controller.abort().outcome is Outcome.ABORTED
    assert_journals_are_possible(group)


def test_the_role_is_free_while_a_lease_holds(serving):
    group, controller = serving
    controller.begin_lease(2).result()
    segment = Segment.attach(group.name, directory=group.directory)
    try:
        eventually(lambda: ControllerRole(segment).holder() is None)
    finally:
        segment.close()
    controller.abort()
