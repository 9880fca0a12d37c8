"""Plans composed of parts: which steps an engine needs for each transition, in which order.

Responsible for presence: a step that a configuration does not need, or that a change of one half only
(:mod:`wsm.states.plan_key`) leaves out, is absent, never skipped at run time. The order written here is
checked against the declared rules (:mod:`wsm.actions.order`) every time. It knows no words, and runs nothing.

First the plans, then the parts: runs of steps that always go together, in one order.
"""

from __future__ import annotations

from collections.abc import Iterator

from wsm.actions._caches import (
    EmptyAllocatorCache,
    ForgetAuxiliaryCache,
    ForgetKVCache,
    FreeCachesForLoad,
    RebuildAuxiliaryCache,
    RebuildCachesAfterLoad,
    RebuildKVCache,
    ReleaseAuxiliaryCache,
    ReleaseKVCache,
    ResetAuxiliaryInputs,
)
from wsm.actions._graphs import CaptureDraftGraphs, CaptureMainGraphs, DropDraftGraphs, DropMainGraphs
from wsm.actions._groups import (
    RESTART_ORDER,
    SHUT_DOWN_ORDER,
    AbandonDeepEPBuffer,
    AbandonGroups,
    ClearDeepEPBuffer,
    RecreateDeepEPBuffer,
    RestartGroup,
    ShutDownGroup,
)
from wsm.actions._requests import (
    EndSetAside,
    ForgetRoutingReplay,
    LoseRequests,
    ResetInputs,
    ResumeAdmitting,
    ResumeRoutingReplay,
    SettleRequests,
    StopAdmitting,
)
from wsm.actions._verify import DeclareCleared, DeclarePrepared, DeclareStaged, VerifyCleared, VerifyLoaded
from wsm.actions._weights import (
    FlipWeights,
    LoadWeights,
    MakeFlipReady,
    PlanStagingMemory,
    ProcessLoaded,
    ReleaseWeights,
    StageWeights,
    VerifyStaged,
)
from wsm.actions.addition import with_additions
from wsm.actions.base import Action, Plan, Plans
from wsm.actions.measuring import MemoryProof
from wsm.actions.options import PlanOptions
from wsm.actions.order import check_order
from wsm.states.plan_key import GIVEN_BACK, PLANS, UPDATE_IN_PLACE, Half, PlanKey, Repair, Request
from wsm.states.vocabulary import InFlightPolicy, KVPolicy

__all__ = ["Plan", "PlanOptions", "Plans", "compose", "derive_plans"]


def derive_plans(options: PlanOptions) -> Plans:
    """Compose all plans of an engine and check their order.

    All of them at once, in a few milliseconds: a rank declares them to the others when it joins, and what an
    engine has asked for in vain is refused before anything runs.

    Parameters
    ----------
    options : PlanOptions
        The engine's configuration.

    Returns
    -------
    Plans
        Each with actions of its own; no two plans share an action object.

    Raises
    ------
    InternalError
        ``plan-order`` if a plan and the declared order disagree.
    BadInputError
        ``plan-options`` if an addition has no place in a plan that must have it.
    """
    proof = MemoryProof(options.memory_drop)
    plans = Plans({str(key): compose(key, options, proof) for key in PLANS})
    check_order(plans, options.additions)
    return plans


def compose(key: PlanKey, options: PlanOptions, proof: MemoryProof) -> Plan:
    """Compose one plan of its parts.

    Parameters
    ----------
    key : PlanKey
        What it does.
    options : PlanOptions
        The engine's configuration.
    proof : MemoryProof
        Shared by all plans of an engine.
    """
    if key.operation is Repair.REJOIN:
        return _plan(key, options, _rejoin(options), frozenset(KVPolicy))
    if key.operation is Repair.DISCARD:
        return _plan(key, options, _discard(options, key, proof), frozenset(KVPolicy))
    resumes = (ResumeAdmitting(),) if key.serves and not options.cache_only else ()
    if key.operation is Request.HOLD:
        # Blocks are forgotten behind the decision: a hold that fails leaves the cache as it was.
        forgets = tuple(_forget_blocks(options, weights_go=True)) if key.kv is Half.STAYS else ()
        settles = _settle(options, may_hold=True)
        return _plan(key, options, settles, frozenset({KVPolicy.DROP, KVPolicy.KEEP}), forgets)
    if key.operation is Request.RELEASE:
        return _plan(key, options, iter(()), frozenset(KVPolicy), resumes)
    if key.operation is Request.HOT_UPDATE:
        staging = tuple(_staging(options))
        actions = iter((*staging, *_flip(options)))
        admission = tuple(_admission(options))
        return _plan(
            key, options, actions, options.kv_policies, resumes, admission=admission, staged=len(staging)
        )
    actions = _clear(options, key, proof) if key.gives_back else _update(options, key)
    if not (key.gives_back or key.weights is Half.REPLACED or options.cache_only):
        resumes = (EndSetAside(), *resumes)
    kv_policies = frozenset({KVPolicy.DROP})
    if key.kv is Half.STAYS:
        # Requests that are held with their blocks go on at once, so not where the weights only go.
        kv_policies = options.kv_policies - ({KVPolicy.KEEP_IN_FLIGHT} if key.gives_back else set())
    if options.releases_cache and key == UPDATE_IN_PLACE:
        kv_policies = frozenset({KVPolicy.DROP})
    return _plan(key, options, actions, kv_policies, resumes)


def _plan(
    key: PlanKey,
    options: PlanOptions,
    actions: Iterator[Action],
    kv_policies: frozenset[KVPolicy],
    commit: tuple[Action, ...] = (),
    *,
    admission: tuple[Action, ...] = (),
    staged: int = 0,
) -> Plan:
    # A release does nothing to requests: it is never refused for want of a scheduler that could keep them.
    releases = key.operation is Request.RELEASE
    in_flight = frozenset(InFlightPolicy) if releases else options.in_flight_policies
    plan = Plan(
        key=key,
        actions=tuple(actions),
        before_parking=() if options.cache_only or releases else (StopAdmitting(),),
        commit=commit,
        kv_policies=kv_policies,
        in_flight_policies=in_flight,
        admission=admission,
        staged=staged,
    )
    plan = with_additions(plan, options.additions)
    for action in plan:
        action.deadline_s = options.deadlines.get(action.name, action.deadline_s)
        if options.instrument is not None:
            options.instrument(plan.name, action)
    return plan


def _clear(options: PlanOptions, key: PlanKey, proof: MemoryProof) -> Iterator[Action]:
    weights_go = key.weights is Half.GOES
    yield from _settle(options)
    if Half.AWAY not in key:  # graphs and records were dropped when the first half was cleared
        yield from _forget_records_and_graphs(options)
    if weights_go:
        yield from _clear_buffer(options)
        yield from _release_weights(options)
    if key.kv is Half.GOES:
        yield from _release_caches(options)
    if key.kv is Half.STAYS:
        yield from _forget_blocks(options, weights_go=True)
    yield EmptyAllocatorCache()
    if weights_go:
        yield from _shut_down_groups(options)
    yield VerifyCleared(proof, key.gone)
    yield DeclareCleared()


def _update(options: PlanOptions, key: PlanKey) -> Iterator[Action]:
    frees_caches = options.releases_cache and key == UPDATE_IN_PLACE
    if key.weights is Half.COMES:
        yield from _restart_groups(options)
    if key.weights is Half.REPLACED:
        yield from _settle(options, may_hold=True)
    if key.weights is Half.REPLACED and key.kv is Half.STAYS:
        yield from _forget_records_and_graphs(options)
    if frees_caches:
        yield FreeCachesForLoad()
    if key.loads:
        yield from _load_weights(options)
    if key.loads or key.serves:
        yield from _reset_inputs(options)
    yield from _fill_caches(options, key, freed=frees_caches)
    if key.serves:
        yield from _make_ready(options)
    yield DeclarePrepared(has_weights=key.weights is not Half.AWAY and not options.cache_only)


def _fill_caches(options: PlanOptions, key: PlanKey, *, freed: bool) -> Iterator[Action]:
    """Bring the KV caches to where new weights can use them."""
    if freed:
        yield RebuildCachesAfterLoad()
    if key.kv is Half.STAYS:
        yield from _forget_blocks(options)
    if key.kv is Half.COMES:
        yield from _rebuild_caches(options)


def _discard(options: PlanOptions, key: PlanKey, proof: MemoryProof) -> Iterator[Action]:
    served = key.weights is not Half.WITHDRAWN
    yield from _settle(options, break_off_drain=True)
    if served:  # graphs and records are there only where both halves were
        yield from _forget_records_and_graphs(options)
    if key.weights in GIVEN_BACK:
        yield from _release_weights(options)
    if key.kv is Half.GOES:
        yield from _release_caches(options)
    elif served:
        yield from _forget_blocks(options, weights_go=True)
    yield EmptyAllocatorCache()
    yield VerifyCleared(proof, key.gone)
    yield DeclareCleared()


def _rejoin(options: PlanOptions) -> Iterator[Action]:
    yield from _lose_requests(options)
    yield from _abandon_groups(options)


def _settle(
    options: PlanOptions, *, break_off_drain: bool = False, may_hold: bool = False
) -> Iterator[Action]:
    """End or freeze what still runs."""
    if not options.cache_only:
        yield SettleRequests(break_off_drain=break_off_drain, may_hold=may_hold)


def _forget_records_and_graphs(options: PlanOptions) -> Iterator[Action]:
    """Drop what depends on weights and KV cache together."""
    if options.routing_replay:
        yield ForgetRoutingReplay()
    if options.has_graphs:
        yield DropMainGraphs(
            capture_is_collective=options.capture_is_collective, contract=options.address_contract
        )
    if options.has_draft_graphs:
        yield DropDraftGraphs(capture_is_collective=options.capture_is_collective)


def _make_ready(options: PlanOptions) -> Iterator[Action]:
    """Bring back what depends on weights and KV cache together."""
    if options.has_graphs:
        yield CaptureMainGraphs(
            capture_is_collective=options.capture_is_collective, contract=options.address_contract
        )
    if options.has_draft_graphs:
        yield CaptureDraftGraphs(capture_is_collective=options.capture_is_collective)
    if options.routing_replay:
        yield ResumeRoutingReplay()


def _clear_buffer(options: PlanOptions) -> Iterator[Action]:
    """Destroy the DeepEP buffer."""
    if options.has_deepep:
        yield ClearDeepEPBuffer()


def _shut_down_groups(options: PlanOptions) -> Iterator[Action]:
    """Shut the communicators down, where a clear does that."""
    if options.shut_down_groups:
        yield from (ShutDownGroup(kind) for kind in SHUT_DOWN_ORDER if kind in options.group_kinds)


def _restart_groups(options: PlanOptions) -> Iterator[Action]:
    """Restart what a clear has shut down or an epoch's end has broken, and the buffer that lives on it."""
    if options.shut_down_groups or options.rejoins:
        yield from (RestartGroup(kind) for kind in RESTART_ORDER if kind in options.group_kinds)
    if options.has_deepep:
        yield RecreateDeepEPBuffer()


def _lose_requests(options: PlanOptions) -> Iterator[Action]:
    """Tell clients that a rank was lost."""
    if not options.cache_only:
        yield LoseRequests()


def _abandon_groups(options: PlanOptions) -> Iterator[Action]:
    """Let go alone of what broke with a peer, the buffer before the groups that it lives on."""
    if options.has_deepep:
        yield AbandonDeepEPBuffer()
    if options.group_kinds:
        yield AbandonGroups()


def _release_weights(options: PlanOptions) -> Iterator[Action]:
    """Free the weights."""
    if not options.cache_only:
        yield ReleaseWeights()


def _load_weights(options: PlanOptions) -> Iterator[Action]:
    """Load and verify the weights."""
    if not options.cache_only:
        yield LoadWeights()
        if options.processes_loaded:
            yield ProcessLoaded(options.resident_digest)
        yield VerifyLoaded(options.resident_digest, options.address_contract)


def _reset_inputs(options: PlanOptions) -> Iterator[Action]:
    """Forget what the last batch left."""
    if not options.cache_only:
        yield ResetInputs()
    if options.auxiliaries:
        yield ResetAuxiliaryInputs()


def _release_caches(options: PlanOptions) -> Iterator[Action]:
    """Free the KV caches."""
    if options.auxiliaries and options.has_kv:
        yield ReleaseAuxiliaryCache()
    if options.has_kv:
        yield ReleaseKVCache()


def _rebuild_caches(options: PlanOptions) -> Iterator[Action]:
    """Allocate empty KV caches."""
    if options.auxiliaries and options.has_kv:
        yield RebuildAuxiliaryCache()
    if options.has_kv:
        yield RebuildKVCache(is_collective=options.rebuild_is_collective)


def _forget_blocks(options: PlanOptions, *, weights_go: bool = False) -> Iterator[Action]:
    """Empty the KV caches that stay, as the KV policy says."""
    if options.auxiliaries and options.has_kv:
        yield ForgetAuxiliaryCache(weights_go=weights_go)
    if options.has_kv:
        yield ForgetKVCache(weights_go=weights_go)


def _admission(options: PlanOptions) -> Iterator[Action]:
    """See that a second version fits, before anything else."""
    if not options.cache_only:
        yield PlanStagingMemory()


def _staging(options: PlanOptions) -> Iterator[Action]:
    """Stage, verify and make ready, all beside the loop that serves."""
    if not options.cache_only:
        yield StageWeights()
        yield VerifyStaged(options.resident_digest)
        yield MakeFlipReady(options.address_contract)
    yield DeclareStaged(has_weights=not options.cache_only)


def _flip(options: PlanOptions) -> Iterator[Action]:
    """Let the staged version take the served one's place, and see to what the old one left behind."""
    yield from _settle(options, may_hold=True)
    if options.routing_replay:
        yield ForgetRoutingReplay()
    if not options.cache_only:
        yield FlipWeights(options.address_contract)
    yield from _reset_inputs(options)
    yield from _forget_blocks(options)
    if options.routing_replay:
        yield ResumeRoutingReplay()
