"""What identifies a plan: the operation, and what becomes of weights and KV cache under it.

A plan is composed of parts by its key, and called by a name that is derived from it. The keys of a command's
plans follow from what may be asked, with which tags, and what may be in memory (:func:`plan_for`); those of
the plans that repair are written down here. What is in a plan is not known here. Pure.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from itertools import product
from typing import Final, NamedTuple

from wsm.states.vocabulary import ALL_TAGS, Tag
from wsm.states.words import Operation

#: What can be asked of a rank.
REQUESTS: Final = tuple(each for each in Operation if each.is_open)
#: What moves nothing in memory, and admission only.
OF_ADMISSION: Final = frozenset({Operation.HOLD, Operation.RELEASE})


class Repair(enum.Enum):
    """What a rank does of itself where a command failed or an epoch ended."""

    DISCARD = "discard"
    REJOIN = "rejoin"


class Half(enum.Enum):
    """What a plan does to the weights, or to the KV cache."""

    GOES = "is held and given back"
    WITHDRAWN = "was being brought and is given back"
    COMES = "is absent and brought"
    REPLACED = "is held and loaded anew in place"
    STAYS = "is held and stays"
    AWAY = "is absent and stays so"


#: A half that holds memory before the plan, and none behind it.
GIVEN_BACK: Final = frozenset({Half.GOES, Half.WITHDRAWN})
_MOVES = GIVEN_BACK | {Half.COMES, Half.REPLACED}
_IN_PLACE: dict[Operation | Repair, str] = {Operation.UPDATE: "update_in_place", Operation.HOT_UPDATE: "hot"}
_BESIDE_REPLACED = {Half.STAYS: "", Half.COMES: "_and_rebuild", Half.AWAY: "_only"}


class PlanKey(NamedTuple):
    """One plan.

    As text it is the name of the plan in diagrams, journals, receipts and errors: ``remaining`` where the
    other half is gone already, ``only`` where it stays away, ``held`` where weights go that were served and
    not those that an update was bringing.
    """

    operation: Operation | Repair
    weights: Half
    kv: Half

    def __str__(self) -> str:
        """Return the name, composed of the parts."""
        if self.weights is Half.REPLACED:
            return f"{_IN_PLACE[self.operation]}{_BESIDE_REPLACED[self.kv]}"
        stem = self.operation.name.lower()
        moved = [tag.value for tag, half in self.halves.items() if half in _MOVES]
        if self.operation in OF_ADMISSION and self.kv is Half.AWAY:
            return f"{stem}_without_kv_cache"
        if len(moved) != 1:
            return stem
        alone = Half.AWAY in self.halves.values()
        if self.operation is Operation.UPDATE:
            return f"{stem}_{moved[0]}{'_only' if alone else ''}"
        held = self.operation is Repair.DISCARD and self.weights is Half.GOES
        return f"{stem}_{'remaining_' if alone else ''}{'held_' if held else ''}{moved[0]}"

    @property
    def halves(self) -> dict[Tag, Half]:
        """What becomes of which half."""
        return {Tag.WEIGHTS: self.weights, Tag.KV_CACHE: self.kv}

    @property
    def loads(self) -> bool:
        """Whether weights are loaded."""
        return self.weights in (Half.COMES, Half.REPLACED)

    @property
    def serves(self) -> bool:
        """Whether both halves are there afterwards."""
        return not self.gone

    @property
    def gives_back(self) -> bool:
        """Whether memory is given back."""
        return not GIVEN_BACK.isdisjoint(self.halves.values())

    @property
    def gone(self) -> frozenset[Tag]:
        """What holds no memory afterwards."""
        return frozenset(tag for tag, half in self.halves.items() if half in GIVEN_BACK | {Half.AWAY})


def plan_for(request: Operation, tags: Collection[Tag], *, weights: bool, kv: bool) -> PlanKey | None:
    """Return the plan for what is asked, given what is in memory; None where nothing is to do.

    A clear gives back what `tags` name of what is there. An update loads weights that are named, over others
    too; a KV cache that is there needs no rebuilding. What is not named moves only where it must: new weights
    make a KV cache that is there forget what other weights computed.

    `request`: what is asked. A hot update is about weights that serve, whatever `tags` say; a hold or a
    release leaves what is there, and a hold may forget the blocks of a KV cache. `weights`, `kv`: whether
    each is in memory.
    """
    if request is Operation.HOT_UPDATE:
        return HOT if weights and kv else None
    if request in OF_ADMISSION:
        if request is Operation.RELEASE:
            return RELEASE
        return HOLD if kv else HOLD_WITHOUT_KV_CACHE
    moved = (Half.GOES, Half.AWAY) if request is Operation.CLEAR else (Half.REPLACED, Half.COMES)
    of_kv = (Half.GOES, Half.AWAY) if request is Operation.CLEAR else (Half.STAYS, Half.COMES)
    stays = (Half.STAYS, Half.AWAY)
    key = PlanKey(
        request,
        (moved if Tag.WEIGHTS in tags else stays)[not weights],
        (of_kv if Tag.KV_CACHE in tags else stays)[not kv],
    )
    return None if _MOVES.isdisjoint(key[1:]) else key


CLEAR: Final = PlanKey(Operation.CLEAR, Half.GOES, Half.GOES)
UPDATE: Final = PlanKey(Operation.UPDATE, Half.COMES, Half.COMES)
UPDATE_IN_PLACE: Final = PlanKey(Operation.UPDATE, Half.REPLACED, Half.STAYS)
#: Staged beside what serves; the KV cache stays.
HOT: Final = PlanKey(Operation.HOT_UPDATE, Half.REPLACED, Half.STAYS)

#: The group stands still, and goes on; nothing moves in memory.
HOLD: Final = PlanKey(Operation.HOLD, Half.STAYS, Half.STAYS)
HOLD_WITHOUT_KV_CACHE: Final = PlanKey(Operation.HOLD, Half.STAYS, Half.AWAY)
RELEASE: Final = PlanKey(Operation.RELEASE, Half.STAYS, Half.STAYS)

#: Whatever of both is in memory goes.
DISCARD: Final = PlanKey(Repair.DISCARD, Half.GOES, Half.GOES)
DISCARD_WEIGHTS: Final = PlanKey(Repair.DISCARD, Half.WITHDRAWN, Half.STAYS)
DISCARD_HELD_WEIGHTS: Final = PlanKey(Repair.DISCARD, Half.GOES, Half.STAYS)
DISCARD_KV_CACHE: Final = PlanKey(Repair.DISCARD, Half.STAYS, Half.GOES)
#: Comes before a discard where an epoch has ended, and moves neither half.
REJOIN: Final = PlanKey(Repair.REJOIN, Half.STAYS, Half.STAYS)

_IN_MEMORY = ((True, True), (True, False), (False, False), (False, True))
_TAGS = (ALL_TAGS, *(frozenset({tag}) for tag in Tag))

#: The plans that a command may need, of an engine that can hold a half without the other one.
COMMANDED: Final = tuple(
    dict.fromkeys(
        key
        for request, (weights, kv), tags in product(REQUESTS, _IN_MEMORY, _TAGS)
        if (key := plan_for(request, tags, weights=weights, kv=kv)) is not None
    )
)
#: The plans by which a rank gives back what a command or an epoch has left, by itself.
DISCARDS: Final = (DISCARD, DISCARD_WEIGHTS, DISCARD_HELD_WEIGHTS, DISCARD_KV_CACHE)
#: Every plan.
PLANS: Final = (*COMMANDED, *DISCARDS, REJOIN)
