"""From the tables to drawings: one per machine, and one of both together.

The drawing of a machine has exactly the edges of its table. The drawing of both leaves out what every state
has: a new epoch, and events that change nothing. Pure; knows no syntax.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wsm.states.check import EPOCH_EVENTS, JointEdge, explore, reachable_without_a_new_epoch
from wsm.states.diagram.model import Arrow, Drawing, Node, NodeKind, PlanSummary
from wsm.states.joint import START, JointState, serving
from wsm.states.table import KV_CHART, WEIGHT_CHART, Chart, Region, Row, State
from wsm.states.vocabulary import WHOLE_PLANS, KVState, PlanName, WeightState

_TITLES = {Region.WEIGHTS: "Weights of one rank", Region.KV: "KV cache of one rank"}
_NAMES = {Region.WEIGHTS: "weights", Region.KV: "kv_cache"}


def chart_drawing(chart: Chart, plans: Mapping[PlanName, PlanSummary]) -> Drawing:
    """Return the drawing of one machine.

    Parameters
    ----------
    chart : Chart
        Its table.
    plans : mapping of PlanName to PlanSummary
        What runs in its working states.
    """
    plan_notes = {state: _plan_note(chart, state, plans) for state in chart.states}
    return Drawing(
        name=_NAMES[chart.region],
        title=_TITLES[chart.region],
        nodes=tuple(
            Node(
                key=state.name,
                title=state.name,
                kind=_kind(chart, state),
                meaning=chart.meanings[state],
                note=plan_notes[state],
                initial=state is chart.initial,
                final=state in chart.final,
            )
            for state in chart.states
        ),
        arrows=tuple(arrow_of(row) for row in chart.rows),
        remark="* in a plan: collective, entered after a vote of all ranks."
        if any(plan_notes.values())
        else "",
    )


def arrow_of(row: Row) -> Arrow:
    """Return the edge of one row."""
    return Arrow(
        row.source.name, row.event.value, row.dest.name, None if row.guard is None else row.guard.value
    )


def joint_drawing(edges: Sequence[JointEdge] | None = None) -> Drawing:
    """Return the drawing of both machines together, as far as they can be within one epoch."""
    edges = explore() if edges is None else edges
    within = reachable_without_a_new_epoch(edges, START)
    arrows = {
        Arrow(
            _key(edge.source),
            edge.row.event.value,
            _key(edge.dest),
            None if edge.row.guard is None else edge.row.guard.value,
            of_kv=isinstance(edge.row.dest, KVState),
        )
        for edge in edges
        if edge.source in within and edge.row.event not in EPOCH_EVENTS and edge.source[:2] != edge.dest[:2]
    }
    return Drawing(
        name="joint",
        title="Weights and KV cache of one rank together",
        nodes=tuple(
            Node(
                key=_key(JointState(weights, kv)),
                title=f"{weights.name} + {kv.name}",
                kind=_joint_kind(weights, kv),
                initial=(weights, kv) == START[:2],
            )
            for weights, kv in sorted({joint[:2] for joint in within}, key=_place)
        ),
        arrows=tuple(sorted(arrows, key=lambda arrow: (arrow.source, arrow.dest, arrow.label))),
        remark="weights + KV cache; kv marks events of the KV cache. "
        "Left out: lost (from everywhere to CLEARED + CLEARED) and events that change nothing.",
    )


def _key(joint: JointState) -> str:
    return f"{joint.weights.name}__{joint.kv.name}"


def _place(pair: tuple[WeightState, KVState]) -> tuple[int, int]:
    """Order pairs as the vocabulary declares the states."""
    return list(WeightState).index(pair[0]), list(KVState).index(pair[1])


def _kind(chart: Chart, state: State) -> NodeKind:
    if state is WeightState.FAULTED:
        return NodeKind.FAULTED
    if state in chart.working:
        return NodeKind.WORKING
    if state in chart.deciding:
        return NodeKind.DECIDING
    return NodeKind.SERVING if state.name == "NORMAL" else NodeKind.RESTING


def _joint_kind(weights: WeightState, kv: KVState) -> NodeKind:
    if serving(weights, kv):
        return NodeKind.SERVING
    if weights is WeightState.FAULTED:
        return NodeKind.FAULTED
    if weights is WeightState.PREPARED:
        return NodeKind.DECIDING
    working = weights in WEIGHT_CHART.working or kv in KV_CHART.working
    return NodeKind.WORKING if working else NodeKind.RESTING


def _plan_note(chart: Chart, state: State, plans: Mapping[PlanName, PlanSummary]) -> tuple[str, ...]:
    """Say which plans run in a state, and what is in them; a star marks what is voted on.

    Of plans about one half only the names are drawn where plans about both are: most of their steps are some
    of those.
    """
    names = list(dict.fromkeys(name for row in chart.rows if row.dest is state for name in row.plans))
    drawn = [name for name in names if name in WHOLE_PLANS] or names
    lines: list[str] = []
    for name in drawn:
        lines.append(f"plan {name.value}")
        lines += [f"· {step.name}{' *' if step.collective else ''}" for step in plans[name].steps]
    named = [f"· {name.value}" for name in names if name not in drawn]
    return (*lines, "plans for one half, steps in transitions.md", *named) if named else tuple(lines)
