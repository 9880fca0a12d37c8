"""Plans derived from a configuration: which steps an engine needs for each transition, in which order.

Responsible for presence: a step that a configuration does not need, or that a change of one half only
(:mod:`wsm.states.halves`) leaves out, is absent, never skipped at run time. The order written here is
checked against the declared rules (:mod:`wsm.actions.order`) every time. It knows no words, and runs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from wsm.actions import hot_plan, parts
from wsm.actions.addition import with_additions
from wsm.actions.base import Action
from wsm.actions.measuring import MemoryProof
from wsm.actions.memory import EmptyAllocatorCache
from wsm.actions.options import PlanOptions
from wsm.actions.order import check_order
from wsm.actions.publication import DeclareCleared, DeclarePrepared
from wsm.actions.requests import ResumeAdmitting, StopAdmitting
from wsm.actions.sequence import Plan, Plans
from wsm.actions.verify import VerifyCleared
from wsm.states.halves import CHANGES, DISCARDS, Change, Half
from wsm.states.vocabulary import KVPolicy, PlanName

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
    proof = MemoryProof(options.memory_drop)
    made = {name: _commanded(name, options, change, proof) for name, change in CHANGES.items()}
    repairs = {name: _repairing(name, options, change, proof) for name, change in DISCARDS.items()}
    plans = Plans(
        clear=made.pop(PlanName.CLEAR),
        update=made.pop(PlanName.UPDATE),
        update_in_place=made.pop(PlanName.UPDATE_IN_PLACE),
        hot=_hot(options),
        discard=repairs.pop(PlanName.DISCARD),
        rejoin=_plan(PlanName.REJOIN, options, _rejoin(options), frozenset(KVPolicy)),
        partial={**made, **repairs},
    )
    check_order(plans)
    return plans


def _commanded(name: PlanName, options: PlanOptions, change: Change, proof: MemoryProof) -> Plan:
    clears = Half.GOES in change
    actions = _clear(options, change, proof) if clears else _update(options, change)
    resumes = (ResumeAdmitting(),) if change.serves and not options.cache_only else ()
    kv_policies = frozenset({KVPolicy.DROP})
    if change.kv is Half.STAYS:
        # Requests that are held with their blocks go on at once, so not where the weights only go.
        kv_policies = options.kv_policies - ({KVPolicy.KEEP_IN_FLIGHT} if clears else set())
    return _plan(name, options, actions, kv_policies, resumes)


def _hot(options: PlanOptions) -> Plan:
    staging = tuple(hot_plan.staging(options))
    actions = iter((*staging, *hot_plan.flip(options)))
    resumes = () if options.cache_only else (ResumeAdmitting(),)
    return _plan(
        PlanName.HOT,
        options,
        actions,
        options.kv_policies,
        resumes,
        admission=tuple(hot_plan.admission(options)),
        staged=len(staging),
    )


def _repairing(name: PlanName, options: PlanOptions, change: Change, proof: MemoryProof) -> Plan:
    actions = _discard(options, change, proof, served=name is not PlanName.DISCARD_WEIGHTS)
    return _plan(name, options, actions, frozenset(KVPolicy))


def _plan(
    name: PlanName,
    options: PlanOptions,
    actions: Iterator[Action],
    kv_policies: frozenset[KVPolicy],
    commit: tuple[Action, ...] = (),
    *,
    admission: tuple[Action, ...] = (),
    staged: int = 0,
) -> Plan:
    plan = Plan(
        name=name.value,
        actions=tuple(actions),
        before_parking=() if options.cache_only else (StopAdmitting(),),
        commit=commit,
        kv_policies=kv_policies,
        in_flight_policies=options.in_flight_policies,
        admission=admission,
        staged=staged,
    )
    plan = with_additions(plan, options.additions)
    for action in plan:
        action.deadline_s = options.deadlines.get(action.name, action.deadline_s)
    return plan


def _clear(options: PlanOptions, change: Change, proof: MemoryProof) -> Iterator[Action]:
    weights_go = change.weights is Half.GOES
    yield from parts.settle(options)
    if Half.AWAY not in change:  # what stands on both went with the first of them
        yield from parts.forget_records_and_graphs(options)
    if weights_go:
        yield from parts.clear_buffer(options)
        yield from parts.release_weights(options)
    if change.kv is Half.GOES:
        yield from parts.release_caches(options)
    if change.kv is Half.STAYS:
        yield from parts.forget_blocks(options, weights_go=True)
    yield EmptyAllocatorCache()
    if weights_go:
        yield from parts.shut_down_groups(options)
    yield VerifyCleared(proof, change.gone)
    yield DeclareCleared()


def _update(options: PlanOptions, change: Change) -> Iterator[Action]:
    if change.weights is Half.COMES:
        yield from parts.restart_groups(options)
    if change.weights is Half.REPLACED:
        yield from parts.settle(options, may_hold=True)
        if change.kv is Half.STAYS:
            yield from parts.forget_records_and_graphs(options)
    if change.loads:
        yield from parts.load_weights(options)
    if change.loads or change.serves:
        yield from parts.reset_inputs(options)
    if change.kv is Half.STAYS:
        yield from parts.forget_blocks(options)
    if change.kv is Half.COMES:
        yield from parts.rebuild_caches(options)
    if change.serves:
        yield from parts.make_ready(options)
    yield DeclarePrepared(has_weights=change.weights is not Half.AWAY and not options.cache_only)


def _discard(options: PlanOptions, change: Change, proof: MemoryProof, *, served: bool) -> Iterator[Action]:
    yield from parts.settle(options, break_off_drain=True)
    if served:  # what stands on both is there only where both were
        yield from parts.forget_records_and_graphs(options)
    if change.weights is Half.GOES:
        yield from parts.release_weights(options)
    if change.kv is Half.GOES:
        yield from parts.release_caches(options)
    elif served:
        yield from parts.forget_blocks(options, weights_go=True)
    yield EmptyAllocatorCache()
    yield VerifyCleared(proof, change.gone)
    yield DeclareCleared()


def _rejoin(options: PlanOptions) -> Iterator[Action]:
    yield from parts.lose_requests(options)
    yield from parts.abandon_groups(options)
