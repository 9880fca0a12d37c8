"""Surfaces are checked when an engine hands them in: one error names all that is missing, first."""

from __future__ import annotations

import pytest
from lone_rank import SPECS, LoneRank

import wsm
from wsm.actions.surfaces import OPTIONAL, completed
from wsm.strategies import MemoryTarget
from wsm.testing import InMemoryRequests, InMemoryRunner


class OlderEngine:
    """Was written when engines had three surfaces, and has work of its own."""

    def __init__(self) -> None:
        self.weights = MemoryTarget(SPECS)
        self.requests = InMemoryRequests()
        self.memory = self
        self.served = 0

    def empty_cache(self) -> None:
        """Nothing is cached."""

    def resident_bytes(self) -> int:
        return 0


def test_one_error_names_each_surface_with_all_its_missing_methods_and_nothing_was_made(tmp_path) -> None:
    runner = InMemoryRunner(SPECS)
    runner.weights = object()
    runner.requests = None
    runner.graphs = runner.kv_cache
    with pytest.raises(wsm.BadInputError) as refused:
        wsm.Worker(wsm.WsmConfig("lone", 1), runner, rank=0, directory=tmp_path)
    assert refused.value.code == "surface-incomplete"
    missing = refused.value.context["missing"]
    assert set(missing) == {"weights", "requests", "graphs"}
    assert {"release", "held", "specs", "writable", "readable"} <= set(missing["weights"])
    assert missing["requests"] == ()
    assert missing["graphs"] == ("drop", "capture", "captured")
    assert "weights lacks" in str(refused.value)
    assert "requests is missing" in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_the_surfaces_of_an_auxiliary_model_are_named_by_its_place(tmp_path) -> None:
    class Draft:
        name = "mtp"
        kv_cache = None
        graphs = object()

    runner = InMemoryRunner(SPECS)
    runner.auxiliaries = [Draft()]
    with pytest.raises(wsm.BadInputError) as refused:
        completed(runner)
    assert set(refused.value.context["missing"]) == {
        "auxiliaries[0]",
        "auxiliaries[0].graphs",
        "auxiliaries[0].kv_cache",
    }


def test_a_kv_cache_process_checks_its_surfaces_too(tmp_path) -> None:
    config = wsm.WsmConfig("lone", 1, kv_cache_process=True)
    with pytest.raises(wsm.BadInputError) as refused:
        wsm.CacheParticipant(config, object(), memory=object(), directory=tmp_path)
    assert set(refused.value.context["missing"]) == {"kv_cache", "memory"}
    assert list(tmp_path.iterdir()) == []


def test_an_engine_that_names_fewer_surfaces_serves_and_keeps_its_own_attributes(tmp_path) -> None:
    engine = OlderEngine()
    rank = LoneRank(tmp_path, runner=engine)
    try:
        assert rank.update(1).version == "1"
        assert rank.worker.poll() is wsm.SERVE
        rank.clear()
        rank.update(2)
        assert rank.worker.version == "2"
    finally:
        rank.close()
    seen = completed(engine)
    seen.served = 3
    assert engine.served == 3
    assert {name: getattr(seen, name) for name in OPTIONAL} == dict(OPTIONAL)


def test_an_engine_that_names_every_surface_is_handed_on_as_it_is() -> None:
    runner = InMemoryRunner(SPECS)
    assert completed(runner) is runner
