"""Incidents in what a clear takes down and an update builds up: its order, its mirror, its moment.

Each runs a real worker and controller on an engine that refuses what would hang or crash a real one, and
looks at the group at the moment at which the incident showed.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from lone_rank import SPECS, load

import wsm
from tests.strict_engine import StrictEngine
from wsm.actions.base import Plans
from wsm.actions.measuring import AddressContract, resident_digest
from wsm.actions.options import PlanOptions
from wsm.actions.plan import check_order, derive_plans
from wsm.controller.errors import CommandRefusedError, CommandTimeoutError, RankFailedError
from wsm.errors import InternalError
from wsm.states.vocabulary import InFlightPolicy, KVPolicy
from wsm.strategies.applier.memory_target import MemoryTarget
from wsm.strategies.tensor import TensorSpec
from wsm.testing import InMemoryRunner
from wsm.worker.errors import NotServingError

BIG = TensorSpec("weight", "U8", (96 * 2**20,))


def plans_with_order(engine: StrictEngine, plan: str, first: str, second: str) -> None:
    """Check plans in which two actions have changed places."""
    options = PlanOptions.from_runner(engine, shut_down_groups=True)
    plans = derive_plans(options)
    actions = list(getattr(plans, plan).actions)
    names = [action.name for action in actions]
    here, there = names.index(first), names.index(second)
    actions[here], actions[there] = actions[there], actions[here]
    wrong = dataclasses.replace(getattr(plans, plan), actions=tuple(actions))
    check_order(Plans({**plans.by_name, plan: wrong}), options)


def test_fastdeploy_7522_graphs_go_before_the_weights_main_model_first(strict, engine):
    strict.clear()
    calls = [call for call in engine.calls if call.endswith(".drop") or call == "kv.release"]
    assert calls == ["graphs.drop", "mtp.graphs.drop", "kv.release"]
    assert not list(engine.weights.held())


@pytest.mark.parametrize(
    ("plan", "first", "second"),
    [
        ("clear", "drop_draft_graphs", "release_weights"),
        ("clear", "drop_main_graphs", "drop_draft_graphs"),
        ("update", "rebuild_kv_cache", "capture_main_graphs"),
    ],
)
def test_fastdeploy_7522_a_plan_in_another_order_cannot_be_built(engine, plan, first, second):
    with pytest.raises(InternalError):
        plans_with_order(engine, plan, first, second)


def test_fastdeploy_8085_an_update_in_place_captures_graphs_anew(strict, engine):
    strict.update(2)
    assert [call for call in engine.calls if "graphs" in call] == [
        "graphs.drop",
        "mtp.graphs.drop",
        "graphs.capture",
        "mtp.graphs.capture",
    ]
    assert engine.calls.index("graphs.capture") > engine.calls.index("kv.forget")


def test_fastdeploy_3773_4066_and_4178_nothing_is_served_before_graphs_are_captured(strict, engine):
    strict.clear()
    seen = []

    def watch(call: str) -> None:
        if call in ("kv.rebuild", "graphs.capture", "mtp.graphs.capture"):
            status = strict.controller.status()
            with pytest.raises(NotServingError), strict.worker.step():
                pass
            seen.append((call, status.serving, status.state, engine.requests.admitting))

    engine.calls.watch = watch
    strict.update(2)
    assert seen == [
        (call, False, "UPDATING", False) for call in ("kv.rebuild", "graphs.capture", "mtp.graphs.capture")
    ]
    assert engine.requests.admitting


def test_fastdeploy_c2_22_cleared_is_said_when_the_last_memory_is_free(strict, engine):
    seen = []
    engine.calls.watch = lambda call: seen.append((call, strict.controller.status().state))
    strict.clear()
    released = [state for call, state in seen if call.endswith((".release", ".shut_down", ".clear"))]
    assert set(released) == {"CLEARING"}
    assert len(released) == 8
    assert engine.memory.resident_bytes() == engine.memory.beside
    assert strict.controller.status().state == "CLEARED"


def test_fastdeploy_c2_5_and_c2_6_what_was_shut_down_is_restarted_each_once_and_mirrored(strict, engine):
    for version in (2, 3):
        strict.clear()
        strict.clear()
        assert not any(engine.groups.alive(kind) for kind in engine.groups.kinds())
        strict.update(version)
        assert all(engine.groups.alive(kind) for kind in engine.groups.kinds())
    groups = [call for call in engine.calls if call.endswith((".shut_down", ".restart"))]
    assert groups == 2 * [
        "ep.shut_down",
        "tp.shut_down",
        "world.shut_down",
        "world.restart",
        "tp.restart",
        "ep.restart",
    ]


def test_fastdeploy_5710_and_c2_5_a_clear_that_is_repeated_shuts_no_group_a_second_time(strict, engine):
    held = engine.weights.held

    def fail_once_the_groups_are_down() -> Iterator[str]:
        if not any(engine.groups.alive(kind) for kind in engine.groups.kinds()):
            raise OSError("the device does not answer")
        return held()

    engine.weights.held = fail_once_the_groups_are_down
    pending = strict.controller.begin_clear()
    strict.run(pending)
    with pytest.raises(RankFailedError, match="verify_cleared"):
        pending.result()
    assert strict.controller.status().state == "FAULTED"
    engine.weights.held = held
    strict.clear()
    assert strict.controller.status().state == "CLEARED"
    assert [engine.calls.count(f"{kind.value}.shut_down") for kind in engine.groups.kinds()] == [1, 1, 1]


def test_fastdeploy_c2_6_a_plan_that_restarts_other_groups_than_it_shut_down_cannot_be_built(engine):
    options = PlanOptions.from_runner(engine, shut_down_groups=True)
    plans = derive_plans(options)
    fewer = tuple(action for action in plans.update.actions if action.name != "restart_world_group")
    wrong = dataclasses.replace(plans.update, actions=fewer)
    with pytest.raises(InternalError):
        check_order(Plans({**plans.by_name, "update": wrong}), options)


def test_deepep_571_and_fastdeploy_3927_the_buffer_goes_before_its_group_and_comes_back_after_it(
    strict, engine
):
    strict.clear()
    assert not engine.deepep.allocated()
    strict.update(2)
    assert engine.deepep.allocated()
    order = [call for call in engine.calls if call.startswith(("deepep", "ep."))]
    assert order == ["deepep.clear", "ep.shut_down", "ep.restart", "deepep.recreate"]


def test_fastdeploy_5663_groups_are_kept_where_the_configuration_says_so(make_lone, engine):
    lone = make_lone(runner=engine)
    engine.calls.clear()
    lone.update(1)
    lone.clear()
    lone.update(2)
    assert not [call for call in engine.calls if call.endswith((".shut_down", ".restart"))]


def test_fastdeploy_6569_routing_records_of_every_request_go_with_the_weights(strict, engine):
    engine.routing_replay.records = {"asked twice": [3, 1], "over-issued": [2]}
    strict.update(2)
    assert engine.routing_replay.records == {}


def test_fastdeploy_7744_cached_inputs_of_the_last_batch_go_with_the_weights(strict, engine):
    for update in (strict.update, lambda version: (strict.clear(), strict.update(version))):
        engine.requests.cached_inputs = True
        update(2)
        assert engine.requests.cached_inputs is False
    assert engine.calls.count("mtp.reset_inputs") == 2


def test_lmdeploy_4917_and_ray_63769_a_policy_that_cannot_be_kept_is_refused_before_anything_is_touched(
    strict, engine
):
    for state in ("NORMAL", "CLEARED"):
        engine.calls.clear()
        pending = strict.controller.begin_update(2, kv_policy=KVPolicy.KEEP)
        strict.run(pending)
        with pytest.raises(CommandRefusedError, match="KV policy 'keep'"):
            pending.result()
        assert strict.controller.status().state == state
        assert not [call for call in engine.calls if call != "requests.resume"]
        strict.clear()


class AddressedWeights(MemoryTarget):
    """Weights that say where they lie, as parameters whose addresses were captured do."""

    def addresses(self) -> dict[str, int]:
        return {name: id(self._memory[name]) for name in self.held()}


def rebind(context, target) -> dict:
    """Load into new memory instead of the old: what a captured address means is gone."""
    if context.version != "1":
        context.runner.weights.old = dict(context.runner.weights._memory)  # kept, so that no id comes again
        context.runner.weights.release()
    return load(context, target)


def test_vllm_48941_and_sglang_18085_a_load_that_moves_captured_weights_is_not_offered_for_commit(tmp_path):
    runner, contract = InMemoryRunner(SPECS), AddressContract()
    runner.weights = AddressedWeights(SPECS)
    options = PlanOptions.from_runner(runner, address_contract=contract)
    config = wsm.WsmConfig(name="addressed", ranks=1)
    with contextlib.ExitStack() as undo:
        worker = undo.enter_context(
            wsm.Worker(config, runner, rank=0, plan_options=options, load=rebind, directory=tmp_path)
        )
        controller = undo.enter_context(wsm.Controller("addressed", directory=tmp_path))
        for version in (1, 2):
            pending = controller.begin_update(version)
            while not pending.over:
                worker.poll()
            if version == 1:
                pending.result()
                contract.record(runner.weights)
        with pytest.raises(RankFailedError, match="verify_loaded") as caught:
            pending.result()
        assert caught.value.error == "storage-moved"
        assert controller.status().state == "CLEARED"


class ResidentMemory:
    """What the kernel says."""

    def empty_cache(self) -> None:
        pass

    def resident_bytes(self) -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def fill(context, target) -> dict:
    target.writable(BIG.name)[:] = b"\1" * BIG.nbytes
    facts = {"version": context.version, "manifest_digest": "m", "manifest_scope": "group"}
    return {**facts, "digest": resident_digest(target, context.progress), "bytes": BIG.nbytes, "tensors": 1}


def test_slime_579_and_miles_86_a_release_that_frees_no_memory_is_no_clear(make_lone):
    runner = InMemoryRunner([BIG])
    runner.memory = ResidentMemory()
    lone = make_lone(runner=runner, load=fill)
    lone.update(1)
    alias = runner.weights.readable(BIG.name)
    with pytest.raises(RankFailedError, match="view or an alias") as caught:
        lone.clear()
    assert caught.value.action == "verify_cleared"
    assert lone.controller.status().state == "FAULTED"
    assert lone.worker.poll() is wsm.HOLD
    alias.release()
    assert lone.clear().ranks[0].facts["resident_bytes_after"] > 0
    assert lone.controller.status().state == "CLEARED"


def test_sglang_4336_a_release_that_did_nothing_is_no_clear(make_lone):
    runner = InMemoryRunner([BIG])
    lone = make_lone(runner=runner, load=fill)
    lone.update(1)
    runner.kv_cache.release = lambda: 0  # as without the flag that makes it do something
    with pytest.raises(RankFailedError, match="0 bytes of KV cache"):
        lone.clear()
    assert lone.controller.status().state == "FAULTED"


def test_fastdeploy_6239_a_drain_that_does_not_end_is_given_up_and_the_group_serves_on(strict, engine):
    pending = strict.controller.begin_update(2, in_flight=InFlightPolicy.DRAIN, deadline_s=0.05)
    strict.run(pending)
    with pytest.raises(CommandTimeoutError, match=r"rank 0 \(is draining\)"):
        pending.result()
    assert strict.worker.poll() is wsm.SERVE
    assert (strict.worker.version, engine.requests.in_flight(), engine.requests.admitting) == ("1", 2, True)
