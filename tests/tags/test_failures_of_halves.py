"""Commands about one half that fail: what was held is held again, or nothing is; never something else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from living_group import LivingGroup, eventually
from lone_rank import LoneRank, load

import wsm
from tests.incident import incident
from tests.raising import raising
from wsm import KVPolicy, Outcome, Tag
from wsm.command import CommandArguments, CommandArgumentsError
from wsm.controller.errors import CommandRefusedError, MixedGroupError, RankFailedError
from wsm.journal.replay import replay
from wsm.states import command_events
from wsm.states.phases import Event
from wsm.states.vocabulary import WeightState

W, K = frozenset({Tag.WEIGHTS}), frozenset({Tag.KV_CACHE})


def states(controller: wsm.Controller) -> set[tuple[str, str]]:
    return {(rank.weights, rank.kv) for rank in controller.status().ranks}


def fails(*_arguments: object) -> None:
    raise OSError("bad luck")


@pytest.fixture
def lone(make_lone: Callable[..., LoneRank]) -> LoneRank:
    """A rank whose loads can be made to fail, before the first byte or after it."""

    def may_fail(context, target):
        if context.version == "404":
            raise OSError("there is no such version")
        facts = load(context, target)
        if context.version == "13":
            raise OSError("the source went away")
        return facts

    rank = make_lone(load=may_fail)
    rank.update(1)
    return rank


def test_a_load_that_is_refused_leaves_the_kv_cache_that_was_there(lone: LoneRank) -> None:
    lone.clear(tags=W)
    cache = lone.runner.kv_cache
    with pytest.raises(RankFailedError):
        lone.update(404)
    assert states(lone.controller) == {("CLEARED", "NORMAL")}
    assert cache.allocated_bytes()
    assert not list(lone.runner.weights.held())
    assert lone.update(2, tags=W).missing == ()


def test_a_load_that_fails_half_way_leaves_nothing(lone: LoneRank) -> None:
    lone.clear(tags=W)
    with pytest.raises(RankFailedError):
        lone.update(13, tags=W)
    assert states(lone.controller) == {("CLEARED", "CLEARED")}
    assert not lone.runner.kv_cache.allocated_bytes()


def test_a_refused_load_over_weights_that_are_held_leaves_them_and_the_missing_cache(lone: LoneRank) -> None:
    lone.clear(tags=K)
    with pytest.raises(RankFailedError):
        lone.update(404)
    assert states(lone.controller) == {("NORMAL", "CLEARED")}
    assert lone.worker.version == "1"
    assert lone.update(None, tags=K).version == "1"


def test_a_rebuild_that_fails_leaves_the_weights_and_no_cache(lone: LoneRank) -> None:
    lone.clear(tags=K)
    lone.runner.kv_cache.rebuild = fails
    with pytest.raises(RankFailedError, match="rebuild_kv_cache"):
        lone.update(None, tags=K)
    assert states(lone.controller) == {("NORMAL", "CLEARED")}
    assert lone.worker.poll() is wsm.HOLD
    assert replay(lone.worker.journal).impossible is None


@pytest.mark.parametrize("beside", [frozenset(), W], ids=["with weights", "without weights"])
def test_a_cache_that_cannot_be_released_is_a_fault_until_all_is_cleared(
    lone: LoneRank, beside: frozenset[Tag]
) -> None:
    if beside:
        lone.clear(tags=beside)
    release, lone.runner.kv_cache.release = lone.runner.kv_cache.release, fails
    with pytest.raises(RankFailedError, match="release_kv_cache"):
        lone.clear(tags=K)
    assert {weights for weights, _ in states(lone.controller)} == {"FAULTED"}
    lone.runner.kv_cache.release = release
    with pytest.raises(MixedGroupError, match="weights and KV cache together"):
        lone.clear(tags=K)
    assert lone.clear().outcome is Outcome.CLEARED
    assert states(lone.controller) == {("CLEARED", "CLEARED")}
    assert replay(lone.worker.journal).impossible is None


def test_a_release_that_freed_nothing_is_no_clear_of_the_cache(lone: LoneRank) -> None:
    lone.runner.kv_cache.release = lambda: 0
    with pytest.raises(RankFailedError, match="0 bytes of KV cache"):
        lone.clear(tags=K)
    assert {weights for weights, _ in states(lone.controller)} == {"FAULTED"}


@incident("lmdeploy#4917")
def test_a_policy_for_blocks_that_do_not_stay_is_refused(lone: LoneRank) -> None:
    for tags in (K, wsm.ALL_TAGS):
        with pytest.raises(CommandRefusedError, match="KV policy 'keep'"):
            lone.clear(tags=tags, kv_policy=KVPolicy.KEEP)
    assert lone.controller.status().serving


@pytest.mark.parametrize(
    "arguments",
    [{"version": 2, "tags": K}, {"force": True, "tags": K}, {"version": 2, "tags": W, "hot": True}],
)
def test_tags_that_contradict_another_argument_are_refused(lone: LoneRank, arguments: dict) -> None:
    sequence = lone.controller.status().sequence
    with raising("tags-contradict"):
        lone.controller.update(**arguments)
    assert lone.controller.status().sequence == sequence


@incident("vllm-omni#4473")
@pytest.mark.parametrize("tags", ['"weights"', "[]", '["weight"]', "null", "7"])
def test_a_rank_checks_tags_on_arrival(tags: str) -> None:
    good = CommandArguments("r", tags=W).to_bytes()
    assert CommandArguments.from_bytes(good).tags == W
    with pytest.raises(CommandArgumentsError):
        CommandArguments.from_bytes(good.replace(b'["weights"]', tags.encode()))


def test_ranks_fail_and_keep_their_half_together(make_group: Callable[..., LivingGroup]) -> None:
    group = make_group(load=0.3)
    controller = group.boot()
    controller.clear(tags=W)
    group.order(1, "write", "raise once")
    with pytest.raises(RankFailedError):
        controller.update(1)
    assert states(controller) == {("CLEARED", "CLEARED")}
    controller.update(1)
    controller.clear(tags=K)
    group.order(0, "rebuild", "raise once")
    with pytest.raises(RankFailedError):
        controller.update(1)
    assert states(controller) == {("NORMAL", "CLEARED")}
    assert controller.update(1).loaded is False
    group.publish(2)
    controller.clear(tags=W)
    with pytest.raises(CommandRefusedError, match="no snapshot found"):
        controller.update(404)
    assert states(controller) == {("CLEARED", "NORMAL")}
    assert controller.update(2).missing == ()
    group.await_steps()
    group.stop()
    group.assert_steps_are_pure([2])
    group.assert_journals_are_possible()


@pytest.mark.slow_but
@pytest.mark.parametrize("tags", [W, K], ids=["weights", "KV cache"])
def test_a_clear_of_one_half_that_fails_where_another_rank_is_done_ends_with_that_half_gone_everywhere(
    make_group: Callable[..., LivingGroup], tags: frozenset[Tag]
) -> None:
    group = make_group(load=0.3)
    controller = group.boot()
    release = "release" if tags == W else "release_kv"
    group.order(1, "settle", "hold")
    clear = controller.begin_clear(tags=tags)
    group.await_held(1, "settle")
    eventually(lambda: group.codes()[0] == "DONE_CLEARED", "rank 0 is done")
    group.order(1, release, "raise once")
    group.revoke(1, "settle")
    with pytest.raises(RankFailedError, match=release):
        clear.result()
    assert states(controller) == {("CLEARED", "NORMAL") if tags == W else ("NORMAL", "CLEARED")}
    assert controller.clear(tags=tags).outcome is Outcome.ALREADY_CLEARED
    assert controller.update(1).missing == ()
    group.await_steps()
    group.stop()
    group.assert_steps_are_pure([1])
    group.assert_journals_are_possible()


@pytest.mark.slow_but("KV cache")
@pytest.mark.parametrize("tags", [W, K], ids=["weights", "KV cache"])
def test_a_half_that_cannot_be_given_back_is_a_fault_of_that_rank_alone(
    make_group: Callable[..., LivingGroup], tags: frozenset[Tag]
) -> None:
    group = make_group(load=0.3)
    controller = group.boot()
    release = "release" if tags == W else "release_kv"
    group.order(1, release, "raise")
    with pytest.raises(RankFailedError, match=release):
        controller.clear(tags=tags)
    gone = ("CLEARED", "NORMAL") if tags == W else ("NORMAL", "CLEARED")
    first, second = controller.status().ranks
    assert (first.weights, first.kv) == gone
    assert second.weights == "FAULTED"
    with pytest.raises(MixedGroupError):
        controller.update(1)
    group.revoke(1, release)
    controller.clear()
    assert states(controller) == {("CLEARED", "CLEARED")}
    controller.update(1)
    group.await_steps()
    group.stop()
    group.assert_steps_are_pure([1])
    group.assert_journals_are_possible()


@pytest.mark.parametrize("tags", [W, K], ids=["weights", "KV cache"])
def test_a_half_whose_release_failed_once_is_gone_and_the_other_one_stays(
    lone: LoneRank, tags: frozenset[Tag]
) -> None:
    part = lone.runner.weights if tags == W else lone.runner.kv_cache
    release = part.release

    def fails_once() -> int:
        part.release = release
        raise OSError("bad luck")

    part.release = fails_once
    with pytest.raises(RankFailedError, match="bad luck"):
        lone.clear(tags=tags)
    assert bool(list(lone.runner.weights.held())) is (tags == K)
    assert bool(lone.runner.kv_cache.allocated_bytes()) is (tags == W)
    assert lone.worker.version == ("1" if tags == K else None)
    assert lone.update(1).loaded is (tags == W)
    assert replay(lone.worker.journal).impossible is None


@pytest.mark.parametrize("away", [frozenset(), W, K], ids=["both held", "no weights", "no KV cache"])
def test_a_rank_that_cannot_know_which_half_the_others_gave_back_serves_nothing(
    lone: LoneRank, away: frozenset[Tag]
) -> None:
    """It had not begun, and the arguments cannot be read: either half that it kept might be another one's."""
    if away:
        lone.clear(tags=away)
    loop = lone.worker._loop
    unread = replace(loop.state, sequence=loop.state.done + 1)
    assert loop.reader.ending(unread).end(command_events.drop, Event.CLEARED) is Event.FAULTED
    assert lone.worker.weights is WeightState.FAULTED
    lone.clear()
    assert states(lone.controller) == {("CLEARED", "CLEARED")}
    assert replay(lone.worker.journal).impossible is None
