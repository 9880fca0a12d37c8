"""The table of incidents names the tests that are there, all of them, each where it is."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
TABLE = (HERE.parent.parent / "docs" / "incidents.md").read_text()


def test_the_table_of_incidents_names_every_test_in_its_file_and_no_other() -> None:
    files = [path for path in sorted(HERE.glob("test_*.py")) if path.name != Path(__file__).name]
    there = {
        (path.name, name) for path in files for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)
    }
    named = set()
    for section in re.split(r"^## ", TABLE, flags=re.M)[1:]:
        for file in re.findall(r"\]\(\.\./tests/incidents/(test_\w+\.py)\)", section)[:1]:
            named |= {(file, name) for name in re.findall(r"`(test_\w+)`", section)}
    assert named == there
