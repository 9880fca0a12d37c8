"""One state of an explored group as a tuple of bytes: small, hashable, the same in every process.

``(desk, budgets, participant 0, participant 1, ...)``, ranks first, then helpers. Knows how a world is taken
apart, put together and told from another; it knows no move.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import xxhash

from explorer import desk as desks
from explorer import participant as participants
from explorer.desk import Desk
from explorer.participant import COMMAND_WORD, Participant, Place, step_word
from explorer.scope import Budget, Scope, Start
from wsm.states.epochs import first_epoch
from wsm.states.joint import START, JointState
from wsm.states.rank_state import RankState
from wsm.states.vocabulary import KVState, WeightState
from wsm.states.words import CommandWord, CommittedWord, Operation, StatusCode, StatusWord, StepKind, StepWord

World = tuple[bytes, ...]

#: Where the first participant is.
FIRST = 2

_SERVING = JointState(WeightState.NORMAL, KVState.NORMAL)


def first_worlds(scope: Scope) -> Iterator[World]:
    """Iterate over the worlds in which an exploration begins."""
    budgets = bytes(scope.budget(budget) for budget in Budget)
    for start in scope.starts:
        serving = start is Start.SERVING
        command = first_epoch() if not serving else CommandWord(1, 0, Operation.NONE)
        committed = CommittedWord(0, 1 if serving else None)
        desk = Desk(command.pack(), committed.pack(), int(serving), owed=int(serving))
        people = [_at_first(index, scope, start) for index in range(scope.participants)]
        yield (desks.pack(desk), budgets, *(participants.pack(each) for each in people))


def _at_first(index: int, scope: Scope, start: Start) -> Participant:
    if start is Start.EMPTY:
        nobody = RankState(rank=index, epoch=0, steps=index < scope.ranks)
        return Participant(0, 0, alive=False, place=Place.FREE, state=nobody)
    serving, steps = start is Start.SERVING, index < scope.ranks
    weights, kv = (0, 0) if serving else (-2, -2)
    kind = StepKind.RUNNING if serving else StepKind.PARKED
    return Participant(
        StepWord(1, 0, kind, 0).pack() if steps else 0,
        StatusWord(1, 0, StatusCode.ATTACHED, weights=weights, kv=kv).pack(),
        alive=True,
        place=Place.FREE,
        state=RankState(
            rank=index,
            epoch=1,
            holds=serving,
            weights=weights,
            kv=kv,
            parked=not serving or not steps,
            steps=steps,
        ),
        joint=_SERVING if serving else START,
        content=int(serving),
        version=int(serving),
    )


def desk_of(world: World) -> Desk:
    """Return the controller."""
    return desks.unpack(world[0])


def participant(world: World, index: int) -> Participant:
    """Return one participant."""
    return participants.unpack(world[FIRST + index], index)


def everybody(world: World) -> list[Participant]:
    """Return all participants."""
    return [participant(world, index) for index in range(len(world) - FIRST)]


def left(world: World, budget: Budget) -> int:
    """Return how much of a budget is left."""
    return world[1][budget]


@lru_cache(maxsize=1 << 14)
def affordable(budgets: bytes) -> frozenset[Budget]:
    """Return the budgets of which something is left."""
    return frozenset(budget for budget in Budget if budgets[budget])


@lru_cache(maxsize=1 << 14)
def spent(budgets: bytes, budget: Budget) -> bytes:
    """Return the budgets after one of them was spent once."""
    rest = bytearray(budgets)
    rest[budget] -= 1
    return bytes(rest)


def fingerprint(world: World) -> int:
    """Return 64 bits that tell a world from every other one, but for one chance in many millions."""
    return xxhash.xxh3_64_intdigest(b"".join(world))


class Symmetry:
    """Ranks have no names: of worlds that differ only in who is who, one stands for all.

    Where words are hidden, some such worlds may stay apart: that costs time, and hides nothing.

    Parameters
    ----------
    scope : Scope
        Whether that is wanted, and how many ranks there are.
    """

    def __init__(self, scope: Scope) -> None:
        self._ranks = scope.ranks if scope.symmetric else 1
        self._end = FIRST + self._ranks

    def representative(self, world: World) -> World:
        """Return the one that stands for all."""
        if self._ranks == 1:
            return world
        ranks = world[FIRST : self._end]
        if world[0][desks.SEEN_BYTE] > COMMAND_WORD or any(
            each[participants.SEEN_BYTE] > COMMAND_WORD for each in world[FIRST:]
        ):
            return self._renamed(world)
        return (*world[:FIRST], *sorted(ranks), *world[self._end :])

    def _renamed(self, world: World) -> World:
        """Sort the ranks by what they are themselves, and call them by their new names in what they see."""
        order = sorted(range(self._ranks), key=lambda rank: _by_itself(world[FIRST + rank]))
        new_names = {old: new for new, old in enumerate(order)}
        people = [_with_new_names(each, participants.SEEN_BYTE, new_names) for each in world[FIRST:]]
        return (
            _with_new_names(world[0], desks.SEEN_BYTE, new_names),
            world[1],
            *(people[old] for old in order),
            *people[self._ranks :],
        )


def _by_itself(packed: bytes) -> tuple[bytes, bytes]:
    """Return a packed participant without the name of whose word is hidden from it."""
    return packed[: participants.SEEN_BYTE], packed[participants.SEEN_BYTE + 1 :]


def _with_new_names(packed: bytes, place: int, new_names: dict[int, int]) -> bytes:
    word = packed[place]
    if word <= COMMAND_WORD:
        return packed
    owner, kind = divmod(word - step_word(0), 2)
    renamed = step_word(new_names.get(owner, owner)) + kind
    return packed[:place] + bytes([renamed]) + packed[place + 1 :]
