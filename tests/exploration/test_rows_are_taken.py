"""Each row of the tables is taken in small explorations, and the group's lead where their pictures say."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from explorer import controller_moves
from explorer.scope import Scope
from explorer.search import explore
from wsm.states import group, rank
from wsm.states.decide import Role
from wsm.states.group import (
    LEADS_TO,
    ROWS,
    CommandStage,
    GroupMove,
    GroupState,
    GroupWhen,
    Known,
    Writes,
    stage_of,
)
from wsm.states.phases import LOOKS, OUTCOMES, Happened, LookRow, Move, OutcomeRow, RankState
from wsm.states.view import View

#: Small groups that differ in what can happen, and about how many worlds lie within these bounds: far fewer
#: would say that the explorer no longer sees all of them.
SCOPES = {
    "operations=hot_update,update steps=0 helpers=1 ranks=1 starts=serving": 130,
    "deciders=7 controller_losses=1 controller_stops=2 steps=0 operations=hot_update starts=serving": 1_400,
    "operations=update,hot_update steps=1 controller_stops=1 starts=serving": 1_300,
    "operations=hot_update steps=1 failures=1 give_ups=1 starts=serving fine=True": 2_300,
    "rank_crashes=1 deciders=4 controller_losses=1 steps=0 operations=hot_update starts=serving": 2_200,
    "commands=2 steps=0 leases=1 controller_losses=1 operations=hold,release starts=serving": 970,
    "operations=hot_update steps=1 failures=1 broken_steps=1 starts=serving": 3_100,
    "operations=update steps=1 failures=1 broken_steps=1 starts=serving": 5_400,
    "failures=2 steps=0 operations=clear controller_losses=1 starts=serving": 2_900,
    "rank_crashes=2 controller_crashes=1 steps=0 commands=0 starts=empty,serving": 3_800,
    "failures=6 steps=0 operations=clear starts=serving": 17_000,
    "operations=clear,update steps=0 halves=True failures=1 give_ups=1 starts=serving fine=True": 17_900,
    "rank_crashes=1 failures=1 give_ups=1 steps=0 operations=update starts=serving": 20_600,
}


class Taken(NamedTuple):
    """What was taken in one exploration: rows by identity, and the stages that words of the group lead to."""

    rows: set[int]
    reached: dict[Writes | None, set[CommandStage]]
    worlds: int
    violation: object


@cache
def taken_in(text: str) -> Taken:
    rows: set[int] = set()
    reached: dict[Writes | None, set[CommandStage]] = {}
    written: list[Writes | None] = []
    takes_in: list[Happened] = []  # `may_fail` asks for rows, too, and takes none
    find_look, find_outcome, take_in = rank.find_look, rank.find_outcome, rank.take_in
    find_row, ask = group.find_row, group.advance

    def look(state: RankState, view: View) -> LookRow:
        rows.add(id(row := find_look(state, view)))
        return row

    def outcome(state: RankState, event: object) -> OutcomeRow | None:
        row = find_outcome(state, event)
        if takes_in:
            rows.add(id(row))
        return row

    def take(state: RankState, happened: Happened) -> Move:
        takes_in.append(happened)
        try:
            return take_in(state, happened)
        finally:
            takes_in.clear()

    def row_of_group(state: GroupState, view: View, known: Known) -> group.GroupRow:
        rows.add(id(row := find_row(state, view, known)))
        written.append(row.writes)
        return row

    def advance(state: GroupState, view: View, known: Known) -> GroupMove:
        written.clear()
        move = ask(state, view, known)
        after = replace(
            view, command=move.command or view.command, committed=move.committed or view.committed
        )
        reached.setdefault(written[0], set()).add(stage_of(after, replace(known, role=Role.OWN)))
        return move

    with pytest.MonkeyPatch.context() as patched:
        for module, name, instead in (
            (rank, "find_look", look),
            (rank, "find_outcome", outcome),
            (rank, "take_in", take),
            (group, "find_row", row_of_group),
            (controller_moves, "advance", advance),
        ):
            patched.setattr(module, name, instead)
        found = explore(Scope.from_text(text))
    return Taken(rows, reached, found.states, found.violation)


@pytest.mark.slow_but
@pytest.mark.parametrize(("text", "worlds"), SCOPES.items())
def test_no_order_of_events_breaks_a_rule_in_as_many_worlds_as_there_are(text: str, worlds: int) -> None:
    taken = taken_in(text)
    assert taken.violation is None
    assert taken.worlds >= worlds


@pytest.mark.slow
def test_each_row_is_taken_and_leads_where_its_picture_says() -> None:
    found = [taken_in(text) for text in SCOPES]
    taken = set().union(*(each.rows for each in found))
    never = [row for row in (*LOOKS, *OUTCOMES) if id(row) not in taken]
    assert [row for row in never if not (isinstance(row, LookRow) and row.broken)] == []
    assert [row for row in LOOKS if row.broken and id(row) in taken] == []
    acted_on = "".join(path.read_text() for path in Path(controller_moves.__file__).parent.glob("*.py"))
    for todo in {row.todo for row in ROWS} - set(controller_moves.CHANGES_NOTHING):
        assert f"GroupTodo.{todo.name}" in acted_on, f"no move of an explored world follows {todo}"
    # One row is for views of answers alone (tests/states/test_group_over_answers.py).
    left = [row.when for row in ROWS if id(row) not in taken]
    assert left == [(GroupWhen.INHERITS, GroupWhen.UNHEARD)]
    for writes, stage in LEADS_TO.items():
        reached = set().union(*(each.reached.get(writes, ()) for each in found))
        over = {CommandStage.OVER} if writes is Writes.VERSION else set()  # ranks that were quicker
        assert stage is None or reached - over == {stage}, writes
