"""The review table: every state with every event, what it leads to, and what happens if that fails.

One Markdown file, read from top to bottom by somebody who decides whether a change of a table is right.
A pure renderer of the tables, the joint rules and the plans; always the same text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from wsm.states.check import EPOCH_EVENTS, JointEdge, explore, reachable_without_a_new_epoch, states_of
from wsm.states.diagram.model import PlanSummary
from wsm.states.joint import FORBIDDEN, NEEDS, NOTHING_HELD, STALE, START, Need, chart_of, serving
from wsm.states.table import KV_CHART, WEIGHT_CHART, Chart, Event, Guard, Region, Row, State
from wsm.states.vocabulary import PlanName, WeightEvent, WeightState

_PREFACE = """\
Written by `wsm diagrams` from `wsm/states/table.py` and `wsm/states/joint.py`; do not edit it here.
Each state is listed with every event. *Refused* means a typed error, and that nothing changes; a rank that
refuses a command fails it for the group."""

_JOINT_PREFACE = """\
Which states of the KV cache (columns) stand beside which states of the weights (rows). A rank serves where
both are NORMAL, and nowhere else."""

_PLAN_PREFACE = """\
For an engine that has everything; steps that a configuration does not need are absent. A collective step is
entered after every rank has voted. Once a step has touched the weights of any rank, an aborted command ends
in CLEARED on all of them."""

_HEADINGS = {Region.WEIGHTS: "Weights", Region.KV: "KV cache"}


def review_table(plans: Mapping[PlanName, PlanSummary]) -> str:
    """Return the whole file.

    Parameters
    ----------
    plans : mapping of PlanName to PlanSummary
        Every plan that the tables name.
    """
    parts = [
        "# Every transition, for review",
        _PREFACE,
        *_chart_part(WEIGHT_CHART, plans),
        *_chart_part(KV_CHART, plans),
        *_joint_part(explore()),
        *_plan_part(plans),
    ]
    return "\n\n".join(parts) + "\n"


def _chart_part(chart: Chart, plans: Mapping[PlanName, PlanSummary]) -> Iterable[str]:
    yield f"## {_HEADINGS[chart.region]}"
    yield table(
        ("state", "meaning", "kind"),
        [(_bold(state), chart.meanings[state], _kind(chart, state)) for state in chart.states],
    )
    rows = [
        line for state in chart.states for event in chart.events for line in _pair(chart, state, event, plans)
    ]
    yield table(("state", "event", "guard", "next state", "plan", "what it means", "on failure"), rows)


def _pair(
    chart: Chart, state: State, event: Event, plans: Mapping[PlanName, PlanSummary]
) -> list[tuple[str, ...]]:
    rows = chart.rows_for(state, event)
    if not rows:
        legal = ", ".join(each.value for each in chart.legal(state))
        return [(state.name, event.value, "", "*refused*", "", "", f"nothing changes; legal here: {legal}")]
    return [
        (
            state.name,
            event.value,
            "" if row.guard is None else row.guard.value,
            _bold(row.dest),
            _plan_links(row, plans),
            row.note,
            _on_failure(chart, row),
        )
        for row in rows
    ]


def _on_failure(chart: Chart, row: Row) -> str:
    """Say what a failure leads to once the row was taken; derived from the rows that lead on."""
    if row.event in EPOCH_EVENTS:
        return "cannot fail"
    if row.dest in chart.deciding:
        return "nothing is left that can fail; " + _ways(chart, row, "abort")
    if row.dest not in chart.working:
        return "no work begins"
    failure = _ways(chart, row, "fail")
    decision = _ways(chart, row, "abort") or _ways(chart, row, "clear")
    return failure or f"the rank stays and says FAILED; then {decision}"


def _onward(chart: Chart, row: Row) -> Iterator[Row]:
    """Iterate over the rows that can follow a row; an update of nothing has nothing to keep."""
    began_empty = row.event is WeightEvent.UPDATE and row.source is not WeightState.NORMAL
    for each in chart.rows:
        if each.source is row.dest and not (began_empty and each.guard is Guard.KEPT):
            yield each


def _ways(chart: Chart, row: Row, event: str) -> str:
    return " or ".join(
        f"{event}{'' if each.guard is None else f' [{each.guard.value}]'} → {each.dest.name}"
        for each in _onward(chart, row)
        if each.event.value == event
    )


def _joint_part(edges: Sequence[JointEdge]) -> Iterable[str]:
    yield "## Both together"
    yield _JOINT_PREFACE
    pairs = {joint[:2] for joint in states_of(edges)}
    within = {joint[:2] for joint in reachable_without_a_new_epoch(edges, START)}
    rows = []
    for weights in WEIGHT_CHART.states:
        cells = [_bold(weights)]
        for kv in KV_CHART.states:
            pair = next((pair for pair in pairs if pair[0] is weights and pair[1] is kv), None)
            if pair is None:
                cells.append("never")
            elif serving(*pair):
                cells.append("**serves**")
            else:
                cells.append("yes" if pair in within else "only while an epoch ends")
        rows.append(tuple(cells))
    yield table(("weights", *(state.name for state in KV_CHART.states)), rows)
    yield "What an event of the one needs of the other, and of how the rank came there:"
    yield table(("event", "guard", "needs", "because"), [*map(_need, NEEDS), *_HISTORY])
    yield "Pairs that never stand side by side, and why:"
    yield table(
        ("weights", "KV cache", "because"),
        [(weights.name, kv.name, why) for (weights, kv), why in FORBIDDEN.items()],
    )


#: What the joint rules remember besides states; kept beside the rules in :func:`wsm.states.joint.objection`.
_HISTORY = (
    ("Weights: prepared", "", "a KV cache that is not stale", STALE),
    ("Weights: abort", Guard.KEPT.value, "an update that came from NORMAL", NOTHING_HELD),
)


def _need(need: Need) -> tuple[str, ...]:
    event = f"{_HEADINGS[chart_of(need.event).region]}: {need.event.value}"
    guard = "" if need.guard is None else need.guard.value
    if need.source:
        event = f"{event} from {' or '.join(_members(need.source))}"
    return event, guard, " or ".join(_members(need.states)), need.why


def _plan_part(plans: Mapping[PlanName, PlanSummary]) -> Iterable[str]:
    yield "## Plans"
    yield _PLAN_PREFACE
    for name in PlanName:
        yield f"### {name.value}"
        steps = plans[name].steps
        if not steps:
            yield "(no steps were given)"
            continue
        yield table(
            ("step", "collective", "touches the weights", "purpose"),
            [
                (f"`{step.name}`", _yes(step.collective), _yes(step.touches_weights), step.purpose)
                for step in steps
            ],
        )


def table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with columns of even width, so that the text can be reviewed as text."""
    cells = [[cell.replace("|", r"\|") for cell in row] for row in (heading, *rows)]
    widths = [max(3, *(len(row[column]) for row in cells)) for column in range(len(heading))]
    lines = [_line(row, widths) for row in cells]
    return "\n".join([lines[0], _line(["-" * width for width in widths], widths), *lines[1:]])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"


def _kind(chart: Chart, state: State) -> str:
    marks = []
    if state is chart.initial:
        marks.append("initial")
    if state in chart.working:
        marks.append("transient: work is going on")
    elif state in chart.deciding:
        marks.append("transient: a decision is awaited")
    else:
        marks.append("final" if state in chart.final else "resting")
    return ", ".join(marks)


def _plan_links(row: Row, plans: Mapping[PlanName, PlanSummary]) -> str:
    return " or ".join(f"[{plans[name].name}](#{plans[name].name})" for name in row.plans)


def _members(states: Iterable[State]) -> list[str]:
    """Return names in declared order: sets have none of their own."""
    wanted = {state.name for state in states}
    return list(
        dict.fromkeys(
            each.name for chart in (WEIGHT_CHART, KV_CHART) for each in chart.states if each.name in wanted
        )
    )


def _bold(state: State) -> str:
    return f"**{state.name}**"


def _yes(value: bool) -> str:
    return "yes" if value else ""
