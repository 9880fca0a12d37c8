"""The arguments of ``wsm`` as a format: a NUL between two of them, which no argument can contain.

Whatever is typed, a command ends with one of the promised exit codes and lines that people can read: no
traceback that was not asked for, and nothing that a command calls a bug. Commands that read files run, in an
empty directory but for ``there``, which holds a configuration, a journal and segments; of those that start,
command or watch groups, or write, the arguments alone are read.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import click
import click.testing

from fuzz.invariant import Format
from wsm import log
from wsm.cli._base import FAILED, UNFORESEEN, WRONG_USAGE
from wsm.cli.main import run
from wsm.errors import BadInputError
from wsm.journal.entry import SERVED_VERSION, JournalEntry
from wsm.signals.layout import LAYOUT_VERSION
from wsm.signals.segment import Segment

#: They end by themselves, read what is named, and write nothing.
_RUN = frozenset({"inspect", "memory", "digest", "diff", "verify", "journal", "explain"})

_SAMPLES = (
    "status\0nowhere\0--json",
    "explain\0--help",
    "clear\0nowhere\0--tags\0kv_cache\0--deadline\x0060",
    "hold\0nowhere\0--owner\0trainer\0--lease\x0060\0--on-lease\0serve\0--json",
    "release\0nowhere\0--force",
    "update\0nowhere\0--version\x007\0--hot\0--hot-fallback\0in-place\0--kv\0keep-in-flight",
    "rollout\0--name\0policy\0--ranks\x002",
    "demo\0--no-update\0--out\0there",
    "inspect\0.\0--rank\x000",
    "digest\0.",
    "diff\0.\0.",
    "verify\0.",
    "journal\0--help",
    "memory\0--help",
    "memory\0there/wsm.yaml\0--rank\x000",
    "verify\0there/wsm.yaml",
    "digest\0there/wsm.yaml\0--json",
    "diff\0there/wsm.yaml\0there/wsm.yaml\0--journals\0there",
    "journal\0there\0--last\x003",
    "journal\0there/rank0.ndjson\0--replay",
    "explain\0there/a",
    "--traceback\0digest\0.",
    "--log-level\0info\0--log-format\0json\0verify\0.",
    "--version",
)


def command_line() -> Format:
    """Return the format; a value is what a command that was understood was asked."""
    return Format(
        name="command line",
        reader=run,
        decode=_ended,
        encode=lambda words: b"\0".join(map(os.fsencode, words)),
        samples=tuple(sample.encode() for sample in _SAMPLES),
    )


def _ended(data: bytes) -> tuple[str, ...]:
    """Run a command line.

    Raises
    ------
    BadInputError
        If it is wrong usage, which the command says.
    AssertionError
        If it ends as no command may.
    """
    words = tuple(os.fsdecode(word) for word in data.split(b"\0"))
    with _elsewhere(), click.testing.CliRunner().isolation() as (out, err, _):
        code = run(words)
        said = (out.getvalue() + err.getvalue()).decode(errors="replace")
    if code not in (0, FAILED, WRONG_USAGE):
        raise AssertionError(f"it ends with {code}, which no command promises")
    if UNFORESEEN in said or ("Traceback (most recent" in said and "--traceback" not in words):
        raise AssertionError(f"it ends in a way that was not foreseen: {said[-500:]}")
    if code == WRONG_USAGE:
        raise BadInputError("it is wrong usage, and says so")
    return words


@contextlib.contextmanager
def _elsewhere() -> Iterator[None]:
    """Work in an empty directory, and leave environment, log and directory of this process as they were."""
    root, before = logging.getLogger(log.ROOT), os.getcwd()  # noqa: PTH109 - given back as it was
    handlers, propagate, level = root.handlers[:], root.propagate, root.level
    with tempfile.TemporaryDirectory() as empty, mock.patch.dict(os.environ), _parsed_only():
        os.chdir(empty)
        _furnish(Path("there"))
        try:
            yield
        finally:
            os.chdir(before)
            root.handlers[:], root.propagate = handlers, propagate
            root.setLevel(level)


def _furnish(there: Path) -> None:
    """Put there what a mutated argument may come upon; all segments but `a` are damaged."""
    there.mkdir()
    (there / "wsm.yaml").write_text("name: none\nranks: 2\nsnapshot: {directory: there}\n")
    line = JournalEntry(SERVED_VERSION, 5, 5, 0, 1, 1, {"version": 3}).to_line()
    (there / "rank0.ndjson").write_text(f"{line}\n{line[:-9]}")
    (there / "a").write_bytes(_SEGMENT)
    (there / "b").write_bytes(_SEGMENT[: len(_SEGMENT) // 2])
    (there / "c").write_bytes(_SEGMENT.replace(_LAYOUT, _LATER, 1))
    (there / "e").write_bytes(bytes(len(_SEGMENT)))


def _segment() -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        made = Segment.create_or_adopt(
            "none", world_size=2, run_id="r", configuration_digest=0, directory=directory
        )
        content = made.path.read_bytes()
        made.unlink()
        made.close()
    return content


_LAYOUT, _LATER = ((LAYOUT_VERSION + later).to_bytes(4, "little") for later in (0, 1))
_SEGMENT = _segment()


@contextlib.contextmanager
def _parsed_only() -> Iterator[None]:
    """Let commands that do more than read files end when their arguments are understood."""
    real = click.Command.invoke

    def invoke(command: click.Command, ctx: click.Context) -> Any:
        return real(command, ctx) if isinstance(command, click.Group) or command.name in _RUN else None

    with mock.patch.object(click.Command, "invoke", invoke):
        yield
