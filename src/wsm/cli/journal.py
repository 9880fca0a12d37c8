"""``wsm journal``: what ranks did, in the order of time, held against the tables."""

from __future__ import annotations

import datetime as dt
import heapq
import itertools
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import click

from wsm.cli.errors import ImpossibleHistoryError, JournalFileError
from wsm.cli.failures import wrong_usage
from wsm.cli.printing import show, show_text
from wsm.cli.teaching_command import TeachingCommand
from wsm.errors import BadInputError
from wsm.states import journal as kinds
from wsm.states.journal import CONTROLLER, JournalEntry, read_ndjson
from wsm.states.replay import Replay, replay

#: The longest line that is read; no journal has a longer one.
_MAX_LINE_BYTES = 1 << 16

#: What one command reads at most, in bytes: some months of a busy rank.
_MAX_BYTES = 1 << 28


@dataclass
class _Room:
    """How many bytes one command may still read."""

    left: int = _MAX_BYTES


@dataclass(frozen=True)
class _JournalFile:
    """One file, read and replayed."""

    path: Path
    entries: Sequence[JournalEntry]
    result: Replay


@click.command(
    cls=TeachingCommand,
    examples=(
        ("wsm journal journals/", "all ranks of a group, in the order of time"),
        ("wsm journal journals/rank1.ndjson --last 40", "how rank 1 ended"),
        ("wsm journal journals/ --sequence 17", "one command on all ranks"),
        ("wsm journal journals/ --check", "only whether the tables allow it"),
    ),
)
@click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path)
)
@click.option("--rank", type=click.IntRange(min=-1), help="Show this rank only (-1: controllers).")
@click.option("--sequence", type=click.IntRange(min=0), help="Show this command only.")
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="Show the last N entries only.")
@click.option("--check", is_flag=True, help="Show nothing, say only whether the tables allow it.")
def journal(
    files: tuple[Path, ...], rank: int | None, sequence: int | None, last: int | None, check: bool
) -> None:
    """Show the journals in FILE..., and hold every entry against the transition tables.

    A directory stands for the *.ndjson files in it (journal_directory of the configuration holds one per
    rank). Entries of several files are merged by their time. All entries are checked, whatever is shown; the
    first one that no rank can have lived is marked with '!', and the exit code is 1 then.
    """
    room = _Room()
    journals = [_read(path, room) for path in _expanded(files)]
    if not check:
        shown = [
            (one, index)
            for one, index in _merged(journals)
            if rank in (None, one.entries[index].rank) and sequence in (None, one.entries[index].sequence)
        ]
        _print(shown[-last:] if last else shown)
    for one in journals:
        if one.result.impossible is not None:
            raise ImpossibleHistoryError(file=str(one.path), entry=str(one.result.impossible))
    for line in _conclusion(journals):
        show(line)


def _expanded(files: Iterable[Path]) -> list[Path]:
    found: list[Path] = []
    for path in files:
        # What lies in a directory is looked for, and may be anybody's; what is named may be a pipe.
        inside = sorted(filter(Path.is_file, path.glob("*.ndjson"))) if path.is_dir() else [path]
        if not inside:
            with wrong_usage():
                raise JournalFileError(file=str(path), problem="holds no *.ndjson file; name the journals")
        found += inside
    return found


def _read(path: Path, room: _Room) -> _JournalFile:
    try:
        with path.open("rb") as file:
            entries = read_ndjson(_lines(path, file, room))
    except JournalFileError:
        raise
    except BadInputError as error:
        raise JournalFileError(file=str(path), problem=str(error)) from error
    return _JournalFile(path, entries, replay(entries))


def _lines(path: Path, file: BinaryIO, room: _Room) -> Iterator[str]:
    """Yield the lines of a file that may have no end, as far as there is room for them."""
    for number in itertools.count(1):
        line = file.readline(_MAX_LINE_BYTES + 1)
        if not line:
            return
        room.left -= len(line)
        if len(line) > _MAX_LINE_BYTES:
            problem = f"line {number} is longer than {_MAX_LINE_BYTES} bytes, so this is no journal"
            raise JournalFileError(file=str(path), problem=problem)
        if room.left < 0:
            problem = f"more than {_MAX_BYTES >> 20} MiB in all; name fewer files, or a part: tail -n 100000"
            raise JournalFileError(file=str(path), problem=problem)
        # Bytes that are no text become a line that is no JSON, which gets the error that names it.
        yield line.decode("utf-8", "replace")


def _merged(journals: Iterable[_JournalFile]) -> Iterable[tuple[_JournalFile, int]]:
    """Yield (file, index) of all entries by time; the order within a file is kept whatever the clock did."""
    streams = ([(one, index) for index in range(len(one.entries))] for one in journals)
    return heapq.merge(*streams, key=lambda place: place[0].entries[place[1]].wall_ns)


def _print(shown: Iterable[tuple[_JournalFile, int]]) -> None:
    story = Story()
    for one, index in shown:
        impossible = one.result.impossible
        is_wrong = impossible is not None and impossible.index == index
        show_text(story.tell(one.entries[index], mark="!" if is_wrong else " "))


def _conclusion(journals: Sequence[_JournalFile]) -> list[str]:
    count = sum(one.result.entries for one in journals)
    states = {rank: joint for one in journals for rank, joint in one.result.states.items()}
    ends = [f"rank {rank} ends in {states[rank]}" for rank in sorted(states)]
    return [f"{count} entries, all as the tables allow", *ends]


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
