"""Every pair of state and event, against tables in this test's own words.

Whoever changes a row of the code must change a cell here by hand. `-` is refused; `a / b` is a where the
outcome is kept, and b where it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import pytest

from wsm.states.errors import IllegalTransitionError, JointRuleError
from wsm.states.joint import JointState
from wsm.states.machine import LifeCycle
from wsm.states.table import (
    ADMISSION_CHART,
    ADMISSION_TABLE,
    KV_CHART,
    KV_TABLE,
    WEIGHT_CHART,
    WEIGHT_TABLE,
    Chart,
    Event,
)
from wsm.states.vocabulary import Admission, AdmissionEvent, KVEvent, KVState, WeightEvent, WeightState

WEIGHTS = """
| state    | clear    | cleared | update   | prepared | commit | fail    | abort             | lost    |
| -------- | -------- | ------- | -------- | -------- | ------ | ------- | ----------------- | ------- |
| NORMAL   | CLEARING | -       | UPDATING | -        | -      | FAULTED | -                 | -       |
| CLEARING | -        | CLEARED | -        | -        | -      | FAULTED | CLEARING          | -       |
| CLEARED  | CLEARED  | -       | UPDATING | -        | -      | FAULTED | CLEARED           | CLEARED |
| UPDATING | -        | -       | -        | PREPARED | -      | -       | NORMAL / CLEARING | -       |
| PREPARED | -        | -       | -        | -        | NORMAL | -       | NORMAL / CLEARING | -       |
| FAULTED  | CLEARING | -       | -        | -        | -      | -       | -                 | -       |
"""

KV_CACHE = """
| state    | clear    | cleared | update   | rebuilt | lost    |
| -------- | -------- | ------- | -------- | ------- | ------- |
| NORMAL   | CLEARING | -       | UPDATING | -       | -       |
| CLEARING | CLEARING | CLEARED | -        | -       | -       |
| CLEARED  | CLEARED  | -       | UPDATING | -       | CLEARED |
| UPDATING | CLEARING | -       | -        | NORMAL  | -       |
"""

ADMISSION = """
| state | hold | release |
| ----- | ---- | ------- |
| OPEN  | HELD | -       |
| HELD  | -    | OPEN    |
"""


def cells(table: str) -> Iterator[tuple[str, str, bool, str]]:
    """Yield state, event, kept and next state (or `-`) of every cell, for both values of kept."""
    heading, _rule, *lines = (line.strip("| ").split("|") for line in table.strip().splitlines())
    events = [cell.strip() for cell in heading[1:]]
    for state, *nexts in lines:
        for event, cell in zip(events, nexts, strict=True):
            kept, _, dropped = cell.strip().partition(" / ")
            yield state.strip(), event, True, kept
            yield state.strip(), event, False, dropped or kept


class Case(NamedTuple):
    chart: Chart
    state: str
    event: str
    kept: bool
    after: str

    def happens(self) -> Event:
        return next(event for event in self.chart.events if event.value == self.event)


CASES = [
    pytest.param(Case(chart, *cell), id="-".join((chart.machine.value, *map(str, cell))))
    for chart, table in ((WEIGHT_CHART, WEIGHTS), (KV_CHART, KV_CACHE))
    for cell in cells(table)
]
OF_ADMISSION = [
    pytest.param(Case(ADMISSION_CHART, *cell), id="-".join(map(str, cell))) for cell in cells(ADMISSION)
]


def test_the_tables_of_this_test_have_a_cell_for_every_state_and_event() -> None:
    assert {cell[:2] for cell in cells(WEIGHTS)} == {
        (s.name, e.value) for s in WeightState for e in WeightEvent
    }
    assert {cell[:2] for cell in cells(KV_CACHE)} == {(s.name, e.value) for s in KVState for e in KVEvent}
    assert {cell[:2] for cell in cells(ADMISSION)} == {
        (s.name, e.value) for s in Admission for e in AdmissionEvent
    }


@pytest.mark.parametrize("case", [*CASES, *OF_ADMISSION])
def test_the_table_leads_where_this_test_says(case: Case) -> None:
    state = next(state for state in case.chart.states if state.name == case.state)
    row = case.chart.find(state, case.happens(), kept=case.kept)
    assert (row.dest.name if row else "-") == case.after


@pytest.mark.parametrize("case", CASES)
def test_the_live_machines_do_what_this_test_says_wherever_the_joint_rules_let_them(
    case: Case, ways: Mapping[JointState, object], brought_to: Callable[[JointState], LifeCycle]
) -> None:
    machine = case.chart.machine
    here = [joint for joint in ways if joint.of(machine).name == case.state]
    outcomes = {attempt(brought_to(joint), case) for joint in here}
    assert outcomes - {"joint rule"} == {case.after}
    if case.after == "-":
        assert outcomes == {"-"}, "a pair without a row must be refused by the table, not by a joint rule"


def attempt(life: LifeCycle, case: Case) -> str:
    """Fire the event of a case, and say what came of it in the words of the tables above."""
    before, could = life.joint, life.can(case.happens(), kept=case.kept)
    try:
        record = life.fire(case.happens(), at_ns=2, epoch=1, sequence=1, kept=case.kept)
    except IllegalTransitionError as refused:
        assert not could
        assert life.joint == before, "a refused event has changed something"
        return "joint rule" if isinstance(refused, JointRuleError) else "-"
    assert could
    assert record.dest == life.joint.of(case.chart.machine).name
    return record.dest


@pytest.mark.parametrize("case", OF_ADMISSION)
def test_admission_moves_beside_whatever_is_held_and_moves_nothing_of_it(
    case: Case, ways: Mapping[JointState, object], brought_to: Callable[[JointState], LifeCycle]
) -> None:
    for joint in ways:
        life = brought_to(joint)
        if case.state == "HELD":
            life.fire(AdmissionEvent.HOLD, at_ns=1, epoch=1, sequence=1)
        assert life.can(case.happens()) is (case.after != "-")
        if case.after == "-":
            with pytest.raises(IllegalTransitionError):
                life.fire(case.happens(), at_ns=2, epoch=1, sequence=1)
        else:
            life.fire(case.happens(), at_ns=2, epoch=1, sequence=1)
        assert life.joint == joint
        assert life.admission.name == case.after.replace("-", case.state)
        assert life.serving is (life.whole and life.admission is Admission.OPEN)


def test_a_new_process_starts_with_nothing_and_so_does_a_new_epoch() -> None:
    assert WEIGHT_CHART.initial is WeightState.CLEARED
    assert KV_CHART.initial is KVState.CLEARED
    lost = [row for row in (*WEIGHT_TABLE, *KV_TABLE) if row.event.value == "lost"]
    assert [(row.source, row.dest) for row in lost] == [
        (WeightState.CLEARED, WeightState.CLEARED),
        (KVState.CLEARED, KVState.CLEARED),
    ]


def test_every_row_says_what_it_means() -> None:
    assert all(row.note for row in (*WEIGHT_TABLE, *KV_TABLE, *ADMISSION_TABLE))
