"""Breadth first through every world that can be reached, until a rule breaks or nothing is left.

A world is remembered by 64 bits and the 64 bits of the world that it was first reached from. The shortest way
to a world is found again by going it: the same moves lead through the same fingerprints. Several processes
may take the worlds of one distance from the start further, a part each.

For small bounds every move that happens by itself is kept as well: a circle of such moves is a livelock,
however fair the scheduler is, and without one every world comes to rest by itself. Together with
:func:`explorer.invariants.objection`, which is asked of every world that rests: every world can still reach
NORMAL, CLEARED or FAULTED on all ranks.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from msgspec.structs import replace

from explorer.invariants import objection
from explorer.moves import Moves, WorldMove
from explorer.scope import Budget, Scope
from explorer.world import Symmetry, World, fingerprint, first_worlds
from wsm.errors import RefusedError

#: The parent of a first world; no fingerprint is 0 but for one chance in 2**64.
ROOT = 0


class Violation(NamedTuple):
    """A rule that was broken, and the shortest way there.

    Attributes
    ----------
    broken : str
        Which rule, and how.
    start : World
        Where the way begins.
    moves : tuple of WorldMove
        The way; its last move breaks the rule, or leads to a world that rests badly.
    """

    broken: str
    start: World
    moves: tuple[WorldMove, ...]


@dataclass
class Findings:
    """What an exploration found.

    Attributes
    ----------
    parents : dict of int to int
        Each world, and the one that it was reached from first, by their fingerprints.
    onward : dict of int to list of int
        Where each world goes by itself, if that was asked for.
    moves : int
        Edges between them.
    resting : int
        Worlds in which nothing moves by itself.
    widths : list of int
        How many worlds are new at each distance from the start.
    complete : bool
        Whether nothing was left to explore.
    seconds : float
        Wall time.
    violation : Violation or None
        The first rule that was broken.
    """

    scope: Scope
    parents: dict[int, int] = field(default_factory=dict, repr=False)
    onward: dict[int, list[int]] = field(default_factory=dict, repr=False)
    moves: int = 0
    resting: int = 0
    widths: list[int] = field(default_factory=list)
    complete: bool = False
    seconds: float = 0.0
    violation: Violation | None = None

    @property
    def states(self) -> int:
        """How many worlds were reached."""
        return len(self.parents)

    @property
    def depth(self) -> int:
        """The longest of the shortest ways."""
        return len(self.widths) - 1


class _Level(NamedTuple):
    """What came of a part of the worlds of one distance from the start.

    `reached`: the worlds that they lead to, each with the first that does. `broken`: the world in which, or
    by a move of which, a rule is broken first, and which; after that nothing more is taken further.
    """

    moves: int
    resting: int
    reached: dict[int, tuple[World, int]]
    onward: dict[int, list[int]]
    broken: tuple[int, str] | None


class _Expansion:
    """Takes worlds one move further; `graph`: and keeps the moves that happen by themselves."""

    def __init__(self, scope: Scope, graph: bool) -> None:
        self._ranks, self._graph = scope.ranks, graph
        self._moves, self._symmetry = Moves(scope), Symmetry(scope)

    def of(self, worlds: Iterable[World]) -> _Level:
        """Return what comes of representatives."""
        count = resting = 0
        reached: dict[int, tuple[World, int]] = {}
        kept: dict[int, list[int]] = {}
        for world in worlds:
            own, onward = fingerprint(world), list[int]()
            for _, _, following, by_itself, broken in self._moves.of(world):
                count += 1
                if following is None:
                    return _Level(count, resting, reached, kept, (own, broken))
                world_there = self._symmetry.representative(following)
                there = fingerprint(world_there)
                reached.setdefault(there, (world_there, own))
                if by_itself:
                    onward.append(there)
            if self._graph:
                kept[own] = onward
            if not onward:
                resting += 1
                wrong = objection(world, self._ranks)
                if wrong:
                    return _Level(count, resting, reached, kept, (own, wrong))
        return _Level(count, resting, reached, kept, None)


_expansion: _Expansion


def _begin_process(scope: Scope) -> None:
    global _expansion  # noqa: PLW0603 - what a process of the pool keeps between two parts
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who reports
    _expansion = _Expansion(scope, graph=False)


def _expand_part(worlds: Sequence[World]) -> _Level:
    return _expansion.of(worlds)


@contextmanager
def _expander(
    scope: Scope, processes: int, *, graph: bool
) -> Iterator[Callable[[Sequence[World]], Iterable[_Level]]]:
    """Give what takes the worlds of one distance further, in this process or in several others."""
    if processes <= 1:
        alone = _Expansion(scope, graph)
        yield lambda worlds: [alone.of(worlds)]
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, _begin_process, (scope,)) as pool:
        yield lambda worlds: pool.map(_expand_part, [worlds[part::processes] for part in range(processes)])


def explore(
    scope: Scope,
    *,
    processes: int = 1,
    limit: int | None = None,
    progress: Callable[[Findings], None] | None = None,
    graph: bool = False,
) -> Findings:
    """Explore.

    Parameters
    ----------
    scope : Scope
        The bounds.
    processes : int
        How many search together; 1: this one alone.
    limit : int or None
        Stop after this many worlds; None: when nothing is left.
    progress : callable or None
        Called after every distance from the start.
    graph : bool
        Whether to keep the moves that happen by themselves; in this process.

    Returns
    -------
    Findings
        What was found. Blocks until then.
    """
    began, symmetry, found = time.monotonic(), Symmetry(scope), Findings(scope)
    newest = [symmetry.representative(world) for world in first_worlds(scope)]
    found.parents.update((fingerprint(world), ROOT) for world in newest)
    with _expander(scope, processes, graph=graph) as expand:
        while newest and (limit is None or found.states < limit):
            found.widths.append(len(newest))
            levels, newest = expand(newest), []
            for level in levels:
                found.moves += level.moves
                found.resting += level.resting
                found.onward.update(level.onward)
                for own, (world, parent) in level.reached.items():
                    if own not in found.parents:
                        found.parents[own] = parent
                        newest.append(world)
                if level.broken is not None and found.violation is None:
                    found.violation = shortest_way(found, *level.broken)
            found.seconds = time.monotonic() - began
            if found.violation is not None:
                return found
            if progress is not None:
                progress(found)
    found.complete = not newest
    return found


def shortest_way(found: Findings, own: int, broken: str) -> Violation:
    """Go the way to where a rule was broken once more.

    Parameters
    ----------
    found : Findings
        What was explored.
    own : int
        The fingerprint of the world in which, or by a move of which, the rule is broken.
    broken : str
        Which, and how.
    """
    scope, way = found.scope, [own]
    while (parent := found.parents[way[-1]]) != ROOT:
        way.append(parent)
    way.reverse()
    moves, symmetry = Moves(scope), Symmetry(scope)
    start = next(
        world for world in first_worlds(scope) if fingerprint(symmetry.representative(world)) == way[0]
    )
    world, gone = start, list[WorldMove]()
    for wanted in way[1:]:
        move = next(_leading_to(wanted, moves.of(world), symmetry))
        gone.append(move)
        world = move.world or world
    following = list(moves.of(world))
    # Under other names of the ranks the same rule is told in other words.
    breaking = [move for move in following if move.broken]
    if breaking:
        last = next((move for move in breaking if move.broken == broken), breaking[0])
        return Violation(last.broken, start, (*gone, last))
    rests = not any(move.by_itself for move in following)
    return Violation((rests and objection(world, scope.ranks)) or broken, start, tuple(gone))


def _leading_to(wanted: int, moves: Iterable[WorldMove], symmetry: Symmetry) -> Iterator[WorldMove]:
    for move in moves:
        if move.world is not None and fingerprint(symmetry.representative(move.world)) == wanted:
            yield move


# -- circles ---------------------------------------------------------------------------------------

#: What goes wrong, if it may.
_STRIKES = tuple(budget for budget in Budget if budget not in (Budget.COMMANDS, Budget.STEPS))


def whole_graph(scope: Scope, *, limit: int | None = None) -> Findings:
    """Explore with every move that happens by itself. Blocks; keeps some 300 bytes per world.

    Raises
    ------
    RefusedError
        If there are more than `limit` worlds.
    """
    found = explore(scope, limit=limit, graph=True)
    if limit is not None and not found.complete and found.violation is None:
        raise RefusedError(
            f"there are more than {limit:,} worlds within these bounds; ask for smaller ones, "
            "or explore without the graph",
            code="graph-too-large",
        )
    return found


def endless(graph: Findings) -> Violation | None:
    """Return a way to a world from which the group goes round in circles; None: there is none.

    Then each way ends, for there are so many worlds and no more: at rest. A rule that was broken on the way
    comes first.
    """
    if graph.violation is not None:
        return graph.violation
    try:
        TopologicalSorter(graph.onward).prepare()
    except CycleError as error:
        circle = frozenset(error.args[1])
        own = next(own for own in graph.parents if own in circle)
        return shortest_way(
            graph, own, "from here the group goes round in circles by itself, and never comes to rest"
        )
    return None


def cuts(scopes: Iterable[Scope]) -> list[Scope]:
    """Return smaller bounds that are small enough for graphs: one command, and one thing that goes wrong.

    What goes round in circles is one participant that is told the same again; it needs no more than that.
    """
    found: dict[Scope, None] = {}
    for scope in scopes:
        few = min(scope.commands, 1), min(scope.steps, 1)
        calm = replace(scope, ranks=min(scope.ranks, 2), commands=few[0], steps=few[1], fine=False)
        for strike in _STRIKES:
            calm = calm.with_budget(strike, 0)
        found[calm] = None
        for strike in _STRIKES:
            if scope.budget(strike):
                found[calm.with_budget(strike, 1)] = None
    return list(found)
