"""Pictures: by the real Graphviz where it is installed, and a clear word where it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from wsm.states.diagram import svg, write_svg
from wsm.states.errors import GraphvizFailedError, GraphvizMissingError

DRAWINGS = {"one.dot": "digraph one { a -> b }\n", "one.mmd": "not for Graphviz\n"}


def program(path: Path, script: str) -> str:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.needs("graphviz")
def test_graphviz_draws_every_dot_file_without_a_complaint(rendered: dict[str, str], tmp_path: Path) -> None:
    paths = write_svg(tmp_path / "pictures", rendered)
    assert [path.name for path in paths] == ["command.svg", "joint.svg", "kv_cache.svg", "weights.svg"]
    for path in paths:
        assert "</svg>" in path.read_text()
    assert "PREPARED" in (tmp_path / "pictures" / "weights.svg").read_text()


def test_a_machine_without_graphviz_is_told_what_to_do_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(GraphvizMissingError, match="install Graphviz") as error:
        write_svg(tmp_path / "pictures", DRAWINGS, program="no-such-dot")
    assert error.value.context == {"program": "no-such-dot"}
    assert not (tmp_path / "pictures").exists()


def test_what_graphviz_says_reaches_the_user(tmp_path: Path) -> None:
    broken = program(tmp_path / "dot", "echo 'syntax error in line 1' >&2; exit 3")
    with pytest.raises(GraphvizFailedError, match=r"could not draw one\.dot: syntax error in line 1"):
        write_svg(tmp_path, DRAWINGS, program=broken)
    silent = program(tmp_path / "silent", "exit 3")
    with pytest.raises(GraphvizFailedError, match="exit status 3"):
        write_svg(tmp_path, DRAWINGS, program=silent)


def test_a_graphviz_that_never_ends_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(svg, "TIMEOUT_S", 0.2)
    with pytest.raises(GraphvizFailedError, match=r"no end after 0\.2 s"):
        write_svg(tmp_path, DRAWINGS, program=program(tmp_path / "dot", "exec sleep 600"))


def test_a_program_that_cannot_be_started_is_a_failure_of_graphviz(tmp_path: Path) -> None:
    path = tmp_path / "dot"
    path.write_bytes(b"\x7fELF, but not really")
    path.chmod(0o755)
    with pytest.raises(GraphvizFailedError, match="could not be started"):
        write_svg(tmp_path, DRAWINGS, program=str(path))
