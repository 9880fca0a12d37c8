"""Breadth first through every world that can be reached, until a rule breaks or nothing is left.

A world is remembered by 64 bits and the 64 bits of the world that it was first reached from. The shortest way
to a world is found again by going it: the same moves lead through the same fingerprints.

For small bounds the whole graph is kept, with every move that happens by itself: a circle of such moves is a
livelock, however fair the scheduler is; and from every world there must be a way to rest. Together with
:func:`explorer.invariants.objection`, which is asked of every world that rests: every world can still reach
NORMAL, CLEARED or FAULTED on all ranks.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from explorer.errors import GraphTooLargeError
from explorer.invariants import objection
from explorer.moves import GroupMove, Moves
from explorer.scope import Budget, Scope
from explorer.world import Symmetry, World, fingerprint, first_worlds

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
    moves : tuple of GroupMove
        The way; its last move breaks the rule, or leads to a world that rests badly.
    """

    broken: str
    start: World
    moves: tuple[GroupMove, ...]


@dataclass
class Findings:
    """What an exploration found.

    Attributes
    ----------
    states, moves, depth : int
        Worlds, edges between them, and the longest of the shortest ways.
    complete : bool
        Whether nothing was left to explore.
    resting : int
        Worlds in which nothing moves by itself.
    situations : int
        Different situations of one participant or controller, for which the protocol was asked.
    seconds : float
        Wall time.
    violation : Violation or None
        The first rule that was broken.
    """

    scope: Scope
    states: int = 0
    moves: int = 0
    depth: int = 0
    complete: bool = False
    resting: int = 0
    situations: int = 0
    seconds: float = 0.0
    violation: Violation | None = None
    widths: list[int] = field(default_factory=list)


class Broken(NamedTuple):
    """A rule that a search met broken.

    Attributes
    ----------
    fingerprint : int
        Of the world in which, or by a move of which, it is broken.
    broken : str
        Which rule, and how.
    """

    fingerprint: int
    broken: str


class Level(NamedTuple):
    """What came of the worlds of one distance from the start."""

    moves: int
    resting: int
    broken: Broken | None


def expand(
    worlds: Iterable[World],
    moves: Moves,
    symmetry: Symmetry,
    ranks: int,
    reach: Callable[[World, int], None],
) -> Level:
    """Take every world one move further.

    Parameters
    ----------
    worlds : iterable of World
        Representatives.
    moves, symmetry, ranks
        Of the exploration.
    reach : callable
        Given each world that is reached, and the fingerprint of the world that it is reached from.

    Returns
    -------
    Level
        Counts; and the first rule that was broken, after which nothing more is taken further.
    """
    count = resting = 0
    for world in worlds:
        own, rests = fingerprint(world), True
        for _, _, following, by_itself, broken in moves.of(world):
            count += 1
            if following is None:
                return Level(count, resting, Broken(own, broken))
            rests = rests and not by_itself
            reach(symmetry.representative(following), own)
        if rests:
            resting += 1
            wrong = objection(world, ranks)
            if wrong:
                return Level(count, resting, Broken(own, wrong))
    return Level(count, resting, None)


class Known:
    """The worlds that were reached, each with where it was reached from first; and the newest of them."""

    def __init__(self) -> None:
        self.parents: dict[int, int] = {}
        self.newest: list[World] = []

    def reach(self, world: World, parent: int) -> None:
        """Take in a world."""
        own = fingerprint(world)
        if own not in self.parents:
            self.parents[own] = parent
            self.newest.append(world)

    def take_newest(self) -> list[World]:
        """Return the worlds that were reached since the last call."""
        found, self.newest = self.newest, []
        return found


def explore(
    scope: Scope, *, limit: int | None = None, progress: Callable[[Findings], None] | None = None
) -> Findings:
    """Explore in this process.

    Parameters
    ----------
    scope : Scope
        The bounds.
    limit : int or None
        Stop after this many worlds; None: when nothing is left.
    progress : callable or None
        Called after every distance from the start.

    Returns
    -------
    Findings
        What was found. Blocks until then.
    """
    began, moves, symmetry, known = time.monotonic(), Moves(scope), Symmetry(scope), Known()
    found = Findings(scope)
    for world in first_worlds(scope):
        known.reach(symmetry.representative(world), ROOT)
    while known.newest:
        if limit is not None and len(known.parents) >= limit:
            break
        newest = known.take_newest()
        found.widths.append(len(newest))
        level = expand(newest, moves, symmetry, scope.ranks, known.reach)
        found.moves += level.moves
        found.resting += level.resting
        found.states, found.depth = len(known.parents), len(found.widths) - 1
        found.situations, found.seconds = moves.situations(), time.monotonic() - began
        if level.broken is not None:
            found.violation = shortest_way(scope, level.broken, known.parents.__getitem__)
            return found
        if progress is not None:
            progress(found)
    found.complete = not known.newest
    return found


def shortest_way(scope: Scope, broken: Broken, parent_of: Callable[[int], int]) -> Violation:
    """Go the way to where a rule was broken once more.

    Parameters
    ----------
    scope : Scope
        The exploration's bounds.
    broken : Broken
        What was found.
    parent_of : callable
        From which world each was reached, by fingerprints; :data:`ROOT` for the first ones.
    """
    way = [broken.fingerprint]
    while (parent := parent_of(way[-1])) != ROOT:
        way.append(parent)
    way.reverse()
    moves, symmetry = Moves(scope), Symmetry(scope)
    start = next(
        world for world in first_worlds(scope) if fingerprint(symmetry.representative(world)) == way[0]
    )
    world, gone = start, list[GroupMove]()
    for wanted in way[1:]:
        move = next(_leading_to(wanted, moves.of(world), symmetry))
        gone.append(move)
        world = move.world or world
    following = list(moves.of(world))
    # Under other names of the ranks the same rule is told in other words.
    breaking = [move for move in following if move.broken]
    if breaking:
        last = next((move for move in breaking if move.broken == broken.broken), breaking[0])
        return Violation(last.broken, start, (*gone, last))
    rests = not any(move.by_itself for move in following)
    return Violation((rests and objection(world, scope.ranks)) or broken.broken, start, tuple(gone))


def _leading_to(wanted: int, moves: Iterable[GroupMove], symmetry: Symmetry) -> Iterator[GroupMove]:
    for move in moves:
        if move.world is not None and fingerprint(symmetry.representative(move.world)) == wanted:
            yield move


#: What goes wrong, if it may.
_STRIKES = tuple(budget for budget in Budget if budget not in (Budget.COMMANDS, Budget.STEPS))


@dataclass(frozen=True)
class Graph:
    """Every world within some bounds, and every move between them that happens by itself.

    Attributes
    ----------
    scope : Scope
        The bounds.
    numbers : dict of int to int
        Each world's number, by fingerprint, in the order in which they were reached.
    parents : list of int
        From which world's fingerprint each was reached first.
    onward : list of list of int
        Where each world goes by itself.
    broken : Broken or None
        A rule that was broken on the way; the graph is not whole then.
    """

    scope: Scope
    numbers: dict[int, int]
    parents: list[int]
    onward: list[list[int]]
    broken: Broken | None


def whole_graph(scope: Scope, *, limit: int | None = None) -> Graph:
    """Build the graph. Blocks until it is whole, or a rule is broken; keeps some 300 bytes per world.

    Raises
    ------
    GraphTooLargeError
        If there are more than `limit` worlds.
    """
    moves, symmetry = Moves(scope), Symmetry(scope)
    graph = Graph(scope, {}, [], [], None)
    waiting: deque[World] = deque()

    def reach(world: World, parent: int) -> int:
        own = fingerprint(world)
        number = graph.numbers.get(own)
        if number is None:
            number = graph.numbers[own] = len(graph.numbers)
            graph.parents.append(parent)
            graph.onward.append([])
            waiting.append(world)
        return number

    for first in first_worlds(scope):
        reach(symmetry.representative(first), ROOT)
    while waiting:
        if limit is not None and len(graph.numbers) > limit:
            raise GraphTooLargeError(limit=limit)
        world = waiting.popleft()
        own = fingerprint(world)
        number, rests = graph.numbers[own], True
        for _, _, following, by_itself, broken in moves.of(world):
            if following is None:
                return Graph(scope, graph.numbers, graph.parents, graph.onward, Broken(own, broken))
            there = reach(symmetry.representative(following), own)
            if by_itself:
                rests = False
                graph.onward[number].append(there)
        wrong = objection(world, scope.ranks) if rests else ""
        if wrong:
            return Graph(scope, graph.numbers, graph.parents, graph.onward, Broken(own, wrong))
    return graph


def cuts(scopes: Iterable[Scope]) -> list[Scope]:
    """Return smaller bounds that are small enough for graphs: one command, and one thing that goes wrong.

    What goes round in circles is one participant that is told the same again; it needs no more than that.
    """
    found: dict[Scope, None] = {}
    for scope in scopes:
        calm = replace(
            scope,
            ranks=min(scope.ranks, 2),
            commands=min(scope.commands, 1),
            steps=min(scope.steps, 1),
            fine=False,
        )
        for strike in _STRIKES:
            calm = calm.with_budget(strike, 0)
        found[calm] = None
        for strike in _STRIKES:
            if scope.budget(strike):
                found[calm.with_budget(strike, 1)] = None
    return list(found)


def endless(graph: Graph) -> Violation | None:
    """Return a way to a world from which the group goes round in circles, or never comes to rest; None: none.

    A rule that was broken while the graph was built comes first.
    """
    broken = graph.broken or _on_a_circle(graph) or _restless(graph)
    if broken is None:
        return None
    return shortest_way(graph.scope, broken, lambda own: graph.parents[graph.numbers[own]])


def _on_a_circle(graph: Graph) -> Broken | None:
    """Take away, again and again, what nothing leads to; what is left is on a circle, or behind one."""
    leading_here = [0] * len(graph.onward)
    for targets in graph.onward:
        for target in targets:
            leading_here[target] += 1
    free = deque(number for number, count in enumerate(leading_here) if not count)
    taken = 0
    while free:
        taken += 1
        for target in graph.onward[free.popleft()]:
            leading_here[target] -= 1
            if not leading_here[target]:
                free.append(target)
    if taken == len(graph.onward):
        return None
    own = next(own for own, number in graph.numbers.items() if leading_here[number])
    return Broken(own, "from here the group goes round in circles by itself, and never comes to rest")


def _restless(graph: Graph) -> Broken | None:
    """Go back from every world that rests; what is not met has no way there."""
    back: list[list[int]] = [[] for _ in graph.onward]
    for source, targets in enumerate(graph.onward):
        for target in targets:
            back[target].append(source)
    resting = deque(number for number, targets in enumerate(graph.onward) if not targets)
    met = set(resting)
    while resting:
        for source in back[resting.popleft()]:
            if source not in met:
                met.add(source)
                resting.append(source)
    lost = next((own for own, number in graph.numbers.items() if number not in met), None)
    return None if lost is None else Broken(lost, "from here the group never comes to rest by itself")
