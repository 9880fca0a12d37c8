"""The parts that plans are put together from: runs of steps that always go together, in one order.

Responsible for presence: a step that an engine does not need is absent. Which parts a plan has, and in
which order, is in :mod:`wsm.actions.plan`.
"""

from __future__ import annotations

from collections.abc import Iterator

from wsm.actions.auxiliary import (
    ForgetAuxiliaryCache,
    RebuildAuxiliaryCache,
    ReleaseAuxiliaryCache,
    ResetAuxiliaryInputs,
)
from wsm.actions.base import Action
from wsm.actions.cuda_graphs import CaptureDraftGraphs, CaptureMainGraphs, DropDraftGraphs, DropMainGraphs
from wsm.actions.deepep import AbandonDeepEPBuffer, ClearDeepEPBuffer, RecreateDeepEPBuffer
from wsm.actions.kv_cache import ForgetKVCache, RebuildKVCache, ReleaseKVCache
from wsm.actions.options import PlanOptions
from wsm.actions.process_groups import (
    RESTART_ORDER,
    SHUT_DOWN_ORDER,
    AbandonGroups,
    RestartGroup,
    ShutDownGroup,
)
from wsm.actions.requests import LoseRequests, ResetInputs, SettleRequests
from wsm.actions.routing_replay import ForgetRoutingReplay, ResumeRoutingReplay
from wsm.actions.verify import VerifyLoaded
from wsm.actions.weights import LoadWeights, ReleaseWeights


def settle(
    options: PlanOptions, *, break_off_drain: bool = False, may_hold: bool = False
) -> Iterator[Action]:
    """End or freeze what still runs."""
    if not options.cache_only:
        yield SettleRequests(break_off_drain=break_off_drain, may_hold=may_hold)


def forget_records_and_graphs(options: PlanOptions) -> Iterator[Action]:
    """Drop what stands on weights and KV cache together."""
    if options.routing_replay:
        yield ForgetRoutingReplay()
    if options.has_graphs:
        yield DropMainGraphs(
            capture_is_collective=options.capture_is_collective, contract=options.address_contract
        )
    if options.has_draft_graphs:
        yield DropDraftGraphs(capture_is_collective=options.capture_is_collective)


def make_ready(options: PlanOptions) -> Iterator[Action]:
    """Bring back what stands on weights and KV cache together."""
    if options.has_graphs:
        yield CaptureMainGraphs(
            capture_is_collective=options.capture_is_collective, contract=options.address_contract
        )
    if options.has_draft_graphs:
        yield CaptureDraftGraphs(capture_is_collective=options.capture_is_collective)
    if options.routing_replay:
        yield ResumeRoutingReplay()


def clear_buffer(options: PlanOptions) -> Iterator[Action]:
    """Destroy the DeepEP buffer."""
    if options.has_deepep:
        yield ClearDeepEPBuffer()


def shut_down_groups(options: PlanOptions) -> Iterator[Action]:
    """Shut the communicators down, where a clear does that."""
    if options.shut_down_groups:
        yield from (ShutDownGroup(kind) for kind in SHUT_DOWN_ORDER if kind in options.group_kinds)


def restart_groups(options: PlanOptions) -> Iterator[Action]:
    """Restart what a clear has shut down or an epoch's end has broken, and the buffer that lives on it."""
    if options.shut_down_groups or options.rejoins:
        yield from (RestartGroup(kind) for kind in RESTART_ORDER if kind in options.group_kinds)
    if options.has_deepep:
        yield RecreateDeepEPBuffer()


def lose_requests(options: PlanOptions) -> Iterator[Action]:
    """Tell clients that a rank was lost."""
    if not options.cache_only:
        yield LoseRequests()


def abandon_groups(options: PlanOptions) -> Iterator[Action]:
    """Let go alone of what broke with a peer, the buffer before the groups that it lives on."""
    if options.has_deepep:
        yield AbandonDeepEPBuffer()
    if options.group_kinds:
        yield AbandonGroups()


def release_weights(options: PlanOptions) -> Iterator[Action]:
    """Free the weights."""
    if not options.cache_only:
        yield ReleaseWeights()


def load_weights(options: PlanOptions) -> Iterator[Action]:
    """Load and verify the weights."""
    if not options.cache_only:
        yield LoadWeights()
        yield VerifyLoaded(options.resident_digest, options.address_contract)


def reset_inputs(options: PlanOptions) -> Iterator[Action]:
    """Forget what the last batch left."""
    if not options.cache_only:
        yield ResetInputs()
    if options.auxiliaries:
        yield ResetAuxiliaryInputs()


def release_caches(options: PlanOptions) -> Iterator[Action]:
    """Free the KV caches."""
    if options.auxiliaries and options.has_kv:
        yield ReleaseAuxiliaryCache()
    if options.has_kv:
        yield ReleaseKVCache()


def rebuild_caches(options: PlanOptions) -> Iterator[Action]:
    """Allocate empty KV caches."""
    if options.auxiliaries and options.has_kv:
        yield RebuildAuxiliaryCache()
    if options.has_kv:
        yield RebuildKVCache()


def forget_blocks(options: PlanOptions, *, weights_go: bool = False) -> Iterator[Action]:
    """Empty the KV caches that stay, as the KV policy says."""
    if options.auxiliaries and options.has_kv:
        yield ForgetAuxiliaryCache(weights_go=weights_go)
    if options.has_kv:
        yield ForgetKVCache(weights_go=weights_go)
