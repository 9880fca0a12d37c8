"""The journal of a participant: kinds of entries, the facts of each, its line of JSON, and the last ones.

An entry is flat, so that a journal can be read with any tool at night, after its process died. The writer
gives the times. This module knows no tables; :mod:`.replay` holds entries against them.

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
                     claims, ``weights`` and ``kv``; ``step`` where the rank has stored its step word, too
``input``            in files alone: what the core was asked and what it answered, see :mod:`.rerun`
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
===================  =====================================================================================
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from wsm.states.errors import JournalCapacityError, JournalFormatError

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

KINDS: Final = frozenset(
    {
        STARTED,
        ENDED,
        COMMAND_SEEN,
        COMMAND_ADMITTED,
        TRANSITION,
        ACTION_STARTED,
        ACTION_FINISHED,
        ACTION_FAILED,
        ACTION_UNDONE,
        COMMAND_FAILED,
        WAIT_EXPIRED,
        WORD_WRITTEN,
        DECISION,
        SERVED_VERSION,
        INPUT,
        SHORTAGE_MET,
        STEP_BROKEN,
        INTERRUPTED,
        COMMAND_ISSUED,
        COMMAND_OVER,
        RANK_LOST,
    }
)

#: Version of the lines; grows when a field changes its meaning.
SCHEMA: Final = 1

#: `rank` of entries that a controller writes.
CONTROLLER: Final = -1

#: Name of the file that all controllers of a group append to.
CONTROLLERS_FILE: Final = "controller.ndjson"

_NO_FACTS: Final[Mapping[str, Any]] = MappingProxyType({})
_NUMBERS: Final = ("at_ns", "wall_ns", "rank", "epoch", "sequence")
_FIELDS: Final = frozenset({"schema", "kind", "facts", *_NUMBERS})


class TransitionRecord(NamedTuple):
    """One transition that happened.

    Parameters
    ----------
    machine : str
        ``weights`` or ``kv``: a value of :class:`wsm.states.table.MachineName`.
    source, dest : str
        Names of states; the same where the event was taken in without a change.
    event : str
        Value of the event.
    guard : str or None
        Value of the guard that let it through.
    at_ns : int
        Monotonic clock of the host, as the caller read it.
    epoch, sequence : int
        The command that it belongs to.
    cause : str
        Why, for people.
    kv_kept : bool
        Whether the KV policy keeps the old weights' blocks; tells something for ``update`` of weights only.
    """

    machine: str
    source: str
    event: str
    dest: str
    guard: str | None
    at_ns: int
    epoch: int
    sequence: int
    cause: str
    kv_kept: bool = True


_ENCODE = json.JSONEncoder(default=str, separators=(",", ":")).encode  # made once: a command has sixty lines


class JournalEntry(NamedTuple):
    """One thing that happened.

    Parameters
    ----------
    kind : str
        One of :data:`KINDS`.
    at_ns : int
        Monotonic clock of the host, ns; the same for all processes of one boot.
    wall_ns : int
        Time since the Unix epoch, ns.
    rank : int
        Who; -1 is a controller.
    epoch, sequence : int
        The command that it belongs to; sequence 0: none.
    facts : mapping of str to JSON values
        What else is to be said, by kind.
    """

    kind: str
    at_ns: int
    wall_ns: int
    rank: int
    epoch: int
    sequence: int
    facts: Mapping[str, Any] = _NO_FACTS

    def to_line(self) -> str:
        """Return one line of JSON, without its line feed; facts that JSON does not know become text."""
        kind, at_ns, wall_ns, rank, epoch, sequence, facts = self
        return (
            f'{{"schema":{SCHEMA},"kind":"{kind}","at_ns":{at_ns},"wall_ns":{wall_ns},'
            f'"rank":{rank},"epoch":{epoch},"sequence":{sequence},"facts":{_ENCODE(dict(facts))}}}'
        )


def transition_entry(record: TransitionRecord, *, rank: int, wall_ns: int) -> JournalEntry:
    """Return the entry of a transition, at the time that the record carries."""
    facts: dict[str, Any] = {
        "machine": record.machine,
        "source": record.source,
        "event": record.event,
        "dest": record.dest,
        "guard": record.guard,
        "cause": record.cause,
    }
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

    Parameters
    ----------
    lines : iterable of str
        One entry each; empty lines are skipped. A last line without its line feed is what a killed
        process left behind: it is skipped if it cannot be read.
    cut_short : callable or None
        For a file of several writers, which a full disk or a kill can leave a torn line in the middle of:
        gets the number of each line that is no JSON, and the line is skipped. None: it is an error.

    Raises
    ------
    JournalFormatError
        If any other line is no entry of this schema.
    """
    torn: JournalFormatError | None = None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        if torn is not None:  # it was not the last line after all
            raise torn
        try:
            content = _json(number, line)
        except JournalFormatError as error:
            if not line.endswith("\n"):
                torn = error
            elif cut_short is None:
                raise
            else:
                cut_short(number)
            continue
        try:
            yield _entry(number, content)
        except JournalFormatError as error:
            if line.endswith("\n"):
                raise
            torn = error


def _json(number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise JournalFormatError(line=number, problem=f"not JSON ({error})") from error


def _entry(number: int, content: Any) -> JournalEntry:
    problem = _problem(content)
    if problem is not None:
        raise JournalFormatError(line=number, problem=problem)
    del content["schema"]
    version = content["facts"].get("version")
    if type(version) is int:  # before versions were labels
        content["facts"]["version"] = str(version)
    return JournalEntry(**content)


def _problem(content: Any) -> str | None:
    if not isinstance(content, dict):
        return "not an object"
    if content.get("schema") != SCHEMA:
        return f"schema {content.get('schema')!r}, this build reads {SCHEMA}"
    if content.keys() != _FIELDS:
        return f"fields {sorted(content.keys() ^ _FIELDS)} are missing or unknown"
    wrong = [name for name in _NUMBERS if type(content[name]) is not int]
    if wrong:
        return f"{wrong[0]} is {content[wrong[0]]!r}, not an integer"
    if not isinstance(content["kind"], str) or content["kind"] not in KINDS:
        return f"unknown kind {content['kind']!r}"
    return None if isinstance(content["facts"], dict) else "facts are not an object"


class Journal:
    """The last entries of one participant, in memory.

    Parameters
    ----------
    capacity : int
        How many entries are kept; the oldest ones leave.

    Attributes
    ----------
    appended : int
        Entries that were ever taken in.

    Raises
    ------
    JournalCapacityError
        If `capacity` is less than 1.
    """

    def __init__(self, capacity: int = 4096) -> None:
        if capacity < 1:
            raise JournalCapacityError(capacity=capacity)
        self._entries: deque[JournalEntry] = deque(maxlen=capacity)
        self.appended = 0

    @property
    def dropped(self) -> int:
        """Entries that had to leave; what is left begins in the middle of things if there are any."""
        return self.appended - len(self._entries)

    def append(self, entry: JournalEntry) -> None:
        """Take an entry in."""
        self._entries.append(entry)
        self.appended += 1

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[JournalEntry]:
        """Iterate over the kept entries as they are now, oldest first."""
        return iter(tuple(self._entries))
