"""What incidents have taught of the order and the pairs of a plan, apart from the table that plans come from.

The table of :mod:`wsm.actions.plan` says which actions a plan has; these rules say what must hold of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from wsm.actions import names
from wsm.actions.base import Plan
from wsm.actions.options import PlanOptions
from wsm.actions.surfaces import GroupKind
from wsm.states.plan_key import GIVEN_BACK, Half, PlanKey
from wsm.states.vocabulary import ALL_TAGS, Tag
from wsm.states.words import Operation


@dataclass(frozen=True)
class Before:
    """Wherever both are in one plan, `first` comes first."""

    first: str
    second: str
    why: str


@dataclass(frozen=True)
class Mirror:
    """What one action takes down, another one brings up: each in every plan that moves what it goes with.

    The thing is up while all of `tags` are there. A plan that begins with it up and ends without it, or
    replaces the weights under it, takes it. A plan that ends with it up gives it, where it began without it
    or has taken it.

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
        if key.operation is Operation.HOT_UPDATE:
            return self.hot
        return self._goes(key) or (Half.REPLACED in halves and self.in_place == "both")

    def gives(self, key: PlanKey) -> bool:
        """Whether a plan of this key gives it."""
        halves = self._halves(key)
        if not halves.isdisjoint({Half.AWAY, Half.GOES}):
            return False  # one of what it goes with is not there
        if key.operation is Operation.HOT_UPDATE:
            return self.hot
        return Half.COMES in halves or (Half.REPLACED in halves and self.in_place != "neither")

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

_REQUESTS_WHY = "a request that still runs would read what goes away"
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


def broken(plan: Plan) -> Iterator[Before]:
    """Iterate over the rules of order that a plan breaks."""
    at = {name: index for index, name in enumerate(plan.names())}
    return (
        rule for rule in BEFORE if rule.first in at and rule.second in at and at[rule.first] > at[rule.second]
    )


ALL_GROUPS = (GroupKind.WORLD, GroupKind.TP, GroupKind.EP)


def every_configuration() -> Iterator[PlanOptions]:
    """Iterate over the options of every engine that there may be, as far as they decide presence."""
    switches = ("has_graphs", "has_kv", "routing_replay", "shut_down_groups", "has_deepep")
    auxiliaries = ((), ("mtp",))
    groups = ((), (GroupKind.TP,), (GroupKind.WORLD, GroupKind.TP), ALL_GROUPS)
    for values in itertools.product((False, True), repeat=len(switches)):
        for names_of, kinds in itertools.product(auxiliaries, groups):
            fields = dict(zip(switches, values, strict=True))
            if fields["has_deepep"] and GroupKind.EP not in kinds:
                continue
            if fields["shut_down_groups"] and not kinds:
                continue
            drafts = fields["has_graphs"] and bool(names_of)
            yield PlanOptions(**fields, has_draft_graphs=drafts, auxiliaries=names_of, group_kinds=kinds)
