"""Plans derived from a configuration: which steps an engine needs for each transition, in which order.

Responsible for presence: a step that a configuration does not need is absent, never skipped at run
time. The order written here is checked against the declared rules (:mod:`wsm.actions.order`) every
time. It knows neither states nor words, and runs nothing.
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
from wsm.actions.deepep import ClearDeepEPBuffer, RecreateDeepEPBuffer
from wsm.actions.kv_cache import ForgetKVCache, RebuildKVCache, ReleaseKVCache
from wsm.actions.measuring import MemoryProof
from wsm.actions.memory import EmptyAllocatorCache
from wsm.actions.options import PlanOptions
from wsm.actions.order import check_order
from wsm.actions.process_groups import RESTART_ORDER, SHUT_DOWN_ORDER, RestartGroup, ShutDownGroup
from wsm.actions.publication import DeclareCleared, DeclarePrepared
from wsm.actions.requests import ResetInputs, ResumeAdmitting, SettleRequests, StopAdmitting
from wsm.actions.routing_replay import ForgetRoutingReplay, ResumeRoutingReplay
from wsm.actions.sequence import Plan, Plans
from wsm.actions.verify import VerifyCleared, VerifyLoaded
from wsm.actions.weights import LoadWeights, ReleaseWeights
from wsm.states.vocabulary import KVPolicy

__all__ = ["Plan", "PlanOptions", "Plans", "derive_plans"]


def derive_plans(options: PlanOptions) -> Plans:
    """Derive all plans of an engine and check their order.

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
    PlanOrderError
        If this module and the declared order disagree: a bug in wsm.
    """
    drop_only = frozenset({KVPolicy.DROP})
    proof = MemoryProof(options.memory_drop)
    plans = Plans(
        clear=_plan("clear", options, _clear(options, proof), kv_policies=drop_only),
        update=_plan("update", options, _update(options), resumes=True, kv_policies=drop_only),
        update_in_place=_plan(
            "update_in_place",
            options,
            _update_in_place(options),
            resumes=True,
            kv_policies=options.kv_policies,
        ),
        discard=_plan("discard", options, _discard(options, proof), kv_policies=frozenset(KVPolicy)),
    )
    check_order(plans)
    return plans


def _plan(
    name: str,
    options: PlanOptions,
    actions: Iterator[Action],
    *,
    kv_policies: frozenset[KVPolicy],
    resumes: bool = False,
) -> Plan:
    plan = Plan(
        name=name,
        actions=tuple(actions),
        before_parking=(StopAdmitting(),),
        commit=(ResumeAdmitting(),) if resumes else (),
        kv_policies=kv_policies,
        in_flight_policies=options.in_flight_policies,
    )
    for action in plan:
        action.deadline_s = options.deadlines.get(action.name, action.deadline_s)
    return plan


def _clear(options: PlanOptions, proof: MemoryProof) -> Iterator[Action]:
    yield SettleRequests()
    yield from _forget_records_and_graphs(options)
    if options.has_deepep:
        yield ClearDeepEPBuffer()
    yield from _release(options)
    if options.shut_down_groups:
        yield from (ShutDownGroup(kind) for kind in SHUT_DOWN_ORDER if kind in options.group_kinds)
    yield VerifyCleared(proof)
    yield DeclareCleared()


def _update(options: PlanOptions) -> Iterator[Action]:
    if options.shut_down_groups:
        yield from (RestartGroup(kind) for kind in RESTART_ORDER if kind in options.group_kinds)
    if options.has_deepep:
        yield RecreateDeepEPBuffer()
    yield from _load(options)
    if options.auxiliaries and options.has_kv:
        yield RebuildAuxiliaryCache()
    if options.has_kv:
        yield RebuildKVCache()
    yield from _ready(options)


def _update_in_place(options: PlanOptions) -> Iterator[Action]:
    yield SettleRequests()
    yield from _forget_records_and_graphs(options)
    yield from _load(options)
    if options.auxiliaries and options.has_kv:
        yield ForgetAuxiliaryCache()
    if options.has_kv:
        yield ForgetKVCache()
    yield from _ready(options)


def _discard(options: PlanOptions, proof: MemoryProof) -> Iterator[Action]:
    yield SettleRequests(break_off_drain=True)
    yield from _forget_records_and_graphs(options)
    yield from _release(options)
    yield VerifyCleared(proof)
    yield DeclareCleared()


def _forget_records_and_graphs(options: PlanOptions) -> Iterator[Action]:
    if options.routing_replay:
        yield ForgetRoutingReplay()
    if options.has_graphs:
        yield DropMainGraphs(
            capture_is_collective=options.capture_is_collective, contract=options.address_contract
        )
    if options.has_draft_graphs:
        yield DropDraftGraphs(capture_is_collective=options.capture_is_collective)


def _release(options: PlanOptions) -> Iterator[Action]:
    yield ReleaseWeights()
    if options.auxiliaries and options.has_kv:
        yield ReleaseAuxiliaryCache()
    if options.has_kv:
        yield ReleaseKVCache()
    yield EmptyAllocatorCache()


def _load(options: PlanOptions) -> Iterator[Action]:
    yield LoadWeights()
    yield VerifyLoaded(options.resident_digest, options.address_contract)
    yield ResetInputs()
    if options.auxiliaries:
        yield ResetAuxiliaryInputs()


def _ready(options: PlanOptions) -> Iterator[Action]:
    if options.has_graphs:
        yield CaptureMainGraphs(
            capture_is_collective=options.capture_is_collective, contract=options.address_contract
        )
    if options.has_draft_graphs:
        yield CaptureDraftGraphs(capture_is_collective=options.capture_is_collective)
    if options.routing_replay:
        yield ResumeRoutingReplay()
    yield DeclarePrepared()
