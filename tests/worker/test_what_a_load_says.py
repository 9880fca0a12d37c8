"""What a load function says it has loaded must be what was asked, before anybody offers it for commit."""

from __future__ import annotations

import numpy as np
import pytest
from lone_rank import SPECS, LoneRank, load

import wsm
from tests.incident import incident
from wsm.actions.measuring import AddressContract
from wsm.actions.options import PlanOptions
from wsm.controller.errors import RankFailedError
from wsm.strategies.applier.memory_target import MemoryTarget
from wsm.testing import InMemoryRunner


@pytest.mark.parametrize("said", [8, 17, None, "a b", True, -1])
def test_a_load_that_brings_another_version_than_asked_fails_and_nothing_serves(make_lone, said):
    """All ranks could agree on it, and committed word, receipt and tokens would name two versions."""
    lone: LoneRank = make_lone(load=lambda context, target: {**load(context, target), "version": said})
    with pytest.raises(RankFailedError, match=r"version 7 was asked for") as caught:
        lone.update(7)
    assert caught.value.action == "load_weights"
    assert lone.worker.weights.name == "CLEARED"
    assert lone.controller.status().version is None


class AddressedWeights(MemoryTarget):
    """Weights that say where they lie, as parameters whose addresses were captured do."""

    def addresses(self) -> dict[str, int]:
        return {name: id(self._memory[name]) for name in self.held()}


@incident("vllm#48941")
def test_a_load_that_moves_captured_weights_is_not_offered_for_commit(make_lone):
    def rebind(context, target):
        if context.version != "1":
            moved.update(runner.weights._memory)  # kept, so that no id comes again
            runner.weights.release()
        return load(context, target)

    runner, contract, moved = InMemoryRunner(SPECS), AddressContract(), {}
    runner.weights = AddressedWeights(SPECS)
    options = PlanOptions.from_runner(runner, address_contract=contract)
    lone = make_lone(runner=runner, plan_options=options, load=rebind)
    lone.update(1)
    contract.record(runner.weights)
    with pytest.raises(RankFailedError, match="verify_loaded") as caught:
        lone.update(2)
    assert caught.value.error == "storage-moved"
    assert lone.controller.status().state == "CLEARED"


KEYS = ("version", "digest", "manifest_digest", "bytes", "tensors")


@incident("FastDeploy C2-10")
def test_one_error_names_everything_that_a_load_did_not_say(make_lone):
    lone: LoneRank = make_lone(load=lambda context, target: {"version": load(context, target)["version"]})
    with pytest.raises(RankFailedError) as caught:
        lone.update(7)
    assert caught.value.action == "load_weights"
    assert "digest, manifest_digest, bytes, tensors" in str(caught.value)
    assert "wsm.Loaded" in str(caught.value)


@pytest.mark.parametrize("said", [None, {}, "version 7"])
def test_what_is_no_description_of_a_load_is_refused_with_all_its_keys(said):
    with pytest.raises(wsm.BadInputError) as refused:
        wsm.Loaded.of(said)
    assert refused.value.code == "load-incomplete"
    assert refused.value.context["missing"] == KEYS


def test_a_load_may_return_what_it_loaded_as_a_type_with_facts_of_its_own(make_lone):
    def typed(context, target) -> wsm.Loaded:
        said = load(context, target)
        return wsm.Loaded(**said, more={"copies": 2})

    lone = make_lone(load=typed)
    receipt = lone.update(7)
    assert receipt.version == "7"
    assert receipt.ranks[0].facts["copies"] == 2
    assert "adopted_bytes" not in receipt.ranks[0].facts
    said = {"version": "7", "digest": "d", "manifest_digest": "m", "bytes": 1, "tensors": 1, "copies": 2}
    assert wsm.Loaded.of(said).facts() == said


@pytest.mark.slow_but
@pytest.mark.parametrize(
    "said",
    [
        {"bytes": "16"},
        {"tensors": None},
        {"digest": 7},
        {"digest": "d" * 20_000},
        {"files": "all"},
        {"not_loaded": 3},
        {"more": None},
        {"note": {(1, 2): 3}},
        {"note": object()},
        {"note": float("nan")},
        {"bases": 1},
    ],
)
def test_what_a_report_cannot_hold_is_that_load_s_failure_by_name(make_lone, said):
    """It was committed, and the caller's receipt raised TypeError; or each poll() did."""
    lone: LoneRank = make_lone(load=lambda context, target: {**load(context, target), **said})
    with pytest.raises(RankFailedError, match=f"{next(iter(said))!r}: ") as caught:
        lone.update(7)
    assert (caught.value.action, caught.value.context["error"]) == ("load_weights", "bad-fact")
    assert lone.worker.poll() is not None


def test_numbers_of_numpy_are_numbers_in_a_receipt(make_lone):
    numbers = {
        "bytes": np.int64(16),
        "load_s": np.float32(0.5),
        "more": {"ok": np.True_, "of": (1,)},
    }
    lone: LoneRank = make_lone(load=lambda context, target: {**load(context, target), **numbers})
    report = lone.update(7).ranks[0]
    assert report.bytes == 16
    assert report.facts["load_s"] == 0.5
    assert (report.facts["ok"], report.facts["of"]) == (True, [1])


def test_a_load_that_says_what_was_asked_serves(make_lone):
    lone = make_lone()
    assert lone.update(7).version == "7"
    assert lone.worker.version == "7"
