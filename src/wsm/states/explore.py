"""Every joint state that one rank can ever be in, and every way from one to another.

Breadth first over the tables and the joint rules; a few dozen states, milliseconds. The static checks look
for dead ends in it, the joint diagram draws it. It knows one rank only: what ranks do to each other is the
protocol's, and is explored there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

from wsm.states.chart import Event, Row
from wsm.states.errors import IllegalTransitionError
from wsm.states.joint import START, JointState, step
from wsm.states.vocabulary import KVEvent, WeightEvent

EVENTS: tuple[Event, ...] = (*WeightEvent, *KVEvent)

#: Ends what a rank held because its group's incarnation ended; no way of working.
EPOCH_EVENTS: frozenset[Event] = frozenset({WeightEvent.LOST, KVEvent.LOST})


@dataclass(frozen=True)
class JointEdge:
    """One way from a joint state to another.

    Parameters
    ----------
    source, dest : JointState
        From where to where.
    row : Row
        The row of the table that it takes.
    kv_kept : bool
        The KV policy under which it leads there.
    """

    source: JointState
    row: Row
    dest: JointState
    kv_kept: bool


def outgoing(joint: JointState) -> Iterator[JointEdge]:
    """Iterate over everything that can happen in a joint state, for all flags that an event can carry."""
    found: set[JointEdge] = set()
    for event, kept, kv_kept in product(EVENTS, (True, False), (True, False)):
        try:
            row, after = step(joint, event, kept=kept, kv_kept=kv_kept)
        except IllegalTransitionError:
            continue
        edge = JointEdge(joint, row, after, kv_kept or event is not WeightEvent.UPDATE)
        if edge not in found:
            found.add(edge)
            yield edge


def explore(start: JointState = START) -> tuple[JointEdge, ...]:
    """Return every edge that can be reached, nearest first; always in the same order."""
    edges: list[JointEdge] = []
    seen, waiting = {start}, deque([start])
    while waiting:
        for edge in outgoing(waiting.popleft()):
            edges.append(edge)
            if edge.dest not in seen:
                seen.add(edge.dest)
                waiting.append(edge.dest)
    return tuple(edges)


def states_of(edges: Iterable[JointEdge]) -> tuple[JointState, ...]:
    """Return every joint state that the edges touch, once, in their order."""
    return tuple(dict.fromkeys(state for edge in edges for state in (edge.source, edge.dest)))


def reachable_without_a_new_epoch(edges: Iterable[JointEdge], start: JointState) -> frozenset[JointState]:
    """Return the joint states that lie ahead of `start` if no epoch ends."""
    onward: dict[JointState, list[JointState]] = {}
    for edge in edges:
        if edge.row.event not in EPOCH_EVENTS:
            onward.setdefault(edge.source, []).append(edge.dest)
    seen, waiting = {start}, [start]
    while waiting:
        for state in onward.get(waiting.pop(), ()):
            if state not in seen:
                seen.add(state)
                waiting.append(state)
    return frozenset(seen)
