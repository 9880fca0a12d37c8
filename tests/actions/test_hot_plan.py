"""The units of a hot update, one after the other, on an engine that has everything an engine can have."""

from __future__ import annotations

from dataclasses import dataclass

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
from wsm.actions.plan import check_order, derive_plans
from wsm.errors import GroupError, InternalError, NoRoomError
from wsm.strategies.tensor import TensorReleasedError

SHARD_BYTES = 64 * 256 * 4 + 256 * 64 * 2


@pytest.fixture
def hot(options):
    return derive_plans(options()).hot


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
    plan = derive_plans(PlanOptions(cache_only=True)).hot
    assert [action.name for action in plan] == [names.DECLARE_STAGED, names.FORGET_KV_CACHE]


def test_nothing_of_a_hot_plan_is_voted_on(hot, options):
    plans = derive_plans(options())
    assert not any(action.collective for action in hot)
    plans.hot.flip[0].collective = True
    with pytest.raises(InternalError, match="local outside the voted part"):
        check_order(plans, options())
