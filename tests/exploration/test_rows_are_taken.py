"""Each row of the group's table is taken in small explorations, and leads where its picture says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from drawing.group_page import LEADS_TO
from explorer import controller_moves
from explorer.scope import Scope
from explorer.search import explore
from wsm.states import group
from wsm.states.decide import Role
from wsm.states.group import (
    ROWS,
    CommandStage,
    GroupMove,
    GroupRow,
    GroupState,
    GroupWhen,
    Known,
    Writes,
    stage_of,
)
from wsm.states.view import View

#: Small groups that differ in what can happen to them.
SCOPES = (
    "rank_crashes=1 failures=1 give_ups=1 steps=0 operations=update starts=serving",
    "hangs=1 controller_stops=1 steps=0 operations=update starts=cleared",
    "deciders=7 controller_losses=1 controller_stops=2 steps=0 operations=hot_update starts=serving",
    "deciders=7 controller_crashes=1 steps=0 operations=hot_update starts=serving",
    "rank_crashes=1 deciders=4 controller_losses=1 steps=0 operations=hot_update starts=serving",
    "commands=2 steps=0 leases=1 controller_losses=1 give_ups=1 operations=hold,release starts=serving",
    "rank_crashes=2 controller_crashes=1 steps=0 commands=0 starts=empty,serving",
    "failures=6 steps=0 operations=clear starts=serving",
    "failures=2 steps=0 operations=clear controller_losses=1 starts=serving",
)


def test_each_row_is_taken_and_leads_where_its_picture_says(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[GroupRow] = []
    reached: dict[Writes | None, set[CommandStage]] = {}
    find, ask = group.find_row, group.advance

    def find_row(state: GroupState, view: View, known: Known) -> GroupRow:
        taken[:] = dict.fromkeys([*taken, found := find(state, view, known)])
        last.append(found)
        return found

    def advance(state: GroupState, view: View, known: Known) -> GroupMove:
        last.clear()
        move = ask(state, view, known)
        after = replace(
            view, command=move.command or view.command, committed=move.committed or view.committed
        )
        reached.setdefault(last[0].writes, set()).add(stage_of(after, replace(known, role=Role.OWN)))
        return move

    last: list[GroupRow] = []
    monkeypatch.setattr(group, "find_row", find_row)
    monkeypatch.setattr(controller_moves, "advance", advance)
    for scope in SCOPES:
        assert explore(Scope.from_text(scope)).violation is None, scope
    acted_on = "".join(path.read_text() for path in Path(controller_moves.__file__).parent.glob("*.py"))
    for todo in {row.todo for row in ROWS} - set(controller_moves.CHANGES_NOTHING):
        assert f"GroupTodo.{todo.name}" in acted_on, f"no move of an explored world follows {todo}"
    # One row is for views of answers alone (tests/states/test_group_over_answers.py).
    never = [row for row in ROWS if row not in taken]
    assert [row.when for row in never] == [(GroupWhen.INHERITS, GroupWhen.UNHEARD)], never
    for writes, stage in LEADS_TO.items():
        over = {CommandStage.OVER} if writes is Writes.VERSION else set()  # ranks that were quicker
        assert reached[writes] - over == {stage}, writes
