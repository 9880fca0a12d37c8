"""Journal entries for people: times in UTC, wrapped to 80 columns, nothing said twice. Pure."""

from __future__ import annotations

import datetime as dt
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from wsm.states import entry as kinds
from wsm.states.entry import CONTROLLER, JournalEntry

_COLUMNS = 80
_SECOND_NS = 1_000_000_000
_AS_ABOVE = "as above"


class Story:
    """Tells entries in the order in which they are given, and a long cause or message once per command."""

    def __init__(self) -> None:
        self._day = ""
        self._told: dict[int, tuple[tuple[int, int], set[str]]] = {}

    def tell(self, entry: JournalEntry, *, mark: str = " ") -> str:
        """Return the next entry as text of one or more lines, under its date where that is a new one.

        Parameters
        ----------
        entry : JournalEntry
            The entry.
        mark : str
            One character in front, for the entry that is wrong.
        """
        day, time = _moment(entry.wall_ns)
        who = "controller" if entry.rank == CONTROLLER else f"r{entry.rank}"
        head = f"{mark} {time} {who} e{entry.epoch} s{entry.sequence:<4} "
        text = textwrap.fill(
            f"{head}{_what(entry.kind, self._shortened(entry))}",
            _COLUMNS,
            subsequent_indent=" " * len(head),
            break_long_words=False,
            break_on_hyphens=False,
        )
        is_new, self._day = day != self._day, day
        return f"{day}\n{text}" if is_new else text

    def _shortened(self, entry: JournalEntry) -> Mapping[str, Any]:
        """Return the facts without what was told of this command on this rank before."""
        command = (entry.epoch, entry.sequence)
        if self._told.get(entry.rank, (None,))[0] != command:
            self._told[entry.rank] = (command, set())
        told = self._told[entry.rank][1]
        facts = dict(entry.facts)
        for name, instead in (("cause", ""), ("message", _AS_ABOVE)):
            text = facts.get(name)
            if not isinstance(text, str) or not text:
                continue
            if any(text == before or text.endswith(f": {before}") for before in told):
                facts[name] = instead
            told.add(text)
        return facts


def _moment(wall_ns: int) -> tuple[str, str]:
    """Return date and time of day, UTC; what is no time of this era is shown as the number that it is."""
    try:
        moment = dt.datetime.fromtimestamp(wall_ns // _SECOND_NS, tz=dt.timezone.utc)
    except (OverflowError, ValueError, OSError):
        return "unknown date", f"{wall_ns} ns"
    return f"{moment:%Y-%m-%d} UTC", f"{moment:%H:%M:%S}.{wall_ns % _SECOND_NS // 1000:06d}"


def _what(kind: str, facts: Mapping[str, Any]) -> str:
    phrase = _PHRASES.get(kind)
    try:
        return phrase(facts) if phrase is not None else _plain(kind, facts)
    except (
        KeyError,
        TypeError,
        ValueError,
        OverflowError,
    ):  # not as this build writes it: show what there is
        return _plain(kind, facts)


def _plain(kind: str, facts: Mapping[str, Any]) -> str:
    return " ".join([kind, *(f"{name}={value}" for name, value in facts.items())])


def _transition(facts: Mapping[str, Any]) -> str:
    text = f"{facts['machine']}: {facts['source']} --{facts['event']}--> {facts['dest']}"
    guard = f" [{facts['guard']}]" if facts.get("guard") else ""
    cause = f" ({facts['cause']})" if facts.get("cause") else ""
    return text + guard + cause


def _error(facts: Mapping[str, Any]) -> str:
    """Return type and text of an error; a report's text begins with the type already."""
    error, message = facts["error"], facts["message"]
    return message if message.startswith(f"{error}: ") else f"{error}: {message}"


def _word(facts: Mapping[str, Any]) -> str:
    rest = " ".join(f"{name}={value}" for name, value in facts.items() if name not in ("word", "code"))
    return f"writes {facts['word']} {facts['code']} {rest}".rstrip()


_PHRASES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    kinds.STARTED: lambda facts: f"process {facts['pid']} begins",
    kinds.COMMAND_SEEN: lambda facts: f"sees {facts['operation']}",
    kinds.TRANSITION: _transition,
    kinds.ACTION_STARTED: lambda facts: f"{facts['name']} begins",
    kinds.ACTION_FINISHED: lambda facts: f"{facts['name']} done in {facts['seconds'] * 1e3:.3f} ms",
    kinds.ACTION_FAILED: lambda facts: f"{facts['name']} FAILED: {_error(facts)}",
    kinds.ACTION_UNDONE: lambda facts: f"{facts['name']} taken back",
    kinds.COMMAND_FAILED: lambda facts: f"FAILED in {facts['action']}: {_error(facts)}",
    kinds.WAIT_EXPIRED: lambda facts: f"WAITED TOO LONG: {facts['message']}",
    kinds.WORD_WRITTEN: _word,
    kinds.DECISION: lambda facts: f"decides {facts['operation']}",
    kinds.SERVED_VERSION: lambda facts: f"serves version {facts['version']}",
    kinds.INTERRUPTED: lambda facts: f"BREAKS its communicators: {facts['message']}",
    kinds.COMMAND_ISSUED: lambda facts: f"asks for {facts['operation']} ({facts['request_id']})",
    kinds.COMMAND_OVER: lambda facts: f"is told: {facts['outcome']}",
    kinds.RANK_LOST: lambda facts: f"FINDS the process of rank {facts['lost']} gone",
    kinds.STEP_BROKEN: lambda facts: f"step {facts['step']} RAISED {_error(facts)}",
}
