"""Which plan a command means for weights and KV cache, given its tags and what is held: one table.

Responsible for what tags mean. A command moves the halves that it names, as far as they are not where it
wants them already, and the other half only where it must: new weights make a KV cache that is there forget
what other weights computed. It knows no action and runs nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from typing import NamedTuple

from wsm.states.vocabulary import KVState, PlanName, Tag, WeightState


class Half(enum.Enum):
    """What a plan does to the weights, or to the KV cache."""

    GOES = "is held and given back"
    COMES = "is absent and brought"
    REPLACED = "is held and loaded anew in place"
    STAYS = "is held and stays"
    AWAY = "is absent and stays so"


class Change(NamedTuple):
    """What a plan does to both.

    Parameters
    ----------
    weights, kv : Half
        To each.
    """

    weights: Half
    kv: Half

    @property
    def loads(self) -> bool:
        """Whether weights are loaded."""
        return self.weights in (Half.COMES, Half.REPLACED)

    @property
    def serves(self) -> bool:
        """Whether both halves are there afterwards."""
        return not {Half.GOES, Half.AWAY} & set(self)

    @property
    def gone(self) -> frozenset[Tag]:
        """What holds no memory afterwards."""
        halves = {Tag.WEIGHTS: self.weights, Tag.KV_CACHE: self.kv}
        return frozenset(tag for tag, half in halves.items() if half in (Half.GOES, Half.AWAY))


#: What the plans of a command do; the discard plans, which repair, are no command's.
CHANGES: dict[PlanName, Change] = {
    PlanName.CLEAR: Change(Half.GOES, Half.GOES),
    PlanName.CLEAR_WEIGHTS: Change(Half.GOES, Half.STAYS),
    PlanName.CLEAR_REMAINING_WEIGHTS: Change(Half.GOES, Half.AWAY),
    PlanName.CLEAR_KV_CACHE: Change(Half.STAYS, Half.GOES),
    PlanName.CLEAR_REMAINING_KV_CACHE: Change(Half.AWAY, Half.GOES),
    PlanName.UPDATE: Change(Half.COMES, Half.COMES),
    PlanName.UPDATE_WEIGHTS: Change(Half.COMES, Half.STAYS),
    PlanName.UPDATE_WEIGHTS_ONLY: Change(Half.COMES, Half.AWAY),
    PlanName.UPDATE_IN_PLACE: Change(Half.REPLACED, Half.STAYS),
    PlanName.UPDATE_IN_PLACE_AND_REBUILD: Change(Half.REPLACED, Half.COMES),
    PlanName.UPDATE_IN_PLACE_ONLY: Change(Half.REPLACED, Half.AWAY),
    PlanName.UPDATE_KV_CACHE: Change(Half.STAYS, Half.COMES),
    PlanName.UPDATE_KV_CACHE_ONLY: Change(Half.AWAY, Half.COMES),
}

#: What the discard plans do. Weights are *held* where a clear was to take them; otherwise an update has
#: brought some of them, beside a KV cache that must be as it was before.
DISCARDS: dict[PlanName, Change] = {
    PlanName.DISCARD: Change(Half.GOES, Half.GOES),
    PlanName.DISCARD_WEIGHTS: Change(Half.GOES, Half.STAYS),
    PlanName.DISCARD_HELD_WEIGHTS: Change(Half.GOES, Half.STAYS),
    PlanName.DISCARD_KV_CACHE: Change(Half.STAYS, Half.GOES),
}

_NAMES = {change: name for name, change in CHANGES.items()}


def plan_to_clear(tags: Collection[Tag], weights: WeightState, kv: KVState) -> PlanName | None:
    """Return the plan that gives back what `tags` name of what is held; None where none of it is."""
    change = Change(
        _given_back(Tag.WEIGHTS in tags, held=weights is WeightState.NORMAL),
        _given_back(Tag.KV_CACHE in tags, held=kv is KVState.NORMAL),
    )
    return _NAMES.get(change)


def plan_to_update(tags: Collection[Tag], weights: WeightState, kv: KVState) -> PlanName | None:
    """Return the plan that loads and rebuilds what `tags` name; None where nothing of it is missing.

    Weights that are named are loaded, over others too; a KV cache that is there needs no rebuilding.
    """
    there = weights is WeightState.NORMAL
    if Tag.WEIGHTS in tags:
        of_weights = Half.REPLACED if there else Half.COMES
    else:
        of_weights = Half.STAYS if there else Half.AWAY
    of_missing_kv = Half.COMES if Tag.KV_CACHE in tags else Half.AWAY
    return _NAMES.get(Change(of_weights, Half.STAYS if kv is KVState.NORMAL else of_missing_kv))


def _given_back(named: bool, *, held: bool) -> Half:
    if not held:
        return Half.AWAY
    return Half.GOES if named else Half.STAYS
