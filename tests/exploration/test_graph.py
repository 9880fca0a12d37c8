"""On whole graphs: every world comes to rest by itself, and a group that would not is caught."""

from __future__ import annotations

from dataclasses import replace

import pytest

from explorer.scope import Scope
from explorer.search import endless, whole_graph
from wsm.errors import RefusedError
from wsm.states import rank
from wsm.states.phases import Phase, Todo


@pytest.mark.slow
def test_every_world_comes_to_rest_by_itself_and_no_way_is_endless(bounds: str) -> None:
    graph = whole_graph(Scope.from_text(bounds))
    assert endless(graph) is None
    assert any(not onward for onward in graph.onward.values())


def test_a_group_that_goes_round_in_circles_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    *rows, last = rank.ROWS[Phase.STOPPED]
    round_again = replace(last, todo=Todo.LOOK, to=Phase.STOPPING)
    monkeypatch.setitem(rank.ROWS, Phase.STOPPED, (*rows, round_again))
    found = endless(whole_graph(Scope.from_text("operations=update steps=0 give_ups=1 starts=serving")))
    assert found is not None
    assert "circles" in found.broken
    assert found.moves


def test_bounds_that_are_too_large_for_a_graph_are_refused() -> None:
    with pytest.raises(RefusedError) as refused:
        whole_graph(Scope(rank_crashes=1), limit=100)
    assert refused.value.code == "graph-too-large"
