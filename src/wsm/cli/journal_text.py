"""Journal entries for people: one line each, times in UTC, wrapped to 80 columns. Pure."""

from __future__ import annotations

import datetime as dt
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from wsm.states import entry as kinds
from wsm.states.entry import CONTROLLER, JournalEntry

_COLUMNS = 80
_MICROSECONDS = 1000


def entry_text(entry: JournalEntry, *, mark: str = " ") -> str:
    """Return an entry as text of one or more lines.

    Parameters
    ----------
    entry : JournalEntry
        The entry.
    mark : str
        One character in front, for the entry that is wrong.
    """
    moment = dt.datetime.fromtimestamp(entry.wall_ns // 1_000_000_000, tz=dt.timezone.utc)
    fraction = entry.wall_ns % 1_000_000_000 // _MICROSECONDS
    who = "controller" if entry.rank == CONTROLLER else f"r{entry.rank}"
    head = f"{mark} {moment:%H:%M:%S}.{fraction:06d} {who} e{entry.epoch} s{entry.sequence:<4} "
    return textwrap.fill(
        f"{head}{_what(entry)}",
        _COLUMNS,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )


def day_of(entry: JournalEntry) -> str:
    """Return the UTC date of an entry."""
    moment = dt.datetime.fromtimestamp(entry.wall_ns // 1_000_000_000, tz=dt.timezone.utc)
    return f"{moment:%Y-%m-%d} UTC"


def _what(entry: JournalEntry) -> str:
    phrase = _PHRASES.get(entry.kind)
    try:
        return phrase(entry.facts) if phrase is not None else _plain(entry)
    except (KeyError, TypeError, ValueError):  # facts that this build does not write: show what there is
        return _plain(entry)


def _plain(entry: JournalEntry) -> str:
    return " ".join([entry.kind, *(f"{name}={value}" for name, value in entry.facts.items())])


def _transition(facts: Mapping[str, Any]) -> str:
    text = f"{facts['machine']}: {facts['source']} --{facts['event']}--> {facts['dest']}"
    guard = f" [{facts['guard']}]" if facts.get("guard") else ""
    cause = f" ({facts['cause']})" if facts.get("cause") else ""
    return text + guard + cause


def _word(facts: Mapping[str, Any]) -> str:
    rest = " ".join(f"{name}={value}" for name, value in facts.items() if name not in ("word", "code"))
    return f"writes {facts['word']} {facts['code']} {rest}".rstrip()


_PHRASES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    kinds.STARTED: lambda facts: f"process {facts['pid']} begins",
    kinds.COMMAND_SEEN: lambda facts: f"sees {facts['operation']}",
    kinds.TRANSITION: _transition,
    kinds.ACTION_STARTED: lambda facts: f"{facts['name']} begins",
    kinds.ACTION_FINISHED: lambda facts: f"{facts['name']} done in {facts['seconds'] * 1e3:.3f} ms",
    kinds.ACTION_FAILED: lambda facts: f"{facts['name']} FAILED: {facts['error']}: {facts['message']}",
    kinds.ACTION_UNDONE: lambda facts: f"{facts['name']} taken back",
    kinds.COMMAND_FAILED: lambda facts: f"FAILED in {facts['action']}: {facts['error']}: {facts['message']}",
    kinds.WAIT_EXPIRED: lambda facts: f"WAITED TOO LONG: {facts['message']}",
    kinds.WORD_WRITTEN: _word,
    kinds.DECISION: lambda facts: f"decides {facts['operation']}",
    kinds.SERVED_VERSION: lambda facts: f"serves version {facts['version']}",
    kinds.STEP_BROKEN: lambda facts: f"step {facts['step']} RAISED {facts['error']}: {facts['message']}",
}
