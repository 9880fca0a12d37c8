"""Commands that meet damaged, foreign or later segments, journals and configurations end as they promise."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import Ended, Run

from tests.another_user import ANOTHER_USER
from tests.leftovers import group_name
from wsm.cli._base import UNFORESEEN
from wsm.journal.entry import KINDS, JournalEntry
from wsm.signals.layout import LAYOUT_VERSION, segment_path
from wsm.signals.segment import Segment

Damage = Callable[[Path], None]


def cut(part: float) -> Damage:
    return lambda path: os.truncate(path, int(path.stat().st_size * part))


def zeroed(first: float) -> Damage:
    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        begin = int(len(content) * first)
        content[begin:] = bytes(len(content) - begin)
        path.write_bytes(content)

    return damage


def noise(path: Path) -> None:
    path.write_bytes(b"\xff\x00\x9b2J\n" * (path.stat().st_size // 6 + 1))


def instead(make: Callable[[Path], object]) -> Damage:
    def damage(path: Path) -> None:
        path.unlink()
        make(path)

    return damage


#: What becomes of any file.
DAMAGES: dict[str, Damage] = {
    **{f"cut to {part:.2%}": cut(part) for part in (0.0, 0.01, 0.999)},
    "zeros": zeroed(0),
    "zeros behind": zeroed(0.3),
    "noise": noise,
    "a directory": instead(Path.mkdir),
    "a link to all": instead(lambda path: path.symlink_to("/dev/zero")),
}
FOREIGN = pytest.param("foreign", marks=pytest.mark.needs("root"))


def later_layout(path: Path) -> None:
    """Make it a segment of a later wsm: the layout's version follows the magic."""
    content = bytearray(path.read_bytes())
    at = content.index(LAYOUT_VERSION.to_bytes(4, "little"))
    content[at : at + 4] = (LAYOUT_VERSION + 1).to_bytes(4, "little")
    path.write_bytes(content)


def damaged(path: Path, how: str) -> None:
    if how == "foreign":
        os.chown(path, ANOTHER_USER, ANOTHER_USER)
    elif how == "later":
        later_layout(path)
    else:
        DAMAGES[how](path)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def ends_well(ended: Ended, *codes: int) -> None:
    """It ends with a promised code, and in lines that a terminal can show; a failure says why."""
    assert ended.code in (codes or (0, 1, 2)), ended
    said = ended.out + ended.err
    assert "Traceback" not in said, said
    assert UNFORESEEN not in said, said
    assert all(line.isprintable() for line in said.split("\n")), said
    if ended.code:
        assert ended.err.strip() or ended.out.strip()


@pytest.fixture
def segment() -> Iterator[Path]:
    """The segment of a group that some process has left, at its place."""
    name = group_name("damaged")
    made = Segment.create_or_adopt(name, world_size=2, run_id="r", configuration_digest=0)
    made.close()
    path = segment_path(name)
    yield path
    for left in path.parent.glob(f"{path.name}*"):
        with contextlib.suppress(FileNotFoundError):
            remove(left)


COMMANDS = {
    "status": ("status", "NAME"),
    "status as JSON": ("status", "NAME", "--json"),
    "explain": ("explain", "NAME"),
    "explain a path": ("explain", "PATH"),
    "clear": ("clear", "NAME", "--deadline", "1"),
    "clear a half": ("clear", "NAME", "--tags", "kv_cache", "--deadline", "1"),
    "update": ("update", "NAME", "--deadline", "1"),
    "update hot": ("update", "NAME", "--hot", "--version", "3", "--deadline", "1"),
    "digest": ("digest", "NAME"),
    "verify": ("verify", "NAME"),
    "diff": ("diff", "NAME", "NAME"),
}


@pytest.mark.slow_but
@pytest.mark.parametrize("how", [*DAMAGES, "later", FOREIGN])
def test_a_damaged_segment_ends_every_command_as_it_promises(wsm: Run, segment: Path, how: str) -> None:
    damaged(segment, how)
    name = segment.name.removeprefix("wsm.")
    for command in COMMANDS.values():
        ended = wsm(*(word.replace("NAME", name).replace("PATH", str(segment)) for word in command))
        ends_well(ended)
        if how not in ("foreign", "zeros behind", "cut to 99.90%"):
            assert ended.code, (command, ended)
    ends_well(wsm("status"))  # of every group on the host


JOURNAL = "".join(
    JournalEntry(kind, 5, 5, 0, 1, 1).to_line() + "\n" for kind in sorted(KINDS) for _ in range(20)
).encode()


@pytest.mark.slow_but
@pytest.mark.parametrize("how", [*DAMAGES, "later", FOREIGN])
def test_a_damaged_journal_ends_every_command_as_it_promises(wsm: Run, tmp_path: Path, how: str) -> None:
    for name in ("rank0.ndjson", "controller.ndjson"):
        path = tmp_path / name
        path.write_bytes(JOURNAL)
        if how == "later":
            path.write_bytes(JOURNAL.replace(b'"schema":2', b'"schema":3'))
        else:
            damaged(path, how)
    for where in (tmp_path, tmp_path / "rank0.ndjson", tmp_path / "controller.ndjson"):
        for options in (
            (),
            ("--rank", 0),
            ("--last", 5),
            ("--replay",),
            ("--json",),
            ("--trace", tmp_path / "t"),
        ):
            ends_well(wsm("journal", where, *options))
    ends_well(wsm("diff", tmp_path, tmp_path, "--journals", tmp_path), 1, 2)


CONFIG = b"name: test-none\nranks: 2\nsnapshot: {directory: /nowhere}\njournal_directory: /nowhere\n"


@pytest.mark.slow_but
@pytest.mark.parametrize("how", [*DAMAGES, "later", FOREIGN])
def test_a_damaged_configuration_ends_every_command_as_it_promises(
    wsm: Run, example: Run, tmp_path: Path, how: str
) -> None:
    path = tmp_path / "wsm.yaml"
    path.write_bytes(CONFIG)
    if how == "later":
        path.write_bytes(CONFIG + b"of_a_later_version: {it: knows}\n")
    else:
        damaged(path, how)
    for command in (
        ("memory", path, "--rank", 0),
        ("digest", path),
        ("verify", path),
        ("diff", path, path),
        ("clear", "none", "--config", path),
        ("update", "none", "--config", path),
        ("diagrams", "--config", path, "--runner", "tests.cli.small_model:nothing", "--check"),
    ):
        ended = wsm(*command)
        ends_well(ended, 1, 2)
        if how == "later":
            assert ended.code == 2, (command, ended)
    ends_well(example("rollout", "--name", "a/b", "--config", path), 2)


def test_what_stands_for_a_segment_of_a_later_version_names_both(wsm: Run, segment: Path) -> None:
    later_layout(segment)
    ended = wsm("status", segment.name.removeprefix("wsm."))
    assert ended.code != 0
    assert str(LAYOUT_VERSION) in ended.err
    assert str(LAYOUT_VERSION + 1) in ended.err
