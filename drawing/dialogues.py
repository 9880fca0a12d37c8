"""Sequence diagrams as plain data, and as Mermaid text.

Knows messages, notes and blocks; what is said in them is in :mod:`.sequences`.
"""

from __future__ import annotations

import enum
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Union


class Participant(enum.Enum):
    """Who speaks; the value is the identifier in the text."""

    CALLER = "A"
    SUPERVISOR = "S"
    CONTROLLER = "C"
    WORDS = "W"
    RANK_0 = "R0"
    RANK_1 = "R1"


_TITLES = {
    Participant.CALLER: "caller",
    Participant.SUPERVISOR: "supervisor",
    Participant.CONTROLLER: "controller",
    Participant.WORDS: "words in shared memory",
    Participant.RANK_0: "rank 0",
    Participant.RANK_1: "rank 1",
}

#: Lifelines stand far enough apart for the notes over both ranks.
_CONFIG = ("config:", "  sequence:", "    width: 230")

#: Characters that a note has room for, over both ranks and over one.
_NOTE_WIDTH, _NARROW = 44, 36

RANKS = (Participant.RANK_0, Participant.RANK_1)


@dataclass(frozen=True)
class Message:
    """Something that goes from one participant to another; a reading is drawn dashed."""

    source: Participant
    target: Participant
    text: str
    reading: bool = False


@dataclass(frozen=True)
class Note:
    """Something that participants do by themselves, or that a reader should know; one line or several."""

    over: tuple[Participant, ...]
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Branch:
    """One of several ways on, with its condition."""

    condition: str
    items: tuple[Item, ...]


@dataclass(frozen=True)
class Block:
    """A repetition (``loop``), something that may be absent (``opt``), or a choice (``alt``)."""

    kind: str
    branches: tuple[Branch, ...]


Item = Union[Message, Note, Block]  # noqa: UP007 - a class that is declared above needs the name before it is whole


@dataclass(frozen=True)
class Dialogue:
    """One sequence diagram."""

    name: str
    title: str
    items: tuple[Item, ...]


def sequence_diagram(dialogue: Dialogue) -> str:
    """Return a ``sequenceDiagram``."""
    lines = ["---", f"title: {dialogue.title}", *_CONFIG, "---", "sequenceDiagram"]
    speak = _speakers(dialogue.items)
    lines += [f"    participant {each.value} as {_TITLES[each]}" for each in Participant if each in speak]
    lines += _items(dialogue.items, depth=1)
    return "\n".join(lines) + "\n"


def chosen(items: Sequence[Item], *branches: str) -> Iterator[Message | Note]:
    """Iterate over what happens if, of every choice, the first branch is taken whose condition is given.

    A choice of which no condition is given is left out; loops and options are gone through once.
    """
    for item in items:
        if not isinstance(item, Block):
            yield item
            continue
        for branch in item.branches:
            if item.kind != "alt" or branch.condition in branches:
                yield from chosen(branch.items, *branches)
                break


def _speakers(items: Sequence[Item]) -> set[Participant]:
    found: set[Participant] = set()
    for item in items:
        if isinstance(item, Message):
            found |= {item.source, item.target}
        elif isinstance(item, Note):
            found |= set(item.over)
        else:
            for branch in item.branches:
                found |= _speakers(branch.items)
    return found


def _items(items: Sequence[Item], *, depth: int) -> list[str]:
    lines: list[str] = []
    indent = "    " * depth
    for item in items:
        if isinstance(item, Message):
            arrow = "-->>" if item.reading else "->>"
            lines.append(f"{indent}{item.source.value}{arrow}{item.target.value}: {item.text}")
        elif isinstance(item, Note):
            over = ",".join(each.value for each in (item.over[0], *item.over[1:][-1:]))
            width = _NOTE_WIDTH if len(item.over) > 1 else _NARROW
            wrapped = [part for line in item.lines for part in textwrap.wrap(line, width)]
            lines.append(f"{indent}Note over {over}: {'<br/>'.join(wrapped)}")
        else:
            lines += _block(item, indent=indent, depth=depth)
    return lines


def _block(block: Block, *, indent: str, depth: int) -> list[str]:
    lines: list[str] = []
    for index, branch in enumerate(block.branches):
        lines.append(f"{indent}{block.kind if index == 0 else 'else'} {branch.condition}")
        lines += _items(branch.items, depth=depth + 1)
    return [*lines, f"{indent}end"]
