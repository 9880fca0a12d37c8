"""A way through an explored group as a text file: a dialogue that can be read, kept, and gone again.

::

    # wsm scenario: `wsm explore --replay FILE` goes this way again.
    scope: operations=clear steps=1
    start: 1
    broken: rank 0 waits while parking for ever

    rank 0: has work
    controller: opens CLEAR 1

A replay asks the present protocol at every line. Either the way can still be gone, and the same rule is
broken or not, or somebody would not do any more what a line says.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from wsm.exploration.errors import ScenarioError, ScopeError
from wsm.exploration.moves import Move, Moves
from wsm.exploration.rest import objection
from wsm.exploration.scope import Scope
from wsm.exploration.search import Violation
from wsm.exploration.trace import actor_name
from wsm.exploration.world import World, first_worlds

_HEAD = "# wsm scenario: `wsm explore --replay FILE` goes this way again."
_FIELDS = ("scope", "start", "broken")


class Scenario(NamedTuple):
    """What a scenario file says.

    Attributes
    ----------
    scope : Scope
        The bounds in which the way was found.
    start : int
        Which of the first worlds it begins in, from 1.
    broken : str
        Which rule it broke then.
    lines : tuple of (int, str, str)
        Number in the file, who, and what; one per move.
    """

    scope: Scope
    start: int
    broken: str
    lines: tuple[tuple[int, str, str], ...]


def as_text(violation: Violation, scope: Scope) -> str:
    """Return a violation as a scenario."""
    start = list(first_worlds(scope)).index(violation.start) + 1
    head = [
        _HEAD,
        f"scope: {scope.as_text()}",
        f"start: {start}",
        f"broken: {' '.join(violation.broken.split())}",
        "",
    ]
    moves = [f"{actor_name(move.actor, scope.ranks)}: {move.label}" for move in violation.moves]
    return "\n".join([*head, *moves, ""])


def save(violation: Violation, scope: Scope, path: Path) -> None:
    """Write a violation to a scenario file."""
    path.write_text(as_text(violation, scope), encoding="utf-8")


def read(text: str) -> Scenario:
    """Read a scenario.

    Raises
    ------
    ScenarioError
        If the text is none; it names the line.
    """
    head: dict[str, str] = {}
    lines: list[tuple[int, str, str]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        who, colon, what = line.partition(":")
        if not colon or not what.strip():
            raise ScenarioError(line=number, problem=f"{line!r} is no '<who>: <what>'")
        if who in _FIELDS and who not in head and not lines:
            head[who] = what.strip()
        else:
            lines.append((number, who.strip(), what.strip()))
    missing = [field for field in _FIELDS if field not in head]
    if missing or not head["start"].isdigit():
        raise ScenarioError(
            line=1, problem=f"it says no {' and no '.join(missing) or 'number for its start'}"
        )
    try:
        scope = Scope.from_text(head["scope"])
    except ScopeError as error:
        raise ScenarioError(line=1, problem=str(error)) from error
    return Scenario(scope, int(head["start"]), head["broken"], tuple(lines))


def replay(scenario: Scenario) -> Violation:
    """Go the way of a scenario on the present protocol.

    Returns
    -------
    Violation
        The way; its `broken` is empty if the last world rests well, or does not rest.

    Raises
    ------
    ScenarioError
        If somebody cannot do what a line says; it lists what they can do there.
    """
    scope, worlds = scenario.scope, list(first_worlds(scenario.scope))
    if not 1 <= scenario.start <= len(worlds):
        raise ScenarioError(line=1, problem=f"there is no start {scenario.start}")
    start = world = worlds[scenario.start - 1]
    moves, gone = Moves(scope), list[Move]()
    for number, who, what in scenario.lines:
        possible = [move for move in moves.of(world) if actor_name(move.actor, scope.ranks) == who]
        move = next((move for move in possible if move.label == what), None)
        if move is None:
            can = "; ".join(move.label for move in possible) or "do nothing"
            raise ScenarioError(line=number, problem=f"{who} cannot '{what}' there, it can: {can}")
        gone.append(move)
        if move.world is None:
            return Violation(move.broken, start, tuple(gone))
        world = move.world
    rests = not any(move.by_itself for move in moves.of(world))
    return Violation(_rest(world, scope) if rests else "", start, tuple(gone))


def _rest(world: World, scope: Scope) -> str:
    return objection(world, scope.ranks)
