"""The group's side of a command for reviewers: its stages as a picture, and its rows as tables.

Pure renderers of :mod:`wsm.states.group`; always the same text.
"""

from __future__ import annotations

from collections.abc import Iterator

from wsm.cli.diagrams import table
from wsm.states.group import (
    BY_STAGE,
    LEADS_TO,
    PROCESSES,
    ROWS,
    STAGES,
    CommandStage,
    GroupRow,
    GroupTodo,
    May,
    processes_of,
)

_INTRODUCTION = """\
Written by `python -m drawing` from `wsm/states/group.py`; do not edit it here. Every process that looks after
a group asks this table whenever it has read the group's words: the first row of the command's stage whose
conditions all hold says what the process stores, and what it does then. A process that stores has the
controller role, but for the one ABORT of the stage AWAY. *Who* names the processes that a row is for, where
it is not for all: **caller** is a controller with its caller's command, or its successor; **keeper** the
process that starts the ranks; **stand-in** any process of the group whose controller does not come back, and
**releaser** one of a group without a keeper, which ends leases besides."""

_STORED = """\
Stored are, in this order: the arguments of a command, the record of what is committed, the committed word,
the command word. A process that dies in between leaves words that its successor reads as they stand. *The
goal* is the version that the group must serve again once its epoch has ended, in the committed word; none if
it is to hold nothing."""

_NAMES = {May.DRIVE: "caller", May.KEEP: "keeper", May.STAND_IN: "stand-in", May.END_LEASES: "releaser"}

_DOES = {
    GroupTodo.LOOK: "looks again",
    GroupTodo.WAIT: "waits",
    GroupTodo.READ_REPORTS: "waits for the reports",
    GroupTodo.TELL_PREPARED: "tells its caller",
    GroupTodo.HELD: "gives the role back",
    GroupTodo.END: "tells its caller how it ended",
    GroupTodo.UNSETTLED: "tells its caller which",
    GroupTodo.TAKE_ROLE: "takes the role",
    GroupTodo.GIVE_ROLE_BACK: "gives the role back",
    GroupTodo.FAIL: "lets ranks say FAILED",
    GroupTodo.NAME: "names whom to end",
    GroupTodo.REPLACE: "ends these processes",
    GroupTodo.START: "starts the dead anew",
}


def group_picture() -> str:
    """Return the stages of a command, and what leads from one to the next, as a Mermaid diagram."""
    lines = ["---", "title: A command, as the processes of its group see it", "---", "stateDiagram-v2"]
    lines += ["    direction TB", "    [*] --> AWAY"]
    lines += [f'    state "{stage.name}<br/>{text}" as {stage.name}' for stage, text in STAGES.items()]
    lines += [
        "    AWAY --> UNDECIDED : takes the role of a controller that is gone",
        "    AWAY --> OVER : takes the role",
        "    AWAY --> DECIDED : ABORT in the place of a stopped controller, where a participant failed",
        "    JOINING --> OVER : all have joined",
        "    UNDECIDED --> OVER : a clear that all have finished",
        "    DECIDED --> OVER : all have ended it",
        "    OVER --> AWAY : gives the role back",
    ]
    edges: dict[tuple[CommandStage, CommandStage], list[str]] = {}
    for row in ROWS:
        if row.writes is None or row.stage is CommandStage.AWAY:
            continue
        if (to := LEADS_TO[row.writes]) is not None:
            labels = edges.setdefault((row.stage, to), [])
            if row.writes.value not in labels:
                labels.append(row.writes.value)
    for (stage, to), labels in edges.items():
        lines.append(f"    {stage.name} --> {to.name} : {'<br/>'.join(labels)}")
    return "\n".join(lines) + "\n"


def group_page() -> str:
    """Return the page of the group's side."""
    parts = ["# A command, as the processes of its group see it", _INTRODUCTION]
    parts += [f"```mermaid\n{group_picture()}```", _STORED]
    for stage in CommandStage:
        parts += [f"## {stage.name}", f"{STAGES[stage][0].upper()}{STAGES[stage][1:]}.", *_stage(stage)]
    return "\n\n".join(parts) + "\n"


def _stage(stage: CommandStage) -> Iterator[str]:
    yield table(
        ("who", "when", "stores", "then"),
        [
            (
                _who(row),
                _when(row) or "anything else",
                row.writes.value if row.writes else "",
                _DOES[row.todo],
            )
            for row in BY_STAGE[stage]
        ],
    )


def _who(row: GroupRow) -> str:
    able = processes_of(row)
    return "" if able == frozenset(May) else ", ".join(name for may, name in _NAMES.items() if may in able)


def _when(row: GroupRow) -> str:
    return ", ".join(when.value for when in row.when if when not in PROCESSES)
