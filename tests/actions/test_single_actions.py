"""Every unit of work alone: what it does, what it refuses, what it measures, and how it is undone."""

from __future__ import annotations

import pytest

from tests.incident import incident
from wsm.actions._caches import (
    ForgetAuxiliaryCache,
    ForgetKVCache,
    RebuildAuxiliaryCache,
    RebuildKVCache,
    ReleaseAuxiliaryCache,
    ReleaseKVCache,
)
from wsm.actions._graphs import CaptureMainGraphs, DropMainGraphs
from wsm.actions._groups import ClearDeepEPBuffer, RecreateDeepEPBuffer, RestartGroup, ShutDownGroup
from wsm.actions._requests import (
    ForgetRoutingReplay,
    ResumeAdmitting,
    ResumeRoutingReplay,
    SettleRequests,
    StopAdmitting,
)
from wsm.actions._verify import VerifyCleared, VerifyLoaded
from wsm.actions._weights import LoadWeights, ReleaseWeights, WatchedTarget
from wsm.actions.errors import PostconditionError, PreconditionError
from wsm.actions.measuring import AddressContract, MemoryDrop, MemoryProof, resident_digest
from wsm.actions.surfaces import GroupKind
from wsm.errors import GroupError, InternalError
from wsm.states.vocabulary import InFlightPolicy, KVPolicy
from wsm.strategies.applier.memory_target import MemoryTarget
from wsm.strategies.tensor import AdoptingTarget, TensorReleasedError, TensorSpec
from wsm.testing import InMemoryKVCache


def drop_graphs(*, collective=False, contract=None):
    return DropMainGraphs(capture_is_collective=collective, contract=contract)


# -- requests ---------------------------------------------------------------------------------------


@incident("FastDeploy#7825")
def test_draining_settles_when_the_last_request_is_finished(runner, make_context):
    context = make_context(in_flight=InFlightPolicy.DRAIN)
    stop = StopAdmitting()
    stop.run(context)
    assert not runner.requests.admitting
    settled = []
    while not stop.settled(context):
        settled.append(False)
        runner.requests.step()
    assert settled == [False, False]
    SettleRequests().precondition(context)


@pytest.mark.parametrize("policy", [InFlightPolicy.ABORT, InFlightPolicy.KEEP])
def test_aborting_and_freezing_wait_for_no_step(policy, make_context):
    assert StopAdmitting().settled(make_context(in_flight=policy))


def test_a_drain_that_is_not_finished_refuses_to_settle(make_context):
    with pytest.raises(PreconditionError, match="2 request"):
        SettleRequests().precondition(make_context(in_flight=InFlightPolicy.DRAIN))


@pytest.mark.parametrize(
    ("from_normal", "touched", "admits"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_undo_admits_again_only_where_everything_is_still_there(
    from_normal, touched, admits, runner, make_context
):
    context = make_context(from_normal=from_normal)
    StopAdmitting().run(context)
    context.done.weights_touched = touched
    StopAdmitting().undo(context)
    assert runner.requests.admitting is admits


def test_a_scheduler_that_admits_nothing_after_it_was_resumed_is_found(runner, make_context):
    runner.requests.admitting = False
    with pytest.raises(PostconditionError, match="admission"):
        ResumeAdmitting().probe(make_context())
    ResumeAdmitting().run(make_context())
    ResumeAdmitting().probe(make_context())


# -- CUDA graphs ------------------------------------------------------------------------------------


def test_undo_never_captures_with_other_ranks_and_says_so(runner, make_context):
    context = make_context()
    action = drop_graphs(collective=True)
    action.run(context)
    action.undo(context)
    assert not runner.graphs.captured()
    assert context.facts["graphs_left_dropped"] is True


def test_undo_never_captures_over_touched_weights(runner, make_context):
    context = make_context()
    action = drop_graphs()
    action.run(context)
    context.done.weights_touched = True
    action.undo(context)
    assert not runner.graphs.captured()


def test_a_capture_that_did_not_happen_is_found_and_undo_drops_a_partial_one(
    runner, make_context, monkeypatch
):
    context = make_context()
    drop_graphs().run(context)
    capture = CaptureMainGraphs(capture_is_collective=False)
    with monkeypatch.context() as patch:
        patch.setattr(runner.graphs, "capture", lambda: None)
        capture.run(context)
        with pytest.raises(PostconditionError, match="every graph captured"):
            capture.probe(context)
    capture.run(context)
    capture.undo(context)
    assert not runner.graphs.captured()


def test_an_action_without_its_surface_blames_the_plan(runner, make_context):
    runner.graphs = None
    with pytest.raises(InternalError, match="from_runner"):
        drop_graphs().run(make_context())


# -- DeepEP and process groups ----------------------------------------------------------------------


@incident("DeepEP#571")
def test_the_buffer_is_not_cleared_on_a_dead_group(runner, make_context):
    context = make_context()
    runner.groups.up[GroupKind.EP] = False
    with pytest.raises(PreconditionError, match="EP group"):
        ClearDeepEPBuffer().precondition(context)
    assert not context.done.weights_touched


def test_clearing_the_buffer_leaves_no_way_back_alone(make_context):
    context = make_context()
    ClearDeepEPBuffer().run(context)
    assert context.done.weights_touched


def test_a_buffer_that_is_gone_is_not_cleared_again(runner, make_context):
    for _ in range(2):
        context = make_context()
        ClearDeepEPBuffer().precondition(context)
        ClearDeepEPBuffer().run(context)
        ClearDeepEPBuffer().probe(context)
    assert runner.calls.count("deepep.clear") == 1
    assert not context.done.weights_touched


@incident("DeepEP#571")
def test_the_buffer_is_recreated_on_a_living_group_only(runner, make_context):
    ClearDeepEPBuffer().run(make_context())
    runner.groups.up[GroupKind.EP] = False
    with pytest.raises(PreconditionError):
        RecreateDeepEPBuffer().precondition(make_context())
    runner.groups.up[GroupKind.EP] = True
    context = make_context()
    RecreateDeepEPBuffer().precondition(context)
    RecreateDeepEPBuffer().run(context)
    RecreateDeepEPBuffer().probe(context)


@incident("FastDeploy C2-5")
@pytest.mark.parametrize("kind", list(GroupKind))
def test_a_group_goes_down_once_and_comes_up_under_a_new_name(kind, runner, make_context):
    runner.deepep.clear_buffer()  # which lives on a group
    for _ in range(3):
        for _ in range(2):
            context = make_context()
            ShutDownGroup(kind).run(context)
            ShutDownGroup(kind).probe(context)
        for _ in range(2):
            context = make_context()
            RestartGroup(kind).run(context)
            RestartGroup(kind).probe(context)
    assert runner.calls.count(f"{kind.value}.shut_down") == 3
    assert len(runner.groups.incarnations) == 3


# -- weights ----------------------------------------------------------------------------------------


def test_releasing_marks_the_command_before_the_first_byte_goes(runner, make_context, monkeypatch):
    context = make_context()

    def break_down():
        raise MemoryError

    monkeypatch.setattr(runner.weights, "release", break_down)
    with pytest.raises(MemoryError):
        ReleaseWeights().run(context)
    assert context.done.weights_touched


@incident("sglang#4336")
def test_a_tensor_that_was_not_released_is_named(runner, make_context, monkeypatch):
    monkeypatch.setattr(runner.weights, "release", lambda: 0)
    ReleaseWeights().run(make_context())
    with pytest.raises(PostconditionError, match="'embedding'"):
        ReleaseWeights().probe(make_context())


def test_bytes_needed_are_those_that_are_not_held(runner, make_context):
    context = make_context()
    everything = 64 * 256 * 4 + 256 * 64 * 2
    assert LoadWeights().bytes_needed(context) == 0
    ReleaseWeights().run(context)
    assert LoadWeights().bytes_needed(context) == everything


# -- caches -----------------------------------------------------------------------------------------


class OfferingKVCache(InMemoryKVCache):
    """Counts blocks that a new request would find."""

    def __init__(self, offered: int) -> None:
        super().__init__()
        self._offered = offered

    def forget(self) -> None:
        self._offered = 0

    def forget_idle(self) -> int:
        self._offered = 0
        return 0

    def findable_blocks(self) -> int:
        return self._offered


def test_the_kv_cache_goes_comes_and_goes_again_by_undo(runner, make_context):
    context = make_context()
    ReleaseKVCache().run(context)
    ReleaseKVCache().probe(context)
    assert context.done.weights_touched
    rebuild = RebuildKVCache()
    with pytest.raises(PostconditionError):
        rebuild.probe(context)
    rebuild.run(context)
    rebuild.probe(context)
    rebuild.undo(context)
    rebuild.undo(context)
    assert runner.kv_cache.allocated_bytes() == 0


@incident("sglang#4336")
def test_a_cache_that_keeps_bytes_is_found(runner, make_context, monkeypatch):
    monkeypatch.setattr(runner.kv_cache, "release", lambda: 0)
    ReleaseKVCache().run(make_context())
    with pytest.raises(PostconditionError, match=str(runner.kv_cache.size)):
        ReleaseKVCache().probe(make_context())


def test_auxiliary_caches_follow_the_same_policy(runner, make_context):
    draft = runner.auxiliaries[0].kv_cache
    draft.prefixes["x"] = 1
    ForgetAuxiliaryCache().run(make_context(kv_policy=KVPolicy.KEEP))
    ForgetKVCache().run(make_context(kv_policy=KVPolicy.KEEP))
    assert draft.prefixes == {"x": 1}
    ForgetAuxiliaryCache().run(make_context())
    assert draft.prefixes == {}
    context = make_context()
    ReleaseAuxiliaryCache().run(context)
    ReleaseAuxiliaryCache().probe(context)
    assert context.facts["auxiliary_kv_released_bytes"] == draft.size
    with pytest.raises(PostconditionError, match="mtp"):
        RebuildAuxiliaryCache().probe(context)
    RebuildAuxiliaryCache().run(context)
    RebuildAuxiliaryCache().probe(context)
    with pytest.raises(PostconditionError, match="mtp"):
        ReleaseAuxiliaryCache().probe(context)
    RebuildAuxiliaryCache().undo(context)
    assert draft.allocated_bytes() == 0


@pytest.mark.parametrize("policy", [KVPolicy.DROP, KVPolicy.KEEP_IN_FLIGHT])
@pytest.mark.parametrize("action", [ForgetKVCache, ForgetAuxiliaryCache])
def test_a_cache_that_still_offers_blocks_of_the_old_weights_is_found(
    action, policy, runner, make_context, monkeypatch
):
    offering = OfferingKVCache(offered=3)
    monkeypatch.setattr(runner, "kv_cache", offering)
    monkeypatch.setattr(runner.auxiliaries[0], "kv_cache", offering)
    with pytest.raises(PostconditionError, match="3 blocks"):
        action().probe(make_context(kv_policy=policy))
    action().probe(make_context(kv_policy=KVPolicy.KEEP))
    action().run(make_context(kv_policy=policy))
    action().probe(make_context(kv_policy=policy))


# -- routing replay ---------------------------------------------------------------------------------


@incident("FastDeploy#6569")
def test_records_of_frozen_requests_are_kept(runner, make_context):
    ForgetRoutingReplay().run(make_context(in_flight=InFlightPolicy.KEEP))
    assert runner.routing_replay.records
    ForgetRoutingReplay().run(make_context())
    assert not runner.routing_replay.records
    runner.routing_replay.recording = False
    ResumeRoutingReplay().run(make_context())
    assert runner.routing_replay.recording


# -- verification -----------------------------------------------------------------------------------


def verify_cleared(drop=None):
    return VerifyCleared(MemoryProof(drop or MemoryDrop(share=1.0, noise_bytes=0)))


@incident("FastDeploy C2-22")
@pytest.mark.parametrize("left", ["weights", "kv", "mtp"])
def test_anything_that_is_still_held_is_not_cleared(left, runner, make_context):
    context = make_context()
    if left != "weights":
        runner.weights.release()
    if left != "kv":
        runner.kv_cache.release()
    if left != "mtp":
        runner.auxiliaries[0].kv_cache.release()
    with pytest.raises(PostconditionError):
        verify_cleared().run(context)


def test_a_release_below_the_noise_is_called_unmeasured_not_proven(runner, make_context, walk):
    context = make_context()
    for action in (ReleaseWeights(), ReleaseAuxiliaryCache(), ReleaseKVCache()):
        action.run(context)
    verify_cleared(MemoryDrop()).run(context)
    assert context.facts["drop_measurable"] is False
    assert context.facts["dropped_bytes"] > 0


def test_the_share_and_the_noise_decide_what_is_believed():
    proof = MemoryProof(MemoryDrop(share=0.5, noise_bytes=100))
    assert proof.ceiling(before=10_000, released=200) is None
    assert proof.ceiling(before=10_000, released=4_000) == 8_100
    proof.refuted(8_100)
    assert proof.ceiling(before=9_500, released=0) == 8_100
    proof.proven()
    assert proof.ceiling(before=9_500, released=0) is None


@incident("FastDeploy C2-10")
def test_a_load_is_verified_against_the_bytes_in_memory(runner, make_context):
    context = make_context()
    LoadWeights().run(context)
    verify = VerifyLoaded(resident_digest)
    verify.precondition(context)
    verify.run(context)
    runner.weights.buffers["head"][5] ^= 1
    with pytest.raises(PostconditionError, match="expected digest"):
        verify.run(context)


@incident("FastDeploy C2-10")
def test_a_tensor_that_was_not_loaded_is_named(runner, make_context):
    context = make_context()
    LoadWeights().run(context)
    del runner.weights.buffers["head"]
    with pytest.raises(TensorReleasedError, match="'head'"):
        VerifyLoaded(resident_digest).run(context)


def test_verifying_reports_progress_for_every_tensor(runner, make_context):
    beats = []
    context = make_context(progress=lambda: beats.append(None))
    LoadWeights().run(context)
    VerifyLoaded(resident_digest).run(context)
    assert len(beats) == 3


def test_dropping_graphs_frees_tensors_to_move_and_capturing_binds_them(runner, make_context):
    contract = AddressContract()
    contract.record(runner.weights)
    context = make_context()
    drop_graphs(contract=contract).run(context)
    runner.weights.buffers["head"] = memoryview(bytearray(runner.weights.buffers["head"]))
    contract.check(runner.weights)
    CaptureMainGraphs(capture_is_collective=False, contract=contract).run(context)
    runner.weights.buffers["head"] = memoryview(bytearray(runner.weights.buffers["head"]))
    with pytest.raises(GroupError):
        contract.check(runner.weights)


def test_weights_without_addresses_are_not_watched():
    contract = AddressContract()
    contract.record(object())
    contract.check(object())


# -- publication ------------------------------------------------------------------------------------


def test_memory_that_a_target_keeps_marks_the_command_as_bytes_that_are_written_do(make_context):
    context = make_context()
    target = MemoryTarget([TensorSpec("a", "U8", (2,))], adopting=True)
    watched = WatchedTarget(target, context)
    assert watched.adopts("a")
    assert not context.done.weights_touched
    watched.adopt("a", memoryview(bytearray(b"ab")))
    assert context.done.weights_touched
    assert bytes(watched.readable("a")) == b"ab"
    assert not watched.adopts("a")
    assert not isinstance(WatchedTarget(context.runner.weights, context), AdoptingTarget)
