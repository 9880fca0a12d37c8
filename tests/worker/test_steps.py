"""Steps are opened by poll() alone, end with their block, and break for good when they raise."""

from __future__ import annotations

import pytest
from living_group import eventually

from tests.incident import incident
from tests.raising import raising
from wsm import HOLD, SERVE
from wsm.controller.errors import CommandRefusedError, RankFailedError
from wsm.errors import RefusedError
from wsm.states.words import MAX_STEP, StepKind, StepWord
from wsm.strategies.tensor import TensorSpec
from wsm.testing import ControllerDied, InMemoryRunner, LocalGroup
from wsm.worker.errors import NotServingError


def step_word(lone) -> StepWord:
    return StepWord.unpack(lone.segment.words[lone.segment.layout.step[0]])


def take(worker) -> None:
    with worker.step():
        pass


def test_a_step_carries_the_committed_version_and_a_number_that_grows_by_one(lone):
    seen = []
    for _ in range(3):
        assert lone.worker.poll() is SERVE
        with lone.worker.step() as permit:
            permit.check()
            seen.append((permit.step, permit.version, step_word(lone).step))
    assert seen == [(1, "1", 1), (2, "1", 2), (3, "1", 3)]
    lone.update(2)
    with lone.worker.step() as permit:
        assert (permit.step, permit.version) == (4, "2")


@pytest.mark.processes
def test_ranks_step_park_and_update_together_over_the_end_of_the_numbers_in_their_words(make_group):
    """A word has the number of a step modulo 2**27: two weeks of steps of ten milliseconds."""
    group = make_group(steps_before=MAX_STEP - 60, load=1)
    with group.boot() as controller:
        for version in range(2, 6):
            group.publish(version)
            controller.update(version, hot=version % 2 == 0)
            group.await_steps(30)
        assert max(rank.step for rank in controller.status().ranks) < MAX_STEP // 2
    group.stop()
    group.assert_steps_are_pure(range(1, 6))
    assert group.steps_of(0)[-1][0] > MAX_STEP + 1
    group.assert_journals_are_possible()


@incident("miles#1724")
def test_no_step_begins_on_a_rank_that_was_never_loaded(make_lone):
    lone = make_lone()
    assert lone.worker.poll() is HOLD
    with pytest.raises(NotServingError, match="weights CLEARED"):
        take(lone.worker)


@incident("FastDeploy#5433")
def test_no_step_begins_on_a_cleared_rank(lone):
    lone.clear()
    assert lone.worker.poll() is HOLD
    with pytest.raises(NotServingError, match="weights CLEARED"):
        take(lone.worker)


@pytest.mark.processes
def test_no_step_begins_while_the_rank_stands_for_a_command(group):
    """A rank that stood, and then stepped without being told to join, would leave the others behind."""
    with group.boot() as controller:
        group.programs[1].freeze()
        pending = controller.begin_update(1, force=True)
        eventually(lambda: controller.status().ranks[0].code == "PARKING")
        group.programs[0].tell("step")
        assert group.programs[0].says("no step")["error"] == "NotServingError"
        group.programs[1].thaw()
        pending.result()
    group.stop()
    assert group.steps_of(0) == []


def test_one_poll_that_allows_a_step_allows_one_step_outside_the_quiet_path(lone):
    """After HOLD nothing is allowed, whatever an earlier poll said."""
    pending = lone.controller.begin_update(2)
    while lone.worker.poll() is SERVE:
        pass
    with pytest.raises(NotServingError):
        take(lone.worker)
    lone.run(pending)


def test_the_permit_of_a_step_that_has_ended_opens_nothing(lone):
    lone.worker.poll()
    with lone.worker.step() as permit:
        pass
    with pytest.raises(RefusedError, match="of step 1 on rank 0 has ended"):
        permit.check()


def test_a_poll_inside_a_step_carries_out_no_command_and_the_next_one_does(lone):
    """An engine whose execute() pumps its event loop computed half a step with version 2 as version 1."""
    assert lone.worker.poll() is SERVE
    with lone.worker.step() as permit:
        pending = lone.controller.begin_update(2)
        assert pending.written(30)
        assert lone.worker.wait(30)
        before = step_word(lone)
        for _ in range(50):
            with raising("step-open", match="inside step 1"):
                lone.worker.poll(block=True)
        permit.check()
        assert (lone.worker.version, permit.version, step_word(lone)) == ("1", "1", before)
    lone.run(pending)
    assert lone.worker.version == pending.result().version == "2"


def test_a_step_inside_a_step_is_refused_and_the_outer_one_goes_on(lone):
    """One iteration had two numbers, and the other ranks waited in a step that there was not."""
    lone.worker.poll()
    with lone.worker.step() as permit:
        before = step_word(lone)
        with pytest.raises(NotServingError, match="step 1 is open"):
            take(lone.worker)
        permit.check()
        assert step_word(lone) == before
    lone.worker.poll()
    with lone.worker.step() as permit:
        assert permit.step == 2


def test_a_step_that_raises_breaks_the_rank_for_the_rest_of_the_epoch(lone, caplog):
    lone.worker.poll()
    with pytest.raises(ZeroDivisionError), lone.worker.step() as permit:
        _ = 1 // 0
    with pytest.raises(RefusedError, match="has ended"):
        permit.check()
    assert step_word(lone).kind is StepKind.BROKEN
    (told,) = [message for message in caplog.messages if message.startswith("step.broken")]
    assert "error=ZeroDivisionError" in told
    assert f"{__file__}:" in told, "where it raised"
    assert lone.worker.poll() is HOLD
    with pytest.raises(NotServingError, match="step 1 raised"):
        take(lone.worker)
    pending = lone.controller.begin_clear()
    lone.run(pending)
    with pytest.raises(CommandRefusedError, match="step 1 raised on rank 0") as caught:
        pending.result()
    assert caught.value.error == "step-broken"
    assert step_word(lone).kind is StepKind.BROKEN
    assert lone.controller.status().serving is False
    assert lone.worker.version == "1"


@pytest.mark.processes
def test_nobody_begins_a_step_beside_a_broken_rank_and_no_command_is_accepted(make_group):
    group = make_group(load=0.3)
    with group.boot() as controller:
        group.await_steps(5)
        group.order(1, "step", "raise once")
        assert group.programs[1].says("no step")["error"] == "OSError"
        then, broken = controller.status().ranks
        assert broken.step_kind == "broken"
        with pytest.raises(CommandRefusedError, match="restart the group") as caught:
            controller.update(1, force=True)
        assert caught.value.rank == 1
        other, broken_still = [rank.step for rank in controller.status().ranks]
        assert broken_still == broken.step
        # It may have looked just before the word said so, and entered that one step just after.
        assert other in (then.step, then.step + 1), "a step was begun beside the broken rank"
        assert controller.status().serving is False


@pytest.mark.parametrize(("follow", "then"), [(True, HOLD), (False, SERVE)])
def test_every_poll_of_a_rank_that_follows_its_peers_sees_a_broken_one(tmp_path, follow, then):
    """Where schedulers decide alike the quiet path reads one word; the rank sees it when it looks again."""
    spec = TensorSpec("w", "F32", (4,))
    with LocalGroup(lambda _: InMemoryRunner([spec]), tmp_path, configuration={"follow": follow}) as group:
        group.update(1)
        group.step()
        other, breaking = group.workers
        assert (other.poll(), breaking.poll()) == (SERVE, SERVE)
        with other.step(), pytest.raises(ZeroDivisionError), breaking.step():
            _ = 1 // 0
        assert other.poll() is then
        assert breaking.poll() is HOLD
        with pytest.raises(ControllerDied):
            group.clear(dies_after=1)
        assert {other.poll() for _ in range(3)} == {HOLD}


@pytest.mark.slow_but
@pytest.mark.processes
@pytest.mark.parametrize("stands", [False, True], ids=["before it stands", "while it stands"])
def test_a_rank_that_breaks_in_a_step_that_it_joined_fails_the_command(group, stands):
    """PARKED over BROKEN would let the group accept with a rank that left a step half-way."""
    with group.boot() as controller:
        group.order(0, "before_step" if stands else "step", "hold")
        if not stands:
            group.programs[1].freeze()
        group.programs[0].tell("submit 1")
        group.await_held(0, "before_step" if stands else "step")
        pending = controller.begin_update(1, force=True)
        assert pending.written(30)
        if stands:
            eventually(lambda: controller.status().ranks[1].code == "PARKING")
        group.order(1, "step", "raise once")
        group.programs[1].thaw()
        group.revoke(0, "before_step")
        assert group.programs[1].says("no step")["error"] == "OSError"
        group.revoke(0, "step")
        with pytest.raises(RankFailedError, match="in step") as caught:
            pending.result()
        assert (caught.value.rank, caught.value.action) == (1, "step")
        assert "失败" in caught.value.cause
        assert controller.status().ranks[1].step_kind == "broken"
        assert [rank.weights for rank in controller.status().ranks] == ["NORMAL", "NORMAL"]


def test_a_rank_that_lives_on_sees_by_its_epoch_that_a_peer_was_replaced(tmp_path):
    with LocalGroup(lambda _: InMemoryRunner([TensorSpec("weight", "F32", (4,))]), tmp_path) as group:
        group.update(1)
        before = {worker.epoch for worker in group.workers}
        assert group.step() == "1"
        assert {worker.epoch for worker in group.workers} == before == {1}
        group.replace(1)
        assert {worker.epoch for worker in group.workers} == {2}
        assert group.step() == "1"
