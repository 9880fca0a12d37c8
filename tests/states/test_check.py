"""The static checks: the real tables pass, each seeded fault is found by the check that is meant for it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from wsm.states import check as check_module
from wsm.states import machine as machine_module
from wsm.states.check import (
    check_chart,
    check_everything,
    check_joint,
    check_tables,
    explore,
    moments,
    stands_beside,
)
from wsm.states.joint import NEEDS, JointState
from wsm.states.phases import Phase
from wsm.states.table import KV_CHART, WEIGHT_CHART, Chart, Guard, Row
from wsm.states.vocabulary import ALL_TAGS, KVEvent, KVState, Tag, WeightEvent, WeightState
from wsm.states.words import Operation

W, E = WeightState, WeightEvent


def without(chart: Chart, source: object, event: object) -> Chart:
    """The chart without the rows of one pair."""
    rows = tuple(row for row in chart.rows if not (row.source is source and row.event is event))
    assert len(rows) < len(chart.rows)
    return replace(chart, rows=rows)


def plus(chart: Chart, *rows: Row) -> Chart:
    return replace(chart, rows=(*chart.rows, *rows))


def redirected(chart: Chart, source: object, event: object, dest: WeightState) -> Chart:
    return replace(
        chart,
        rows=tuple(
            replace(row, dest=dest) if row.source is source and row.event is event else row
            for row in chart.rows
        ),
    )


def never_prepared(chart: Chart) -> Chart:
    for row in [row for row in chart.rows if row.dest is W.PREPARED]:
        chart = without(chart, row.source, row.event)
    return chart


FAULTS: dict[str, tuple[Chart, str]] = {
    "a source of the other machine with the same code": (
        plus(WEIGHT_CHART, Row(KVState.NORMAL, E.COMMIT, W.NORMAL)),
        "unknown state: weights NORMAL commit",
    ),
    "a destination of the other machine": (
        plus(WEIGHT_CHART, Row(W.NORMAL, E.COMMIT, KVState.NORMAL)),
        "unknown state: weights NORMAL commit",
    ),
    "an event of the other machine": (
        plus(WEIGHT_CHART, Row(W.NORMAL, KVEvent.REBUILT, W.NORMAL)),
        "unknown event: weights NORMAL rebuilt",
    ),
    "two rows for one case": (
        plus(WEIGHT_CHART, Row(W.NORMAL, E.CLEAR, W.CLEARED)),
        "ambiguous rows: weights NORMAL clear",
    ),
    "two rows with one guard": (
        plus(WEIGHT_CHART, Row(W.PREPARED, E.ABORT, W.CLEARING, Guard.KEPT)),
        "ambiguous rows: weights PREPARED abort",
    ),
    "a guard without its opposite": (
        plus(WEIGHT_CHART, Row(W.NORMAL, E.ABORT, W.NORMAL, Guard.KEPT)),
        "gap between guards: weights NORMAL abort",
    ),
    "an event that nothing takes": (
        replace(WEIGHT_CHART, rows=tuple(row for row in WEIGHT_CHART.rows if row.event is not E.FAIL)),
        "unused event: weights FAIL",
    ),
    "a state that nothing leads to": (never_prepared(WEIGHT_CHART), "unreachable state: weights PREPARED"),
    "a state without a way out": (
        without(WEIGHT_CHART, W.FAULTED, E.CLEAR),
        "trap state: weights FAULTED",
    ),
    "work that cannot succeed": (
        without(WEIGHT_CHART, W.CLEARING, E.CLEARED),
        "no success: weights CLEARING",
    ),
    "work that cannot fail": (
        without(WEIGHT_CHART, W.UPDATING, E.ABORT),
        "no failure: weights UPDATING",
    ),
    "a decision that something else ends": (
        plus(WEIGHT_CHART, Row(W.PREPARED, E.CLEAR, W.CLEARING)),
        "decision: weights PREPARED",
    ),
    "a decision that cannot be taken": (
        without(WEIGHT_CHART, W.PREPARED, E.COMMIT),
        "decision: weights PREPARED",
    ),
    "a state that outlives its epoch": (
        plus(WEIGHT_CHART, Row(W.FAULTED, E.LOST, W.CLEARED)),
        "new epoch: weights FAULTED lost",
    ),
    "an epoch that never begins": (
        without(WEIGHT_CHART, W.CLEARED, E.LOST),
        "new epoch: weights CLEARED: 'lost' is not taken",
    ),
    "a new epoch that leaves something": (
        redirected(WEIGHT_CHART, W.CLEARED, E.LOST, W.FAULTED),
        "new epoch: weights CLEARED lost",
    ),
    "a clear that says at once that a faulted rank holds nothing": (
        redirected(WEIGHT_CHART, W.FAULTED, E.CLEAR, W.CLEARED),
        "unknown memory: weights FAULTED clear: only a teardown leads out of FAULTED",
    ),
    "work that no command begins": (
        plus(WEIGHT_CHART, Row(W.FAULTED, E.UPDATE, W.UPDATING)),
        "no plan: weights FAULTED update",
    ),
}


def test_the_real_tables_have_no_fault() -> None:
    assert check_everything() == []


@pytest.mark.parametrize(("chart", "expected"), FAULTS.values(), ids=FAULTS)
def test_a_seeded_fault_is_found(chart: Chart, expected: str) -> None:
    found = [str(finding) for finding in check_chart(chart)]
    assert any(finding.startswith(expected) for finding in found), found


#: Those of the third table, whose seeded faults are in test_phase_check.py.
OF_PHASES = {
    "no answer",
    "unexplained phase",
    "row that is never taken",
    "no outcome",
    "idle outcome",
    "trap",
    "unreachable phase",
    "broken promise",
    "abort",
    "last word",
    "condition",
    "unused condition",
}


def test_every_check_has_a_seeded_fault() -> None:
    source = Path(check_module.__file__).read_text()
    checks = set(re.findall(r'(?:_found|_in_phase|TableFault)\(\s*"([^"]+)"', source)) - OF_PHASES
    seeded = {expected.partition(":")[0] for _, expected in FAULTS.values()}
    seeded_below = {
        "name collision",
        "machine",
        "joint pair",
        "joint dead end",
        "fleet",  # tests/fleet/test_table.py
        "idle word",  # of the group's side
    }
    assert checks == seeded | seeded_below


def test_an_event_that_is_named_like_an_attribute_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module._Model, "clear", lambda self: "not the event", raising=False)
    assert "name collision: weights CLEAR: the model has an attribute of this name" in [
        str(finding) for finding in check_chart(WEIGHT_CHART)
    ]


def test_a_machine_that_is_not_its_table_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    edges = machine_module.ChartMachine.edges

    def one_missing(self: machine_module.ChartMachine) -> frozenset[machine_module.Edge]:
        return frozenset(edge for edge in edges(self) if edge.event != "commit")

    monkeypatch.setattr(machine_module.ChartMachine, "edges", one_missing)
    assert [str(finding) for finding in check_chart(WEIGHT_CHART)] == [
        "machine: weights PREPARED commit: only the table has it"
    ]


def test_a_forbidden_pair_that_can_be_reached_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wsm.states.joint.FORBIDDEN", {})
    without = tuple(need for need in NEEDS if need.event is not E.PREPARED)
    monkeypatch.setattr("wsm.states.joint.NEEDS", without)
    edges = explore()
    monkeypatch.undo()
    found = {finding.check for finding in check_joint(edges)}
    assert found == {"joint pair"}
    worst = JointState(W.PREPARED, KVState.CLEARING)
    assert any(finding.where == str(worst) for finding in check_joint(edges))


def test_a_joint_state_without_a_way_on_is_found() -> None:
    edges = tuple(edge for edge in explore() if edge.row.event is not E.COMMIT)
    problems = {(finding.check, finding.problem) for finding in check_joint(edges)}
    assert problems == {("joint dead end", "no way to serving")}
    edges = tuple(edge for edge in explore() if edge.row.event is not E.CLEARED)
    problems = {(finding.check, finding.problem) for finding in check_joint(edges)}
    assert ("joint dead end", "no way to holding nothing") in problems


@pytest.mark.parametrize(
    ("phase", "operation", "tags", "joint", "allowed"),
    [
        (Phase.IDLE, Operation.NONE, None, JointState(W.NORMAL, KVState.NORMAL), True),
        (Phase.IDLE, Operation.NONE, None, JointState(W.UPDATING, KVState.NORMAL), False),
        (Phase.PREPARED, Operation.UPDATE, None, JointState(W.PREPARED, KVState.CLEARED), True),
        (Phase.PREPARED, Operation.UPDATE, ALL_TAGS, JointState(W.PREPARED, KVState.CLEARED), False),
        (Phase.STAGED, Operation.HOT_UPDATE, ALL_TAGS, JointState(W.NORMAL, KVState.NORMAL), True),
        (Phase.STAGED, Operation.HOT_UPDATE, ALL_TAGS, JointState(W.UPDATING, KVState.NORMAL), False),
        (Phase.FAILED, Operation.UPDATE, ALL_TAGS, JointState(W.UPDATING, KVState.CLEARED), True),
        (Phase.FAILED, Operation.CLEAR, ALL_TAGS, JointState(W.CLEARING, KVState.CLEARED), False),
        (Phase.STOPPED, Operation.CLEAR, ALL_TAGS, JointState(W.CLEARING, KVState.CLEARED), True),
    ],
)
def test_a_state_stands_beside_a_phase_or_never_does(
    phase: Phase, operation: Operation, tags: frozenset[Tag] | None, joint: JointState, allowed: bool
) -> None:
    why = stands_beside(phase, operation, tags, joint)
    assert (why is None) is allowed
    assert allowed or f"never stand beside {phase.name} of {operation.name}" in str(why)


def test_no_way_out_of_any_moment_is_refused_and_all_of_them_lead_to_rest() -> None:
    ends = {moment.joint for moment in moments() if moment.phase is Phase.IDLE}
    assert {joint.weights for joint in ends} == {W.NORMAL, W.CLEARED, W.FAULTED}
    assert not any(joint.kv_stale or joint.had_version for joint in ends)


def test_faults_of_a_table_stop_the_exploration_of_both() -> None:
    broken = without(WEIGHT_CHART, W.FAULTED, E.CLEAR)
    assert check_tables((broken, KV_CHART)) == check_chart(broken)


def test_the_exploration_is_the_same_every_time_and_follows_no_unknown_edge() -> None:
    edges = explore()
    assert edges == explore()
    assert len(set(edges)) == len(edges)
    for edge in edges:
        assert edge.row in (*WEIGHT_CHART.rows, *KV_CHART.rows)
