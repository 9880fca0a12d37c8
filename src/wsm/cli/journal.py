"""``wsm journal``: what ranks did, in the order of time, held against the tables."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import click

from wsm.cli.errors import ImpossibleHistoryError, JournalFileError
from wsm.cli.failures import wrong_usage
from wsm.cli.journal_text import Story
from wsm.cli.printing import show, show_text
from wsm.cli.teaching_command import TeachingCommand
from wsm.errors import BadInputError
from wsm.states.entry import JournalEntry, read_ndjson
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
