"""Incidents in which weights or KV cache slept or woke alone, and the engine behaved as if both had."""

from __future__ import annotations

import pytest

import wsm
from wsm import Outcome, Tag
from wsm.config import EngineWordsConfig
from wsm.controller.errors import RankFailedError
from wsm.signals.fastdeploy import EngineWordKind
from wsm.worker.errors import NotServingError

W, K = frozenset({Tag.WEIGHTS}), frozenset({Tag.KV_CACHE})
NORMAL, UPDATING, CLEARING, CLEARED = 0, 1, -1, -2


def states(group) -> set[tuple[str, str]]:
    return {(rank.weights, rank.kv) for rank in group.controller.status().ranks}


@pytest.mark.processes
@pytest.mark.parametrize("asleep", [W, K], ids=["weights asleep", "cache asleep"])
def test_fastdeploy_c2_8_putting_both_to_sleep_does_not_skip_the_half_that_is_awake(served, asleep):
    """There, the early return for weights that sleep already skipped the KV cache."""
    served.controller.clear(tags=asleep)
    assert served.controller.clear().outcome is Outcome.CLEARED
    assert states(served) == {("CLEARED", "CLEARED")}


@pytest.mark.processes
@pytest.mark.parametrize("asleep", [W, K], ids=["weights asleep", "cache asleep"])
def test_fastdeploy_c2_8_waking_both_brings_what_sleeps_before_anybody_is_told_that_all_is_well(
    served, asleep
):
    """There, it returned before the weights were loaded, resumed the engine, and answered 200."""
    served.controller.clear(tags=asleep)
    receipt = served.controller.update(served.newest)
    assert (receipt.outcome, receipt.missing, receipt.loaded) == (Outcome.UPDATED, (), asleep == W)
    assert states(served) == {("NORMAL", "NORMAL")}
    served.group.await_steps(5)


@pytest.mark.processes
@pytest.mark.parametrize("asleep", [W, K], ids=["weights asleep", "cache asleep"])
@pytest.mark.needs("libatomic")
def test_fastdeploy_c2_9_and_vllm_omni_4473_half_an_engine_looks_asleep_and_takes_no_step(served, asleep):
    """There, /health stayed at 200 while a half slept, and a half that woke resumed the engine."""
    config = EngineWordsConfig(suffixes=(1,))
    with served.engine_words(kinds=(EngineWordKind.WEIGHTS, EngineWordKind.KV_CACHE)) as words:
        controller, bridge = served.group.controller(engine_words=config), served.bridge()
        weights, cache = words[EngineWordKind.WEIGHTS, 1], words[EngineWordKind.KV_CACHE, 1]
        controller.clear(tags=asleep)
        bridge.turn()
        assert weights.read() == CLEARED
        assert cache.read() == (CLEARED if asleep == K else NORMAL)
        assert served.refuses_to_step(0) == NotServingError.__name__
        weights.store(UPDATING)  # an engine that knows no halves wakes what it finds asleep
        bridge.turn()
        assert (weights.read(), cache.read()) == (NORMAL, NORMAL)
        bridge.close()
    assert states(served) == {("NORMAL", "NORMAL")}


def test_fastdeploy_c2_10_waking_alone_is_verified_like_any_other_load(make_lone):
    def load_wrongly(context, target):
        for name in target.specs():
            target.writable(name)[:] = bytes(target.specs()[name].nbytes)
        facts = {"version": context.version, "manifest_digest": "m", "manifest_scope": "group"}
        return {**facts, "digest": "not what lies there", "bytes": 1, "tensors": 1}

    lone = make_lone(load=load_wrongly)
    with pytest.raises(RankFailedError, match="verify_loaded"):
        lone.update(1, tags=W)
    assert lone.controller.status().state == "CLEARED"
    assert lone.worker.poll() is wsm.HOLD


def test_fastdeploy_c2_22_a_half_is_called_cleared_when_its_memory_is_free_and_not_before(strict, engine):
    for tags, release in ((K, "kv.release"), (W, "deepep.clear")):
        seen = {}
        engine.calls.watch = lambda call, seen=seen: seen.setdefault(
            call, strict.controller.status().ranks[0]
        )
        strict.clear(tags=tags)
        engine.calls.watch = lambda _call: None
        during = seen[release]
        assert (during.kv if tags == K else during.weights) == "CLEARING"
        assert strict.controller.status().missing == tags
        strict.update(1)


def test_fastdeploy_c2_26_an_update_of_sleeping_weights_loads_them_into_memory_of_their_own(strict, engine):
    """There, nothing told apart whether the tensors had memory: set_value raised on cleared ones."""
    strict.clear(tags=W)
    assert not any(engine.groups.alive(kind) for kind in engine.groups.kinds())
    assert strict.update(2, tags=W).loaded
    assert all(engine.groups.alive(kind) for kind in engine.groups.kinds())
    assert strict.worker.version == "2"


def test_vllm_45619_graphs_stand_on_both_halves_and_come_back_with_the_second_one(strict, engine):
    for tags in (W, K):
        engine.calls.clear()
        strict.clear(tags=tags)
        assert [call for call in engine.calls if "graphs" in call] == ["graphs.drop", "mtp.graphs.drop"]
        engine.calls.clear()
        strict.clear()
        strict.update(1 if tags == K else None, tags=wsm.ALL_TAGS - tags)
        assert not [call for call in engine.calls if "graphs" in call]
        strict.update(None if tags == K else 1, tags=tags)
        assert [call for call in engine.calls if "graphs" in call] == [
            "graphs.capture",
            "mtp.graphs.capture",
        ]
        assert strict.controller.status().serving
