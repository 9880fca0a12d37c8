"""Every pair of state and event, against tables in this test's own words.

Whoever changes a row of the code must change a cell here by hand. `-` is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest

from wsm.states.chart import Chart
from wsm.states.errors import IllegalTransitionError, JointRuleError
from wsm.states.joint import JointState
from wsm.states.machine import LifeCycle
from wsm.states.table import KV_CHART, KV_TABLE, WEIGHT_CHART, WEIGHT_TABLE
from wsm.states.vocabulary import KVEvent, KVState, WeightEvent, WeightState

WEIGHTS = """
| state    | clear    | cleared | update   | prepared | commit | fail     | abort                         | lost    |
| -------- | -------- | ------- | -------- | -------- | ------ | -------- | ----------------------------- | ------- |
| NORMAL   | CLEARING | -       | UPDATING | -        | -      | -        | -                             | CLEARED |
| CLEARING | -        | CLEARED | -        | -        | -      | FAULTED  | CLEARING                      | CLEARED |
| CLEARED  | CLEARED  | -       | UPDATING | -        | -      | -        | CLEARED                       | CLEARED |
| UPDATING | -        | -       | -        | PREPARED | -      | UPDATING | NORMAL if kept, else CLEARING | CLEARED |
| PREPARED | -        | -       | -        | -        | NORMAL | -        | NORMAL if kept, else CLEARING | CLEARED |
| FAULTED  | CLEARING | -       | -        | -        | -      | -        | FAULTED                       | CLEARED |
"""

KV_CACHE = """
| state    | clear    | cleared | update   | rebuilt | fail     | lost    |
| -------- | -------- | ------- | -------- | ------- | -------- | ------- |
| NORMAL   | CLEARING | -       | UPDATING | -       | -        | CLEARED |
| CLEARING | CLEARING | CLEARED | -        | -       | CLEARING | CLEARED |
| CLEARED  | CLEARED  | -       | UPDATING | -       | -        | CLEARED |
| UPDATING | CLEARING | -       | -        | NORMAL  | CLEARING | CLEARED |
"""


def cells(table: str) -> Iterator[tuple[str, str, bool, str]]:
    """Yield state, event, kept and next state (or `-`) of every cell, for both values of kept."""
    heading, _rule, *lines = (line.strip("| ").split("|") for line in table.strip().splitlines())
    events = [cell.strip() for cell in heading[1:]]
    for state, *nexts in lines:
        for event, cell in zip(events, nexts, strict=True):
            kept, _, dropped = cell.strip().partition(" if kept, else ")
            yield state.strip(), event, True, kept
            yield state.strip(), event, False, dropped or kept


CASES = [
    pytest.param(chart, state, event, kept, after, id=f"{chart.region.value}-{state}-{event}-kept={kept}")
    for chart, table in ((WEIGHT_CHART, WEIGHTS), (KV_CHART, KV_CACHE))
    for state, event, kept, after in cells(table)
]


def test_the_tables_of_this_test_have_a_cell_for_every_state_and_event() -> None:
    assert {cell[:2] for cell in cells(WEIGHTS)} == {
        (s.name, e.value) for s in WeightState for e in WeightEvent
    }
    assert {cell[:2] for cell in cells(KV_CACHE)} == {(s.name, e.value) for s in KVState for e in KVEvent}


@pytest.mark.parametrize(("chart", "state", "event", "kept", "after"), CASES)
def test_the_table_leads_where_this_test_says(
    chart: Chart, state: str, event: str, kept: bool, after: str
) -> None:
    here = next(each for each in chart.states if each.name == state)
    happens = next(each for each in chart.events if each.value == event)
    row = chart.find(here, happens, kept=kept)
    assert (row.dest.name if row else "-") == after


@pytest.mark.parametrize(("chart", "state", "event", "kept", "after"), CASES)
def test_the_live_machines_do_what_this_test_says_wherever_the_joint_rules_let_them(
    chart: Chart,
    state: str,
    event: str,
    kept: bool,
    after: str,
    ways: Mapping[JointState, object],
    brought_to: Callable[[JointState], LifeCycle],
) -> None:
    happens = next(each for each in chart.events if each.value == event)
    seen = set()
    for joint in ways:
        if joint.of(chart.region).name != state:
            continue
        life = brought_to(joint)
        could = life.can(happens, kept=kept)
        try:
            life.fire(happens, at_ns=2, epoch=1, sequence=1, kept=kept)
            outcome = life.joint.of(chart.region).name
        except JointRuleError:
            outcome = "joint"
        except IllegalTransitionError:
            outcome = "-"
        assert could == (outcome not in {"joint", "-"})
        assert outcome in {"joint", "-"} or life.joint.of(chart.region).name == outcome
        if outcome in {"joint", "-"}:
            assert life.joint == joint, "a refused event has changed something"
        seen.add(outcome)
    assert seen - {"joint"} == {after}
    if after == "-":
        assert seen == {"-"}, "a pair without a row must be refused by the table, not by a joint rule"


def test_a_new_process_starts_with_nothing_and_a_new_epoch_leads_back_there() -> None:
    assert WEIGHT_CHART.initial is WeightState.CLEARED
    assert KV_CHART.initial is KVState.CLEARED
    lost = [row for row in (*WEIGHT_TABLE, *KV_TABLE) if row.event.value == "lost"]
    assert len(lost) == len(WeightState) + len(KVState)


def test_every_row_says_what_it_means() -> None:
    assert all(row.note for row in (*WEIGHT_TABLE, *KV_TABLE))
