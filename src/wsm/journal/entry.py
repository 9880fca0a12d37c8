"""The journal of a participant: kinds of entries, the facts of each, its line of JSON, and where lines stand.

An entry is flat, so that a journal can be read with any tool at night, after its process died. The writer
gives the times. This module knows no tables; :mod:`.replay` asks them.

All lines stand in a file, the last ones in a ring of the group's segment. A file is appended to, all lines of
one look in one write of the kernel, so they survive their process. A full disk or a kill may cut its last
line short; the next writer begins a new one behind it.

A ring is a bounded record of lines: the last ones stay, whatever becomes of their writer. One process writes
at a time, any process reads at any time, and none takes a lock. The ring says how many bytes were ever
written; it says so after they are there. A reader that is overtaken, or that finds what a killed writer left
half done, gets broken lines at the oldest end, which it cannot mistake for entries: it parses what it reads.

===================  =====================================================================================
kind                 facts
===================  =====================================================================================
``started``          ``pid``: a process begins here; it holds nothing, and numbers may begin anew; ``version``
                     of wsm and the digest of its ``tables``
``ended``            none: the process leaves its group; the last entry of one that was not killed
``command_seen``     ``operation``
``command_admitted`` ``plan``, ``version``: it is legal here, and which version it means, or null
``transition``       ``machine``, ``source``, ``event``, ``dest``, ``guard``, ``cause``, ``kv_kept`` if False
``action_started``   ``name``
``action_finished``  ``name``, ``seconds``; ``version`` if it has loaded one
``action_failed``    ``name``, ``error``, ``message``
``action_undone``    ``name``
``command_failed``   ``action``, ``error``, ``message``
``wait_expired``     ``message``
``word_written``     ``word``, ``code``; of a status word also ``action``, ``ready``, and the states that it
                     claims, ``weights`` and ``kv``; ``step`` where the rank has stored its step word, too;
                     and the input that led to it, as of ``input``
``input``            what the core was asked and what it answered, without a word, see :mod:`.inputs`
``shortage_met``     ``error``: it cut short what the rank did, and perhaps what it wrote here
``decision``         ``operation``: what a controller decided
``served_version``   ``version``: from here on steps run with it
``step_broken``      ``step``, ``error``, ``message``
``interrupted``      ``message``: why communicators were broken under a collective that could not end
``command_issued``   ``operation``, ``request_id``: a controller wrote a command; ``traceparent`` of the trace
                     that its request belongs to, if it does
``command_over``     ``outcome``: how it ended, in words; ``ended``: as receipts say it, ``refused`` or
                     ``failed``; of an error its code, ``error``; of a receipt ``pause_s``, the ``bytes`` that
                     were loaded, and ``staging_s`` where it was hot
``rank_lost``        ``lost``: a controller saw that the process of that rank is gone
``rank_replaced``    ``replaced``, ``pid``, ``cause``: a keeper replaces that rank in this epoch, and why
===================  =====================================================================================
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from wsm.errors import BadInputError
from wsm.shared_directory import open_to_append
from wsm.typed import resolved

if TYPE_CHECKING:  # the library behind it is needed where machines run, not where journals are read
    from wsm.states.machine import TransitionRecord

STARTED: Final = "started"
ENDED: Final = "ended"
COMMAND_SEEN: Final = "command_seen"
COMMAND_ADMITTED: Final = "command_admitted"
TRANSITION: Final = "transition"
ACTION_STARTED: Final = "action_started"
ACTION_FINISHED: Final = "action_finished"
ACTION_FAILED: Final = "action_failed"
ACTION_UNDONE: Final = "action_undone"
COMMAND_FAILED: Final = "command_failed"
WAIT_EXPIRED: Final = "wait_expired"
WORD_WRITTEN: Final = "word_written"
DECISION: Final = "decision"
SERVED_VERSION: Final = "served_version"
INPUT: Final = "input"
SHORTAGE_MET: Final = "shortage_met"
STEP_BROKEN: Final = "step_broken"
INTERRUPTED: Final = "interrupted"
COMMAND_ISSUED: Final = "command_issued"
COMMAND_OVER: Final = "command_over"
RANK_LOST: Final = "rank_lost"
RANK_REPLACED: Final = "rank_replaced"

#: All that stand above.
KINDS: Final = frozenset(kind for name, kind in vars().items() if name.isupper() and isinstance(kind, str))

#: Version of the lines; grows when a field changes its meaning, one of the words of an input among them
#: (:data:`wsm.states.words.WORDS_VERSION`).
SCHEMA: Final = 2

#: `rank` of entries that a controller writes.
CONTROLLER: Final = -1

#: Name of the file that all controllers of a group append to.
CONTROLLERS_FILE: Final = "controller.ndjson"


class JournalFormatError(BadInputError):
    """A line of an exported journal is not what this build writes."""


class JournalEntry(msgspec.Struct, frozen=True, tag_field="schema", tag=SCHEMA, forbid_unknown_fields=True):
    """One thing that happened.

    `kind`: one of :data:`KINDS`. `at_ns`: monotonic clock of the host, ns; the same for all processes of one
    boot. `wall_ns`: time since the Unix epoch, ns. `rank`: who; -1 is a controller. `epoch`, `sequence`: the
    command that it belongs to; sequence 0: none.
    """

    kind: str
    at_ns: int
    wall_ns: int
    rank: int
    epoch: int
    sequence: int
    facts: Mapping[str, Any] = msgspec.field(default_factory=dict)

    def to_line(self) -> str:
        """Return one line of JSON, without its line feed; facts that JSON does not know become text."""
        try:
            return _ENCODE(self).decode()
        except UnicodeEncodeError:  # an error quotes the name of a file that is no text
            plain = msgspec.to_builtins(self, enc_hook=str, str_keys=True)
            line = json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
            return line.encode(errors="replace").decode()


_ENCODE = msgspec.json.Encoder(enc_hook=str).encode
#: How each line begins, so that a part of one is known from what is no journal.
_BEGINNING = '{"schema":'

_DECODE = msgspec.json.Decoder(resolved(JournalEntry)).decode


def transition_entry(record: TransitionRecord, *, rank: int, wall_ns: int) -> JournalEntry:
    """Return the entry of a transition, at the time that the record carries."""
    told = ("machine", "source", "event", "dest", "guard", "cause")
    facts: dict[str, Any] = {name: getattr(record, name) for name in told}
    if not record.kv_kept:
        facts["kv_kept"] = False
    return JournalEntry(TRANSITION, record.at_ns, wall_ns, rank, record.epoch, record.sequence, facts)


def read_ndjson(lines: Iterable[str]) -> list[JournalEntry]:
    """Read entries back, as :func:`iterate_ndjson`, all at once."""
    return list(iterate_ndjson(lines))


def iterate_ndjson(
    lines: Iterable[str], cut_short: Callable[[int], object] | None = None
) -> Iterator[JournalEntry]:
    """Yield entries, for example of an open file; journals of several ranks may be concatenated.

    `lines`: one entry each; empty lines are skipped. `cut_short`: gets the number of each line that a full
    disk or a kill has torn; it is skipped.

    Raises
    ------
    JournalFormatError
        If any other line is no entry of this schema.
    """
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = _DECODE(line)
            problem = None if entry.kind in KINDS else f"unknown kind {entry.kind!r}"
            if not line.startswith(_BEGINNING):
                problem = f"schema None, this build reads {SCHEMA}"
        except (msgspec.DecodeError, RecursionError) as error:
            problem = _problem(line, error)
        if problem is None:
            yield entry
        elif problem:
            raise JournalFormatError(
                f"line {number} of the journal is unusable: {problem}; "
                "read it with the version of wsm that wrote it, or cut the file before that line",
                line=number,
                problem=problem,
            )
        elif cut_short is not None:
            cut_short(number)


def _problem(line: str, error: Exception) -> str:
    """Say why a line is no entry; nothing of one that is torn."""
    try:
        content = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError) as no_json:
        torn = line.startswith(_BEGINNING) or _BEGINNING.startswith(line.rstrip())
        return "" if torn else f"not JSON ({no_json})"
    if not isinstance(content, dict):
        return "not an object"
    schema = content.get("schema")
    return str(error) if schema == SCHEMA else f"schema {schema!r}, this build reads {SCHEMA}"


class Journal:
    """The last entries of one participant, in memory."""

    def __init__(self) -> None:
        self._entries: deque[JournalEntry] = deque(maxlen=4096)

    def append(self, entry: JournalEntry) -> None:
        """Take an entry in; the oldest leaves where there is no room."""
        self._entries.append(entry)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[JournalEntry]:
        """Iterate over the kept entries as they are now, oldest first."""
        return iter(tuple(self._entries))


#: No line of a file is longer, in bytes: it holds all words of the largest group, and what else was known.
LONGEST_LINE_BYTES = 256 * 1024

#: Bytes of a segment for one ring.
RING_BYTES = 64 * 1024


class Memory(Protocol):
    """Bytes of a segment: a mapped file, or a copy of one that is only read."""

    @property
    def bytes(self) -> memoryview[int]:
        """All of it, element format ``B``."""
        ...


_WRITTEN_HEAD = struct.Struct("<Q")

#: Bytes of lines that a ring holds.
RING_CAPACITY = RING_BYTES - _WRITTEN_HEAD.size

#: Longest line of a ring; a longer one is left out rather than allowed to push all the others out.
MAX_LINE_BYTES = RING_CAPACITY // 8


class LineRing:
    """One ring of a segment, which begins at `offset`."""

    def __init__(self, memory: Memory, offset: int) -> None:
        self._memory = memory
        self._offset = offset
        self._begin = offset + _WRITTEN_HEAD.size

    def append(self, *lines: str) -> bool:
        """Write lines, each without its line feed; return whether they were short enough to be written."""
        data = "\n".join([*lines, ""]).encode("utf-8", "backslashreplace")
        if len(data) > MAX_LINE_BYTES:
            if len(lines) > 1:
                were_short = [self.append(line) for line in lines]
                return all(were_short)
            return False
        written, memory = self._written(), self._memory.bytes
        place = written % RING_CAPACITY
        first = data[: RING_CAPACITY - place]
        memory[self._begin + place : self._begin + place + len(first)] = first
        rest = data[len(first) :]
        memory[self._begin : self._begin + len(rest)] = rest
        memory[self._offset : self._begin] = _WRITTEN_HEAD.pack(written + len(data))
        return True

    def lines(self) -> list[str]:
        """Return the lines that are there, oldest first; the oldest may be the end of one."""
        return self._kept(self._written()).decode("utf-8", "replace").splitlines()

    def entries(self) -> list[JournalEntry]:
        """Return the entries that are there, oldest first; broken lines are left out."""
        entries = []
        for line in self.lines():
            with contextlib.suppress(JournalFormatError):
                entries += read_ndjson([line])
        return entries

    def lines_since(self, seen: int) -> tuple[list[str], int, bool]:
        """Return what was written since a reader looked last.

        `seen`: bytes that had ever been written then; 0: it never looked.

        Returns
        -------
        lines : list of str
            Oldest first; the oldest may be the end of one if some are lost.
        written : int
            Bytes that have ever been written, for the next look.
        lost : bool
            Whether lines are gone that this reader has not seen.
        """
        written = self._written()
        new = written - seen if 0 <= seen <= written else written  # less than before: another segment's
        kept = self._kept(written)
        found = kept[len(kept) - new :] if new <= len(kept) else kept
        return found.decode("utf-8", "replace").splitlines(), written, new > len(kept)

    def _kept(self, written: int) -> bytes:
        content = bytes(self._memory.bytes[self._begin : self._begin + RING_CAPACITY])
        place = written % RING_CAPACITY
        kept = content[place:] + content[:place] if written >= RING_CAPACITY else content[:place]
        # What was written while we copied lies at the oldest end.
        overtaken = max(self._written() - RING_CAPACITY, 0) - max(written - RING_CAPACITY, 0)
        return kept[overtaken:]

    def _written(self) -> int:
        (written,) = _WRITTEN_HEAD.unpack(self._memory.bytes[self._offset : self._begin])
        return int(written)


class LineFile:
    """One file of lines; its directory is made."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def open(self) -> None:
        """Open the file, and end a line that its last writer left torn; nothing if it is open.

        Raises
        ------
        wsm.shared_directory.ForeignPathError
            If every user can make names there, and what is there is no regular file of ours.
        OSError
            If the operating system refuses.
        """
        if self._descriptor is not None:
            return
        try:
            self._descriptor = open_to_append(self.path)
        except FileNotFoundError:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = open_to_append(self.path)
        size = os.fstat(self._descriptor).st_size
        if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
            self._write(b"\n")

    def append(self, lines: Iterable[str]) -> None:
        """Write lines, each without its line feed, in one write; raises as :meth:`open`, closed then."""
        try:
            self.open()
            self._write("\n".join([*lines, ""]).encode())
        except BaseException:
            self.close()
            raise

    def _write(self, data: bytes) -> None:
        if self._descriptor is None or os.write(self._descriptor, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def close(self) -> None:
        """Close the file; the next lines open it again."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
