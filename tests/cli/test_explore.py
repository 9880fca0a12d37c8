from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from command_line import Run

from wsm.states import phases
from wsm.states.rank_state import Phase, Todo

SMALL = ("--steps", 1, "--failures", 0, "--give-ups", 0, "--crashes", 0, "--controller-crashes", 0)


@pytest.fixture
def no_dummy_steps(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Let a parked rank not join the step that others are in already."""
    rows = phases.ROWS[Phase.PARKING]
    deaf = tuple(replace(row, todo=Todo.WAIT) if row.todo is Todo.JOIN else row for row in rows)
    monkeypatch.setitem(phases.ROWS, Phase.PARKING, deaf)
    return monkeypatch


def test_an_exploration_says_how_large_it_was_and_that_no_rule_is_broken(wsm: Run) -> None:
    ended = wsm("explore", *SMALL, "--processes", 1)
    assert ended.code == 0
    assert "no rule is broken; nothing is left" in ended.out
    assert max(map(len, ended.out.splitlines())) <= 80


def test_a_limit_is_told(wsm: Run) -> None:
    ended = wsm("explore", "--processes", 1, "--states", 100)
    assert ended.code == 0
    assert "stopped at the limit" in ended.out


def test_the_whole_graph_is_searched_for_circles(wsm: Run) -> None:
    ended = wsm("explore", *SMALL, "--graph")
    assert ended.code == 0
    assert "nothing is left" in ended.out


def test_a_broken_rule_is_shown_kept_and_shown_again(
    wsm: Run, tmp_path: Path, no_dummy_steps: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "broken.txt"
    ended = wsm("explore", *SMALL, "--processes", 1, "--save", kept)
    assert ended.code == 1
    assert "waits while parking for ever" in ended.out
    assert f"--replay {kept}" in ended.err
    again = wsm("explore", "--replay", kept)
    assert again.code == 1
    assert "waits while parking for ever" in again.err
    no_dummy_steps.undo()
    mended = wsm("explore", "--replay", kept)
    assert mended.code == 0
    assert "no rule is broken" in mended.out


@pytest.mark.parametrize(
    "wrong",
    [("--ranks", 9), ("--operations", "sing"), ("--starts", "nowhere"), ("--crashes", -1), ("--survey", "x")],
)
def test_wrong_bounds_are_wrong_usage(wsm: Run, wrong: tuple[object, ...]) -> None:
    assert wsm("explore", *wrong).code == 2


def test_what_is_no_scenario_is_wrong_usage(wsm: Run, tmp_path: Path) -> None:
    (tmp_path / "poem.txt").write_text("the rank that never was\n")
    ended = wsm("explore", "--replay", tmp_path / "poem.txt")
    assert ended.code == 2
    assert "line 1" in ended.err
