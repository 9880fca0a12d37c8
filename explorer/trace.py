"""A way through an explored group, for people: who did what, and what stood in the words afterwards.

At most 80 columns. Whoever debugs with it reads the first column down: numbers, names, deeds; the indented
lines say which words changed.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from explorer.desk import Desk
from explorer.moves import CONTROLLER, Move
from explorer.participant import Participant, read_command, read_status, read_step
from explorer.search import Violation
from explorer.world import World, desk_of, everybody
from wsm.states.words import CommittedWord

WIDTH = 80

_NAME = 11
_INDENT = 4 + _NAME + 1


def actor_name(actor: int, ranks: int) -> str:
    """Say who moves."""
    if actor == CONTROLLER:
        return "controller"
    return f"rank {actor}" if actor < ranks else f"helper {actor - ranks}"


def render(violation: Violation, ranks: int) -> str:
    """Return the whole way, and the rule that it breaks."""
    lines = [f"at first: {line}" for line in standing(violation.start, ranks)]
    before = violation.start
    for number, move in enumerate(violation.moves, start=1):
        lines += _moved(number, move, before, ranks)
        before = move.world or before
    ended = f"BROKEN: {violation.broken}" if violation.broken else "no rule is broken"
    lines += textwrap.wrap(ended, WIDTH, subsequent_indent="        ")
    return "\n".join(lines)


def _moved(number: int, move: Move, before: World, ranks: int) -> Iterator[str]:
    outside = "" if move.by_itself else "  (from outside)"
    head = f"{number:3} {actor_name(move.actor, ranks):<{_NAME}} "
    yield from textwrap.wrap(
        f"{move.label}{outside}", WIDTH, initial_indent=head, subsequent_indent=" " * _INDENT
    )
    if move.world is None:
        return
    for change in changes(before, move.world):
        yield from textwrap.wrap(
            change, WIDTH, initial_indent=" " * _INDENT + "-> ", subsequent_indent=" " * (_INDENT + 3)
        )


def changes(before: World, after: World) -> Iterator[str]:
    """Say which words differ, and whose memory does, one line each."""
    old, new = desk_of(before), desk_of(after)
    if old.command != new.command:
        yield _command(new)
    if old.committed != new.committed:
        yield _committed(new)
    for was, now in zip(everybody(before), everybody(after), strict=True):
        if was.step != now.step:
            yield _step(now)
        if was.status != now.status:
            yield _status(now)
        if (was.content, was.version) != (now.content, now.version):
            yield f"memory: {_content(now)}"


def standing(world: World, ranks: int) -> Iterator[str]:
    """Say what the group is: its command, its committed version, what everybody holds."""
    desk = desk_of(world)
    yield _command(desk)
    yield _committed(desk)
    for index, each in enumerate(everybody(world)):
        yield f"{actor_name(index, ranks)}: {_content(each) if each.alive else 'not attached'}"


def _command(desk: Desk) -> str:
    word = read_command(desk.command)
    return f"command: epoch {word.epoch}, sequence {word.sequence}, {word.operation.name}"


def _committed(desk: Desk) -> str:
    word = CommittedWord.unpack(desk.committed)
    return f"committed: version {word.version or 'none'} (sequence {word.sequence})"


def _step(me: Participant) -> str:
    word = read_step(me.step)
    what = "for sequence" if word.kind.name == "PARKED" else "done"
    return f"step word: {word.kind.name} {word.step} (epoch {word.epoch}, {what} {word.sequence})"


def _status(me: Participant) -> str:
    word = read_status(me.status)
    votes = f", ready {word.ready}" if word.ready else ""
    return f"status: {word.code.name} (epoch {word.epoch}, sequence {word.sequence}{votes})"


def _content(me: Participant) -> str:
    if me.content:
        return f"version {me.content}{'' if me.version == me.content else ', not committed'}"
    return "no whole weights"
