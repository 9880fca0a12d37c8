"""The tables of :mod:`.phases` as a drawing and as a page for reviewers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from wsm.states.diagram.markdown import table
from wsm.states.diagram.model import Arrow, Drawing, Node, NodeKind
from wsm.states.phases import LOOKS, MEANINGS, OUTCOMES, Look, Outcome, When
from wsm.states.rank_state import Phase, Todo

#: Phases in which a rank waits for the words of others.
_WAITING = frozenset({Phase.PARKING, Phase.VOTING, Phase.PREPARED, Phase.STAGED, Phase.FAILED, Phase.STOPPED})

_PREFACE = """\
Written by `wsm diagrams` from `wsm/states/phases.py`; do not edit it here. Whenever a rank has read the
words of its group, it takes the first row of its phase whose conditions all hold. When the thing to do is
done, it takes the first row of what came of that. *Says* is the code in its status word. Before any row: a
newer epoch makes the rank rejoin, a word of the past moves it nowhere, and a command that comes before the
last one is over is an error for all to see."""

_DOES = {
    Todo.SERVE: "may enter a step",
    Todo.JOIN: "must join a step",
    Todo.WAIT: "waits for a word",
    Todo.LOOK: "looks again",
    Todo.BEGIN: "reads and checks the command",
    Todo.DRAIN: "steps on, admits nothing",
    Todo.ACCEPT: "begins the transition",
    Todo.RUN: "runs the next action",
    Todo.FORSAKEN: "fails: a peer never will vote",
    Todo.FINISH: "ends its plan",
    Todo.STAGE: "stages, and serves",
    Todo.COMMIT: "serves the new version",
    Todo.UNDO: "undoes what it did",
    Todo.KEEP: "keeps what it had",
    Todo.DROP: "gives everything back",
}


def phase_drawing() -> Drawing:
    """Return the drawing of the phases: an arrow for each row that leads from one to another."""
    return Drawing(
        name="command",
        title="A command, as a rank lives it",
        nodes=tuple(
            Node(
                key=phase.name,
                title=phase.name,
                kind=_kind(phase),
                meaning=MEANINGS[phase],
                initial=phase is Phase.IDLE,
            )
            for phase in Phase
        ),
        arrows=tuple(dict.fromkeys(_arrows())),
        remark="Left out: looks that stay where they are, and a new epoch, which ends every phase. "
        "Behind the slash: what the rank writes.",
    )


def phase_page() -> str:
    """Return the page for reviewers, in Markdown."""
    parts = ["# A command, as a rank lives it", _PREFACE]
    for phase in Phase:
        parts += [f"## {phase.name}", _sentence(MEANINGS[phase]), *_tables(phase)]
    return "\n\n".join(parts) + "\n"


def _tables(phase: Phase) -> Iterator[str]:
    looks = [row for row in LOOKS if row.phase is phase]
    yield table(
        ("when it reads", "it", "next phase", "says"),
        [(_when(row.when) or "anything else", _deed(row), *_where(row.to), _said(row)) for row in looks],
    )
    outcomes = [row for row in OUTCOMES if row.phase is phase]
    if outcomes:
        yield table(
            ("what comes of it", "if", "next phase", "says"),
            [(row.event.value, _when(row.when), *_where(row.to), _said(row)) for row in outcomes],
        )


def _arrows() -> Iterator[Arrow]:
    for look in LOOKS:
        if look.to is not None:
            told = [condition for condition in look.when if condition is not When.NEW]
            event = told[0] if told else When.NEW
            guard = _when(told[1:]) or None
            yield Arrow(look.phase.name, _labelled(event.value, look), look.to.name, guard)
    for outcome in OUTCOMES:
        guard = _when(outcome.when) or None
        yield Arrow(outcome.phase.name, _labelled(outcome.event.value, outcome), outcome.to.name, guard)


def _labelled(event: str, row: Look | Outcome) -> str:
    return event if row.says is None else f"{event} / {row.says.name}"


def _kind(phase: Phase) -> NodeKind:
    if phase is Phase.IDLE:
        return NodeKind.RESTING
    return NodeKind.DECIDING if phase in _WAITING else NodeKind.WORKING


def _when(conditions: Iterable[When]) -> str:
    return ", ".join(condition.value for condition in conditions)


def _deed(row: Look) -> str:
    if row.broken:
        return "*raises*: " + row.broken
    changes = "" if row.change is None else f"; {row.change.value}"
    return _DOES[row.todo] + changes


def _where(phase: Phase | None) -> Sequence[str]:
    return ("" if phase is None else f"**{phase.name}**",)


def _said(row: Look | Outcome) -> str:
    return "" if row.says is None else row.says.name


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
