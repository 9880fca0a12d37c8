"""From journals to spans, on journals that a real life cycle wrote, and from spans to a trace."""

from __future__ import annotations

import json
from typing import Any

from wsm.journal import entry as kinds
from wsm.journal.entry import JournalEntry, transition_entry
from wsm.journal.spans import (
    TimelineSpan,
    extent,
    journal_spans,
    trace_text,
)
from wsm.states.machine import LifeCycle
from wsm.states.vocabulary import AdmissionEvent, KVEvent, WeightEvent


class RankJournal:
    """Writes the journal of one rank, one millisecond per entry."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.entries: list[JournalEntry] = []
        self.life = LifeCycle()
        self.note(kinds.STARTED, pid=1)

    @property
    def now_ns(self) -> int:
        return len(self.entries) * 1_000_000

    def note(self, kind: str, **facts: object) -> None:
        self.entries.append(JournalEntry(kind, self.now_ns, 0, self.rank, 1, 3, facts))

    def fire(self, *events: WeightEvent | KVEvent | AdmissionEvent) -> None:
        for event in events:
            record = self.life.fire(event, at_ns=self.now_ns, epoch=1, sequence=3)
            self.entries.append(transition_entry(record, rank=self.rank, wall_ns=0))


def lane(spans: list[TimelineSpan], name: str) -> list[tuple[str, int, int]]:
    return [
        (span.name, span.start_ns // 1_000_000, span.end_ns // 1_000_000)
        for span in spans
        if span.lane == name
    ]


def test_states_follow_each_other_without_gaps_from_the_start_to_the_end() -> None:
    journal = RankJournal(0)
    journal.fire(
        WeightEvent.UPDATE, KVEvent.UPDATE, KVEvent.REBUILT, WeightEvent.PREPARED, WeightEvent.COMMIT
    )
    spans = list(journal_spans(journal.entries, end_ns=20_000_000))
    assert lane(spans, "weights") == [
        ("CLEARED", 0, 1),
        ("UPDATING", 1, 4),
        ("PREPARED", 4, 5),
        ("NORMAL", 5, 20),
    ]
    assert lane(spans, "kv_cache") == [("CLEARED", 0, 2), ("UPDATING", 2, 3), ("NORMAL", 3, 20)]


def test_an_action_is_a_span_from_its_start_to_its_end() -> None:
    journal = RankJournal(1)
    journal.note(kinds.ACTION_STARTED, name="load_weights")
    journal.note(kinds.COMMAND_SEEN, operation="UPDATE")
    journal.note(kinds.ACTION_FINISHED, name="load_weights", seconds=0.002)
    (action,) = [span for span in journal_spans(journal.entries, end_ns=0) if span.lane == "actions"]
    assert (action.track, action.name) == ("rank 1", "load_weights")
    assert (action.start_ns, action.end_ns) == (1_000_000, 3_000_000)
    assert action.facts["sequence"] == 3


def test_an_action_that_failed_says_why() -> None:
    journal = RankJournal(0)
    journal.note(kinds.ACTION_STARTED, name="load_weights")
    journal.note(kinds.ACTION_FAILED, name="load_weights", error="OSError", message="disk is gone")
    (action,) = [span for span in journal_spans(journal.entries, end_ns=0) if span.lane == "actions"]
    assert action.facts["error"] == "disk is gone"


def test_an_event_that_changes_nothing_does_not_cut_a_state() -> None:
    journal = RankJournal(0)
    journal.fire(WeightEvent.CLEAR)
    assert lane(list(journal_spans(journal.entries, end_ns=9_000_000)), "weights") == [("CLEARED", 0, 9)]


def test_a_hold_is_a_span_and_what_is_open_is_none() -> None:
    journal = RankJournal(0)
    for event in (AdmissionEvent.HOLD, AdmissionEvent.RELEASE, AdmissionEvent.HOLD):
        journal.fire(event)
    assert lane(list(journal_spans(journal.entries, end_ns=9_000_000)), "admission") == [
        ("HELD", 1, 2),
        ("HELD", 3, 9),
    ]


def test_ranks_are_kept_apart_however_their_entries_are_interleaved() -> None:
    first, second = RankJournal(0), RankJournal(1)
    first.fire(WeightEvent.UPDATE)
    second.fire(WeightEvent.CLEAR)
    mixed = [entry for pair in zip(first.entries, second.entries, strict=True) for entry in pair]
    spans = list(journal_spans(mixed, end_ns=5_000_000))
    assert {span.track for span in spans} == {"rank 0", "rank 1"}
    assert {span.name for span in spans if span.track == "rank 1"} == {"CLEARED"}


def test_a_command_of_a_controller_is_a_span_with_its_outcome() -> None:
    told = [
        JournalEntry(kinds.COMMAND_ISSUED, 5, 5, -1, 1, 2, {"operation": "UPDATE", "request_id": "nightly"}),
        JournalEntry(kinds.COMMAND_OVER, 9, 9, -1, 1, 2, {"outcome": "updated"}),
    ]
    facts = {"operation": "UPDATE", "request_id": "nightly", "outcome": "updated"}
    assert list(journal_spans(told)) == [TimelineSpan("controller", "commands", "update", 5, 9, facts)]


def test_no_journal_is_no_span() -> None:
    assert list(journal_spans([], end_ns=1)) == []


MS = 1_000_000
SPANS = [
    TimelineSpan("rank 1", "weights", "NORMAL", 0, 10 * MS),
    TimelineSpan("rank 0", "weights", "NORMAL", 0, 11 * MS),
    TimelineSpan("rank 0", "actions", "release_weights", 12 * MS, 14 * MS, {"sequence": 3}),
    TimelineSpan("rank 10", "weights", "NORMAL", 0, 9 * MS),
    TimelineSpan("trainer", "training", "train", 15 * MS, 30 * MS, {"step": 1}),
    TimelineSpan("controller", "commands", "clear", 11 * MS, 15 * MS, {"step": 1}),
]


def events_of(spans: list[TimelineSpan], origin_ns: int = 0) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads("".join(trace_text(spans, origin_ns=origin_ns)))["traceEvents"]
    return events


def names_of(kind: str) -> dict[tuple[int, int], str]:
    events = events_of(SPANS)
    return {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["ph"] == "M" and event["name"] == kind
    }


def test_there_is_one_process_per_track_in_reading_order() -> None:
    processes = names_of("process_name")
    in_order = [name for (process, _), name in sorted(processes.items())]
    assert in_order == ["controller", "trainer", "rank 0", "rank 1", "rank 10"]


def test_every_slice_is_on_a_named_thread_of_a_named_process() -> None:
    processes = {process for process, _ in names_of("process_name")}
    threads = names_of("thread_name")
    for event in events_of(SPANS):
        if event["ph"] == "X":
            assert event["pid"] in processes
            assert threads[event["pid"], event["tid"]] == event["cat"]


def test_times_are_microseconds_since_the_origin() -> None:
    late = [TimelineSpan("rank 0", "weights", "NORMAL", 7_000 * MS, 7_001 * MS)]
    (event,) = [event for event in events_of(late, 7_000 * MS) if event["ph"] == "X"]
    assert (event["ts"], event["dur"]) == (0.0, 1000.0)


def test_every_span_becomes_exactly_one_slice_with_its_facts() -> None:
    slices = [event for event in events_of(SPANS) if event["ph"] == "X"]
    assert sorted(event["name"] for event in slices) == sorted(span.name for span in SPANS)
    (release,) = [event for event in slices if event["name"] == "release_weights"]
    assert release["args"] == {"sequence": 3}


def test_an_empty_timeline_is_an_empty_trace() -> None:
    assert events_of([]) == []


def test_an_extent_is_that_of_the_spans() -> None:
    assert extent(SPANS) == (0, 30 * MS)
