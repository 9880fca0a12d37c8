"""The order that plans must have, as data, and the check of plans against it.

Responsible for the reasons why one unit comes before another; every rule carries the incident or
the fact behind it. It must not know how plans are built, so that a slip there is caught here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from wsm.actions import errors, names
from wsm.actions.addition import Addition
from wsm.actions.base import Plan, Plans
from wsm.errors import InternalError
from wsm.states.plan_key import (
    COMMANDED,
    DISCARDS,
    GIVEN_BACK,
    OF_ADMISSION,
    UPDATE_IN_PLACE,
    Half,
    PlanKey,
    Request,
)
from wsm.states.vocabulary import ALL_TAGS, Tag


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
class Present:
    """An engine that has `action` has it in exactly those plans that this rule asks for it.

    Parameters
    ----------
    action : str
        Its name.
    where : callable
        ``where(key)``: whether a command's plan of that key has it.
    why : str
        The reason.
    discard : callable or None
        The same for plans that repair, of which a key says less; None: they may have it or not.
    """

    action: str
    where: Callable[[PlanKey], bool]
    why: str
    discard: Callable[[PlanKey], bool] | None = None


@dataclass(frozen=True)
class Mirror:
    """What one action takes down, another one brings up: each in every plan that moves what it goes with.

    The thing is up while all of `tags` are there. A plan that begins with it up and ends without it, or
    replaces the weights under it, takes it. A plan that ends with it up gives it, where it began without it
    or has taken it.

    Parameters
    ----------
    taken, given : str
        The two actions.
    tags : frozenset of Tag
        What it goes with.
    in_place : str
        What a plan that loads over weights in place has: both actions, the given one, or neither.
    hot : bool
        Whether the plan of a hot update has both.
    discarded : bool
        Whether plans that repair take it, since what it depends on goes.
    given_alone : bool
        Whether it is given although no plan takes it: what an epoch's end has broken.
    """

    taken: str
    given: str
    tags: frozenset[Tag]
    in_place: Literal["both", "given", "neither"] = "neither"
    hot: bool = False
    discarded: bool = False
    given_alone: bool = False

    def takes(self, key: PlanKey) -> bool:
        """Whether a plan of this key takes it."""
        halves = self._halves(key)
        if not halves.isdisjoint({Half.AWAY, Half.COMES}):
            return False  # one of what it goes with was not there
        if key.operation is Request.HOT_UPDATE:
            return self.hot
        return self._goes(key) or (Half.REPLACED in halves and self.in_place == "both")

    def gives(self, key: PlanKey) -> bool:
        """Whether a plan of this key gives it."""
        halves = self._halves(key)
        if not halves.isdisjoint({Half.AWAY, Half.GOES}):
            return False  # one of what it goes with is not there
        if key.operation is Request.HOT_UPDATE:
            return self.hot
        return Half.COMES in halves or (Half.REPLACED in halves and self.in_place != "neither")

    def rules(self) -> Iterator[Present]:
        """Return where either action must be."""
        yield Present(self.taken, self.takes, _MIRRORED_WHY, self._goes if self.discarded else None)
        yield Present(self.given, self.gives, _MIRRORED_WHY)

    def _goes(self, key: PlanKey) -> bool:
        return not GIVEN_BACK.isdisjoint(self._halves(key))

    def _halves(self, key: PlanKey) -> set[Half]:
        return {key.halves[tag] for tag in self.tags}


_GRAPHS_WHY = "graphs point at parameters and cache blocks; clearing these first hangs (FastDeploy#7522)"
_GROUPS_WHY = "destroying DeepEP is collective over its group, which must live (DeepEP#571)"
_CAPTURE_WHY = "graphs record the addresses of loaded weights and of the new cache (FastDeploy#3773)"
_INNER_WHY = "what was created last goes first, on every rank alike (slime#2331)"
_MEASURE_WHY = "memory is believed to be free after the last release, not before (slime#579)"
_PROOF_WHY = "nothing is offered for commit before its bytes were read again"

_FACTS_WHY = "a receipt needs its facts"
_FREE_WHY = "released memory is free for others once the allocator has handed it back"
_REQUESTS_WHY = "a request that still runs would read what goes away"
_BLOCKS_WHY = "blocks that other weights computed are not offered, unless the KV policy says so"
_INPUTS_WHY = "cached inputs belong to the batch before (FastDeploy#7744)"
_MIRRORED_WHY = "what was taken down is what must be brought up"
_NOTHING_FAILS_WHY = "after the decision nothing may fail any more, so everything that can comes before"

_DROPPED = (names.DROP_MAIN_GRAPHS, names.DROP_DRAFT_GRAPHS)
_RELEASED = (names.RELEASE_WEIGHTS, names.RELEASE_AUXILIARY_CACHE, names.RELEASE_KV_CACHE)
_FREED, _FILLED = names.FREE_CACHES_FOR_LOAD, names.REBUILD_CACHES_AFTER_LOAD
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
            _FREED,
            names.LOAD_WEIGHTS,
            names.FLIP_WEIGHTS,
        ),
        _REQUESTS_WHY,
    ),
    Before(
        names.SETTLE_REQUESTS, names.FORGET_ROUTING_REPLAY, "running requests still record (FastDeploy#6569)"
    ),
    *_chain(_DROPPED, "main before draft, on every rank alike (FastDeploy#7522)"),
    *_each(_DROPPED, (*_RELEASED, _FREED, names.CLEAR_DEEPEP_BUFFER, names.LOAD_WEIGHTS), _GRAPHS_WHY),
    Before(_FREED, names.LOAD_WEIGHTS, "the load needs the room"),
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
        "clients are told before anything else can fail",
    ),
    Before(names.ABANDON_DEEPEP_BUFFER, names.ABANDON_GROUPS, "what lives on a group goes before it"),
    *_each(_RESTARTED, (names.RECREATE_DEEPEP_BUFFER,), "the buffer is created on a living EP group"),
    *_each(
        (*_RESTARTED, names.RECREATE_DEEPEP_BUFFER),
        (names.LOAD_WEIGHTS,),
        "a group that cannot be had fails the update before a byte is loaded",
    ),
    *_chain((names.LOAD_WEIGHTS, names.PROCESS_LOADED, names.VERIFY_LOADED), _PROOF_WHY),
    *_each(
        (names.VERIFY_LOADED,),
        (names.RESET_INPUTS, names.RESET_AUXILIARY_INPUTS, *_REBUILT, _FILLED, *_FORGOTTEN, *_CAPTURED),
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
        (*_REBUILT, _FILLED, *_FORGOTTEN, names.RESET_INPUTS, names.RESET_AUXILIARY_INPUTS),
        _CAPTURED,
        _CAPTURE_WHY,
    ),
    *_chain(_CAPTURED, "main before draft, on every rank alike"),
    *_each(
        (*_CAPTURED, *_REBUILT, _FILLED, *_FORGOTTEN, names.VERIFY_LOADED, names.RESUME_ROUTING_REPLAY),
        (names.DECLARE_PREPARED,),
        "PREPARED means ready to step (FastDeploy#3773)",
    ),
    *_each(_CAPTURED, (names.RESUME_ROUTING_REPLAY,), "warm-up passes of a capture must not be recorded"),
)

#: What must accompany what.
NEEDS: tuple[Needs, ...] = (
    Needs(names.LOAD_WEIGHTS, names.VERIFY_LOADED, later=True, why=_PROOF_WHY),
    Needs(names.PROCESS_LOADED, names.LOAD_WEIGHTS, later=False, why="there is nothing else to process"),
    Needs(names.VERIFY_LOADED, names.DECLARE_PREPARED, later=True, why=_FACTS_WHY),
    Needs(_FREED, _FILLED, later=True, why=_MIRRORED_WHY),
    Needs(_FILLED, _FREED, later=False, why=_MIRRORED_WHY),
    Needs(names.STAGE_WEIGHTS, names.VERIFY_STAGED, later=True, why=_PROOF_WHY),
    Needs(names.VERIFY_STAGED, names.DECLARE_STAGED, later=True, why=_FACTS_WHY),
    Needs(names.VERIFY_STAGED, names.STAGE_WEIGHTS, later=False, why=_PROOF_WHY),
    Needs(names.MAKE_FLIP_READY, names.FLIP_WEIGHTS, later=True, why="what is staged is to serve"),
    Needs(names.FLIP_WEIGHTS, names.MAKE_FLIP_READY, later=False, why=_NOTHING_FAILS_WHY),
    Needs(names.FLIP_WEIGHTS, names.VERIFY_STAGED, later=False, why=_PROOF_WHY),
    Needs(names.FLIP_WEIGHTS, names.SETTLE_REQUESTS, later=False, why="running requests read weights"),
    Needs(names.RELEASE_WEIGHTS, names.VERIFY_CLEARED, later=True, why=_MEASURE_WHY),
    Needs(names.RELEASE_WEIGHTS, names.SETTLE_REQUESTS, later=False, why="running requests read weights"),
    Needs(names.VERIFY_CLEARED, names.DECLARE_CLEARED, later=True, why=_FACTS_WHY),
    *(Needs(name, names.VERIFY_CLEARED, later=True, why=_MEASURE_WHY) for name in _RELEASED[1:]),
)

_OF_WEIGHTS, _OF_KV = frozenset({Tag.WEIGHTS}), frozenset({Tag.KV_CACHE})

#: What goes and comes together. A hot update copies captured tensors into place, so graphs stay up in it.
MIRRORS: tuple[Mirror, ...] = (
    Mirror(names.DROP_MAIN_GRAPHS, names.CAPTURE_MAIN_GRAPHS, ALL_TAGS, in_place="both"),
    Mirror(names.DROP_DRAFT_GRAPHS, names.CAPTURE_DRAFT_GRAPHS, ALL_TAGS, in_place="both"),
    Mirror(names.FORGET_ROUTING_REPLAY, names.RESUME_ROUTING_REPLAY, ALL_TAGS, in_place="both", hot=True),
    Mirror(names.CLEAR_DEEPEP_BUFFER, names.RECREATE_DEEPEP_BUFFER, _OF_WEIGHTS),
    Mirror(names.SHUT_DOWN_EP_GROUP, names.RESTART_EP_GROUP, _OF_WEIGHTS, given_alone=True),
    Mirror(names.SHUT_DOWN_TP_GROUP, names.RESTART_TP_GROUP, _OF_WEIGHTS, given_alone=True),
    Mirror(names.SHUT_DOWN_WORLD_GROUP, names.RESTART_WORLD_GROUP, _OF_WEIGHTS, given_alone=True),
    Mirror(names.RELEASE_WEIGHTS, names.LOAD_WEIGHTS, _OF_WEIGHTS, in_place="given", discarded=True),
    Mirror(names.RELEASE_AUXILIARY_CACHE, names.REBUILD_AUXILIARY_CACHE, _OF_KV, discarded=True),
    Mirror(names.RELEASE_KV_CACHE, names.REBUILD_KV_CACHE, _OF_KV, discarded=True),
)


def _gives_memory_back(key: PlanKey) -> bool:
    return key.gives_back


def _loads_where_it_stands(key: PlanKey) -> bool:
    return key.loads and not _stages(key)


def _brings_where_it_stands(key: PlanKey) -> bool:
    return not key.gives_back and not _stages(key) and key.operation not in OF_ADMISSION


def _stages(key: PlanKey) -> bool:
    return key.operation is Request.HOT_UPDATE


def _runs_meanwhile(key: PlanKey) -> bool:
    return key.gives_back or key.weights is Half.REPLACED or key.operation is Request.HOLD


def _keeps_blocks_of_other_weights(key: PlanKey) -> bool:
    return key.kv is Half.STAYS and key.weights is not Half.STAYS


def _loads_beside_caches(key: PlanKey) -> bool:
    return key == UPDATE_IN_PLACE


def _resets_inputs(key: PlanKey) -> bool:
    return key.loads or (key.serves and key.operation not in OF_ADMISSION)


#: What must be in which plans, beside the mirrors: action, where, why, in repairs.
PRESENT: tuple[Present, ...] = (
    Present(names.SETTLE_REQUESTS, _runs_meanwhile, _REQUESTS_WHY, _gives_memory_back),
    Present(names.FORGET_KV_CACHE, _keeps_blocks_of_other_weights, _BLOCKS_WHY),
    Present(names.FORGET_AUXILIARY_CACHE, _keeps_blocks_of_other_weights, _BLOCKS_WHY),
    Present(_FREED, _loads_beside_caches, "a load needs the room of caches that stay, and of no others"),
    Present(names.RESET_INPUTS, _resets_inputs, _INPUTS_WHY),
    Present(names.RESET_AUXILIARY_INPUTS, _resets_inputs, _INPUTS_WHY),
    Present(names.VERIFY_LOADED, _loads_where_it_stands, _PROOF_WHY),
    Present(
        names.PROCESS_LOADED, _loads_where_it_stands, "a checkpoint is not what the engine computes with"
    ),
    Present(names.EMPTY_ALLOCATOR_CACHE, _gives_memory_back, _FREE_WHY, _gives_memory_back),
    Present(names.VERIFY_CLEARED, _gives_memory_back, _MEASURE_WHY, _gives_memory_back),
    Present(names.DECLARE_CLEARED, _gives_memory_back, _FACTS_WHY, _gives_memory_back),
    Present(names.DECLARE_PREPARED, _brings_where_it_stands, _FACTS_WHY),
    Present(names.DECLARE_STAGED, _stages, _FACTS_WHY),
)


def check_order(plans: Plans, additions: Sequence[Addition] = ()) -> None:
    """Check all plans of an engine.

    Parameters
    ----------
    plans : Plans
        The plans.
    additions : sequence of Addition
        The engine's own actions, which must be in every plan that moves what they go with.

    Raises
    ------
    InternalError (``plan-order``)
        For the first rule that a plan breaks.
    """
    for plan in plans:
        for error in _broken(plan):
            raise error
    everywhere = {name for plan in plans for name in plan.names()}
    for mirror in MIRRORS:
        taken, given = mirror.taken in everywhere, mirror.given in everywhere
        if taken is not given and not (given and mirror.given_alone):
            here, lacking = (mirror.taken, mirror.given) if taken else (mirror.given, mirror.taken)
            raise errors.plan_order(plan="every", rule=f"{lacking} beside {here}", why=_MIRRORED_WHY)
    rules = (*PRESENT, *(rule for mirror in MIRRORS for rule in mirror.rules()))
    for rule in rules:
        if rule.action in everywhere:
            _check_presence(plans, rule)
    for rule in (rule for addition in additions for rule in _rules_of(addition)):
        _check_presence(plans, rule)
    _check_locality(plans)


def _rules_of(addition: Addition) -> Iterator[Present]:
    """Return where the actions of an engine's own must be: wherever any of their tags moves."""
    why = "an action of an engine's own is in every plan that moves what it goes with"
    alone = [
        Mirror("", "", frozenset({tag}), in_place="both", hot=tag is Tag.WEIGHTS) for tag in addition.tags
    ]

    def goes(key: PlanKey) -> bool:
        return any(mirror.takes(key) for mirror in alone)

    def comes(key: PlanKey) -> bool:
        return any(mirror.gives(key) for mirror in alone)

    if addition.takes is not None:
        yield Present(addition.takes().name, goes, why, goes)
    if addition.brings is not None:
        yield Present(addition.brings().name, comes, why)


def _check_presence(plans: Plans, rule: Present) -> None:
    wanted = {key: rule.where(key) for key in COMMANDED}
    if rule.discard is not None:
        wanted |= {key: rule.discard(key) for key in DISCARDS}
    for key, asked in wanted.items():
        plan = plans.named(key)
        if (rule.action in plan.names()) is not asked:
            raise errors.plan_order(
                plan=plan.name, rule=f"{rule.action} is {'' if asked else 'not '}in this plan", why=rule.why
            )


def _broken(plan: Plan) -> Iterator[InternalError]:
    at: dict[str, int] = {}
    for index, name in enumerate(plan.names()):
        if name in at:
            yield errors.plan_order(
                plan=plan.name, rule=f"{name} once", why="twice is FastDeploy's double shutdown"
            )
        at[name] = index
    for rule in BEFORE:
        if rule.first in at and rule.second in at and at[rule.first] > at[rule.second]:
            yield errors.plan_order(plan=plan.name, rule=f"{rule.first} before {rule.second}", why=rule.why)
    for need in NEEDS:
        if need.action not in at:
            continue
        other = at.get(need.other)
        if other is None or (other > at[need.action]) is not need.later:
            place = "after" if need.later else "before"
            yield errors.plan_order(plan=plan.name, rule=f"{need.other} {place} {need.action}", why=need.why)


def _check_locality(plans: Plans) -> None:
    for plan in plans:
        unvoted = plan.actions if plan.staged else ()
        local = (*plan.admission, *plan.before_parking, *unvoted, *plan.commit)
        outside = [action.name for action in local if action.collective]
        if outside:
            raise errors.plan_order(
                plan=plan.name,
                rule=f"{outside[0]} is local outside the voted part",
                why="ranks vote on the plan's own actions only",
            )
    for plan in (*(plans.named(key) for key in DISCARDS), plans.rejoin):
        together = [action.name for action in plan.actions if action.collective]
        if together:
            raise errors.plan_order(
                plan=plan.name,
                rule=f"{together[0]} is not in the {plan.name} plan",
                why="after a failure no rank can count on another one to join a collective",
            )
