"""Holds what the ranks wrote down, across their deaths, against the tables."""

from __future__ import annotations

from pathlib import Path

from wsm.journal.entry import JournalFormatError, read_ndjson
from wsm.journal.replay import replay


def impossible_entries(directory: Path) -> list[str]:
    """Return, per journal, the first entry that no rank can have lived, or that cannot be read."""
    found = []
    for path in sorted(directory.glob("rank*.ndjson")):
        impossible = _first_impossible(path)
        if impossible:
            found.append(f"journal {path.name}: {impossible}")
    return found


def _first_impossible(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as lines:
            found = replay(read_ndjson(lines)).impossible
    except JournalFormatError as error:
        return str(error)
    return "" if found is None else str(found)


def forget_journals(directory: Path) -> None:
    """Remove the journals of a group that has ended."""
    for path in directory.glob("rank*.ndjson"):
        path.unlink()
