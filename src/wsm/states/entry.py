"""One entry of a journal: what kinds there are, which facts each carries, and its line of JSON.

An entry is flat, so that a journal can be read with any tool at night, after its process died. Whoever
writes it gives the times. This module knows no tables; :mod:`.replay` holds entries against them.

===================  =====================================================================================
kind                 facts
===================  =====================================================================================
``started``          ``pid``: a process begins here; it holds nothing, and numbers may begin anew
``command_seen``     ``operation``
``transition``       ``machine``, ``source``, ``event``, ``dest``, ``guard``, ``cause``, ``kv_kept`` if False
``action_started``   ``name``
``action_finished``  ``name``, ``seconds``
``action_failed``    ``name``, ``error``, ``message``
``action_undone``    ``name``
``command_failed``   ``action``, ``error``, ``message``
``wait_expired``     ``message``
``word_written``     ``word``, ``code`` ...; ``weights`` and ``kv``, if given, are states that the word claims
``decision``         ``operation``: what a controller decided
``served_version``   ``version``: from here on steps run with it
``step_broken``      ``step``, ``error``, ``message``
``interrupted``      ``message``: why communicators were broken under a collective that could not end
``command_issued``   ``operation``, ``request_id``: a controller wrote a command
``command_over``     ``outcome``: how it ended, in words
``rank_lost``        ``lost``: a controller saw that the process of that rank is gone
===================  =====================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from wsm.states.errors import JournalFormatError
from wsm.states.record import TransitionRecord

STARTED: Final = "started"
COMMAND_SEEN: Final = "command_seen"
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
STEP_BROKEN: Final = "step_broken"
INTERRUPTED: Final = "interrupted"
COMMAND_ISSUED: Final = "command_issued"
COMMAND_OVER: Final = "command_over"
RANK_LOST: Final = "rank_lost"

KINDS: Final = frozenset(
    {
        STARTED,
        COMMAND_SEEN,
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

_NO_FACTS: Final[Mapping[str, Any]] = MappingProxyType({})
_NUMBERS: Final = ("at_ns", "wall_ns", "rank", "epoch", "sequence")
_FIELDS: Final = frozenset({"schema", "kind", "facts", *_NUMBERS})


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
        content = {"schema": SCHEMA, **self._asdict(), "facts": dict(self.facts)}
        return json.dumps(content, default=str, separators=(",", ":"))


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
    """Read entries back, for example from an open file; journals of several ranks may be concatenated.

    Parameters
    ----------
    lines : iterable of str
        One entry each; empty lines are skipped. A last line without its line feed is what a killed
        process left behind: it is skipped if it cannot be read.

    Raises
    ------
    JournalFormatError
        If any other line is no entry of this schema.
    """
    entries: list[JournalEntry] = []
    torn: JournalFormatError | None = None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        if torn is not None:  # it was not the last line after all
            raise torn
        try:
            entries.append(_read_line(number, line))
        except JournalFormatError as error:
            if line.endswith("\n"):
                raise
            torn = error
    return entries


def _read_line(number: int, line: str) -> JournalEntry:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise JournalFormatError(line=number, problem=f"not JSON ({error})") from error
    problem = _problem(content)
    if problem is not None:
        raise JournalFormatError(line=number, problem=problem)
    del content["schema"]
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
