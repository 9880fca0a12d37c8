"""What the states, the phases and an engine's plans look like: drawings as data, Mermaid, a page of plans.

Everything is read off the tables and the plans, never written by hand. A drawing has exactly the edges of its
table. Own text instead of the drawings of `transitions`: titles, guards, plans, a fixed order, no state drawn
as the active one, and the same text with every version. Pure.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from wsm.actions.base import Action, Plan, Plans
from wsm.states.joint import BESIDE
from wsm.states.phases import LOOKS, MEANINGS, OUTCOMES, LookRow, OutcomeRow, Phase, When
from wsm.states.plan_key import HOLD, HOLD_WITHOUT_KV_CACHE, RELEASE, Half, PlanKey, Repair, Request
from wsm.states.table import CHARTS, Chart, MachineName, Row, State
from wsm.states.vocabulary import KVState, WeightState


class NodeKind(enum.Enum):
    """How a state is marked."""

    RESTING = "resting"
    WORKING = "working"
    DECIDING = "deciding"
    SERVING = "serving"
    FAULTED = "faulted"


@dataclass(frozen=True)
class Node:
    """One state of a drawing.

    Parameters
    ----------
    key : str
        Identifier, unique in the drawing, and what is written in it.
    kind : NodeKind
        How it is marked.
    lines : tuple of str
        Below the key: its meaning, and what stands beside it.
    initial : bool
        Whether a new process starts there.
    """

    key: str
    kind: NodeKind
    lines: tuple[str, ...] = ()
    initial: bool = False


@dataclass(frozen=True)
class Arrow:
    """One transition of a drawing.

    Parameters
    ----------
    source, dest : str
        Keys of nodes.
    event : str
        What happens.
    guard : str or None
        What must hold.
    plans : tuple of str
        The plans that it runs.
    """

    source: str
    event: str
    dest: str
    guard: str | None = None
    plans: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The event, and the guard in brackets."""
        return self.event if self.guard is None else f"{self.event} [{self.guard}]"


@dataclass(frozen=True)
class Drawing:
    """States and edges, in the order in which they are written.

    Parameters
    ----------
    name : str
        Base name of its files.
    title : str
        Its heading.
    nodes, arrows : tuple
        What is in it.
    remark : str
        One line on what it leaves out; may be empty.
    """

    name: str
    title: str
    nodes: tuple[Node, ...]
    arrows: tuple[Arrow, ...]
    remark: str = ""


_TITLES = {
    MachineName.WEIGHTS: "Weights of one rank",
    MachineName.KV: "KV cache of one rank",
    MachineName.ADMISSION: "Admission of one rank",
}
_NAMES = {
    MachineName.WEIGHTS: "weights",
    MachineName.KV: "kv_cache",
    MachineName.ADMISSION: "admission",
}
#: How the three are called in headings.
HEADINGS = {
    MachineName.WEIGHTS: "Weights",
    MachineName.KV: "KV cache",
    MachineName.ADMISSION: "Admission",
}

#: Phases in which a rank waits for the words of others.
_WAITING = frozenset({Phase.PARKING, Phase.VOTING, Phase.PREPARED, Phase.STAGED, Phase.FAILED, Phase.STOPPED})

#: More lines, and more pairs in a line, say nothing beside a phase.
_FEW, _MANY = 3, 8

_STYLES = {
    NodeKind.RESTING: "fill:#eef1f4,stroke:#5b6770,color:#1d2329",
    NodeKind.WORKING: "fill:#fff3d6,stroke:#b7791f,color:#1d2329",
    NodeKind.DECIDING: "fill:#e6e4fb,stroke:#5a4fcf,color:#1d2329",
    NodeKind.SERVING: "fill:#dff3e3,stroke:#2f855a,color:#1d2329",
    NodeKind.FAULTED: "fill:#fbe0de,stroke:#c53030,color:#1d2329",
}


def all_drawings() -> tuple[Drawing, ...]:
    """Return the drawings of all tables."""
    return (*map(machine_drawing, CHARTS), command_drawing())


def machine_drawing(chart: Chart) -> Drawing:
    """Return the drawing of one machine: every row of its table."""
    return Drawing(
        name=_NAMES[chart.machine],
        title=_TITLES[chart.machine],
        nodes=tuple(
            Node(state.name, _kind(chart, state), (chart.meanings[state],), initial=state is chart.initial)
            for state in chart.states
        ),
        arrows=tuple(
            Arrow(
                row.source.name,
                row.event.value,
                row.dest.name,
                None if row.guard is None else row.guard.value,
                tuple(str(key) for key in row.plans if row.dest in chart.working),
            )
            for row in chart.rows
        ),
        remark="Behind the triangle: the plans that an edge runs, see plans.md." if chart.working else "",
    )


def command_drawing() -> Drawing:
    """Return the drawing of the phases: an arrow for each row that leads from one to another."""
    arrows = [
        Arrow(row.phase.name, _labelled(event, row), row.to.name, _text_of(guard) or None)
        for row, event, guard in _edges_of_the_command()
        if row.to is not None
    ]
    return Drawing(
        name="command",
        title="A command, as a rank lives it",
        nodes=tuple(
            Node(
                phase.name,
                _kind_of(phase),
                (MEANINGS[phase], *states_beside(phase)),
                initial=phase is Phase.IDLE,
            )
            for phase in Phase
        ),
        arrows=tuple(dict.fromkeys(arrows)),
        remark="Left out: looks that stay where they are, and a new epoch, which ends every phase. "
        "Behind the slash: what the rank writes. In brackets: weights + KV cache that may stand beside it.",
    )


def _edges_of_the_command() -> Iterator[tuple[LookRow | OutcomeRow, str, Sequence[When]]]:
    for look in LOOKS:
        told = [condition for condition in look.when if condition is not When.NEW]
        yield look, (told[0] if told else When.NEW).value, told[1:]
    for outcome in OUTCOMES:
        yield outcome, outcome.event.value, outcome.when


def states_beside(phase: Phase) -> tuple[str, ...]:
    """Return one line for what may stand beside a phase, of any command; none where that is nearly all."""
    kv_of: dict[WeightState, set[KVState]] = {}
    for row in BESIDE:
        if phase in row.phases:
            for weights in row.weights:
                kv_of.setdefault(weights, set()).update(row.kv)
    alike: dict[tuple[KVState, ...], list[WeightState]] = {}
    for weights in WeightState:
        if weights in kv_of:
            alike.setdefault(tuple(kv for kv in KVState if kv in kv_of[weights]), []).append(weights)
    if len(alike) > _FEW or any(len(weights) * len(kv) > _MANY for kv, weights in alike.items()):
        return ()
    return tuple(f"[{_either(weights)} + {_either(kv)}]" for kv, weights in alike.items())


def _either(states: Sequence[State]) -> str:
    return "|".join(state.name for state in states)


def _labelled(event: str, row: LookRow | OutcomeRow) -> str:
    return event if row.says is None else f"{event} / {row.says.name}"


def _text_of(conditions: Iterable[When]) -> str:
    return ", ".join(condition.value for condition in conditions)


def _kind(chart: Chart, state: State) -> NodeKind:
    if state is WeightState.FAULTED:
        return NodeKind.FAULTED
    if state in chart.working:
        return NodeKind.WORKING
    if state in chart.deciding:
        return NodeKind.DECIDING
    return NodeKind.SERVING if state.name in ("NORMAL", "OPEN") else NodeKind.RESTING


def _kind_of(phase: Phase) -> NodeKind:
    if phase is Phase.IDLE:
        return NodeKind.RESTING
    return NodeKind.DECIDING if phase in _WAITING else NodeKind.WORKING


def side_by_side(arrows: Iterable[Arrow], line: str) -> dict[tuple[str, str], list[str]]:
    """Group the labels of arrows between the same two nodes; renderers would draw them over each other.

    Parameters
    ----------
    line : str
        What separates two lines of a label.
    """
    together: dict[tuple[str, str], list[str]] = {}
    for arrow in arrows:
        plans = "".join(f"{line}▸ {plan}" for plan in arrow.plans)
        together.setdefault((arrow.source, arrow.dest), []).append(arrow.label + plans)
    return together


def state_diagram(drawing: Drawing) -> str:
    """Return a drawing as Mermaid's ``stateDiagram-v2``, which code hosts render in place."""
    lines = ["---", f"title: {drawing.title}", "---", "stateDiagram-v2", "    direction TB"]
    if drawing.remark:
        lines.append(f"    %% {drawing.remark}")
    for node in drawing.nodes:
        text = "<br/>".join((node.key, *node.lines))
        lines += [f'    state "{text}" as {node.key}']
    lines += [f"    [*] --> {node.key}" for node in drawing.nodes if node.initial]
    lines += [
        f"    {source} --> {dest} : {'<br/>'.join(labels)}"
        for (source, dest), labels in side_by_side(drawing.arrows, "<br/>").items()
    ]
    for kind, style in _STYLES.items():
        keys = [node.key for node in drawing.nodes if node.kind is kind]
        if keys:
            lines += [f"    classDef {kind.value} {style}", f"    class {','.join(keys)} {kind.value}"]
    return "\n".join(lines) + "\n"


# -- plans ----------------------------------------------------------------------------------------

_PLANS_PREFACE = """\
Each plan stands beside the edge of the tables that runs it. `*`: collective, entered after a vote of all
ranks. An action runs in one `poll()`; what an engine lacks is absent from its plans, not skipped.
`stop_admitting` runs while the rank still steps, `resume_admitting` behind the decision."""

_HELD = """\
They move nothing in memory, and admission alone. What a hold forgets of the KV cache it forgets behind the
decision, so that a hold that fails leaves the cache as it was. While a group is held no plan of another
command, and no undo, admits requests again; an update that is to serve does, behind its decision."""

_NEW_EPOCH = """\
A rank that lives when the epoch ends stays in the old one until it holds nothing: it runs `rejoin`, which
lets go alone of what broke with a peer, then `discard`, one action per `poll()`, and only then takes `lost`
and writes a word of the new epoch. If that fails the rank is FAULTED, never joins, and its process is
replaced."""

_ACTIONS = """\
*Declares*: `v` a vote of all ranks comes before it; `t` it touches the weights, so that an aborted command
ends in CLEARED on all ranks; `u` it is undone where the group keeps what it had; `p` it measures that it is
done; `m` it says how much memory it takes. Past its deadline the command is aborted."""

_HALVES = {
    Half.GOES: "{} go",
    Half.WITHDRAWN: "{} go, as far as they have come",
    Half.COMES: "{} come",
    Half.REPLACED: "{} are loaded over the old ones",
    Half.STAYS: "{} stay",
    Half.AWAY: "{} are away",
}


def plans_page(plans: Plans, *, of: str) -> str:
    """Return every plan beside the edge that runs it, and every action with what it declares, in Markdown.

    Parameters
    ----------
    plans : Plans
        Of one engine.
    of : str
        Whose plans, as the end of the heading.
    """
    parts = [f"# Plans of {of}", _PLANS_PREFACE]
    for chart in CHARTS:
        for row in chart.rows:
            if row.plans and row.dest in chart.working:
                parts += _edge(chart, row, plans)
    held = [plans.named(key) for key in (HOLD, HOLD_WITHOUT_KV_CACHE, RELEASE)]
    parts += ["## Hold and release", _HELD, _matrix(held)]
    parts += ["## A new epoch", _NEW_EPOCH, _flow_of_a_new_epoch(plans)]
    parts += ["## Actions", _ACTIONS, _actions(plans)]
    return "\n\n".join(parts) + "\n"


def heading_of(chart: Chart, row: Row) -> str:
    """Return the heading under which the plans of an edge stand."""
    guard = "" if row.guard is None else f" {row.guard.value}"
    return f"{HEADINGS[chart.machine]}: {row.source.name} {row.event.value}{guard}"


def link_to(chart: Chart, row: Row) -> str:
    """Return the anchor of that heading, as code hosts make it."""
    return heading_of(chart, row).lower().replace(":", "").replace(" ", "-")


def _edge(chart: Chart, row: Row, plans: Plans) -> Iterator[str]:
    there = [plans.named(key) for key in row.plans]
    yield f"## {heading_of(chart, row)}"
    yield f"{row.note[0].upper()}{row.note[1:]}."
    yield from (_flow(chart, row, plan) for plan in there if plan is there[0] or plan.staged)
    if len(there) > 1:
        yield "\n".join(
            f"{number}. `{key}`: {_meaning(key)}" for number, key in enumerate(row.plans, start=1)
        )
        yield _matrix(there)


def _meaning(key: PlanKey) -> str:
    if key.operation is Request.HOT_UPDATE:
        return "weights and KV cache, staged beside those that serve"
    return (
        f"{_HALVES[key.weights].format('weights')}, "
        f"{_HALVES[key.kv].format('KV blocks').replace('over the old ones', 'anew')}"
    )


def _flow(chart: Chart, row: Row, plan: Plan) -> str:
    """Draw a plan within the working state that its edge leads to, and the ways out of that."""
    ways = [each for each in chart.rows if each.source is row.dest and each.dest is not row.dest]
    lines = [
        "```mermaid",
        "flowchart LR",
        f'    A(["{row.source.name}"]) -- {_guarded(row)} --> B',
        f'    B["{"<br/>".join((f"{row.dest.name}: {plan.name}", *_numbered(plan)))}"]',
    ]
    for index, way in enumerate(ways):
        lines.append(f'    B -- {_guarded(way)} --> C{index}(["{way.dest.name}"])')
    return "\n".join([*lines, "    style B text-align:left", "```"])


def _guarded(row: Row) -> str:
    return row.event.value if row.guard is None else f"{row.event.value} ({row.guard.value})"


def _flow_of_a_new_epoch(plans: Plans) -> str:
    rejoin, discard = ("<br/>".join((plan.name, *_numbered(plan))) for plan in (plans.rejoin, plans.discard))
    return "\n".join(
        [
            "```mermaid",
            "flowchart LR",
            f'    A(["any state"]) -- the epoch ended --> B["{rejoin}"]',
            f'    B --> C["CLEARING: {discard}"] -- cleared --> D(["CLEARED"]) -- lost --> D',
            '    C -- fail --> F(["FAULTED: never joins"])',
            "    style B text-align:left",
            "    style C text-align:left",
            "```",
        ]
    )


def _timed(plan: Plan) -> list[tuple[Action, str]]:
    """Return every action of a plan in its order, with when it runs, as far as that is not in its turn."""
    timed = [(action, ", when the command is seen") for action in plan.admission]
    timed += [(action, ", beside the serving loop") for action in plan.staging]
    if plan.key is not None and not isinstance(plan.key.operation, Repair):  # else no rank steps then
        timed += [(action, ", before parking") for action in plan.before_parking]
    timed += [(action, "") for action in plan.flip]
    return timed + [(action, ", behind the decision") for action in plan.commit]


def _numbered(plan: Plan) -> list[str]:
    return [
        f"{index} {action.name}{when}{_star(action)}"
        for index, (action, when) in enumerate(_timed(plan), start=1)
    ]


def _matrix(plans: Sequence[Plan]) -> str:
    """Return which action is in which of several plans, in an order that all of them have."""
    order: list[str] = []
    actions: dict[str, Action] = {}
    for plan in plans:
        at = 0
        for action, _ in _timed(plan):
            actions[action.name] = action
            if action.name in order:
                at = max(at, order.index(action.name) + 1)
            else:
                order.insert(at, action.name)
                at += 1
    names = [{action.name for action, _ in _timed(plan)} for plan in plans]
    return table(
        ("action", *map(str, range(1, len(plans) + 1))),
        [
            (f"`{name}`{_star(actions[name])}", *("x" if name in known else "" for known in names))
            for name in order
        ],
    )


def _actions(plans: Plans) -> str:
    actions: dict[str, Action] = {}
    for plan in plans:
        for action in plan:
            actions.setdefault(action.name, action)
    return table(
        ("action", "deadline", "declares", "purpose"),
        [
            (f"`{name}`", f"{action.deadline_s:g} s", _declared(action), action.purpose)
            for name, action in sorted(actions.items())
        ],
    )


def _declared(action: Action) -> str:
    said = (
        ("v", action.collective),
        ("t", action.touches_weights),
        ("u", _overrides(action, "undo")),
        ("p", _overrides(action, "probe")),
        ("m", _overrides(action, "bytes_needed")),
    )
    return " ".join(letter if holds else "-" for letter, holds in said)


def _overrides(action: Action, method: str) -> bool:
    return getattr(type(action), method) is not getattr(Action, method)


def _star(action: Action) -> str:
    return " *" if action.collective else ""


def table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with columns of even width, so that the text can be reviewed as text."""
    cells = [[cell.replace("|", r"\|") for cell in row] for row in (heading, *rows)]
    widths = [max(3, *(len(row[column]) for row in cells)) for column in range(len(heading))]
    lines = [_line(row, widths) for row in cells]
    return "\n".join([lines[0], _line(["-" * width for width in widths], widths), *lines[1:]])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"


def drawn(plans: Plans, *, of: str) -> Mapping[str, str]:
    """Return the text of every drawing by the name of its file, with the plans of one engine."""
    files = {f"{drawing.name}.mmd": state_diagram(drawing) for drawing in all_drawings()}
    return {**files, "plans.md": plans_page(plans, of=of)}
