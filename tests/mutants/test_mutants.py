"""The judge of the tests: what a fault is, that its name stays, and what is said of one that lives."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from mutants import entries
from mutants.__main__ import main
from mutants.entries import Entry, applied, draw, listed
from mutants.operators import faults, is_fault
from mutants.playing import Played
from mutants.seeded import SEEDED, Seeded

REPOSITORY = Path(__file__).parent.parent.parent

MODULE = b'''"""A module."""

ROWS = (
    Row("first", 1),
    Row("second", 2),
)


def may(asked: int, owner: str | None) -> bool:
    """Say whether."""
    log.info("asked", asked=asked)
    if asked >= LIMIT and not owner:
        self.refused = (
            True
        )
        raise Refused(f"more than {LIMIT + 1}")
    return asked in ROWS[1:]
'''


def made(operator: str, source: bytes = MODULE) -> list[str]:
    """Return the lines that are others with each fault of an operator."""
    changed = [
        fault.applied(source) for key, fault in faults("m.py", source).items() if f":{operator}:" in key
    ]
    lines = source.decode().splitlines()
    return [
        " / ".join(
            is_now.strip()
            for was, is_now in zip(lines, text.decode().splitlines(), strict=True)
            if was != is_now
        )
        for text in changed
    ]


@pytest.mark.parametrize(
    ("operator", "becomes"),
    [
        ("comparison", ["if asked > LIMIT and not owner:", "return asked not in ROWS[1:]"]),
        ("and-or", ["if asked >= LIMIT or not owner:"]),
        ("not-dropped", ["if asked >= LIMIT and  owner:"]),
        ("condition-false", ["if False:"]),
        ("constant", ['Row("first", 2),', 'Row("second", 3),', "False", "return asked in ROWS[2:]"]),
        ("row-deleted", ['/ Row("second", 2),', 'Row("first", 1) / ,']),
        ("rows-swapped", ['Row("second", 2), / Row("first", 1),']),
        ("statement-deleted", ["pass /  /", "pass"]),
        ("returns-none", ["return None"]),
        ("returns-other", ["return not (asked in ROWS[1:])"]),
        ("without-lower-bound", ["return asked in ROWS[:]"]),
    ],
)
def test_a_fault_changes_its_own_lines_alone(operator: str, becomes: list[str]) -> None:
    assert [line.strip() for line in made(operator)] == becomes


def test_what_is_for_people_has_no_faults() -> None:
    texts = {fault.text for fault in faults("m.py", MODULE).values()}
    assert 'raise Refused(f"more than {LIMIT + 1}")' in texts
    assert not [text for text in texts if "log" in text or "A module" in text or text.startswith("LIMIT + 1")]


def test_a_fault_keeps_its_key_when_other_lines_change() -> None:
    above = MODULE.replace(b"ROWS = (\n", b"OTHER = 5\n\nROWS = (\n    Row('zeroth', 0),\n")
    known = {key for key in faults("m.py", MODULE) if ":may:" in key}
    assert known
    assert known == {key for key in faults("m.py", above) if ":may:" in key}
    renamed = faults("m.py", MODULE.replace(b"asked >= LIMIT", b"asked >= MOST"))
    assert {key.split(":")[2].rstrip("-01") for key in known - set(renamed)} == {
        *("comparison", "and-or", "operand-dropped", "condition-true", "condition-false")
    }


def test_what_is_no_python_is_no_fault() -> None:
    source = b"x = (a or b) and c if d == 1 else min(max(a))\n"
    wrong = {fault for fault in faults("m.py", source).values() if not is_fault(fault, source)}
    assert {fault.applied(source) for fault in wrong} == {
        b"x = (c if d == 1 else min(max(a))\n",
        b"x = (a or b if d == 1 else min(max(a))\n",
    }


@pytest.mark.slow
def test_a_fault_whose_text_has_changed_is_said_to_be_gone_and_another_is_drawn() -> None:
    gone = Entry(
        "states", "states/decide.py:no_such_function:comparison:00000000:0", "killed", "thread", 0.1, "a test"
    )
    assert applied(gone) is None
    others = [entry for entry in listed() if entry.room != "states"]
    left = [entry for entry in listed() if entry.room == "states"][1:]
    drawn = draw([*others, *left, gone])
    assert len(drawn) == len(entries.ROOMS) * entries.OF_EACH_ROOM
    assert gone not in drawn
    assert set(left) <= set(drawn)


def test_what_lives_has_a_reason_and_what_dies_a_test_that_is_there() -> None:
    of_list = [entry for entry in listed() if entry.room != entries.BY_HAND]
    assert len({entry.key for entry in of_list}) == len(of_list) == len(entries.ROOMS) * entries.OF_EACH_ROOM
    assert not [
        entry.key for entry in of_list if entry.verdict in ("survives", "equivalent") and not entry.told
    ]
    killers = {entry.told.partition("::")[0] for entry in of_list if entry.verdict == "killed"}
    assert not [path for path in sorted(killers) if not (REPOSITORY / path).exists()]


class Sandbox:
    """Says of every fault that it survives."""

    def __init__(self) -> None:
        self.played: list[str] = []
        self.left_out: dict[str, str] = {}

    def play(self, entry: Entry, _reach: object) -> Played:
        self.played.append(entry.key)
        return Played("survives")


def test_a_fault_that_lives_and_was_killed_before_is_red_with_what_it_changes_and_is_not_played_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sandbox = Sandbox()
    monkeypatch.setattr("mutants.__main__.copy", lambda: nullcontext(sandbox))
    monkeypatch.setattr("mutants.__main__.PLAYED", tmp_path / "played.ndjson")
    seeded = SEEDED[0]
    asked = ["--only", f"{seeded.module}::{seeded.name}"]
    assert main(asked) == 1
    said = capsys.readouterr().out
    assert f"LIVES, and was killed by {seeded.test}" in said
    assert f"--- src/wsm/{seeded.module}" in said
    assert seeded.becomes in said
    assert main(asked) == 1
    assert len(sandbox.played) == 1


@pytest.mark.parametrize("seeded", SEEDED, ids=[seeded.name for seeded in SEEDED])
def test_what_somebody_wrote_down_stands_in_its_module_once(seeded: Seeded) -> None:
    assert (entries.SOURCES / seeded.module).read_text().count(seeded.was) == 1
    path, _, function = seeded.test.partition("::")
    assert seeded.proof or f"def {function}(" in (REPOSITORY / path).read_text()
