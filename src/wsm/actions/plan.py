"""Plans: which actions an engine needs for each transition, and in which order.

A plan has those rows of :data:`STEPS` that stand in plans of its key, for an engine that has what they act
on. What a configuration does not need, or a change of one half only (:mod:`wsm.states.plan_key`) leaves out,
is absent, never skipped at run time. The reason for a row's place stands above it: the incident or the fact.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias

from wsm.actions import _caches, _graphs, _groups, _requests, _verify, _weights, names
from wsm.actions.base import Action, Plan, Plans
from wsm.actions.measuring import MemoryProof
from wsm.actions.options import Addition, PlanOptions, plan_options
from wsm.actions.surfaces import GroupKind
from wsm.states.plan_key import GIVEN_BACK, HOLD, HOT, PLANS, RELEASE, UPDATE_IN_PLACE, Half, PlanKey, Repair
from wsm.states.vocabulary import InFlightPolicy, KVPolicy, Tag
from wsm.typed import typed

_Engine: TypeAlias = Callable[[PlanOptions], object]
_Keys: TypeAlias = frozenset[PlanKey]


class Step(NamedTuple):
    """One row of the table of plans.

    Parameters
    ----------
    where, engine : frozenset of PlanKey, callable
        The plans that have it, of an engine for which ``engine(options)`` is true.
    needs : tuple of str
        What the action is made of, by keyword (:func:`_arguments`).
    part : str
        The part of the plan (:class:`wsm.actions.base.Plan`); ``staging`` is the first of its actions.
    """

    name: str
    action: Callable[..., Action]
    where: _Keys
    engine: _Engine
    needs: tuple[str, ...] = ()
    part: str = "actions"


def _arguments(key: PlanKey, options: PlanOptions, proof: MemoryProof) -> dict[str, Any]:
    return {
        "capture_is_collective": options.capture_is_collective,
        "contract": options.address_contract,
        "digest": options.resident_digest,
        "is_collective": options.rebuild_is_collective,
        "has_weights": key.weights is not Half.AWAY and not options.cache_only,
        "weights_go": not key.loads,
        "break_off_drain": isinstance(key.operation, Repair),
        "may_hold": not key.gives_back,
        "proof": proof,
        "tags": key.gone,
    }


def _step(action: type[Action], where: _Keys, engine: _Engine, *needs: str, part: str = "actions") -> Step:
    return Step(action.name, action, where, engine, needs, part)


def _of_kind(action: Callable[[GroupKind], Action], kind: GroupKind, where: _Keys, engine: _Engine) -> Step:
    def has(options: PlanOptions) -> bool:
        return kind in options.group_kinds and bool(engine(options))

    return Step(action(kind).name, functools.partial(action, kind), where, has)


def _keys(where: Callable[[PlanKey], bool]) -> frozenset[PlanKey]:
    return frozenset(filter(where, PLANS))


_HOT = _keys(lambda key: key.operation is HOT.operation)
_HOLDS, _IN_PLACE = frozenset({HOLD}), frozenset({UPDATE_IN_PLACE})
_RELEASES = _keys(lambda key: key.operation is RELEASE.operation)
_REJOINS = _keys(lambda key: key.operation is Repair.REJOIN)
_UPDATES = _keys(lambda key: key.operation is UPDATE_IN_PLACE.operation)
_GIVES_BACK = _keys(lambda key: key.gives_back)
_GIVES_WEIGHTS = _keys(lambda key: key.weights in GIVEN_BACK)
_GIVES_KV = _keys(lambda key: key.kv is Half.GOES)
_CLEARS_WEIGHTS = _keys(lambda key: key.weights is Half.GOES and not isinstance(key.operation, Repair))
_BRINGS_WEIGHTS = _keys(lambda key: key.weights is Half.COMES)
_BRINGS_KV = _keys(lambda key: key.kv is Half.COMES)
_LOADS = _UPDATES & _keys(lambda key: key.loads)
_READY = _UPDATES & _keys(lambda key: key.serves)
_SETTLES = _GIVES_BACK | _keys(lambda key: key.weights is Half.REPLACED or key.operation is HOLD.operation)
#: Weights and KV cache were both there, and one of them goes or is replaced.
_ENDS_BOTH = _IN_PLACE | _keys(
    lambda key: key.gives_back and Half.AWAY not in key and key.weights is not Half.WITHDRAWN
)
_FORGETS = _keys(lambda key: key.kv is Half.STAYS and key.weights not in (Half.STAYS, Half.WITHDRAWN))


def _with_weights(options: PlanOptions) -> bool:
    return not options.cache_only


def _with_auxiliary_kv(options: PlanOptions) -> bool:
    return options.has_kv and bool(options.auxiliaries)


def _restarts(options: PlanOptions) -> object:
    return options.shut_down_groups or options.rejoins


def _processes(options: PlanOptions) -> bool:
    return options.processes_loaded and not options.cache_only


_CAPTURING = ("capture_is_collective", "contract")

#: Every action, in the order that all plans have; above it, why it stands there, or why those plans need it.
STEPS: Final[tuple[Step, ...]] = (
    # what has no room fails first
    _step(_weights.PlanStagingMemory, _HOT, _with_weights, part="admission"),
    # nothing is offered for commit before its bytes were read again
    _step(_weights.StageWeights, _HOT, _with_weights, part="staging"),
    _step(_weights.VerifyStaged, _HOT, _with_weights, "digest", part="staging"),
    # after the decision nothing may fail any more, so everything that can comes before
    _step(_weights.MakeFlipReady, _HOT, _with_weights, "contract", part="staging"),
    _step(_verify.DeclareStaged, _HOT, lambda _: True, "has_weights", part="staging"),
    # a drained scheduler has to step, and a parked rank does not
    _step(_requests.StopAdmitting, frozenset(PLANS) - _RELEASES, _with_weights, part="before_parking"),
    # clients are told before anything can fail
    _step(_requests.LoseRequests, _REJOINS, _with_weights),
    # it lives on a group
    _step(_groups.AbandonDeepEPBuffer, _REJOINS, lambda of: of.has_deepep),
    # they broke with a peer
    _step(_groups.AbandonGroups, _REJOINS, lambda of: of.group_kinds),
    # a group is created after the ones that it is part of
    *(_of_kind(_groups.RestartGroup, kind, _BRINGS_WEIGHTS, _restarts) for kind in _groups.RESTART_ORDER),
    # the buffer is created on a living EP group, and what fails there fails before a byte is loaded
    _step(_groups.RecreateDeepEPBuffer, _BRINGS_WEIGHTS, lambda of: of.has_deepep),
    # a request that still runs would read what goes away
    _step(_requests.SettleRequests, _SETTLES, _with_weights, "break_off_drain", "may_hold"),
    # running requests still record (FastDeploy#6569)
    _step(_requests.ForgetRoutingReplay, _HOT | _ENDS_BOTH, lambda of: of.routing_replay),
    # graphs point at parameters and cache blocks; clearing these first hangs, and so does draft before main
    # (FastDeploy#7522)
    _step(_graphs.DropMainGraphs, _ENDS_BOTH, lambda of: of.has_graphs, *_CAPTURING),
    _step(_graphs.DropDraftGraphs, _ENDS_BOTH, lambda of: of.has_draft_graphs, _CAPTURING[0]),
    # destroying DeepEP is collective over its group, which must live (DeepEP#571)
    _step(_groups.ClearDeepEPBuffer, _CLEARS_WEIGHTS, lambda of: of.has_deepep),
    # a load needs their room
    _step(_caches.FreeCachesForLoad, _IN_PLACE, lambda of: of.releases_cache),
    # the allocator hands back only what was released to it
    _step(_weights.ReleaseWeights, _GIVES_WEIGHTS, _with_weights),
    # nothing is offered for commit before its bytes were read again
    _step(_weights.LoadWeights, _LOADS, _with_weights),
    # no engine computes with a checkpoint
    _step(_weights.ProcessLoaded, _LOADS, _processes, "digest"),
    # nothing is built on weights that were not verified
    _step(_verify.VerifyLoaded, _LOADS, _with_weights, "digest", "contract"),
    # after the decision nothing may fail any more, so everything that can comes before
    _step(_weights.FlipWeights, _HOT, _with_weights, "contract"),
    # cached inputs belong to the batch before (FastDeploy#7744)
    _step(_requests.ResetInputs, _HOT | _LOADS | _READY, _with_weights),
    _step(_caches.ResetAuxiliaryInputs, _HOT | _LOADS | _READY, lambda of: of.auxiliaries),
    # steps need them again
    _step(_caches.RebuildCachesAfterLoad, _IN_PLACE, lambda of: of.releases_cache),
    # blocks that other weights computed are not offered, unless the KV policy says so
    _step(_caches.ForgetAuxiliaryCache, _FORGETS, _with_auxiliary_kv, "weights_go"),
    _step(_caches.ForgetKVCache, _FORGETS, lambda of: of.has_kv, "weights_go"),
    # MTP's cache is laid out beside the main one
    _step(_caches.ReleaseAuxiliaryCache, _GIVES_KV, _with_auxiliary_kv),
    # the allocator hands back only what was released to it
    _step(_caches.ReleaseKVCache, _GIVES_KV, lambda of: of.has_kv),
    # MTP's cache is laid out beside the main one
    _step(_caches.RebuildAuxiliaryCache, _BRINGS_KV, _with_auxiliary_kv),
    # graphs record the addresses of loaded weights and of the new cache (FastDeploy#3773)
    _step(_caches.RebuildKVCache, _BRINGS_KV, lambda of: of.has_kv, "is_collective"),
    _step(_graphs.CaptureMainGraphs, _READY, lambda of: of.has_graphs, *_CAPTURING),
    # warm-up passes of a capture must not be recorded
    _step(_graphs.CaptureDraftGraphs, _READY, lambda of: of.has_draft_graphs, _CAPTURING[0]),
    # PREPARED means ready to step (FastDeploy#3773)
    _step(_requests.ResumeRoutingReplay, _HOT | _READY, lambda of: of.routing_replay),
    # released memory is free for others once the allocator has handed it back
    _step(_caches.EmptyAllocatorCache, _GIVES_BACK, lambda _: True),
    # what was created last goes first, on every rank alike (slime#2331)
    *(
        _of_kind(_groups.ShutDownGroup, kind, _CLEARS_WEIGHTS, lambda of: of.shut_down_groups)
        for kind in _groups.SHUT_DOWN_ORDER
    ),
    # memory is believed to be free after the last release, not before (slime#579)
    _step(_verify.VerifyCleared, _GIVES_BACK, lambda _: True, "proof", "tags"),
    # a receipt needs its facts
    _step(_verify.DeclareCleared, _GIVES_BACK, lambda _: True),
    _step(_verify.DeclarePrepared, _UPDATES, lambda _: True, "has_weights"),
    # a hold that fails leaves the cache as it was
    _step(_caches.ForgetAuxiliaryCache, _HOLDS, _with_auxiliary_kv, "weights_go", part="commit"),
    _step(_caches.ForgetKVCache, _HOLDS, lambda of: of.has_kv, "weights_go", part="commit"),
    # a request that still runs would read what goes away
    _step(_requests.EndSetAside, _UPDATES - _SETTLES, _with_weights, part="commit"),
    # what fails never admits
    _step(_requests.ResumeAdmitting, _HOT | _READY | _RELEASES, _with_weights, part="commit"),
)


@typed
def derive_plans(options: PlanOptions) -> Plans:
    """Compose all plans of an engine, in a few milliseconds. None shares an action object.

    What an engine has asked for in vain is refused before anything runs.

    Raises
    ------
    BadInputError (``plan-options``)
        If an addition has no place in a plan that must have it.
    """
    proof = MemoryProof(options.memory_drop)
    return Plans({str(key): _plan(key, options, proof) for key in PLANS})


def _plan(key: PlanKey, options: PlanOptions, proof: MemoryProof) -> Plan:
    known = _arguments(key, options, proof)
    parts: dict[str, list[Any]] = {}
    for step in STEPS:
        if key in step.where and step.engine(options):
            parts.setdefault(step.part, []).append(step.action(**{name: known[name] for name in step.needs}))
    staging = parts.pop("staging", [])
    made = {part: tuple(actions) for part, actions in parts.items()}
    # A release does nothing to requests: it is never refused for want of a scheduler that could keep them.
    releases = key.operation is RELEASE.operation
    plan = Plan(
        key=key,
        **{**made, "actions": (*staging, *made.get("actions", ()))},
        kv_policies=_kv_policies(key, options),
        in_flight_policies=frozenset(InFlightPolicy) if releases else options.in_flight_policies,
        staged=len(staging),
    )
    plan = with_additions(plan, options.additions)
    for action in plan:
        action.deadline_s = options.deadlines.get(action.name, action.deadline_s)
        action.plan, action.around = plan.name, options.around
    return plan


def _kv_policies(key: PlanKey, options: PlanOptions) -> frozenset[KVPolicy]:
    if isinstance(key.operation, Repair) or key.operation is RELEASE.operation:
        return frozenset(KVPolicy)
    if key.operation is HOLD.operation:
        return frozenset({KVPolicy.DROP, KVPolicy.KEEP})
    if key.kv is not Half.STAYS or (options.releases_cache and key == UPDATE_IN_PLACE):
        return frozenset({KVPolicy.DROP})
    # Requests that are held with their blocks go on at once, so not where the weights only go.
    return options.kv_policies - ({KVPolicy.KEEP_IN_FLIGHT} if key.gives_back else frozenset())


_TAKES_BEFORE = {
    Tag.WEIGHTS: (names.RELEASE_WEIGHTS, names.LOAD_WEIGHTS, names.FLIP_WEIGHTS),
    Tag.KV_CACHE: (names.RELEASE_KV_CACHE,),
}
_BRINGS_AFTER = {
    Tag.WEIGHTS: (names.VERIFY_LOADED, names.FLIP_WEIGHTS),
    Tag.KV_CACHE: (names.REBUILD_KV_CACHE,),
}


def with_additions(plan: Plan, additions: Sequence[Addition]) -> Plan:
    """Return a plan with the actions that an engine has added to it.

    Raises
    ------
    BadInputError (``plan-options``)
        If a plan must have one, and has none of the actions that its place is said by.
    """
    actions = list(plan.actions)
    for addition in additions:
        taken, brought = _moved(plan, addition.tags)
        if taken and addition.takes is not None:
            anchors = addition.takes_before or tuple(_of(_TAKES_BEFORE, addition.tags))
            actions.insert(_places(plan, actions, anchors)[0], addition.takes())
        if brought and addition.brings is not None:
            anchors = addition.brings_after or tuple(_of(_BRINGS_AFTER, addition.tags))
            actions.insert(_places(plan, actions, anchors)[-1] + 1, addition.brings())
    return replace(plan, actions=tuple(actions))


def _moved(plan: Plan, tags: frozenset[Tag]) -> tuple[bool, bool]:
    """Say whether a plan takes what `tags` name away, and whether it brings it."""
    mine = set() if plan.key is None else {plan.key.halves[tag] for tag in tags}
    return bool(mine & (GIVEN_BACK | {Half.REPLACED})), bool(mine & {Half.COMES, Half.REPLACED})


def _of(table: dict[Tag, tuple[str, ...]], tags: frozenset[Tag]) -> Iterator[str]:
    for tag in tags:
        yield from table[tag]


def _places(plan: Plan, actions: list[Action], anchors: tuple[str, ...]) -> list[int]:
    found = [index for index, action in enumerate(actions) if action.name in anchors and index >= plan.staged]
    if not found:
        allowed = f"the plan {plan.name} needs the addition, and has none of these; name an action of it"
        raise plan_options(option="additions", value=anchors, allowed=allowed)
    return found
