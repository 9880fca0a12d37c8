"""``python -m explorer``: what it says, how it ends, and the way to a broken rule that it keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from explorer.__main__ import main
from wsm.states import rank
from wsm.states.phases import Phase, Todo

SMALL = ("steps=1", "--processes=1")


@pytest.fixture
def no_dummy_steps(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Let a parked rank not join the step that others are in already."""
    rows = rank.ROWS[Phase.PARKING]
    deaf = tuple(replace(row, todo=Todo.WAIT) if row.todo is Todo.JOIN else row for row in rows)
    monkeypatch.setitem(rank.ROWS, Phase.PARKING, deaf)
    return monkeypatch


def test_an_exploration_says_how_large_it_was_and_that_no_rule_is_broken(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(SMALL) == 0
    said = capsys.readouterr().out
    assert "no rule is broken; nothing is left" in said
    assert max(map(len, said.splitlines())) <= 80


def test_a_limit_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--processes=1", "--states=100"]) == 0
    assert "stopped at the limit" in capsys.readouterr().out


def test_the_whole_graph_is_searched_for_circles(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--graph"]) == 0
    assert "nothing is left" in capsys.readouterr().out


def test_a_broken_rule_is_shown_kept_and_shown_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, no_dummy_steps: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "broken.txt"
    assert main([*SMALL, f"--save={kept}"]) == 1
    said = capsys.readouterr()
    assert "waits while parking for ever" in said.out
    assert f"--replay {kept}" in said.err
    assert main([f"--replay={kept}"]) == 1
    assert "waits while parking for ever" in capsys.readouterr().err
    no_dummy_steps.undo()
    assert main([f"--replay={kept}"]) == 0
    assert "no rule is broken" in capsys.readouterr().out


@pytest.mark.parametrize(
    "wrong", ["ranks=9", "operations=sing", "starts=nowhere", "rank_crashes=-1", "--survey=x"]
)
def test_wrong_bounds_are_wrong_usage(wrong: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main([wrong])
    assert ended.value.code == 2


def test_what_is_no_scenario_is_wrong_usage(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "poem.txt").write_text("the rank that never was\n")
    with pytest.raises(SystemExit) as ended:
        main([f"--replay={tmp_path / 'poem.txt'}"])
    assert ended.value.code == 2
    assert "line 1" in capsys.readouterr().err
