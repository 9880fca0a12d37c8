"""Any bytes give every reader's typed error, or a value that can be written and read again."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import wsm
from fuzz.__main__ import main
from fuzz.formats import all_formats
from fuzz.invariant import BrokenInvariantError, Format, check
from fuzz.mutation import damaged
from tests.sources import syntax_of
from wsm.cli.digests import digest
from wsm.errors import BadInputError

FORMATS = all_formats()
SOURCE = Path(wsm.__path__[0])


@pytest.mark.slow_but
@pytest.mark.parametrize("name", FORMATS)
def test_every_sample_is_a_value(name):
    form = FORMATS[name]
    assert form.samples
    assert all(check(form, sample) for sample in form.samples)


@pytest.mark.slow_but("adoptions")
@pytest.mark.parametrize("name", [name for name in FORMATS if name != "http request"])
@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_damage_gives_a_typed_error_or_a_value_that_survives_being_written(name, data):
    check(FORMATS[name], data.draw(damaged(FORMATS[name])))


@pytest.mark.slow
@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_damaged_requests_are_answered_as_promised_over_a_socket(data):
    check(FORMATS["http request"], data.draw(damaged(FORMATS["http request"])))


@pytest.mark.slow
def test_every_reader_that_promises_this_for_any_bytes_has_a_target():
    promised = {
        f"{'.'.join(path.relative_to(SOURCE.parent).with_suffix('').parts)}.{name}"
        for path in SOURCE.rglob("*.py")
        for name, text in docstrings(syntax_of(path), "")
        if "Any bytes give this or" in " ".join(text.split())
    }
    targets = {f"{form.reader.__module__}.{form.reader.__qualname__}" for form in FORMATS.values()}
    assert promised
    assert promised <= targets, "add a format to fuzz/formats.py for each of these"


def docstrings(node: ast.AST, prefix: str):
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from docstrings(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.FunctionDef):
            yield prefix + child.name, ast.get_docstring(child) or ""


def reads_one_byte(data: bytes) -> int:
    if len(data) != 1:
        raise BadInputError("it is not one byte")
    return data[0]


GOOD = Format("one byte", reads_one_byte, reads_one_byte, lambda value: bytes([value]), (b"a",))


class SeveralLinesError(BadInputError):
    def __str__(self) -> str:
        return "this\nis no line"


def several_lines(data: bytes) -> int:
    raise SeveralLinesError("one line, by itself")


FAULTS = {
    "raises KeyError": (replace(GOOD, decode=lambda data: {}[data]), b"a"),
    "error has several lines": (replace(GOOD, decode=several_lines), b""),
    "cannot be written": (replace(GOOD, encode=lambda value: b"two bytes"), b"a"),
    "when written": (replace(GOOD, encode=lambda value: b"b"), b"a"),
}


def test_a_good_reader_is_told_from_one_that_refuses():
    assert check(GOOD, b"x")
    assert not check(GOOD, b"")


@pytest.mark.parametrize("problem", FAULTS)
def test_a_reader_that_breaks_the_promise_is_found_with_the_bytes_that_show_it(problem):
    form, drawn = FAULTS[problem]
    with pytest.raises(BrokenInvariantError) as caught:
        check(form, drawn)
    assert problem in caught.value.problem
    assert caught.value.data == drawn


def test_a_command_that_ends_as_no_command_may_is_found(monkeypatch):
    def unforeseen(**_options):
        raise KeyError("unforeseen")

    monkeypatch.setattr(digest, "callback", unforeseen)
    with pytest.raises(BrokenInvariantError, match="not foreseen"):
        check(FORMATS["command line"], b"digest\0.")


@pytest.mark.slow
def test_the_runner_says_what_it_tried(tmp_path):
    command = [
        sys.executable,
        "-m",
        "fuzz",
        "--seconds",
        "1",
        "--only",
        "version.yaml",
        "--out",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "atheris" in done.stdout
    assert "version.yaml: " in done.stdout
    assert "1 of 1 formats keep their promise" in done.stdout


@pytest.mark.parametrize(
    ("content", "said"), [(b"step: 7\n", "it is a value"), (b"step: x y", "refused with a typed error")]
)
def test_an_input_can_be_read_again(tmp_path, capsys, content, said):
    (tmp_path / "input").write_bytes(content)
    assert main(["--only", "version.yaml", "--replay", str(tmp_path / "input")]) == 0
    assert said in capsys.readouterr().out
    assert main(["--replay", str(tmp_path / "input")]) == 2


def test_a_format_that_is_none_is_wrong_usage(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--only", "version.yml"])
    assert caught.value.code == 2
    assert "they are safetensors header" in capsys.readouterr().err
