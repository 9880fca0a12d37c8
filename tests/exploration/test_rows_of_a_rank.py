"""Every row by which a rank decides is taken in some explored group, and the worlds do not become fewer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from explorer.scope import Scope
from explorer.search import explore
from wsm.states import rank
from wsm.states.phases import LOOKS, OUTCOMES, Happened, LookRow, Move, OutcomeRow, RankState
from wsm.states.view import View

#: Bounds, and how many worlds lay within them before the explorer asked what the worker's loop asks; of those
#: with broken steps without the ones in which a rank began a step beside a broken rank, which no worker does.
SCOPES = {
    "operations=clear,update steps=0 halves=True failures=1 give_ups=1 starts=serving fine=True": 13_185,
    "operations=hot_update,update steps=2 failures=1 give_ups=1 broken_steps=1 starts=serving": 52_930,
    "operations=hot_update steps=1 failures=1 give_ups=1 starts=serving fine=True": 1_471,
    "operations=hold,release commands=2 steps=1 failures=1 give_ups=1 starts=serving": 3_887,
    "operations=hot_update,update steps=0 helpers=1 ranks=1 starts=serving": 148,
    "operations=update,hot_update steps=1 controller_stops=1 starts=serving": 1_494,
}


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The rows that were taken, by their identity."""
    found: set[int] = set()
    find_look, find_outcome, take_in = rank.find_look, rank.find_outcome, rank.take_in
    takes_in: list[Happened] = []  # `may_fail` asks for rows, too, and takes none

    def look(state: RankState, view: View) -> LookRow:
        row = find_look(state, view)
        found.add(id(row))
        return row

    def outcome(state: RankState, event: object) -> OutcomeRow | None:
        row = find_outcome(state, event)
        if takes_in:
            found.add(id(row))
        return row

    def take(state: RankState, happened: Happened) -> Move:
        takes_in.append(happened)
        try:
            return take_in(state, happened)
        finally:
            takes_in.clear()

    monkeypatch.setattr(rank, "find_look", look)
    monkeypatch.setattr(rank, "find_outcome", outcome)
    monkeypatch.setattr(rank, "take_in", take)
    return found


def test_each_row_of_a_rank_is_taken_in_some_explored_group(
    taken: set[int], record_property: Callable[[str, object], None]
) -> None:
    for text, before in SCOPES.items():
        found = explore(Scope.from_text(text))
        record_property(text, f"{found.states} worlds, {before} before")
        assert found.violation is None, text
        assert found.states >= before, text
    never = [row for row in (*LOOKS, *OUTCOMES) if id(row) not in taken]
    assert [row for row in never if not (isinstance(row, LookRow) and row.broken)] == []
    assert [row for row in LOOKS if row.broken and id(row) in taken] == []
