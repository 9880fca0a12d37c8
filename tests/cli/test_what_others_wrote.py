"""What others wrote (names, files, configurations) makes no traceback, no forged line and no endless read."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from command_line import Run

import wsm.cli
from tests.sources import syntax_of
from wsm import log
from wsm.errors import WsmError
from wsm.journal.entry import JournalEntry
from wsm.printable import printable, printable_json, printable_lines
from wsm.strategies import TensorSpec, publish_snapshot

#: A name that ends the line, goes on with one of its own, clears the screen, and turns the letters round.
EVIL = "head\n0000  forged\x1b[2J\x9b1m\u202e\x7f"
EVIL_SHOWN = r"head\n0000  forged\x1b[2J\x9b1m\u202e\x7f"


def lines_of(text: str) -> list[str]:
    assert all(line.isprintable() for line in text.split("\n")), text
    return text.splitlines()


@pytest.fixture
def published(tmp_path: Path) -> Path:
    place = tmp_path / "sn\nap\x1b[31m"
    spec = TensorSpec(EVIL, "U8", (4,))
    for version in (1, 2):
        publish_snapshot(place, version, {0: {EVIL: (spec, bytes([version] * 4))}}, durable=False)
    return place


def test_names_of_tensors_and_files_reach_the_terminal_as_one_line_of_what_can_be_printed(
    wsm: Run, published: Path
) -> None:
    listed = wsm("digest", published, "--version", 1, "--tensors")
    assert listed.code == 0
    (whole, tensor) = lines_of(listed.out)
    assert tensor.split("    ")[1] == f"{EVIL_SHOWN} U8[4]"
    assert r"sn\nap\x1b[31m" in whole
    differing = wsm("diff", published / "versions" / "1", published / "versions" / "2")
    assert differing.code == 1
    assert lines_of(differing.out)[1:] == [f"  {EVIL_SHOWN}: bytes"]
    assert len(lines_of(differing.err)) == 1
    inspected = wsm("inspect", published, "--rank", 0)
    assert [line for line in lines_of(inspected.out) if line.startswith("file")] != []
    missing = wsm("inspect", published / EVIL, "--rank", 0)
    assert len(lines_of(missing.err)) == 1
    assert r"forged\x1b[2J\x9b1m\u202e\x7f" in missing.err
    told = json.loads(wsm("digest", published, "--version", 1, "--tensors", "--json").out)
    assert list(told[0]["tensors"]) == [EVIL]
    assert "\x7f" not in wsm("digest", published, "--tensors", "--json").out


def test_errors_and_log_lines_hold_nothing_that_a_terminal_obeys(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    error = WsmError(f"{EVIL} is broken", name=EVIL)
    assert str(error) == f"{EVIL_SHOWN} is broken"
    assert error.context["name"] == EVIL
    with caplog.at_level("INFO", logger=log.ROOT):
        log.logger("test").info("test.event", name=EVIL)
    assert caplog.messages[-1] == f"test.event name={EVIL_SHOWN}"
    assert printable("\ud800é 语😀\\n") == "\\ud800é 语😀\\n"
    assert printable_lines("a\nb\r") == "a\nb\\r"
    assert json.loads(printable_json(json.dumps(["\x7f\u202e😀\U000e0001"], ensure_ascii=False))) == [
        "\x7f\u202e😀\U000e0001"
    ]


def test_commands_print_through_one_door() -> None:
    """Nothing in the command line writes to the terminal but :mod:`wsm.cli._base`."""
    for path in sorted(Path(wsm.cli.__file__).parent.glob("*.py")):
        if path.name == "_base.py":
            continue
        for node in ast.walk(syntax_of(path)):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            assert called not in ("print", "click.echo", "click.secho", "sys.stdout.write"), path


ALIASES = "a: &a [1,1,1,1,1,1,1,1]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 8)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 3000, "nested too deeply"),
        ("- " * 3000, "nested too deeply"),
        (ALIASES, "more than 65536 values"),
        ("name: &a [*a]", "more than 65536 values"),
        ("name: a\nranks: 2\nname: b", "the key 'name' stands there twice"),
        ("name: a\nranks: " + "9" * 5000, "ValueError"),
        ("name: a\nranks: 0x" + "9" * 5000, "it must be a whole number from 1 to 1024"),
        ("name: a\nranks: 59" + ":59" * 5000, "it must be a whole number from 1 to 1024"),
        ("name: a\nranks: !!bool x", "KeyError"),
        ("name: 2001-99-99\nranks: 1", "month must be in"),
        ("#" * (1 << 19), "larger than 262144 bytes"),
        ("name: a\nranks: 99999999999", "it must be a whole number from 1 to 1024"),
        ("name: a/b\nranks: 2", "'a/b' cannot name a group"),
        (
            "name: a\nranks: 2\nengine_words: {suffixes: ['../../x']}",
            "'../../x' cannot end the name of a word",
        ),
        (
            "name: a\nranks: 2\nengine_words: {suffixes: [null]}",
            "it must be a list of a whole number or a text",
        ),
        ("name: a\nranks: 2\ndeadlines: {park_s: .inf}", "a number more than 0 to 1e+09 seconds"),
        (
            "name: a\nranks: 2\ndeadlines: {action_s: {load_weights: .nan}}",
            "a number more than 0 to 1e+09 seconds",
        ),
        ("\x00", "unacceptable character"),
    ],
)
def test_no_configuration_makes_a_traceback(wsm: Run, tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "wsm.yaml"
    file.write_text(text)
    ended = wsm("verify", file)
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err
    assert len(lines_of(ended.err)) == 1


def test_a_configuration_may_come_through_a_pipe(wsm: Run, tmp_path: Path) -> None:
    pipe = tmp_path / "wsm.yaml"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text("name: policy\nranks: 2\nranks: 3\n"))
    writer.start()
    ended = wsm("memory", pipe, "--rank", 0)
    writer.join(10)
    assert ended.code == 2
    assert "'ranks' stands there twice" in ended.err


def test_what_nobody_foresaw_is_one_line_and_a_traceback_only_where_it_is_asked_for(
    wsm: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise LookupError("a\nb")

    monkeypatch.setattr("wsm.cli.status.existing_groups", broken)
    ended = wsm("status")
    assert ended.code == 1
    assert lines_of(ended.err) == [
        "error: LookupError: a b; this is a bug in wsm: report what 'wsm --traceback ...' shows"
    ]
    assert "in broken" in wsm("--traceback", "status").err


@pytest.mark.parametrize("arguments", [["--help"], ["status"], []])
def test_a_full_device_is_an_error_and_no_traceback(arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "wsm.cli.main", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (ended.returncode, ended.stderr) == (1, "error: [Errno 28] No space left on device\n")


@pytest.mark.parametrize("path", ["./nothing", "a/b", "/etc/passwd", "/dev/zero"])
def test_a_path_that_cannot_be_explained_is_wrong_usage(wsm: Run, path: str) -> None:
    ended = wsm("explain", path)
    assert (ended.code, ended.out) == (2, "")
    assert "cannot be read" in ended.err


@pytest.mark.parametrize("request_id", ["", "x" * 201, "a\nb", "a\x1b[2J"])
def test_a_request_id_that_fits_no_log_is_wrong_usage_and_names_the_option(wsm: Run, request_id: str) -> None:
    ended = wsm("clear", "policy", "--request-id", request_id)
    assert ended.code == 2
    (line,) = lines_of(ended.err)
    assert "'--request-id'" in line
    assert "1 to 200 printable characters" in line


def test_a_journal_without_line_feeds_is_read_no_further_than_its_bound(wsm: Run, tmp_path: Path) -> None:
    ended = wsm("journal", "/dev/zero")
    assert ended.code == 1
    assert "line 1 is longer than 262144 bytes" in ended.err
    assert "line 1" in wsm("journal", "/dev/urandom").err
    line = JournalEntry("started", 1, 1, 0, 1, 0, {"pid": 1}).to_line() + "\n"
    (tmp_path / "rank0.ndjson").write_text(line)
    os.mkfifo(tmp_path / "squatted.ndjson")
    assert wsm("journal", tmp_path).code == 0
