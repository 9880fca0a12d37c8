"""The tables of a rank's phases: the real ones pass, each seeded fault is found, and every row is taken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wsm.states.check import PhaseTables, check_phases
from wsm.states.phases import LOOKS, OUTCOMES, Event, LookRow, OutcomeRow, Phase, Todo, When
from wsm.states.words import StatusCode


def without(phase: Phase, what: Todo | Event, *when: When) -> PhaseTables:
    """The tables without one row."""
    looks = [row for row in LOOKS if (row.phase, row.todo, row.when) != (phase, what, when)]
    outcomes = [row for row in OUTCOMES if (row.phase, row.event, row.when) != (phase, what, when)]
    assert len(looks) + len(outcomes) == len(LOOKS) + len(OUTCOMES) - 1
    return PhaseTables(looks, outcomes)


def test_the_tables_are_sound() -> None:
    assert check_phases() == []


FAULTS: dict[str, tuple[PhaseTables, str]] = {
    "a phase may find no row": (without(Phase.STAGED, Todo.WAIT), "no answer: phase STAGED"),
    "a row behind one that always holds": (
        PhaseTables(
            looks=[
                *LOOKS,
                LookRow(Phase.PREPARED, (When.BROKEN,), Todo.WAIT),
                LookRow(Phase.PREPARED, (), Todo.WAIT),
            ]
        ),
        "row that is never taken: phase PREPARED",
    ),
    "an outcome with no row": (
        without(Phase.STOPPING, Event.STOPPED),
        "no outcome: phase STOPPING: the last row",
    ),
    "a refusal with no row": (
        without(Phase.BEGINNING, Event.REFUSED),
        "no outcome: phase BEGINNING: REFUSED",
    ),
    "a phase that an ABORT does not end": (
        without(Phase.FAILED, Todo.UNDO, When.ABORTED),
        "abort: phase FAILED: it must ask for HOT_ABORTED, ABORTED before all else",
    ),
    "a vote that an ABORT ends": (
        PhaseTables(
            looks=[
                LookRow(Phase.VOTING, (When.HOT_ABORTED,), Todo.KEEP, Phase.SETTLING),
                LookRow(Phase.VOTING, (When.ABORTED,), Todo.UNDO, Phase.STOPPING),
                *LOOKS,
            ]
        ),
        "abort: phase VOTING: it must ask for no ABORT",
    ),
    "a deadline that ends PREPARED": (
        PhaseTables(
            outcomes=[
                *OUTCOMES,
                OutcomeRow(Phase.PREPARED, Event.EXPIRED, (), Phase.FAILED, StatusCode.FAILED),
            ]
        ),
        "broken promise: phase PREPARED: EXPIRED",
    ),
    "an end that no participant can read": (
        PhaseTables(
            outcomes=[
                replace(row, says=StatusCode.STOPPED_TOUCHED) if row.event is Event.CLEARED else row
                for row in OUTCOMES
            ]
        ),
        "last word: phase SETTLING",
    ),
    "an outcome that depends on others": (
        PhaseTables(
            outcomes=[OutcomeRow(Phase.STAGING, Event.STAGED, (When.BEHIND,), Phase.STAGED), *OUTCOMES]
        ),
        "condition: phase STAGING: STAGED (BEHIND)",
    ),
    "a trap": (
        PhaseTables(
            looks=[replace(row, to=Phase.STOPPING) if row.to is Phase.SETTLING else row for row in LOOKS]
        ),
        "trap: phase STOPPED",
    ),
}


@pytest.mark.parametrize(("tables", "message"), FAULTS.values(), ids=FAULTS)
def test_each_fault_of_a_table_is_found(tables: PhaseTables, message: str) -> None:
    findings = [str(finding) for finding in check_phases(tables)]
    assert any(message in finding for finding in findings), findings
