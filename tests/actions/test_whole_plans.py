"""Whole plans on an engine in memory, and the units of a hot one: what they leave behind, in which order."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from tests.incident import incident
from wsm.actions import names
from wsm.actions._graphs import CaptureMainGraphs
from wsm.actions._weights import (
    RESERVE_BYTES,
    FlipWeights,
    MakeFlipReady,
    PlanStagingMemory,
    StageWeights,
    VerifyStaged,
)
from wsm.actions.errors import PostconditionError, PreconditionError
from wsm.actions.measuring import AddressContract, resident_digest
from wsm.actions.options import PlanOptions
from wsm.actions.plan import derive_plans
from wsm.errors import GroupError, NoRoomError, RefusedError
from wsm.states.plan_key import CLEAR, DISCARD, HOT, UPDATE, UPDATE_IN_PLACE
from wsm.states.vocabulary import InFlightPolicy, KVPolicy
from wsm.strategies.tensor import TensorReleasedError


def test_clear_frees_everything_and_says_what_it_measured(runner, options, make_context, walk, tiny_drop):
    plans = derive_plans(options(shut_down_groups=True, memory_drop=tiny_drop))
    context = make_context()
    before = runner.memory.resident_bytes()
    walk(plans.named(CLEAR), context)
    assert not list(runner.weights.held())
    assert runner.memory.resident_bytes() == 1000
    assert context.facts["dropped_bytes"] == before - 1000
    assert context.facts["drop_measurable"] is True
    assert context.facts["groups_up"] == []
    assert context.facts["deepep_up"] is False
    assert context.facts["requests_aborted"] == 2
    assert not runner.requests.admitting


@incident("FastDeploy#7522")
def test_clear_takes_things_down_in_the_order_that_fastdeploy_learnt(runner, options, make_context, walk):
    walk(derive_plans(options(shut_down_groups=True)).named(CLEAR), make_context())
    assert runner.calls == [
        "requests.abort",
        "replay.clear",
        "graphs.drop",
        "mtp.graphs.drop",
        "deepep.clear",
        "weights.release",
        "mtp.kv.release",
        "kv.release",
        "memory.empty_cache",
        "ep.shut_down",
        "tp.shut_down",
        "world.shut_down",
    ]


def test_an_engine_may_say_how_many_graphs_it_has_captured(runner, options, make_context, walk, monkeypatch):
    """A count, or numpy's truth, faulted the whole group: "could not release its memory"."""
    graphs = runner.graphs
    monkeypatch.setattr(graphs, "captured", lambda: len(graphs.bound or ()), raising=False)
    plans = derive_plans(options())
    walk(plans.named(CLEAR), make_context())
    walk(plans.named(UPDATE), make_context(from_normal=False))
    assert graphs.captured() > 1


@incident("FastDeploy#7744")
def test_update_brings_back_exactly_what_clear_took(runner, options, make_context, walk):
    plans = derive_plans(options(shut_down_groups=True))
    walk(plans.named(CLEAR), make_context())
    runner.calls.clear()
    context = make_context(from_normal=False)
    walk(plans.named(UPDATE), context)
    assert runner.calls == [
        "world.restart",
        "tp.restart",
        "ep.restart",
        "deepep.recreate",
        "requests.reset_inputs",
        "mtp.reset_inputs",
        "mtp.kv.rebuild",
        "kv.rebuild",
        "graphs.capture",
        "mtp.graphs.capture",
        "replay.resume",
    ]
    assert bytes(runner.weights.readable("head")[:2]) == b"\x02\x02"
    assert context.facts["version"] == "2"


@pytest.mark.parametrize("releases", [True, False])
def test_an_update_in_place_frees_the_caches_for_its_load_or_leaves_them_where_they_are(
    runner, options, make_context, walk, releases
):
    plans = derive_plans(replace(options(), releases_cache=releases))
    context = make_context(kv_policy=KVPolicy.DROP)
    held = []
    load = context.load

    def loads(context, target):
        held.append((runner.kv_cache.allocated_bytes(), runner.auxiliaries[0].kv_cache.allocated_bytes()))
        return load(context, target)

    context = replace(context, load=loads)
    walk(plans.named(UPDATE_IN_PLACE), context)
    caches = [call for call in runner.calls if ".kv." in f".{call}" or "graphs" in call]
    freed = ["mtp.kv.release", "kv.release"] if releases else []
    again = ["mtp.kv.rebuild", "kv.rebuild"] if releases else []
    assert [call for call in caches if "forget" not in call] == [
        "graphs.drop",
        "mtp.graphs.drop",
        *freed,
        *again,
        "graphs.capture",
        "mtp.graphs.capture",
    ]
    assert all(bool(bytes_held) is not releases for bytes_held in held[0])
    assert runner.kv_cache.allocated_bytes()
    assert plans.named(UPDATE_IN_PLACE).kv_policies == frozenset({KVPolicy.DROP})


def test_caches_that_were_freed_for_a_load_that_never_began_are_there_again(runner, options, make_context):
    plans = derive_plans(replace(options(), releases_cache=True))
    context = make_context()
    for action in plans.named(UPDATE_IN_PLACE).actions:
        action.run(context)
        if action.name == names.FREE_CACHES_FOR_LOAD:
            break
    assert not runner.kv_cache.allocated_bytes()
    assert action.undo(context) is None
    assert runner.kv_cache.allocated_bytes()
    assert runner.auxiliaries[0].kv_cache.allocated_bytes()


@incident("FastDeploy#4066")
def test_admission_resumes_only_when_the_commit_actions_run(runner, options, make_context, walk):
    plans = derive_plans(options())
    context = make_context()
    walk(plans.named(UPDATE_IN_PLACE), context)
    assert not runner.requests.admitting
    for action in plans.named(UPDATE_IN_PLACE).commit:
        action.run(context)
    assert runner.requests.admitting


def test_update_in_place_keeps_addresses_and_forgets_old_blocks(runner, options, make_context, walk):
    runner.kv_cache.prefixes["system prompt"] = 3
    addresses = runner.weights.addresses()
    context = make_context()
    walk(derive_plans(options()).named(UPDATE_IN_PLACE), context)
    assert runner.weights.addresses() == addresses
    assert runner.kv_cache.prefixes == {}
    assert runner.kv_cache.allocated_bytes()
    assert (context.facts["kv_policy"], context.facts["kv_blocks_kept"]) == ("drop", 0)


def test_kept_blocks_survive_an_update_in_place(runner, options, make_context, walk):
    runner.kv_cache.prefixes["system prompt"] = 3
    plans = derive_plans(options(kv_policies=frozenset({KVPolicy.DROP, KVPolicy.KEEP})))
    context = make_context(kv_policy=KVPolicy.KEEP, in_flight=InFlightPolicy.KEEP)
    walk(plans.named(UPDATE_IN_PLACE), context)
    assert runner.kv_cache.prefixes == {"system prompt": 3}
    assert context.facts["kv_policy"] == "keep"
    assert "kv_blocks_kept" not in context.facts  # this cache cannot tell
    assert runner.requests.frozen == ["a", "b"]


def test_kept_in_flight_requests_are_held_with_their_blocks_and_idle_prefixes_are_forgotten(
    runner, options, make_context, walk
):
    runner.keep_blocks_of_requests()
    runner.kv_cache.prefixes["system prompt"] = 3
    plans = derive_plans(options(kv_policies=frozenset(KVPolicy)))
    context = make_context(kv_policy=KVPolicy.KEEP_IN_FLIGHT, in_flight=InFlightPolicy.KEEP)
    plans.named(UPDATE_IN_PLACE).admit(context)
    walk(plans.named(UPDATE_IN_PLACE), context)
    assert runner.kv_cache.prefixes == {}
    assert runner.kv_cache.held_blocks == 2
    assert (context.facts["requests_held"], context.facts["kv_blocks_kept"]) == (2, 2)
    assert runner.requests.held == ["a", "b"]
    assert "requests.freeze" not in runner.calls


@pytest.mark.parametrize("in_flight", [InFlightPolicy.ABORT, InFlightPolicy.DRAIN])
def test_keeping_the_blocks_of_requests_that_end_first_is_refused(in_flight, runner, options, make_context):
    runner.keep_blocks_of_requests()
    plans = derive_plans(options(kv_policies=frozenset(KVPolicy)))
    context = make_context(kv_policy=KVPolicy.KEEP_IN_FLIGHT, in_flight=in_flight)
    with pytest.raises(RefusedError, match="nothing to keep") as caught:
        plans.named(UPDATE_IN_PLACE).admit(context)
    assert caught.value.supported == ("keep",)
    assert runner.calls == []


@incident("lmdeploy#4917")
def test_an_in_flight_policy_that_the_scheduler_lacks_is_refused(options, make_context):
    plans = derive_plans(options(in_flight_policies=frozenset({InFlightPolicy.ABORT})))
    with pytest.raises(RefusedError) as caught:
        plans.named(CLEAR).admit(make_context(in_flight=InFlightPolicy.KEEP))
    assert caught.value.supported == ("abort",)


def test_discard_frees_the_memory_alone_and_leaves_what_needs_others(runner, options, make_context, walk):
    plans = derive_plans(options(shut_down_groups=True))
    context = make_context()
    walk(plans.named(DISCARD), context)
    assert runner.memory.resident_bytes() == 1000
    assert context.facts["groups_up"] == ["world", "tp", "ep"]
    assert context.facts["deepep_up"] is True
    assert not any(action.collective for action in plans.named(DISCARD))


def test_an_update_after_a_discard_finds_groups_and_buffer_up(runner, options, make_context, walk):
    plans = derive_plans(options(shut_down_groups=True))
    walk(plans.named(DISCARD), make_context())
    walk(plans.named(UPDATE), make_context(from_normal=False))
    assert "tp.restart" not in runner.calls
    assert "deepep.recreate" not in runner.calls
    assert runner.graphs.captured()


def test_discard_breaks_off_a_drain_because_the_weights_go_anyway(runner, options, make_context):
    settle = derive_plans(options()).named(DISCARD).actions[0]
    context = make_context(in_flight=InFlightPolicy.DRAIN)
    settle.precondition(context)
    settle.run(context)
    settle.probe(context)
    assert context.facts["requests_aborted"] == 2


def test_a_discard_that_is_interrupted_anywhere_can_be_done_again(runner, options, make_context, walk):
    plans = derive_plans(options())
    for stop in range(len(plans.named(DISCARD).actions) + 1):
        runner.serve()
        context = make_context()
        for action in plans.named(DISCARD).actions[:stop]:
            action.run(context)
        walk(plans.named(DISCARD), make_context())
        assert runner.memory.resident_bytes() == 1000


@incident("slime#579")
def test_a_forgotten_alias_fails_the_clear_and_still_fails_its_repetition(
    runner, options, make_context, walk, tiny_drop
):
    plans = derive_plans(options(memory_drop=tiny_drop))
    runner.memory.aliases.append(runner.weights.buffers["embedding"])
    for plan in (plans.named(CLEAR), plans.named(DISCARD), plans.named(CLEAR)):
        with pytest.raises(PostconditionError, match="view or an alias"):
            walk(plan, make_context())
    runner.memory.aliases.clear()
    walk(plans.named(DISCARD), make_context())


def test_a_command_for_another_version_than_was_loaded_is_not_prepared(
    runner, options, make_context, walk, load
):
    def load_version_1(context, target):
        return load(context, target) | {"version": 1}

    with pytest.raises(PostconditionError, match="version 1"):
        walk(derive_plans(options()).named(UPDATE_IN_PLACE), make_context(load=load_version_1))


@pytest.mark.parametrize("collective", [False, True])
def test_an_update_that_fails_before_its_first_byte_is_undone_to_what_it_was(
    collective, runner, options, make_context
):
    def refuse(context, target):
        raise ValueError("the manifest names a tensor that the model does not have")

    plan = derive_plans(options(capture_is_collective=collective)).named(UPDATE_IN_PLACE)
    context = make_context(load=refuse, in_flight=InFlightPolicy.KEEP)
    load = plan.names().index("load_weights")
    began = [*plan.before_parking, *plan.actions[: load + 1]]
    for action in began[:-1]:
        action.run(context)
    with pytest.raises(ValueError, match="manifest"):
        began[-1].run(context)
    assert not context.done.weights_touched
    for _ in range(2):
        for action in reversed(began):
            action.undo(context)
    assert bytes(runner.weights.readable("head")[:2]) == b"\x01\x01"
    assert runner.kv_cache.allocated_bytes()
    assert runner.requests.admitting
    assert runner.graphs.captured() is not collective
    assert runner.auxiliaries[0].graphs.captured() is not collective


# -- the units of a hot update, one after the other ------------------------------------------------------


SHARD_BYTES = 64 * 256 * 4 + 256 * 64 * 2


@pytest.fixture
def hot(options):
    return derive_plans(options()).named(HOT)


def run(actions, context):
    for action in actions:
        action.precondition(context)
        action.run(context)
        action.probe(context)


def contents(runner):
    return {name: bytes(buffer) for name, buffer in runner.weights.buffers.items()}


def test_the_plan_stages_first_and_touches_nothing_that_serves(hot, runner, make_context):
    context, before = make_context(), contents(runner)
    runner.calls.clear()
    run((*hot.admission, *hot.staging), context)
    assert runner.calls == ["weights.stage"]
    assert contents(runner) == before
    assert not context.done.weights_touched
    assert context.facts["staging_bytes"] == SHARD_BYTES


def test_the_flip_leaves_what_a_fresh_load_of_the_version_would_leave(hot, runner, make_context, load):
    runner.graphs.drop()
    runner.auxiliaries[0].graphs.drop()
    context, before = make_context(), contents(runner)
    run((*hot.admission, *hot.staging, *hot.flip, *hot.commit), context)
    assert context.done.weights_touched
    after = contents(runner)
    load(make_context(), runner.weights)
    assert after == contents(runner) != before
    assert context.done.staged.give_back() == SHARD_BYTES
    assert runner.kv_cache.prefixes == {}
    assert runner.calls.index("kv.forget") > runner.calls.index("requests.reset_inputs")


def test_captured_graphs_find_the_new_bytes_at_the_old_addresses(hot, runner, make_context):
    assert runner.graphs.captured()
    addresses, context = dict(runner.weights.addresses()), make_context()
    run((*hot.admission, *hot.staging, *hot.flip), context)
    assert runner.weights.addresses() == addresses == runner.graphs.bound
    assert set(bytes(runner.weights.buffers["head"])) == {2}
    assert context.facts["tensors_copied_in_place"] == 3
    assert runner.graphs.captured()


class OfTheHead:
    """Graphs that say that they use one tensor."""

    def __init__(self, graphs):
        self.drop, self.capture, self.captured = graphs.drop, graphs.capture, graphs.captured

    def captured_tensors(self):
        return ["head"]


def test_graphs_that_name_their_tensors_have_only_those_copied(runner, make_context):
    runner.graphs = OfTheHead(runner.graphs)
    runner.auxiliaries[0].graphs = None
    contract = AddressContract()
    CaptureMainGraphs(capture_is_collective=False, contract=contract).run(make_context())
    for kept in (contract, None):
        context, addresses = make_context(), dict(runner.weights.addresses())
        StageWeights().run(context)
        MakeFlipReady(kept).run(context)
        FlipWeights(kept).run(context)
        FlipWeights(kept).probe(context)
        now = runner.weights.addresses()
        assert now["head"] == addresses["head"]
        assert now["embedding"] != addresses["embedding"]
        assert context.facts["tensors_copied_in_place"] == 1


def test_one_captured_graph_that_names_nothing_may_use_any_tensor(runner, make_context):
    runner.graphs = OfTheHead(runner.graphs)  # the draft model's graphs do not say
    context = make_context()
    StageWeights().run(context)
    MakeFlipReady().run(context)
    assert context.facts["tensors_copied_in_place"] == 3


@incident("vllm#48941")
def test_addresses_that_moved_behind_the_contract_are_found_before_anything_is_decided(runner, make_context):
    contract = AddressContract()
    contract.record(runner.weights)
    runner.weights.buffers["head"] = memoryview(bytearray(runner.weights.buffers["head"]))
    context = make_context()
    StageWeights().run(context)
    with pytest.raises(GroupError, match="head"):
        MakeFlipReady(contract).run(context)
    assert not context.done.weights_touched


def test_a_tensor_that_was_not_staged_keeps_the_rank_from_being_ready(runner, make_context):
    context = make_context()
    context.done.staged = runner.weights.stage()
    context.done.staged.writable("head")
    with pytest.raises(TensorReleasedError, match="embedding"):
        MakeFlipReady().run(context)


@pytest.mark.parametrize("captured", [frozenset(), frozenset({"head"})])
def test_a_flip_that_was_not_done_is_found(captured, runner, make_context):
    context = make_context()
    StageWeights().run(context)
    with pytest.raises(PostconditionError, match="make_flip_ready"):
        MakeFlipReady().probe(context)
    with pytest.raises(PostconditionError, match="flip_weights"):
        FlipWeights().probe(context)
    context.done.staged.make_ready(captured)
    MakeFlipReady().probe(context)
    with pytest.raises(PostconditionError, match="flip_weights"):
        FlipWeights().probe(context)
    FlipWeights().run(context)
    FlipWeights().probe(context)


def test_staged_bytes_that_changed_after_the_load_are_found(runner, make_context):
    context = make_context()
    StageWeights().run(context)
    context.done.staged.writable("head")[7] ^= 1
    with pytest.raises(PostconditionError, match="digest"):
        VerifyStaged(resident_digest).run(context)


@pytest.mark.parametrize("action", [VerifyStaged(resident_digest), MakeFlipReady(), FlipWeights()])
def test_nothing_staged_is_nothing_to_go_on_with(action, make_context):
    context = make_context()
    context.facts["digest"] = "of something"
    with pytest.raises(PreconditionError, match="nothing was staged"):
        action.run(context)
    assert not context.done.weights_touched


def test_what_was_staged_can_be_undone(runner, make_context):
    context = make_context()
    stage = StageWeights()
    stage.run(context)
    stage.undo(context)
    assert context.done.staged.give_back() == 0


@dataclass
class Memory:
    available: int | None
    shared_by_ranks: bool

    def available_bytes(self) -> int | None:
        return self.available

    def resident_bytes(self) -> int:
        return 0

    def empty_cache(self) -> None:
        """Nothing is cached."""


@pytest.mark.parametrize("shared", [True, False], ids=["the host's", "a device each"])
def test_the_memory_plan_counts_every_rank_that_draws_on_the_same_memory(runner, make_context, shared):
    enough = (SHARD_BYTES + RESERVE_BYTES) * (4 if shared else 1)
    context = make_context(world_size=4)
    runner.memory = Memory(enough, shared)
    PlanStagingMemory().run(context)
    assert context.facts["staging_available_bytes"] == enough
    runner.memory = Memory(enough - 1, shared)
    with pytest.raises(NoRoomError) as caught:
        PlanStagingMemory().run(context)
    assert (caught.value.needed, caught.value.available) == (SHARD_BYTES * (4 if shared else 1), enough - 1)


def test_memory_that_cannot_say_what_is_available_is_believed_to_suffice(runner, make_context):
    for memory in (Memory(None, shared_by_ranks=True), runner.memory):
        runner.memory = memory
        PlanStagingMemory().run(make_context())


def test_weights_without_a_second_place_are_refused(runner, make_context):
    runner.weights = object()
    for action in (PlanStagingMemory(), StageWeights()):
        with pytest.raises(NoRoomError, match="object"):
            action.run(make_context())


def test_a_cache_alone_stages_nothing_and_forgets_its_blocks_with_the_others():
    plan = derive_plans(PlanOptions(cache_only=True)).named(HOT)
    assert [action.name for action in plan] == [names.DECLARE_STAGED, names.FORGET_KV_CACHE]


def test_nothing_of_a_hot_plan_is_voted_on(hot):
    assert not any(action.collective for action in hot)
