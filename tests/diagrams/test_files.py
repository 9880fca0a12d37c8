"""The committed files: equal to what the code draws, and any difference is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from drawing.__main__ import main
from drawing.files import Difference, compare, write

COMMITTED = Path(__file__).parents[2] / "diagrams"
RENDERED = {"a.mmd": "one\ntwo\n", "b.md": "drei äöü\n"}


def test_the_committed_diagrams_are_what_the_code_draws(rendered: dict[str, str]) -> None:
    assert [str(difference) for difference in compare(COMMITTED, rendered)] == []


@pytest.mark.slow
def test_the_command_writes_what_its_check_finds_equal_and_names_what_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--directory", str(tmp_path)]) == 0
    assert main(["--check", "--directory", str(tmp_path)]) == 0
    (tmp_path / "weights.mmd").write_text("stateDiagram-v2\n")
    (tmp_path / "transitions.md").unlink()
    capsys.readouterr()
    assert main(["--check", "--directory", str(tmp_path)]) == 1
    told = {line.split(":")[0] for line in capsys.readouterr().out.splitlines()}
    assert told == {str(tmp_path / "weights.mmd"), str(tmp_path / "transitions.md")}
    assert not (tmp_path / "transitions.md").exists()


def test_what_was_written_does_not_differ(tmp_path: Path) -> None:
    assert write(tmp_path / "new" / "place", RENDERED) == ["a.mmd", "b.md"]
    assert compare(tmp_path / "new" / "place", RENDERED) == []


def test_only_what_changed_is_written_again(tmp_path: Path) -> None:
    write(tmp_path, RENDERED)
    before = (tmp_path / "a.mmd").stat().st_mtime_ns
    assert write(tmp_path, {**RENDERED, "b.md": "other\n"}) == ["b.md"]
    assert (tmp_path / "a.mmd").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"one\nTWO\n", "line 2 is 'TWO', the code draws 'two'"),
        (b"one\n", "line 2 is missing, the code draws 'two'"),
        (b"one\ntwo\nthree\n", "line 3 is 'three', the code draws missing"),
        (b"one\r\ntwo\r\n", "line 1 is 'one', the code draws 'one'"),
        (b"one\ntwo", "line 2 is 'two', the code draws 'two'"),
        (b"\xff\xfe", "line 1 is"),
        (b"", "line 1 is missing, the code draws 'one'"),
    ],
)
def test_a_difference_is_named_with_its_first_line(tmp_path: Path, content: bytes, problem: str) -> None:
    write(tmp_path, RENDERED)
    (tmp_path / "a.mmd").write_bytes(content)
    (difference,) = compare(tmp_path, RENDERED)
    assert difference.name == "a.mmd"
    assert difference.problem.startswith(problem)
    assert (tmp_path / "a.mmd").read_bytes() == content, "comparing must not write"


def test_a_missing_file_and_a_missing_directory_differ(tmp_path: Path) -> None:
    assert compare(tmp_path / "nowhere", RENDERED) == [
        Difference("a.mmd", "missing"),
        Difference("b.md", "missing"),
    ]


def test_a_file_that_nothing_draws_any_more_is_named_and_left_alone(tmp_path: Path) -> None:
    write(tmp_path, RENDERED)
    (tmp_path / "old.mmd").write_text("graph TD\n")
    (tmp_path / "weights.svg").write_text("a picture is not compared\n")
    (tmp_path / ".gitattributes").write_text("not ours\n")
    assert compare(tmp_path, RENDERED) == [Difference("old.mmd", "nothing draws it any more")]
    write(tmp_path, RENDERED)
    assert (tmp_path / "old.mmd").exists()
