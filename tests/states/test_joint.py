"""Weights and KV cache together: what may stand side by side, and what history keeps apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from tests.incident import incident
from wsm.errors import BadInputError
from wsm.states import command_events
from wsm.states.command_events import Course
from wsm.states.errors import IllegalTransitionError, JointRuleError
from wsm.states.joint import START, JointState, serving
from wsm.states.machine import LifeCycle
from wsm.states.vocabulary import KVEvent, KVState, WeightEvent, WeightState

# In this test's own words: what the KV cache can be (columns) while the weights are (rows).
PAIRS = """
| weights  | NORMAL | CLEARING | CLEARED   | UPDATING |
| -------- | ------ | -------- | --------- | -------- |
| NORMAL   | serves | yes      | yes       | yes      |
| CLEARING | yes    | yes      | yes       | yes      |
| CLEARED  | yes    | yes      | yes       | yes      |
| UPDATING | yes    | yes      | yes       | yes      |
| PREPARED | yes    | never    | yes       | never    |
| FAULTED  | yes    | yes      | yes       | yes      |
"""


def pairs() -> dict[tuple[str, str], str]:
    heading, _rule, *lines = (
        [cell.strip() for cell in line.strip("| ").split("|")] for line in PAIRS.strip().splitlines()
    )
    return {
        (weights, kv): cell for weights, *cells in lines for kv, cell in zip(heading[1:], cells, strict=True)
    }


def bring_to_serving(fire: Callable[..., object]) -> None:
    fire(WeightEvent.UPDATE)
    fire(KVEvent.UPDATE)
    fire(KVEvent.REBUILT)
    fire(WeightEvent.PREPARED)
    fire(WeightEvent.COMMIT)


def test_exactly_the_allowed_pairs_can_be_reached(ways: Mapping[JointState, object]) -> None:
    reached = {(joint.weights.name, joint.kv.name) for joint in ways}
    assert reached == {pair for pair, cell in pairs().items() if cell != "never"}


@incident("vllm#45619")
def test_only_both_normal_serves() -> None:
    serves = {(weights.name, kv.name) for weights in WeightState for kv in KVState if serving(weights, kv)}
    assert serves == {pair for pair, cell in pairs().items() if cell == "serves"}


def test_weights_that_come_back_alone_are_prepared_and_committed_and_do_not_serve(
    life: LifeCycle, fire: Callable[..., object]
) -> None:
    fire(WeightEvent.UPDATE)
    fire(WeightEvent.PREPARED)
    fire(WeightEvent.COMMIT)
    assert life.joint == JointState(WeightState.NORMAL, KVState.CLEARED)
    assert not life.serving
    fire(KVEvent.UPDATE)
    assert not life.serving
    fire(KVEvent.REBUILT)
    assert life.serving


def test_a_cache_that_comes_back_alone_waits_for_weights(
    life: LifeCycle, fire: Callable[..., object]
) -> None:
    fire(KVEvent.UPDATE)
    fire(KVEvent.REBUILT)
    assert life.joint == JointState(WeightState.CLEARED, KVState.NORMAL)
    assert not life.serving
    fire(WeightEvent.UPDATE)
    fire(WeightEvent.PREPARED)
    fire(WeightEvent.COMMIT)
    assert life.serving


def test_either_half_goes_alone_and_the_other_stays(life: LifeCycle, fire: Callable[..., object]) -> None:
    bring_to_serving(fire)
    fire(KVEvent.CLEAR)
    assert not life.serving
    fire(KVEvent.CLEARED)
    assert life.joint == JointState(WeightState.NORMAL, KVState.CLEARED)
    fire(KVEvent.UPDATE)
    fire(KVEvent.REBUILT)
    fire(WeightEvent.CLEAR)
    assert not life.serving
    fire(WeightEvent.CLEARED)
    assert life.joint == JointState(WeightState.CLEARED, KVState.NORMAL)


def test_a_cache_that_outlived_its_weights_is_stale_for_the_next_ones(
    life: LifeCycle, fire: Callable[..., object]
) -> None:
    bring_to_serving(fire)
    fire(WeightEvent.CLEAR)
    fire(WeightEvent.CLEARED)
    fire(WeightEvent.UPDATE, kv_kept=False)
    with pytest.raises(JointRuleError, match="computed by the weights that are replaced"):
        fire(WeightEvent.PREPARED)


def test_weights_at_rest_fail_only_with_a_cache_that_is_being_released(
    life: LifeCycle, fire: Callable[..., object]
) -> None:
    for bring in (lambda: None, lambda: bring_to_serving(fire)):
        bring()
        with pytest.raises(JointRuleError, match="weights that are at rest"):
            fire(WeightEvent.FAIL)
    fire(KVEvent.CLEAR)
    fire(WeightEvent.FAIL)
    assert life.weights is WeightState.FAULTED


@incident("FastDeploy C2-22")
def test_nothing_is_called_cleared_while_the_cache_still_holds_memory(
    life: LifeCycle, fire: Callable[..., object]
) -> None:
    bring_to_serving(fire)
    fire(WeightEvent.CLEAR)
    fire(KVEvent.CLEAR)
    with pytest.raises(JointRuleError, match="free, and the KV cache is still at work"):
        fire(WeightEvent.CLEARED)
    assert life.weights is WeightState.CLEARING
    fire(KVEvent.CLEARED)
    fire(WeightEvent.CLEARED)
    assert life.joint == START


def test_a_rank_is_not_prepared_while_its_cache_is_at_work(
    life: LifeCycle, fire: Callable[..., object]
) -> None:
    fire(WeightEvent.UPDATE)
    fire(KVEvent.UPDATE)
    with pytest.raises(JointRuleError, match="PREPARED rank, and the KV cache is still at work"):
        fire(WeightEvent.PREPARED)
    assert not life.can(WeightEvent.PREPARED)
    fire(KVEvent.REBUILT)
    fire(WeightEvent.PREPARED)
    assert life.weights is WeightState.PREPARED
    assert not life.serving


def test_blocks_of_the_old_weights_never_meet_the_new_ones(
    life: LifeCycle, fire: Callable[..., object]
) -> None:
    bring_to_serving(fire)
    fire(WeightEvent.UPDATE, kv_kept=False)
    with pytest.raises(JointRuleError, match="computed by the weights that are replaced"):
        fire(WeightEvent.PREPARED)
    fire(KVEvent.UPDATE)
    fire(KVEvent.REBUILT)
    fire(WeightEvent.PREPARED)
    fire(WeightEvent.COMMIT)
    assert life.serving


def test_blocks_that_the_policy_keeps_stay_valid(life: LifeCycle, fire: Callable[..., object]) -> None:
    bring_to_serving(fire)
    fire(WeightEvent.UPDATE, kv_kept=True)
    fire(WeightEvent.PREPARED)
    fire(WeightEvent.COMMIT)
    assert life.serving


def test_blocks_are_whole_again_when_the_old_weights_are_kept(
    life: LifeCycle, fire: Callable[..., object]
) -> None:
    bring_to_serving(fire)
    fire(WeightEvent.UPDATE, kv_kept=False)
    assert life.joint.kv_stale
    fire(WeightEvent.ABORT, kept=True)
    assert life.serving
    assert not life.joint.kv_stale


def test_a_rank_that_held_nothing_cannot_keep_it(life: LifeCycle, fire: Callable[..., object]) -> None:
    fire(WeightEvent.UPDATE)
    with pytest.raises(JointRuleError, match="without a version to go back to"):
        fire(WeightEvent.ABORT, kept=True)
    fire(WeightEvent.ABORT, kept=False)
    assert life.weights is WeightState.CLEARING


def test_what_was_kept_through_prepared_is_remembered(life: LifeCycle, fire: Callable[..., object]) -> None:
    bring_to_serving(fire)
    fire(WeightEvent.UPDATE)
    fire(WeightEvent.PREPARED)
    fire(WeightEvent.ABORT, kept=True)
    assert life.serving


def test_kept_waits_for_a_cache_that_is_still_at_work(life: LifeCycle, fire: Callable[..., object]) -> None:
    bring_to_serving(fire)
    fire(WeightEvent.UPDATE)
    fire(KVEvent.UPDATE)
    with pytest.raises(JointRuleError, match="still at work"):
        fire(WeightEvent.ABORT, kept=True)
    fire(KVEvent.REBUILT)
    fire(WeightEvent.ABORT, kept=True)
    assert life.serving


def test_no_cache_is_built_beside_a_teardown(life: LifeCycle, fire: Callable[..., object]) -> None:
    bring_to_serving(fire)
    fire(WeightEvent.CLEAR)
    with pytest.raises(JointRuleError, match="never beside a teardown"):
        fire(KVEvent.UPDATE)
    assert life.kv is KVState.NORMAL


def test_nothing_but_a_decision_takes_the_cache_from_a_prepared_rank(
    life: LifeCycle, fire: Callable[..., object]
) -> None:
    bring_to_serving(fire)
    fire(WeightEvent.UPDATE)
    fire(WeightEvent.PREPARED)
    taken = {event for event in KVEvent if life.can(event)}
    assert taken == set()


def test_a_refusal_says_where_everything_is_and_what_would_be_legal(life: LifeCycle) -> None:
    with pytest.raises(IllegalTransitionError) as refused:
        life.fire(WeightEvent.COMMIT, at_ns=1, epoch=1, sequence=1)
    assert refused.value.context == {
        "machine": "weights",
        "state": "CLEARED",
        "event": "commit",
        "legal": ("clear", "update", "fail", "abort", "lost"),
    }
    assert str(refused.value) == (
        "'commit' is refused while weights is CLEARED; legal there: clear, update, fail, abort, lost"
    )


@pytest.mark.parametrize("flag", ["kept", "kv_kept"])
@pytest.mark.parametrize("value", [1, 0, "yes", None, [True]])
def test_a_flag_that_is_not_a_bool_is_bad_input_and_changes_nothing(
    life: LifeCycle, fire: Callable[..., object], flag: str, value: object
) -> None:
    with pytest.raises(BadInputError, match=f"{flag} must be True or False"):
        fire(WeightEvent.UPDATE, **{flag: value})
    assert life.joint == START


def test_a_new_epoch_is_refused_while_anything_is_held_and_follows_a_teardown(
    ways: Mapping[JointState, object], brought_to: Callable[[JointState], LifeCycle]
) -> None:
    for joint in ways:
        life = brought_to(joint)
        if joint != START:
            for event in (KVEvent.LOST, WeightEvent.LOST):
                with pytest.raises(IllegalTransitionError):
                    life.fire(event, at_ns=9, epoch=2, sequence=0)
            assert life.joint == joint
            for event, _ in Course.led(joint, command_events.leave, command_events.freed).fired:
                life.fire(event, at_ns=9, epoch=2, sequence=0)
        kv, weights = (
            life.fire(event, at_ns=9, epoch=2, sequence=0) for event in (KVEvent.LOST, WeightEvent.LOST)
        )
        assert life.joint == START
        assert (kv.machine, kv.source, kv.dest) == ("kv", "CLEARED", "CLEARED")
        assert (weights.machine, weights.source, weights.dest) == ("weights", "CLEARED", "CLEARED")
