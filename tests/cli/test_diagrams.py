from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Run

from wsm.cli.diagrams import pictures
from wsm.states.vocabulary import WeightState

ENGINE = """
from wsm.testing import InMemoryRunner


class Engine(InMemoryRunner):
    def __init__(self):
        super().__init__([])


def broken():
    return object()
"""


def test_without_an_engine_the_tables_are_checked(wsm: Run) -> None:
    ended = wsm("diagrams", "--check")
    assert (ended.code, ended.err) == (0, "")
    assert "the tables are sound" in ended.out


@pytest.mark.slow
def test_the_plans_of_ones_own_engine_are_drawn(
    wsm: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_engine_to_draw.py").write_text(ENGINE)
    (tmp_path / "wsm.yaml").write_text("name: mine\nranks: 1\ndeadlines: {action_s: {load_weights: 7}}\n")
    named = ("--runner", "own_engine_to_draw:Engine", "--config", tmp_path / "wsm.yaml")
    ended = wsm("diagrams", *named, "--directory", tmp_path / "drawn")
    assert (ended.code, ended.err) == (0, "")
    assert {path.name for path in (tmp_path / "drawn").iterdir()} == {
        "weights.mmd",
        "kv_cache.mmd",
        "admission.mmd",
        "command.mmd",
        "command_aborted.mmd",
        "fleet.mmd",
        "plans.md",
    }
    page = (tmp_path / "drawn" / "plans.md").read_text()
    assert page.startswith("# Plans of own_engine_to_draw:Engine\n")
    assert "| `load_weights` " in page
    assert "| 7 s " in page
    assert "clear_deepep_buffer" not in page, "a step of a surface that the engine lacks"
    checked = wsm("diagrams", "--check", *named)
    assert checked.code == 0
    assert "plans of own_engine_to_draw:Engine" in checked.out


@pytest.mark.needs("graphviz")
def test_the_states_are_drawn_as_pictures(wsm: Run, tmp_path: Path) -> None:
    ended = wsm("diagrams", "--svg", "--directory", tmp_path)
    assert (ended.code, ended.err) == (0, "")
    written = {path.name for path in tmp_path.iterdir()}
    assert {f"{name}.svg" for name in pictures()} == {name for name in written if name.endswith(".svg")}
    drawn = (tmp_path / "weights.svg").read_text()
    assert all(f">{state.name}</text>" in drawn for state in WeightState)


def test_without_graphviz_nothing_is_written_and_it_is_named(
    wsm: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    ended = wsm("diagrams", "--svg", "--directory", tmp_path / "drawn")
    assert ended.code == 2
    assert "Graphviz" in ended.err
    assert not (tmp_path / "drawn").exists()


@pytest.mark.slow_but
@pytest.mark.parametrize("where", ["no_such_module:Runner", "own_engine_to_draw_2:nothing", "nothing"])
def test_a_runner_that_is_not_there_is_wrong_usage(
    wsm: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_engine_to_draw_2.py").write_text(ENGINE)
    ended = wsm("diagrams", "--check", "--runner", where)
    assert ended.code == 2
    assert f"no runner at '{where}'" in ended.err


def test_a_runner_that_cannot_be_made_is_wrong_usage_with_what_it_raised(
    wsm: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_engine_to_draw_4.py").write_text("def made(specs):\n    return specs\n")
    ended = wsm("diagrams", "--check", "--runner", "own_engine_to_draw_4:made")
    assert ended.code == 2
    assert "TypeError: made() missing 1 required" in ended.err


def test_a_runner_that_lacks_surfaces_is_told_which(
    wsm: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_engine_to_draw_3.py").write_text(ENGINE)
    ended = wsm("diagrams", "--check", "--runner", "own_engine_to_draw_3:broken")
    assert ended.code == 2
    assert "weights" in ended.err
