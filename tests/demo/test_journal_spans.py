"""From journals to spans, on journals that a real life cycle wrote."""

from __future__ import annotations

from wsm.demo.journal_spans import journal_spans
from wsm.demo.timeline import TimelineSpan
from wsm.states import journal as kinds
from wsm.states.journal import JournalEntry, transition_entry
from wsm.states.machine import LifeCycle
from wsm.states.vocabulary import KVEvent, WeightEvent


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

    def fire(self, *events: WeightEvent | KVEvent) -> None:
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
    spans = journal_spans(journal.entries, end_ns=20_000_000)
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
    assert lane(journal_spans(journal.entries, end_ns=9_000_000), "weights") == [("CLEARED", 0, 9)]


def test_ranks_are_kept_apart_however_their_entries_are_interleaved() -> None:
    first, second = RankJournal(0), RankJournal(1)
    first.fire(WeightEvent.UPDATE)
    second.fire(WeightEvent.CLEAR)
    mixed = [entry for pair in zip(first.entries, second.entries, strict=True) for entry in pair]
    spans = journal_spans(mixed, end_ns=5_000_000)
    assert {span.track for span in spans} == {"rank 0", "rank 1"}
    assert {span.name for span in spans if span.track == "rank 1"} == {"CLEARED"}


def test_no_journal_is_no_span() -> None:
    assert journal_spans([], end_ns=1) == []
