"""The search itself: what counts as one world, limits, several processes, and the same answer from all."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from seeded_faults import FAULTS, seeded

from explorer import world as worlds
from explorer.moves import Moves
from explorer.scope import Scope
from explorer.search import explore
from explorer.world import Symmetry, fingerprint, first_worlds


@pytest.mark.slow
def test_ranks_without_names_are_at_most_halved_and_break_the_same_rules() -> None:
    named = explore(Scope(rank_crashes=1, symmetric=False))
    nameless = explore(Scope(rank_crashes=1))
    assert nameless.states < named.states <= 2 * nameless.states
    assert nameless.depth == named.depth


@pytest.mark.slow
def test_worlds_with_hidden_words_stay_apart_and_the_others_do_not() -> None:
    scope = Scope(stale_reads=1, rank_crashes=1, steps=0, operations=Scope().operations[:1])
    named, nameless = explore(replace(scope, symmetric=False)), explore(scope)
    assert nameless.states < named.states
    assert named.violation is None is nameless.violation
    assert nameless.depth == named.depth


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_several_processes_find_what_one_finds(processes: int) -> None:
    scope = Scope(rank_crashes=1, operations=Scope().operations[:2])
    alone, together = explore(scope), explore(scope, processes=processes)
    assert (together.states, together.moves, together.depth) == (alone.states, alone.moves, alone.depth)
    assert together.resting == alone.resting
    assert together.complete


@pytest.mark.slow
@pytest.mark.processes
def test_several_processes_stop_at_a_limit() -> None:
    found = explore(Scope(rank_crashes=1, give_ups=1), processes=2, limit=500)
    assert not found.complete
    assert found.states >= 500


def test_a_limit_is_no_completeness() -> None:
    found = explore(Scope(rank_crashes=1), limit=50)
    assert not found.complete
    assert found.violation is None


def test_a_way_is_a_shortest_one_and_leads_where_it_says() -> None:
    fault = next(fault for fault in FAULTS if fault.name == "local_outcome")
    with seeded(fault):
        found = explore(Scope.from_text(fault.scope))
        assert found.violation is not None
        moves, world = Moves(found.scope), found.violation.start
        for step in found.violation.moves:
            assert step in list(moves.of(world))
            world = step.world or world
    assert len(found.violation.moves) == found.depth + 1 or len(found.violation.moves) == found.depth


@pytest.mark.slow
def test_a_world_taken_apart_and_put_together_is_the_same() -> None:
    scope = Scope(rank_crashes=1, stale_reads=1, fine=True)
    moves, symmetry = Moves(scope), Symmetry(scope)
    newest, seen = list(first_worlds(scope)), set()
    while newest and len(seen) < 3000:
        world = symmetry.representative(newest.pop())
        if fingerprint(world) in seen:
            continue
        seen.add(fingerprint(world))
        controller = worlds.controller_of(world)
        assert worlds.pack_controller(controller) == world[0]
        for index, each in enumerate(worlds.all_participants(world)):
            assert worlds.pack(each) == world[worlds.FIRST + index]
            assert each.state.rank == index
        newest += [move.world for move in moves.of(world) if move.world is not None]
    assert len(seen) == 3000
