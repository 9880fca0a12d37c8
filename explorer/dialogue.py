"""A way through an explored group: for people, and as a file that can be read, kept, and gone again.

::

    # wsm scenario: `python -m explorer --replay FILE` goes this way again.
    scope: operations=clear steps=1
    start: 1
    broken: nothing

    rank 0: has work
        step word: RUNNING 1 (epoch 1, done 0)
    controller: opens CLEAR 1
        command: epoch 1, sequence 1, CLEAR

    at the end:
        command: epoch 1, sequence 1, CLEAR

A line at the margin says who does what; what the words say then is indented, and told by the protocol, so a
file may be written without it. A replay asks the present protocol at every line. Either the way can still
be gone, and the same rule is broken or none, or a participant would not do any more what a line says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from explorer.errors import ScenarioError, ScopeError
from explorer.invariants import objection
from explorer.moves import CONTROLLER, Moves, WorldMove
from explorer.scope import Scope
from explorer.search import Violation
from explorer.world import (
    ControllerState,
    ParticipantState,
    World,
    all_participants,
    controller_of,
    first_worlds,
    named_slot,
    read_command,
    read_status,
    read_step,
)
from wsm.states.words import CommittedWord


def actor_name(actor: int, ranks: int) -> str:
    """Say who moves."""
    if actor == CONTROLLER:
        return "controller"
    return f"rank {actor}" if actor < ranks else f"helper {actor - ranks}"


def changes(before: World, after: World) -> Iterator[str]:
    """Say which words differ, and whose memory does, one line each."""
    old, new = controller_of(before), controller_of(after)
    if old.command != new.command:
        yield _command(new)
    for kept, record in zip(old.records, new.records, strict=True):
        if kept != record:
            yield f"record: version {record.version or 'none'} (sequence {record.sequence})"
    if old.committed != new.committed:
        yield _committed(new)
    for was, now in zip(all_participants(before), all_participants(after), strict=True):
        if was.step != now.step:
            yield _step(now)
        if was.status != now.status:
            yield _status(now)
        if (was.content, was.version) != (now.content, now.version):
            yield f"memory: {_content(now)}"


def standing(world: World, ranks: int) -> Iterator[str]:
    """Say what the group is: its command, its committed version, what each participant holds."""
    controller = controller_of(world)
    yield _command(controller)
    yield _committed(controller)
    for index, each in enumerate(all_participants(world)):
        yield f"{actor_name(index, ranks)}: {_content(each) if each.alive else 'not attached'}"


def _command(controller: ControllerState) -> str:
    word = read_command(controller.command)
    return f"command: epoch {word.epoch}, sequence {word.sequence}, {word.operation.name}"


def _committed(controller: ControllerState) -> str:
    word = CommittedWord.unpack(controller.committed)
    slot = named_slot(controller)
    unknown = slot is None and word.version_id is not None
    version = "unknown" if unknown else (slot and slot.version) or "none"
    return f"committed: version {version} (sequence {word.sequence})"


def _step(me: ParticipantState) -> str:
    word = read_step(me.step)
    what = "for sequence" if word.kind.name == "PARKED" else "done"
    return f"step word: {word.kind.name} {word.step} (epoch {word.epoch}, {what} {word.sequence})"


def _status(me: ParticipantState) -> str:
    word = read_status(me.status)
    votes = f", ready {word.ready}" if word.ready else ""
    return f"status: {word.code.name} (epoch {word.epoch}, sequence {word.sequence}{votes})"


def _content(me: ParticipantState) -> str:
    if me.content:
        return f"version {me.content}{'' if me.version == me.content else ', not committed'}"
    return "no whole weights"


_HEAD = "wsm scenario: `python -m explorer --replay FILE` goes this way again."
_FIELDS = ("scope", "start", "broken")
_END = "at the end:"
_NOTHING = "nothing"


class Scenario(NamedTuple):
    """What a scenario file says.

    Attributes
    ----------
    scope : Scope
        The bounds in which the way was found.
    start : int
        Which of the first worlds it begins in, from 1.
    broken : str
        Which rule it broke then; empty: none.
    remarks : tuple of str
        What is said about it at its head, without the number signs.
    lines : tuple of (int, str, str)
        Number in the file, who, and what; one per move.
    """

    scope: Scope
    start: int
    broken: str
    remarks: tuple[str, ...]
    lines: tuple[tuple[int, str, str], ...]


def as_text(way: Violation, scope: Scope, remarks: Sequence[str] = (_HEAD,)) -> str:
    """Return a way as a scenario, with what the words say after every move."""
    start = list(first_worlds(scope)).index(way.start) + 1
    lines = [
        *(f"# {remark}".rstrip() for remark in remarks),
        f"scope: {scope.as_text()}",
        f"start: {start}",
        f"broken: {' '.join(way.broken.split()) or _NOTHING}",
        "",
    ]
    before = way.start
    for move in way.moves:
        lines.append(f"{actor_name(move.actor, scope.ranks)}: {move.label}")
        if move.world is not None:
            lines += [f"    {change}" for change in changes(before, move.world)]
            before = move.world
    lines += ["", _END, *(f"    {line}" for line in standing(before, scope.ranks)), ""]
    return "\n".join(lines)


def read(text: str) -> Scenario:
    """Read a scenario.

    Raises
    ------
    ScenarioError
        If the text is none; it names the line.
    """
    head: dict[str, str] = {}
    lines: list[tuple[int, str, str]] = []
    remarks = [line[1:].strip() for line in text.splitlines() if line.startswith("#")]
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith(("#", " ")):
            continue
        if line == _END:
            break
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
    broken = "" if head["broken"] == _NOTHING else head["broken"]
    return Scenario(scope, int(head["start"]), broken, tuple(remarks), tuple(lines))


def replay(scenario: Scenario) -> Violation:
    """Go the way of a scenario on the present protocol.

    Returns
    -------
    Violation
        The way; its `broken` is empty if the last world rests well, or does not rest.

    Raises
    ------
    ScenarioError
        If a participant cannot do what a line says; it lists what it can do there.
    """
    scope, worlds = scenario.scope, list(first_worlds(scenario.scope))
    if not 1 <= scenario.start <= len(worlds):
        raise ScenarioError(line=1, problem=f"there is no start {scenario.start}")
    start = world = worlds[scenario.start - 1]
    moves, gone = Moves(scope), list[WorldMove]()
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
    return Violation(objection(world, scope.ranks) if rests else "", start, tuple(gone))
