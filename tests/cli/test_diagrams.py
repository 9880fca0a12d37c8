from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from command_line import Run

from wsm.actions import names

COMMITTED = Path(__file__).parents[2] / "diagrams"


def test_the_committed_diagrams_are_what_the_code_draws(wsm: Run) -> None:
    ended = wsm("diagrams", "--check", "--directory", COMMITTED)
    assert (ended.code, ended.err) == (0, ""), ended.out


def test_diagrams_that_were_drawn_pass_the_check(wsm: Run, tmp_path: Path) -> None:
    directory = tmp_path / "diagrams"
    assert wsm("diagrams", "--directory", directory).code == 0
    assert wsm("diagrams", "--check", "--directory", directory).code == 0
    assert sorted(path.name for path in directory.iterdir()) == sorted(
        path.name for path in COMMITTED.iterdir()
    )


def test_the_check_names_every_file_that_differs_and_writes_nothing(wsm: Run, tmp_path: Path) -> None:
    shutil.copytree(COMMITTED, tmp_path, dirs_exist_ok=True)
    (tmp_path / "weights.mmd").write_text("stateDiagram-v2\n")
    (tmp_path / "transitions.md").unlink()
    ended = wsm("diagrams", "--check", "--directory", tmp_path)
    assert ended.code == 1
    assert "weights.mmd, transitions.md" in ended.err or "transitions.md, weights.mmd" in ended.err
    assert ended.err.count("\n") == 1
    assert {line.split(":")[0] for line in ended.out.splitlines()} == {
        str(tmp_path / "weights.mmd"),
        str(tmp_path / "transitions.md"),
    }
    assert not (tmp_path / "transitions.md").exists()


def test_where_wsm_is_installed_without_its_diagrams_the_tables_alone_are_checked(
    wsm: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = wsm("diagrams", "--check")
    assert (ended.code, ended.err) == (0, "")
    assert "the tables are sound; there is no diagrams/ here to compare with" in ended.out
    assert wsm("diagrams", "--check", "--directory", tmp_path / "named").code == 1


def test_every_action_that_there_is_is_in_the_review_table() -> None:
    text = (COMMITTED / "transitions.md").read_text()
    actions = {value for key, value in vars(names).items() if key.isupper() and isinstance(value, str)}
    around_the_plans = {names.PLAN_STAGING_MEMORY, names.STOP_ADMITTING, names.RESUME_ADMITTING}
    assert {name for name in actions - around_the_plans if name not in text} == set()


@pytest.mark.needs("graphviz")
def test_pictures_are_drawn(wsm: Run, tmp_path: Path) -> None:
    assert wsm("diagrams", "--svg", "--directory", tmp_path).code == 0
    assert (tmp_path / "weights.svg").read_bytes().startswith(b"<?xml")


def test_where_there_is_no_graphviz_it_is_asked_for(
    wsm: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    missing = wsm("diagrams", "--svg", "--directory", tmp_path / "text")
    assert missing.code == 1
    assert "install Graphviz" in missing.err
    assert (tmp_path / "text" / "weights.dot").exists()


def test_checking_and_drawing_pictures_exclude_each_other(wsm: Run, tmp_path: Path) -> None:
    assert wsm("diagrams", "--check", "--svg", "--directory", tmp_path).code == 2
