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
from wsm.cli import errors
from wsm.cli._base import TeachingCommand, show, show_text, wrong_usage
from wsm.cli.errors import JournalFileError
from wsm.command import VERSION_HELD
from wsm.errors import BadInputError
from wsm.labels import is_unnamed
from wsm.printable import printable
from wsm.states import journal as kinds
from wsm.states.journal import CONTROLLER, CONTROLLERS_FILE, JournalEntry, iterate_ndjson
from wsm.states.replay import Replay
from wsm.states.rerun import Rerun
from wsm.states.spans import extent, journal_spans, trace_text

#: The longest line that is read; no journal has a longer one.
_MAX_LINE_BYTES = 1 << 16

#: How many entries of the next controllers may stand before one that is late, at most.
_MOST_LATE = 4096


class _JournalFile:
    """One file, read line by line and held against the tables meanwhile.

    Parameters
    ----------
    path : Path
        Where it is.

    Attributes
    ----------
    cut_short : list of int
        Numbers of the lines that are torn, in a file that several processes append to.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.check = Replay()
        self.rerun = Rerun(wsm.__version__)
        self.cut_short: list[int] = []

    def entries(self) -> Iterator[tuple[JournalEntry, bool]]:
        """Yield each entry, and whether it is one that no participant can have written."""
        of_several = self.path.name == CONTROLLERS_FILE
        cut_short = self.cut_short.append if of_several else None
        try:
            with self.path.open("rb") as file:
                found = iterate_ndjson(_lines(self.path, file), cut_short)
                for entry in _as_they_happened(found) if of_several else found:
                    self.rerun.take(entry)
                    yield entry, self.check.take(entry) is not None
        except JournalFileError:
            raise
        except BadInputError as error:
            raise JournalFileError(file=str(self.path), problem=str(error)) from error


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


@click.command(
    cls=TeachingCommand,
    examples=(
        ("wsm journal journals/", "all ranks of a group, in the order of time"),
        ("wsm journal journals/rank1.ndjson --last 40", "how rank 1 ended"),
        ("wsm journal journals/ --sequence 17", "one command on all ranks"),
        ("wsm journal journals/ --check", "only whether the tables allow it"),
        ("wsm journal journals/ --trace out.json", "what took how long, as a picture"),
        ("wsm journal journals/ --replay", "whether this build would decide the same"),
    ),
)
@click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path)
)
@click.option("--rank", type=click.IntRange(min=-1), help="Show this rank only (-1: controllers).")
@click.option("--sequence", type=click.IntRange(min=0), help="Show this command only.")
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="Show the last N entries only.")
@click.option("--check", is_flag=True, help="Show nothing, say only whether the tables allow it.")
@click.option(
    "--replay", is_flag=True, help="Show nothing; ask the core again, and say where it answers otherwise."
)
@click.option(
    "--trace",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="OUT",
    help="Show nothing; write states, actions and commands to OUT, for Perfetto or chrome://tracing.",
)
def journal(
    files: tuple[Path, ...],
    *,
    rank: int | None,
    sequence: int | None,
    last: int | None,
    check: bool,
    replay: bool,
    trace: Path | None,
) -> None:
    """Show the journals in FILE..., and hold every entry against the transition tables.

    A directory stands for the *.ndjson files in it (journal_directory of the configuration holds one per
    rank). Entries of several files are merged by their time. All entries are checked, whatever is shown:
    order, states, words and versions. What no rank can have lived is marked with '!' (the first entry of each
    process and epoch), and the exit code is 1 then. A process that ended without saying so is named; it may
    have been killed.

    With --replay what each rank and controller has read and taken in is run through the core of this build
    again, each by itself; where the first answer of one is another than it was, the exit code is 1, too.
    """
    journals = [_JournalFile(path) for path in _expanded(files)]
    told: Iterable[tuple[JournalEntry, bool]] = (
        (entry, wrong)
        for entry, wrong in _in_order(journals)
        if not (check or replay or entry.kind == kinds.INPUT)
        and rank in (None, entry.rank)
        and sequence in (None, entry.sequence)
    )
    if trace is not None:
        _write_trace(trace, (entry for entry, _ in told))
    story = Story()
    for entry, wrong in deque(told, maxlen=last) if last else told:
        show_text(story.tell(entry, mark="!" if wrong else " "))
    for line in _conclusion(journals):
        show(line)
    if replay:
        _compare(journals)
    found = [(str(one.path), str(finding)) for one in journals for finding in one.check.findings]
    if found:
        raise errors.impossible_history(file=found[0][0], entry=found[0][1], more=len(found) - 1)


@click.command(
    cls=TeachingCommand,
    examples=(
        ("wsm trace journals/", "all ranks and controllers of a group, to trace.json"),
        ("wsm trace journals/ --sequence 17 --out 17.json", "one command"),
        ("wsm trace actor/journals critic/journals", "two groups in one picture"),
    ),
)
@click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path)
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("trace.json"),
    show_default=True,
    help="The file that is written.",
)
@click.option("--sequence", type=click.IntRange(min=0), help="Draw this command only.")
def trace(files: tuple[Path, ...], *, out: Path, sequence: int | None) -> None:
    """Draw the journals in FILE... as a trace for Perfetto or chrome://tracing.

    Each rank is a process there, with its states and actions; the controllers are one, with their commands. A
    directory stands for the *.ndjson files in it; of several directories each track names its own.
    """
    groups: dict[Path, list[_JournalFile]] = {}
    for path in _expanded(files):
        groups.setdefault(path.parent, []).append(_JournalFile(path))
    told = {
        directory: (
            entry
            for entry, _ in _in_order(journals)
            if entry.kind != kinds.INPUT and sequence in (None, entry.sequence)
        )
        for directory, journals in groups.items()
    }
    if len(told) == 1:
        _write_trace(out, *told.values())
        return
    spans = [
        replace(span, track=f"{printable(str(directory))}: {span.track}")
        for directory, entries in told.items()
        for span in journal_spans(entries)
    ]
    with out.open("w", encoding="utf-8") as file:
        file.writelines(trace_text(spans, origin_ns=extent(spans)[0]))
    show(f"{out}: {_WHERE_TO_LOOK}")


_WHERE_TO_LOOK = "open it in https://ui.perfetto.dev or chrome://tracing"


def _in_order(journals: Sequence[_JournalFile]) -> Iterator[tuple[JournalEntry, bool]]:
    """Yield the entries of several files by their time, one after the other: they may exceed memory."""
    return heapq.merge(*(one.entries() for one in journals), key=lambda told: told[0].wall_ns)


def _write_trace(path: Path, entries: Iterator[JournalEntry]) -> None:
    first = next(entries, None)
    everything = entries if first is None else itertools.chain([first], entries)
    with path.open("w", encoding="utf-8") as file:
        file.writelines(trace_text(journal_spans(everything), origin_ns=0 if first is None else first.at_ns))
    show(f"{path}: {_WHERE_TO_LOOK}")


def _compare(journals: Sequence[_JournalFile]) -> None:
    """Say what came of asking the core again, other builds first."""
    for title, found in (("another build", "other_builds"), ("gap", "gaps"), ("differs", "differences")):
        for one in journals:
            for said in getattr(one.rerun, found):
                show(f"{title}: {one.path}: {said}")
    inputs = sum(one.rerun.inputs for one in journals)
    differences = [(one.path, said) for one in journals for said in one.rerun.differences]
    if differences:
        path, first = differences[0]
        raise errors.replay_differs(file=str(path), entry=str(first), more=len(differences) - 1)
    alike = "the core answers each of them as it did" if inputs else "no journal here holds any"
    show(f"{inputs} inputs: {alike}")


def _expanded(files: Iterable[Path]) -> list[Path]:
    found: list[Path] = []
    for path in files:
        # What lies in a directory is looked for, and may be any user's; what is named may be a pipe.
        inside = sorted(filter(Path.is_file, path.glob("*.ndjson"))) if path.is_dir() else [path]
        if not inside:
            with wrong_usage():
                raise JournalFileError(file=str(path), problem="holds no *.ndjson file; name the journals")
        found += inside
    return found


def _lines(path: Path, file: BinaryIO) -> Iterator[str]:
    """Yield the lines of a file that may have no line feed."""
    for number in itertools.count(1):
        line = file.readline(_MAX_LINE_BYTES + 1)
        if not line:
            return
        if len(line) > _MAX_LINE_BYTES:
            problem = f"line {number} is longer than {_MAX_LINE_BYTES} bytes, so this is no journal"
            raise JournalFileError(file=str(path), problem=problem)
        # Bytes that are no text become a line that is no JSON, which gets the error that names it.
        yield line.decode("utf-8", "replace")


def _conclusion(journals: Sequence[_JournalFile]) -> Iterator[str]:
    """Say how much was read and whether it can have been; what is missing; and where each rank is."""
    count = sum(one.check.entries for one in journals)
    clean = not any(one.check.findings for one in journals)
    yield f"{count} entries{', all as the tables allow' if clean else ''}"
    for one in journals:
        yield from (f"wrong: {one.path}: {finding}" for finding in one.check.findings)
        yield from (f"gap: {gap}" for gap in one.check.gaps)
        why = "was cut short, by a full disk or a kill"
        yield from (f"gap: {one.path}: line {number} {why}" for number in one.cut_short)
    ends = {rank: end for one in journals for rank, end in one.check.open_ends.items()}
    states = {rank: joint for one in journals for rank, joint in one.check.states.items()}
    for rank in sorted(states.keys() | ends.keys()):
        if rank in states:
            yield f"rank {rank} ends in {states[rank]}"
        if rank in ends:
            yield f"no end: {ends[rank]}"


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
    kinds.RANK_LOST: lambda facts: f"FINDS the process of rank {facts['lost']} gone",
    kinds.STEP_BROKEN: lambda facts: f"step {facts['step']} RAISED {_error(facts)}",
}
