"""The table of incidents names the tests that are there, all of them, each where it is."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
TABLE = HERE.parent.parent / "docs" / "incidents.md"

SECTION = re.compile(r"^## ", re.MULTILINE)
FILE = re.compile(r"\]\(\.\./tests/incidents/(test_\w+\.py)\)")
NAMED = re.compile(r"`(test_\w+)`")
DEFINED = re.compile(r"^def (test_\w+)", re.MULTILINE)


def test_the_table_of_incidents_names_every_test_in_its_file_and_no_other() -> None:
    files = [path for path in HERE.glob("test_*.py") if path.name != Path(__file__).name]
    there = {(path.name, name) for path in files for name in DEFINED.findall(path.read_text())}
    named = {
        (FILE.findall(section)[0], name)
        for section in SECTION.split(TABLE.read_text())
        for name in NAMED.findall(section)
    }
    assert named == there
