"""Static checks of the tables: faults that `transitions` would show at run time, if at all.

It accepts unknown states, rows that can never be taken, events that collide with a model's methods, and
states without a way out. Each check here takes a chart and yields findings, so that the tests can seed a
fault and see it found. Run by the tests and by ``wsm diagrams --check``; nothing is checked when a worker
starts, since the tables cannot change between a release and its start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from wsm.states.chart import Chart, Event, Region, Row, State
from wsm.states.explore import JointEdge, explore, reachable_without_a_new_epoch, states_of
from wsm.states.joint import FORBIDDEN, START, serving
from wsm.states.machine import ChartMachine, Edge
from wsm.states.table import CHARTS

#: Values of the events that end a decision, and everything.
_ABORT, _COMMIT, _LOST = "abort", "commit", "lost"


@dataclass(frozen=True)
class Finding:
    """Something wrong with a table.

    Parameters
    ----------
    check : str
        Name of the check.
    where : str
        Which machine, state or event.
    problem : str
        What is wrong with it.
    """

    check: str
    where: str
    problem: str

    def __str__(self) -> str:
        return f"{self.check}: {self.where}: {self.problem}"


def check_tables(charts: Sequence[Chart] = CHARTS) -> list[Finding]:
    """Run every check of single charts, and the checks of both together; an empty list is good news."""
    findings = [finding for chart in charts for finding in check_chart(chart)]
    return findings or list(check_joint(explore()))


def check_chart(chart: Chart) -> list[Finding]:
    """Run every check that looks at one chart alone."""
    findings = list(_only_known_names(chart))
    # The other checks look names up; with unknown ones they would only repeat the finding, or raise.
    return findings or [finding for check in _CHECKS for finding in check(chart)]


def check_joint(edges: Sequence[JointEdge]) -> Iterator[Finding]:
    """Look at every joint state that can be reached: it must be allowed, and there must be a way on."""
    for joint in states_of(edges):
        reason = FORBIDDEN.get((joint.weights, joint.kv))
        if reason is not None:
            yield Finding("joint pair", str(joint), f"can be reached, although {reason}")
        ahead = reachable_without_a_new_epoch(edges, joint)
        if START not in ahead:
            yield Finding("joint dead end", str(joint), "no way to holding nothing but a new epoch")
        if not any(serving(later.weights, later.kv) for later in ahead):
            yield Finding("joint dead end", str(joint), "no way to serving but a new epoch")


def _only_known_names(chart: Chart) -> Iterator[Finding]:
    for row in chart.rows:
        for role, state in (("source", row.source), ("destination", row.dest)):
            if not _among(state, chart.states):
                yield _found("unknown state", chart, row, f"{role} {state!r} is no state of this machine")
        if not _among(row.event, chart.events):
            yield _found("unknown event", chart, row, f"{row.event!r} is no event of this machine")


def _every_name_is_used(chart: Chart) -> Iterator[Finding]:
    used = {row.event for row in chart.rows}
    for event in chart.events:
        if event not in used:
            yield _found("unused event", chart, event, "no row takes it")
    for state in chart.states:
        if state not in chart.meanings:
            yield _found("unexplained state", chart, state, "it has no meaning in one line")


def _one_row_per_case(chart: Chart) -> Iterator[Finding]:
    for state in chart.states:
        for event in chart.events:
            rows = chart.rows_for(state, event)
            for kept in (True, False):
                admitting = [row for row in rows if row.admits(kept=kept)]
                if len(admitting) > 1:
                    yield _found(
                        "ambiguous rows",
                        chart,
                        rows[0],
                        f"{len(admitting)} rows for kept={kept}, only the first would ever be taken",
                    )
                if rows and not admitting:
                    yield _found("gap between guards", chart, rows[0], f"no row for kept={kept}")


def _every_state_is_reachable(chart: Chart) -> Iterator[Finding]:
    seen, waiting = {chart.initial}, [chart.initial]
    while waiting:
        here = waiting.pop()
        for row in chart.rows:
            if row.source is here and row.dest not in seen:
                seen.add(row.dest)
                waiting.append(row.dest)
    for state in chart.states:
        if state not in seen:
            yield _found("unreachable state", chart, state, f"no way leads there from {chart.initial.name}")


def _only_final_states_are_traps(chart: Chart) -> Iterator[Finding]:
    for state in chart.states:
        leaves = any(
            row.source is state and row.dest is not state and row.event.value != _LOST for row in chart.rows
        )
        if not leaves and state not in chart.final:
            yield _found("trap state", chart, state, "nothing but a new epoch leads out, and it is not final")
        if leaves and state in chart.final:
            yield _found("final state", chart, state, "it is marked final and can be left")


def _work_succeeds_or_fails(chart: Chart) -> Iterator[Finding]:
    for state, success in chart.working.items():
        taken = {row.event for row in chart.rows if row.source is state}
        if success not in taken:
            yield _found("no success", chart, state, f"work is done there and {success.value!r} has no row")
        if not {event.value for event in taken} - {success.value, _LOST}:
            yield _found("no failure", chart, state, "work is done there, and no row ends it when it fails")


def _decisions_decide(chart: Chart) -> Iterator[Finding]:
    for state in chart.deciding:
        taken = {row.event.value for row in chart.rows if row.source is state}
        if taken != {_COMMIT, _ABORT, _LOST}:
            yield _found(
                "decision",
                chart,
                state,
                f"it takes {sorted(taken)}; only a decision or a new epoch may end it",
            )


def _a_new_epoch_ends_everything(chart: Chart) -> Iterator[Finding]:
    for state in chart.states:
        row = next((row for row in chart.rows if row.source is state and row.event.value == _LOST), None)
        if row is None or row.dest is not chart.initial or row.guard is not None:
            yield _found("new epoch", chart, state, f"{_LOST!r} does not always lead to {chart.initial.name}")


def _work_has_a_plan(chart: Chart) -> Iterator[Finding]:
    if chart.region is not Region.WEIGHTS:  # the KV cache's work is part of the weights' plans
        return
    for row in chart.rows:
        begins = row.dest in chart.working and row.source is not row.dest
        if begins and not row.plans:
            yield _found("no plan", chart, row, f"work begins in {row.dest.name} and no plan is named")
        # What a new epoch does to a rank is done before its machine hears of it: there is no way to fail it.
        if row.plans and row.dest not in chart.working and row.event.value != _LOST:
            yield _found("idle plan", chart, row, f"a plan is named and no work is done in {row.dest.name}")


def _no_event_is_a_method(chart: Chart) -> Iterator[Finding]:
    taken = ChartMachine(chart).taken_names()
    for event in chart.events:
        if event.value in taken:
            yield _found("name collision", chart, event, "the model has an attribute of this name")


def _the_machine_is_the_table(chart: Chart) -> Iterator[Finding]:
    table = frozenset(edge_of(row) for row in chart.rows)
    machine = ChartMachine(chart).edges()
    for edge in sorted(table ^ machine, key=str):
        side = "the table" if edge in table else "the machine"
        yield Finding("machine", f"{chart.region.value} {edge.source} {edge.event}", f"only {side} has it")


def edge_of(row: Row) -> Edge:
    """Return a row as the machine would report it."""
    return Edge(row.source.name, row.event.value, row.dest.name, row.guard and row.guard.value)


def _among(wanted: State | Event, known: Iterable[State | Event]) -> bool:
    """Whether the very member is known; members of two enumerations with one code compare equal."""
    return any(wanted is each for each in known)


def _found(check: str, chart: Chart, what: Row | State | Event, problem: str) -> Finding:
    where = f"{what.source.name} {what.event.value}" if isinstance(what, Row) else what.name
    return Finding(check, f"{chart.region.value} {where}", problem)


_CHECKS: tuple[Callable[[Chart], Iterator[Finding]], ...] = (
    _every_name_is_used,
    _one_row_per_case,
    _every_state_is_reachable,
    _only_final_states_are_traps,
    _work_succeeds_or_fails,
    _decisions_decide,
    _a_new_epoch_ends_everything,
    _work_has_a_plan,
    _no_event_is_a_method,
    _the_machine_is_the_table,
)
