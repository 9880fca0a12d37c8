"""Spans of time on named tracks, as journals tell them, and the Chrome trace of them.

A track is a process (``rank 0``, ``controller``, ``trainer``), a lane is one aspect of it (``weights``,
``actions``), and a span is what that aspect was between two readings of the monotonic clock. A trace is
opened in Perfetto or ``chrome://tracing``: one process per track, one thread per lane, one complete slice
(``"ph": "X"``) per span. Pure, and one entry at a time, so that a journal may be larger than memory.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from wsm.journal import entry as kinds
from wsm.journal.entry import CONTROLLER, JournalEntry
from wsm.states.vocabulary import Admission, KVState, WeightState

_LANES: Final = {"weights": "weights", "kv": "kv_cache", "admission": "admission"}
_ENDS: Final = (kinds.ACTION_FINISHED, kinds.ACTION_FAILED)


@dataclass(frozen=True)
class TimelineSpan:
    """Something that lasted.

    `track`, `lane`: where it is drawn. `name`: what it was: a state, an action, a command. `start_ns`,
    `end_ns`: monotonic clock of the host, the same for all processes. `facts`: what else is known about it,
    as plain values.
    """

    track: str
    lane: str
    name: str
    start_ns: int
    end_ns: int
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def duration_ns(self) -> int:
        """Length in ns."""
        return self.end_ns - self.start_ns


def extent(spans: Sequence[TimelineSpan]) -> tuple[int, int]:
    """Return the first start and the last end; (0, 1) where there is nothing."""
    if not spans:
        return 0, 1
    return min(span.start_ns for span in spans), max(span.end_ns for span in spans)


@dataclass
class _RankSoFar:
    """Where a rank is, and since when."""

    states: dict[str, tuple[str, int]] = field(default_factory=dict)
    action: JournalEntry | None = None


def journal_spans(entries: Iterable[JournalEntry], *, end_ns: int | None = None) -> Iterator[TimelineSpan]:
    """Yield the spans of every rank and controller, each when it ends.

    `entries`: of one or several participants, each one's in its own order, from its start on. `end_ns`: where
    states end that nothing followed; None: with the last entry.

    Yields
    ------
    TimelineSpan
        Lanes ``weights`` and ``kv_cache`` (states, without gaps), ``admission`` (while HELD) and ``actions``,
        per track ``rank N``;
        ``commands`` of the track ``controller``.
    """
    ranks: dict[int, _RankSoFar] = {}
    issued: JournalEntry | None = None
    last_ns = 0
    for entry in entries:
        last_ns = max(last_ns, entry.at_ns)
        if entry.rank != CONTROLLER:
            yield from _of_rank(ranks.setdefault(entry.rank, _RankSoFar()), entry)
        elif entry.kind == kinds.COMMAND_ISSUED:
            issued = entry
        elif entry.kind == kinds.COMMAND_OVER and issued is not None and issued.sequence == entry.sequence:
            yield _command(issued, entry)
    until = last_ns if end_ns is None else end_ns
    for rank, so_far in ranks.items():
        for machine, (state, since) in so_far.states.items():
            if state != Admission.OPEN.name:  # as it is but for a hold
                yield TimelineSpan(f"rank {rank}", _LANES[machine], state, since, max(until, since))


def _of_rank(so_far: _RankSoFar, entry: JournalEntry) -> Iterator[TimelineSpan]:
    if entry.kind == kinds.STARTED:
        so_far.states = {
            "weights": (WeightState.CLEARED.name, entry.at_ns),
            "kv": (KVState.CLEARED.name, entry.at_ns),
        }
    elif entry.kind == kinds.TRANSITION:
        yield from _state_left(so_far, entry)
    elif entry.kind == kinds.ACTION_STARTED:
        so_far.action = entry
    elif entry.kind in _ENDS and so_far.action is not None:
        yield _action(so_far.action, entry)
        so_far.action = None


def _command(issued: JournalEntry, over: JournalEntry) -> TimelineSpan:
    facts = {**issued.facts, "outcome": over.facts.get("outcome")}
    name = str(issued.facts.get("operation", "command")).lower()
    return TimelineSpan("controller", "commands", name, issued.at_ns, max(over.at_ns, issued.at_ns), facts)


def _state_left(so_far: _RankSoFar, entry: JournalEntry) -> list[TimelineSpan]:
    machine, dest = str(entry.facts.get("machine")), str(entry.facts.get("dest"))
    if machine not in _LANES:
        return []  # a line that was changed; the check of the journal names it
    before = so_far.states.get(machine)
    if before is not None and before[0] == dest:
        return []
    so_far.states[machine] = (dest, entry.at_ns)
    if before is None or before[0] == Admission.OPEN.name:
        return []
    facts = {"left_by": entry.facts.get("event"), "epoch": entry.epoch, "sequence": entry.sequence}
    return [TimelineSpan(f"rank {entry.rank}", _LANES[machine], before[0], before[1], entry.at_ns, facts)]


def _action(started: JournalEntry, ended: JournalEntry) -> TimelineSpan:
    facts: dict[str, Any] = {"epoch": started.epoch, "sequence": started.sequence}
    if ended.kind == kinds.ACTION_FAILED:
        facts["error"] = ended.facts.get("message")
    return TimelineSpan(
        f"rank {started.rank}", "actions", str(started.facts.get("name")), started.at_ns, ended.at_ns, facts
    )


def trace_text(spans: Iterable[TimelineSpan], *, origin_ns: int) -> Iterator[str]:
    """Yield the text of the trace piece by piece.

    `spans`: spans of one lane follow each other or lie within each other, as the format asks. `origin_ns`:
    where its time begins, by the clock of the spans.
    """
    yield '{"displayTimeUnit": "ms", "traceEvents": ['
    separator = ""
    for event in _events(spans, origin_ns):
        yield f"{separator}\n{json.dumps(event, default=str)}"
        separator = ","
    yield "\n]}\n"


def _events(spans: Iterable[TimelineSpan], origin_ns: int) -> Iterator[dict[str, Any]]:
    numbers: dict[str, int] = {}
    threads: dict[tuple[str, str], int] = {}
    others = itertools.count(1_000_000)
    for span in spans:
        if span.track not in numbers:
            process = numbers[span.track] = _process(span.track, others)
            yield from _names(process, 0, process_name=span.track, process_sort_index=process)
        process, place = numbers[span.track], (span.track, span.lane)
        if place not in threads:
            thread = threads[place] = 1 + sum(track == span.track for track, _ in threads)
            yield from _names(process, thread, thread_name=span.lane, thread_sort_index=thread)
        yield {
            "ph": "X",
            "name": span.name,
            "cat": span.lane,
            "pid": process,
            "tid": threads[place],
            "ts": (span.start_ns - origin_ns) / 1e3,
            "dur": span.duration_ns / 1e3,
            "args": dict(span.facts),
        }


def _process(track: str, others: Iterator[int]) -> int:
    """Return the number of a track, in the order in which tracks are read."""
    place, number, _ = track_order(track)
    if place < 2:
        return place + 1
    return number + 3 if track.startswith("rank ") else next(others)


def _names(process: int, thread: int, **values: str | int) -> list[dict[str, Any]]:
    """Return metadata events; the format keeps a name under ``name`` and an order under ``sort_index``."""
    return [
        {
            "ph": "M",
            "name": event,
            "pid": process,
            "tid": thread,
            "args": {"sort_index" if event.endswith("sort_index") else "name": value},
        }
        for event, value in values.items()
    ]


def track_order(track: str) -> tuple[int, int, str]:
    """Return what sorts tracks: controller, trainer, then the ranks in numerical order."""
    kind, _, number = track.partition(" ")
    place = {"controller": 0, "trainer": 1}.get(kind, 2)
    return place, int(number) if number.isdigit() else 0, track
