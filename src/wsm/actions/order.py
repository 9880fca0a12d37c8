"""The order that plans must have, as data, and the check of plans against it.

Responsible for the reasons why one unit comes before another; every rule carries the incident or
the fact behind it. It must not know how plans are built, so that a slip there is caught here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from wsm.actions import names
from wsm.actions.base import Plan, Plans
from wsm.actions.errors import PlanOrderError
from wsm.states.halves import DISCARDS
from wsm.states.vocabulary import PlanName


@dataclass(frozen=True)
class Before:
    """Wherever both are in one plan, `first` comes first."""

    first: str
    second: str
    why: str


@dataclass(frozen=True)
class Needs:
    """A plan with `action` also has `other`, later in the plan or earlier."""

    action: str
    other: str
    later: bool
    why: str


@dataclass(frozen=True)
class Mirror:
    """What the clear plan takes is exactly what the update plan gives back.

    With `given_alone` an update gives back what an epoch's end broke, although no clear takes any of it.
    """

    taken: str
    given: str
    given_alone: bool = False


_GRAPHS_WHY = "graphs point at parameters and cache blocks; clearing these first hangs (FastDeploy#7522)"
_GROUPS_WHY = "destroying DeepEP is collective over its group, which must live (DeepEP#571)"
_CAPTURE_WHY = "graphs record the addresses of loaded weights and of the new cache (FastDeploy#3773)"
_INNER_WHY = "what was created last goes first, on every rank alike (slime#2331)"
_MEASURE_WHY = "memory is believed to be free after the last release, not before (slime#579)"
_PROOF_WHY = "nothing is offered for commit before its bytes were read again"

_NOTHING_FAILS_WHY = "after the decision nothing may fail any more, so everything that can comes before"

_DROPPED = (names.DROP_MAIN_GRAPHS, names.DROP_DRAFT_GRAPHS)
_RELEASED = (names.RELEASE_WEIGHTS, names.RELEASE_AUXILIARY_CACHE, names.RELEASE_KV_CACHE)
_FORGOTTEN = (names.FORGET_AUXILIARY_CACHE, names.FORGET_KV_CACHE)
_REBUILT = (names.REBUILD_AUXILIARY_CACHE, names.REBUILD_KV_CACHE)
_CAPTURED = (names.CAPTURE_MAIN_GRAPHS, names.CAPTURE_DRAFT_GRAPHS)
_SHUT = (names.SHUT_DOWN_EP_GROUP, names.SHUT_DOWN_TP_GROUP, names.SHUT_DOWN_WORLD_GROUP)
_RESTARTED = (names.RESTART_WORLD_GROUP, names.RESTART_TP_GROUP, names.RESTART_EP_GROUP)


def _each(first: tuple[str, ...], second: tuple[str, ...], why: str) -> tuple[Before, ...]:
    return tuple(Before(one, other, why) for one in first for other in second)


def _chain(steps: tuple[str, ...], why: str) -> tuple[Before, ...]:
    return tuple(Before(one, other, why) for index, one in enumerate(steps) for other in steps[index + 1 :])


#: Order within one plan.
BEFORE: tuple[Before, ...] = (
    *_each(
        (names.SETTLE_REQUESTS,),
        (
            *_DROPPED,
            names.CLEAR_DEEPEP_BUFFER,
            *_RELEASED,
            *_FORGOTTEN,
            names.LOAD_WEIGHTS,
            names.FLIP_WEIGHTS,
        ),
        "a request that still runs would read what goes away",
    ),
    Before(
        names.SETTLE_REQUESTS, names.FORGET_ROUTING_REPLAY, "running requests still record (FastDeploy#6569)"
    ),
    *_chain(_DROPPED, "main before draft, on every rank alike (FastDeploy#7522)"),
    *_each(_DROPPED, (*_RELEASED, names.CLEAR_DEEPEP_BUFFER, names.LOAD_WEIGHTS), _GRAPHS_WHY),
    *_each((names.CLEAR_DEEPEP_BUFFER,), _SHUT, _GROUPS_WHY),
    *_chain(_SHUT, _INNER_WHY),
    Before(
        names.RELEASE_AUXILIARY_CACHE, names.RELEASE_KV_CACHE, "MTP's cache is laid out beside the main one"
    ),
    *_each(
        _RELEASED, (names.EMPTY_ALLOCATOR_CACHE,), "the allocator hands back only what was released to it"
    ),
    *_each(
        (*_RELEASED, *_SHUT, names.EMPTY_ALLOCATOR_CACHE, names.CLEAR_DEEPEP_BUFFER),
        (names.VERIFY_CLEARED,),
        _MEASURE_WHY,
    ),
    Before(names.VERIFY_CLEARED, names.DECLARE_CLEARED, _MEASURE_WHY),
    *_chain(_RESTARTED, "a group is created after the ones that it is part of"),
    *_each(
        (names.LOSE_REQUESTS,),
        (names.ABANDON_DEEPEP_BUFFER, names.ABANDON_GROUPS),
        "whoever waits is told before anything else can fail",
    ),
    Before(names.ABANDON_DEEPEP_BUFFER, names.ABANDON_GROUPS, "what lives on a group goes before it"),
    *_each(_RESTARTED, (names.RECREATE_DEEPEP_BUFFER,), "the buffer is created on a living EP group"),
    *_each(
        (*_RESTARTED, names.RECREATE_DEEPEP_BUFFER),
        (names.LOAD_WEIGHTS,),
        "a group that cannot be had fails the update before a byte is loaded",
    ),
    Before(names.LOAD_WEIGHTS, names.VERIFY_LOADED, _PROOF_WHY),
    *_each(
        (names.VERIFY_LOADED,),
        (names.RESET_INPUTS, names.RESET_AUXILIARY_INPUTS, *_REBUILT, *_FORGOTTEN, *_CAPTURED),
        "nothing is built on weights that were not verified",
    ),
    *_chain(
        (
            names.STAGE_WEIGHTS,
            names.VERIFY_STAGED,
            names.MAKE_FLIP_READY,
            names.DECLARE_STAGED,
            names.FLIP_WEIGHTS,
        ),
        _NOTHING_FAILS_WHY,
    ),
    *_each(
        (names.DECLARE_STAGED,),
        (names.SETTLE_REQUESTS, *_FORGOTTEN, names.RESET_INPUTS, names.RESET_AUXILIARY_INPUTS),
        "while it stages a rank serves, with everything that serving takes",
    ),
    *_each(
        (names.FLIP_WEIGHTS,),
        (*_FORGOTTEN, names.RESET_INPUTS, names.RESET_AUXILIARY_INPUTS, names.RESUME_ROUTING_REPLAY),
        "what the old weights left behind goes when they do",
    ),
    Before(names.REBUILD_AUXILIARY_CACHE, names.REBUILD_KV_CACHE, "as FastDeploy lays them out"),
    *_each(
        (*_REBUILT, *_FORGOTTEN, names.RESET_INPUTS, names.RESET_AUXILIARY_INPUTS), _CAPTURED, _CAPTURE_WHY
    ),
    *_chain(_CAPTURED, "main before draft, on every rank alike"),
    *_each(
        (*_CAPTURED, *_REBUILT, *_FORGOTTEN, names.VERIFY_LOADED, names.RESUME_ROUTING_REPLAY),
        (names.DECLARE_PREPARED,),
        "PREPARED means ready to step (FastDeploy#3773)",
    ),
    *_each(_CAPTURED, (names.RESUME_ROUTING_REPLAY,), "warm-up passes of a capture must not be recorded"),
)

#: What must accompany what.
NEEDS: tuple[Needs, ...] = (
    Needs(names.LOAD_WEIGHTS, names.VERIFY_LOADED, later=True, why=_PROOF_WHY),
    Needs(names.VERIFY_LOADED, names.DECLARE_PREPARED, later=True, why="a receipt needs its facts"),
    Needs(names.STAGE_WEIGHTS, names.VERIFY_STAGED, later=True, why=_PROOF_WHY),
    Needs(names.VERIFY_STAGED, names.DECLARE_STAGED, later=True, why="a receipt needs its facts"),
    Needs(names.FLIP_WEIGHTS, names.MAKE_FLIP_READY, later=False, why=_NOTHING_FAILS_WHY),
    Needs(names.FLIP_WEIGHTS, names.VERIFY_STAGED, later=False, why=_PROOF_WHY),
    Needs(names.FLIP_WEIGHTS, names.SETTLE_REQUESTS, later=False, why="running requests read weights"),
    Needs(names.RELEASE_WEIGHTS, names.VERIFY_CLEARED, later=True, why=_MEASURE_WHY),
    Needs(names.RELEASE_WEIGHTS, names.SETTLE_REQUESTS, later=False, why="running requests read weights"),
    Needs(names.VERIFY_CLEARED, names.DECLARE_CLEARED, later=True, why="a receipt needs its facts"),
    *(Needs(name, names.VERIFY_CLEARED, later=True, why=_MEASURE_WHY) for name in _RELEASED[1:]),
)

#: What clear takes and update gives back: exactly the same, or one of the two plans is wrong.
MIRRORS: tuple[Mirror, ...] = (
    Mirror(names.DROP_MAIN_GRAPHS, names.CAPTURE_MAIN_GRAPHS),
    Mirror(names.DROP_DRAFT_GRAPHS, names.CAPTURE_DRAFT_GRAPHS),
    Mirror(names.CLEAR_DEEPEP_BUFFER, names.RECREATE_DEEPEP_BUFFER),
    Mirror(names.SHUT_DOWN_EP_GROUP, names.RESTART_EP_GROUP, given_alone=True),
    Mirror(names.SHUT_DOWN_TP_GROUP, names.RESTART_TP_GROUP, given_alone=True),
    Mirror(names.SHUT_DOWN_WORLD_GROUP, names.RESTART_WORLD_GROUP, given_alone=True),
    Mirror(names.RELEASE_WEIGHTS, names.LOAD_WEIGHTS),
    Mirror(names.RELEASE_AUXILIARY_CACHE, names.REBUILD_AUXILIARY_CACHE),
    Mirror(names.RELEASE_KV_CACHE, names.REBUILD_KV_CACHE),
)


#: Which plan brings back what which one has taken; an update in place gives back what it takes itself.
PAIRS: tuple[tuple[PlanName, PlanName], ...] = (
    (PlanName.CLEAR, PlanName.UPDATE),
    (PlanName.CLEAR_WEIGHTS, PlanName.UPDATE_WEIGHTS),
    (PlanName.CLEAR_REMAINING_WEIGHTS, PlanName.UPDATE_WEIGHTS_ONLY),
    (PlanName.CLEAR_KV_CACHE, PlanName.UPDATE_KV_CACHE),
    (PlanName.CLEAR_REMAINING_KV_CACHE, PlanName.UPDATE_KV_CACHE_ONLY),
)


def check_order(plans: Plans) -> None:
    """Check all plans of an engine.

    Raises
    ------
    PlanOrderError
        For the first rule that a plan breaks.
    """
    for plan in plans:
        for error in _broken(plan):
            raise error
    for taking, giving in PAIRS:
        for mirror in MIRRORS:
            _check_mirror(plans.named(taking), plans.named(giving), mirror)
    _check_locality(plans)


def _broken(plan: Plan) -> Iterator[PlanOrderError]:
    at: dict[str, int] = {}
    for index, name in enumerate(plan.names()):
        if name in at:
            yield PlanOrderError(
                plan=plan.name, rule=f"{name} once", why="twice is FastDeploy's double shutdown"
            )
        at[name] = index
    for rule in BEFORE:
        if rule.first in at and rule.second in at and at[rule.first] > at[rule.second]:
            yield PlanOrderError(plan=plan.name, rule=f"{rule.first} before {rule.second}", why=rule.why)
    for need in NEEDS:
        if need.action not in at:
            continue
        other = at.get(need.other)
        if other is None or (other > at[need.action]) is not need.later:
            place = "after" if need.later else "before"
            yield PlanOrderError(plan=plan.name, rule=f"{need.other} {place} {need.action}", why=need.why)


def _check_mirror(taking: Plan, giving: Plan, mirror: Mirror) -> None:
    taken = mirror.taken in taking.names()
    given = mirror.given in giving.names()
    kept_up = mirror.given_alone and not set(_SHUT) & set(taking.names())
    if taken is not given and not (given and kept_up):
        raise PlanOrderError(
            plan=giving.name if taken else taking.name,
            rule=f"{mirror.given} exactly where {taking.name} has {mirror.taken}",
            why="what was taken down is what must be brought up",
        )


def _check_locality(plans: Plans) -> None:
    for plan in plans:
        unvoted = plan.actions if plan.staged else ()
        local = (*plan.admission, *plan.before_parking, *unvoted, *plan.commit)
        outside = [action.name for action in local if action.collective]
        if outside:
            raise PlanOrderError(
                plan=plan.name,
                rule=f"{outside[0]} is local outside the voted part",
                why="ranks vote on the plan's own actions only",
            )
    for plan in (*(plans.named(name) for name in DISCARDS), plans.rejoin):
        together = [action.name for action in plan.actions if action.collective]
        if together:
            raise PlanOrderError(
                plan=plan.name,
                rule=f"{together[0]} is not in the {plan.name} plan",
                why="after a failure no rank can count on another one to join a collective",
            )
