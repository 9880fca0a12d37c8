"""The table of measured state counts in the head of each model: ``--record`` writes it, the tests read it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from models.catalogue import CHECKS
from models.checker import Verdict

_TABLE = re.compile(r"(?P<head>^   MEASURED .*\n)(?P<rows>(?:^     .*\n)*)", re.MULTILINE)
_ROW = re.compile(r"^     (?P<bounds>.*?) {2,}(?P<states>[0-9,]+)  (?P<what>.*)$", re.MULTILINE)


def record(verdicts: Iterable[Verdict], version: str) -> None:
    """Write what was measured into the tables of the models; rows that the catalogue lacks go."""
    measured = {verdict.check: verdict.states for verdict in verdicts if verdict.stopped_by is None}
    for path in {check.path for check in CHECKS if check in measured}:
        before = recorded(path)
        head = f"   MEASURED by `make models`, spin {version}: bounds, states, what for\n"
        for check in CHECKS:
            states = measured.get(check, before.get(check.within))
            if check.path == path and states is not None:
                head += f"     {check.within:<40}  {states:>12,}  {check.what}\n"
        text = path.read_text()
        old = _TABLE.search(text)
        if old is not None:
            path.write_text(text[: old.start()] + head + text[old.end() :])


def recorded(path: Path) -> dict[str, int]:
    """Return the states per bounds, as the model's head has them."""
    table = _TABLE.search(path.read_text())
    rows = table["rows"] if table else ""
    return {row["bounds"]: int(row["states"].replace(",", "")) for row in _ROW.finditer(rows)}


def recorded_version(path: Path) -> str | None:
    """Return the version of spin that counted."""
    found = re.search(r"^   MEASURED by `make models`, spin ([^:\s]+):", path.read_text(), re.MULTILINE)
    return found[1] if found else None
