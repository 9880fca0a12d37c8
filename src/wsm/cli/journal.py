"""``wsm journal``, ``wsm trace``: what ranks did, in the order of time, held against the tables, or drawn."""

from __future__ import annotations

import datetime as dt
import heapq
import itertools
import textwrap
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import click

import wsm
from wsm.cli._base import (
    FAILED,
    FILE,
    FROM_0,
    FROM_1,
    PATH,
    WRONG_USAGE,
    CommandEndedError,
    command,
    show,
    show_text,
)
from wsm.cli._groups import image_of
from wsm.command import VERSION_HELD
from wsm.errors import BadInputError
from wsm.journal import entry as kinds
from wsm.journal.entry import (
    CONTROLLER,
    CONTROLLERS_FILE,
    LONGEST_LINE_BYTES,
    JournalEntry,
    LineRing,
    iterate_ndjson,
)
from wsm.journal.replay import ImpossibleEntry, Replay
from wsm.journal.spans import extent, journal_spans, trace_text
from wsm.labels import is_unnamed
from wsm.printable import printable
from wsm.signals.owner_settings import settings_in
from wsm.status.text import COLUMNS

#: The most entries of later controllers that may stand before one that is late.
_MOST_LATE = 4096


def _unfit(path: Path, problem: str, *, exit_code: int = FAILED) -> CommandEndedError:
    return CommandEndedError(f"{path}: {problem}", exit_code=exit_code)


class _JournalFile:
    """One file, read line by line and held against the tables meanwhile.

    Parameters
    ----------
    path : Path
        Its path.

    Attributes
    ----------
    cut_short : list of int
        Numbers of the lines that are torn.
    lacks : str
        A sentence about lines that are missing before its first one; empty: none is known to be.
    """

    lacks = ""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.check = Replay(wsm.__version__)
        self.cut_short: list[int] = []

    def findings(self, *, replay: bool) -> list[ImpossibleEntry]:
        """Return what counts as wrong: what another build answered may be so there, unless `replay` asks."""
        check = self.check
        return [one for one in check.findings if replay or not (one.of_core and check.other_builds)]

    def entries(self) -> Iterator[tuple[JournalEntry, bool]]:
        """Yield each entry, and whether it is one that no participant can have written."""
        try:
            for entry in self._read():
                yield entry, self.check.take(entry) is not None
        except BadInputError as error:
            raise _unfit(self.path, str(error)) from error

    def _read(self) -> Iterator[JournalEntry]:
        with self.path.open("rb") as file:
            found = iterate_ndjson(_lines(self.path, file), self.cut_short.append)
            yield from _as_they_happened(found) if self.path.name == CONTROLLERS_FILE else found


class _Ring(_JournalFile):
    """The last lines of a participant, or of the controllers, of a group that keeps no files.

    A ring leaves out lines that a check by the tables needs.
    """

    def __init__(self, path: Path, ring: LineRing) -> None:
        super().__init__(path)
        self._entries = ring.entries()
        first = self._entries[0] if self._entries else None
        since = "now" if first is None else f"sequence {first.sequence}, epoch {first.epoch}"
        self.lacks = f"a segment keeps some of the last lines, here since {since}; "
        self.lacks += "journal_directory keeps all"

    def entries(self) -> Iterator[tuple[JournalEntry, bool]]:
        self.check.entries = len(self._entries)
        return ((entry, False) for entry in _as_they_happened(self._entries))


def _of_group(name: str) -> list[_JournalFile]:
    """Return the journals of a group of this host: its files, or else the rings of its segment."""
    image = image_of(name)
    directory = settings_in(image.settings).journals
    files = [] if directory is None else sorted(directory.glob("*.ndjson"))
    *ranks, controllers = image.journals
    rings = {f"rank{rank}": ring for rank, ring in enumerate(ranks)}
    rings["controllers"] = controllers
    return [*map(_JournalFile, files)] or [_Ring(Path(name, who), ring) for who, ring in rings.items()]


def _as_they_happened(entries: Iterable[JournalEntry]) -> Iterator[JournalEntry]:
    """Yield the entries of a file that several processes append to in the order in which they happened.

    A word waits for no file, so the lines of one controller may come behind those of the next one. What is
    late is so by both clocks: behind a restart of the host one of them begins anew.
    """
    waiting: deque[JournalEntry] = deque()
    for entry in entries:
        later = []
        while waiting and waiting[-1].at_ns > entry.at_ns and waiting[-1].wall_ns > entry.wall_ns:
            later.append(waiting.pop())
        waiting.append(entry)
        waiting.extend(reversed(later))
        if len(waiting) > _MOST_LATE:
            yield waiting.popleft()
    yield from waiting


@command
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=PATH)
@click.option("--rank", type=click.IntRange(min=-1), help="Show this rank only (-1: controllers).")
@click.option("--sequence", type=FROM_0, help="Show this command only.")
@click.option("--last", type=FROM_1, metavar="N", help="Show the last N entries only.")
@click.option("--check", is_flag=True, help="Show nothing, say only whether the tables allow it.")
@click.option(
    "--replay", is_flag=True, help="Show nothing; say where the core of this build answers otherwise."
)
def journal(
    files: tuple[Path, ...],
    *,
    rank: int | None,
    sequence: int | None,
    last: int | None,
    check: bool,
    replay: bool,
) -> None:
    """Show the journals in FILE..., and hold every entry against the transition tables.

    A directory stands for the *.ndjson files in it (journal_directory of the configuration holds one per
    rank), and the name of a group of this host for its files, or for the last lines in its segment. Entries
    of several files are merged by their time. All entries are checked, whatever is shown: order, states,
    words and versions. What no rank can have lived is marked with '!' (the first entry of each process and
    epoch), and the exit code is 1 then. A process that ended without saying so is named; it may have been
    killed.

    What each rank and controller has read and taken in is run through the core of this build again. Where
    another build wrote the journal the answer may be another one; with --replay that counts, too.

    Examples
    --------
      wsm journal journals/
          all ranks of a group, in the order of time
      wsm journal policy --last 40
          of a group of this host, whether it keeps files or not
      wsm journal journals/rank1.ndjson --last 40
          how rank 1 ended
      wsm journal journals/ --sequence 17
          one command on all ranks
      wsm journal journals/ --check
          only whether the tables allow it
      wsm journal journals/ --replay
          whether this build would decide the same
    """
    journals = _expanded(files)
    told: Iterable[tuple[JournalEntry, bool]] = (
        (entry, wrong)
        for entry, wrong in _in_order(journals)
        if not (check or replay or entry.kind == kinds.INPUT)
        and rank in (None, entry.rank)
        and sequence in (None, entry.sequence)
    )
    story = Story()
    for entry, wrong in deque(told, maxlen=last) if last else told:
        show_text(story.tell(entry, mark="!" if wrong else " "))
    for line in _conclusion(journals):
        show(line)
    if replay:
        inputs = sum(one.check.inputs for one in journals)
        show(f"{inputs} inputs: {'were asked again' if inputs else 'no journal here holds any'}")
    found = [(one.path, finding) for one in journals for finding in one.findings(replay=replay)]
    if found:
        (file, finding), *others = found
        more = f" ({len(others)} more such entries)" if others else ""
        if finding.of_core:
            problem = "replay it with the build that wrote it, or find what changed the core"
        else:
            problem = "no rank can have lived that: lines are missing or were changed, or wsm has a bug"
        raise CommandEndedError(f"{file}: {finding}{more}; {problem}")


@command
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=PATH)
@click.option("--out", type=FILE, default=Path("trace.json"), help="The file that is written.")
@click.option("--sequence", type=FROM_0, help="Draw this command only.")
def trace(files: tuple[Path, ...], *, out: Path, sequence: int | None) -> None:
    """Draw the journals in FILE... as a trace for Perfetto or chrome://tracing.

    Each rank is a process there, with its states and actions; the controllers are one, with their commands. A
    directory stands for the *.ndjson files in it; of several directories each track names its own.

    Examples
    --------
      wsm trace journals/
          all ranks and controllers of a group, to trace.json
      wsm trace journals/ --sequence 17 --out 17.json
          one command
      wsm trace actor/journals critic/journals
          two groups in one picture
    """
    groups: dict[Path, list[_JournalFile]] = {}
    for one in _expanded(files):
        groups.setdefault(one.path.parent, []).append(one)
    spans = [
        span if len(groups) == 1 else replace(span, track=f"{printable(str(directory))}: {span.track}")
        for directory, journals in groups.items()
        for span in journal_spans(
            entry
            for entry, _ in _in_order(journals)
            if entry.kind != kinds.INPUT and sequence in (None, entry.sequence)
        )
    ]
    with out.open("w", encoding="utf-8") as file:
        file.writelines(trace_text(spans, origin_ns=extent(spans)[0]))
    show(f"{out}: open it in https://ui.perfetto.dev or chrome://tracing")


def _in_order(journals: Sequence[_JournalFile]) -> Iterator[tuple[JournalEntry, bool]]:
    """Yield the entries of several files by their time, one after the other: they may exceed memory."""
    return heapq.merge(*(one.entries() for one in journals), key=lambda told: told[0].wall_ns)


def _expanded(files: Iterable[Path]) -> list[_JournalFile]:
    found: list[_JournalFile] = []
    for path in files:
        if not path.exists():
            if "/" in str(path) or path.suffix == ".ndjson":
                raise _unfit(path, "is not there, and is no name of a group", exit_code=WRONG_USAGE)
            found += _of_group(str(path))
            continue
        # What lies in a directory is looked for, and may be any user's; what is named may be a pipe.
        inside = sorted(filter(Path.is_file, path.glob("*.ndjson"))) if path.is_dir() else [path]
        if not inside:
            fix = "name the journals, or the group, whose segment has its last lines"
            raise _unfit(path, f"holds no *.ndjson file; {fix}", exit_code=WRONG_USAGE)
        found += map(_JournalFile, inside)
    return found


def _lines(path: Path, file: BinaryIO) -> Iterator[str]:
    """Yield the lines of a file that may have no line feed."""
    for number in itertools.count(1):
        line = file.readline(LONGEST_LINE_BYTES + 1)
        if not line:
            return
        if len(line) > LONGEST_LINE_BYTES:
            raise _unfit(
                path, f"line {number} is longer than {LONGEST_LINE_BYTES} bytes, so this is no journal"
            )
        # Bytes that are no text become a line that is no JSON, which gets the error that names it.
        yield line.decode("utf-8", "replace")


def _conclusion(journals: Sequence[_JournalFile]) -> Iterator[str]:
    """Say how much was read and whether it can have been; what is missing; and where each rank is."""
    count = sum(one.check.entries for one in journals)
    clean = not any(one.check.findings or one.lacks for one in journals)
    yield f"{count} entries{', all as the tables allow' if clean else ''}"
    for one in journals:
        yield from (f"another build: {one.path}: {said}" for said in one.check.other_builds)
        yield from (f"wrong: {one.path}: {finding}" for finding in one.check.findings)
        yield from (f"gap: {gap}" for gap in one.check.gaps)
        if one.lacks:
            yield f"gap: {one.path}: {one.lacks}"
        why = "was cut short, by a full disk or a kill"
        yield from (f"gap: {one.path}: line {number} {why}" for number in one.cut_short)
    ends = {rank: end for one in journals for rank, end in one.check.open_ends.items()}
    states = {rank: joint for one in journals for rank, joint in one.check.states.items()}
    for rank in sorted(states.keys() | ends.keys()):
        if rank in states:
            yield f"rank {rank} ends in {states[rank]}"
        if rank in ends:
            yield f"no end: {ends[rank]}"


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
            COLUMNS,
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
    told = ("action", "ready", "weights", "kv", "step")  # the rest is for a replay
    rest = " ".join(f"{name}={facts[name]}" for name in told if name in facts)
    return f"writes {facts['word']} {facts['code']} {rest}".rstrip()


def _admitted(facts: Mapping[str, Any]) -> str:
    version = "" if facts["version"] is None else f", version {facts['version']}"
    return f"takes up plan {facts['plan']}{version}"


_PHRASES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    kinds.STARTED: lambda facts: f"process {facts['pid']} begins",
    kinds.ENDED: lambda facts: _plain("ended", facts) + ": the process leaves the group",
    kinds.COMMAND_ADMITTED: _admitted,
    kinds.COMMAND_SEEN: lambda facts: f"sees {facts['operation']}",
    kinds.TRANSITION: _transition,
    kinds.ACTION_STARTED: lambda facts: f"{facts['name']} begins",
    kinds.ACTION_FINISHED: lambda facts: f"{facts['name']} done in {facts['seconds'] * 1e3:.3f} ms",
    kinds.ACTION_FAILED: lambda facts: f"{facts['name']} FAILED: {_error(facts)}",
    kinds.ACTION_UNDONE: lambda facts: f"{facts['name']} taken back",
    kinds.COMMAND_FAILED: lambda facts: (
        f"finds nothing to do: {facts['message']}"
        if facts["error"] == VERSION_HELD
        else f"FAILED in {facts['action']}: {_error(facts)}"
    ),
    kinds.WAIT_EXPIRED: lambda facts: f"WAITED TOO LONG: {facts['message']}",
    kinds.WORD_WRITTEN: _word,
    kinds.DECISION: lambda facts: f"decides {facts['operation']}",
    kinds.SHORTAGE_MET: lambda facts: f"IS SHORT: {facts['error']}",
    kinds.SERVED_VERSION: lambda facts: (
        f"serves version {facts['version']}{', unverified' if is_unnamed(str(facts['version'])) else ''}"
    ),
    kinds.INTERRUPTED: lambda facts: f"BREAKS its communicators: {facts['message']}",
    kinds.COMMAND_ISSUED: lambda facts: f"asks for {facts['operation']} ({facts['request_id']})",
    kinds.COMMAND_OVER: lambda facts: f"is told: {facts['outcome']}",
    kinds.RANK_REPLACED: lambda facts: f"REPLACES rank {facts['replaced']}, whose process {facts['cause']}",
    kinds.RANK_LOST: lambda facts: f"FINDS the process of rank {facts['lost']} gone",
    kinds.STEP_BROKEN: lambda facts: f"step {facts['step']} RAISED {_error(facts)}",
}
