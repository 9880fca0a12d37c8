"""Questions that only the whole graph answers: whether every world comes to rest, and no way is endless.

For small bounds: every world and every move is kept. Only moves that happen by themselves count: a group
must come to rest without anybody giving up, dying or asking for more.

* No circle: a circle of moves that happen by themselves is a livelock, however fair the scheduler is.
* No world without a way to rest. Together with :func:`explorer.rest.objection`, which is asked of
  every world that rests: every world can still reach NORMAL, CLEARED or FAULTED on all ranks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from explorer.errors import GraphTooLargeError
from explorer.moves import Moves
from explorer.rest import objection
from explorer.scope import Budget, Scope
from explorer.search import ROOT, Broken, Violation, shortest_way
from explorer.world import Symmetry, World, fingerprint, first_worlds

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


def violation(graph: Graph) -> Violation | None:
    """Return a way to a world from which the group goes round in circles, or never comes to rest; None: none.

    A rule that was broken while the graph was built comes first.
    """
    broken = graph.broken or _endless(graph) or _restless(graph)
    if broken is None:
        return None
    return shortest_way(graph.scope, broken, lambda own: graph.parents[graph.numbers[own]])


def _endless(graph: Graph) -> Broken | None:
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
