"""Incidents in which one half of what a rank serves with was missing, or a second version had no room."""

from __future__ import annotations

import pytest
from lone_rank import SPECS

import wsm
from wsm import Outcome
from wsm.controller.errors import CommandRefusedError, RankFailedError
from wsm.states.vocabulary import Tag
from wsm.testing import InMemoryMemory, InMemoryRunner
from wsm.worker.errors import NotServingError

WEIGHTS, KV_CACHE = frozenset({Tag.WEIGHTS}), frozenset({Tag.KV_CACHE})


@pytest.fixture
def rank(make_lone):
    lone = make_lone()
    lone.update(1)
    return lone


def refuses_to_step(rank) -> bool:
    try:
        with rank.worker.step():
            return False
    except NotServingError:
        return True


def held(rank) -> tuple[bool, bool]:
    """Whether there are weights, and a cache: as the engine itself says it."""
    return bool(list(rank.runner.weights.held())), rank.runner.kv_cache.allocated_bytes() > 0


def test_fastdeploy_c2_8_asleep_in_one_half_already_the_other_one_still_goes(rank):
    """There, weights that slept already ended the whole call, and the cache kept its memory."""
    rank.clear(tags=WEIGHTS)
    assert held(rank) == (False, True)
    assert rank.clear().outcome is Outcome.CLEARED
    assert held(rank) == (False, False)
    assert rank.clear(tags=WEIGHTS).outcome is Outcome.ALREADY_CLEARED


@pytest.mark.parametrize("first", [WEIGHTS, KV_CACHE], ids=["weights first", "cache first"])
def test_fastdeploy_c2_8_vllm_45619_and_vllm_omni_4473_nothing_serves_before_both_are_back(rank, first):
    """There, the engine resumed and answered 200 while the weights were still asleep."""
    rank.clear()
    second = KV_CACHE if first is WEIGHTS else WEIGHTS
    rank.update(None if first is KV_CACHE else 2, tags=first)
    assert not rank.controller.status().serving
    assert refuses_to_step(rank)
    assert not rank.runner.requests.admitting
    rank.update(None if second is KV_CACHE else 2, tags=second)
    assert rank.worker.poll() is wsm.SERVE
    with rank.worker.step() as permit:
        assert permit.version == "2"
    assert rank.runner.requests.admitting
    assert held(rank) == (True, True)


def test_vllm_omni_4473_tags_that_are_none_are_refused_before_anything_happens(rank):
    """There, tags were compared by substring, and incomplete ones corrupted what was generated."""
    for tags in (frozenset(), frozenset({"weight"}), "weights"):
        with pytest.raises(wsm.errors.BadInputError):
            rank.controller.clear(tags=tags)
    assert rank.controller.status().sequence == 1
    assert rank.worker.poll() is wsm.SERVE


class TightMemory(InMemoryMemory):
    """An engine's memory with no room for a second version."""

    shared_by_ranks = False

    def available_bytes(self) -> int:
        return 1


def test_vllm_15254_verl_302_and_sglang_14092_a_second_version_is_admitted_by_a_plan_of_memory(make_lone):
    """There, the second copy was allocated until the memory ran out, in the middle of an update."""
    runner = InMemoryRunner(SPECS)
    runner.memory = TightMemory(runner)
    rank = make_lone(runner=runner)
    rank.update(1)
    before = {name: bytes(runner.weights.readable(name)) for name in runner.weights.held()}
    with pytest.raises(CommandRefusedError, match="bytes"):
        rank.update(2, hot=True)
    assert {name: bytes(runner.weights.readable(name)) for name in runner.weights.held()} == before
    assert rank.worker.poll() is wsm.SERVE
    assert rank.controller.status().version == "1"


def test_sglang_14092_a_staging_that_fails_gives_its_memory_back_and_nothing_stops(make_lone):
    failing = iter([False, True, False])

    def load(context, target):
        from lone_rank import load as whole  # noqa: PLC0415 - the honest one, by its own name

        if next(failing):
            target.writable("weight")[:1] = b"x"
            raise OSError("the source ended")
        return whole(context, target)

    rank = make_lone(load=load)
    rank.update(1)
    before = rank.runner.memory.resident_bytes()
    with pytest.raises(RankFailedError, match="the source ended"):
        rank.update(2, hot=True)
    assert rank.runner.memory.resident_bytes() == before
    with rank.worker.step() as permit:
        assert permit.version == "1"
    assert rank.update(3, hot=True).version == "3"
