"""The journal: bounded, exported line by line, read back as it was, torn ends included."""

from __future__ import annotations

import json

import pytest

from wsm.states import journal as journal_module
from wsm.states.errors import JournalCapacityError, JournalFormatError
from wsm.states.journal import KINDS, SCHEMA, Journal, JournalEntry, read_ndjson, transition_entry
from wsm.states.machine import LifeCycle
from wsm.states.vocabulary import KVEvent, WeightEvent

ENTRIES = [
    JournalEntry("command_seen", 10, 1_700_000_000_000_000_010, 0, 1, 1, {"operation": "UPDATE"}),
    JournalEntry("action_started", 11, 1_700_000_000_000_000_011, 0, 1, 1, {"name": "load_weights"}),
    JournalEntry(
        "action_finished", 15, 1_700_000_000_000_000_015, 0, 1, 1, {"name": "load_weights", "seconds": 4e-9}
    ),
    JournalEntry(
        "wait_expired", 16, 1_700_000_000_000_000_016, 1, 1, 1, {"message": "ä “quoted”\nand broken"}
    ),
    JournalEntry("started", 17, 1_700_000_000_000_000_017, -1, 0, 0),
]

TEXT = "".join(f"{entry.to_line()}\n" for entry in ENTRIES)


def filled(journal: Journal) -> Journal:
    for entry in ENTRIES:
        journal.append(entry)
    return journal


def line(**changes: object) -> str:
    content = json.loads(ENTRIES[0].to_line()) | changes
    return json.dumps({key: value for key, value in content.items() if value is not ...}) + "\n"


def test_what_is_exported_is_read_back_as_it_was() -> None:
    text = TEXT
    assert read_ndjson(text.splitlines(keepends=True)) == ENTRIES
    assert text.count("\n") == len(ENTRIES), "one line per entry, whatever is in it"


def test_only_the_last_entries_are_kept_and_the_others_are_counted() -> None:
    journal = filled(Journal(capacity=2))
    assert list(journal) == ENTRIES[-2:]
    assert (len(journal), journal.appended, journal.dropped) == (2, 5, 3)


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_journal_that_could_hold_nothing_is_refused(capacity: int) -> None:
    with pytest.raises(JournalCapacityError, match="capacity of 1 or more"):
        Journal(capacity=capacity)


def test_a_journal_may_grow_while_it_is_read() -> None:
    journal = Journal()
    filled(journal)
    for entry in journal:
        journal.append(entry)
    assert len(journal) == 2 * len(ENTRIES)


def test_a_fact_that_json_does_not_know_becomes_text_and_never_stops_the_worker() -> None:
    entry = JournalEntry("action_failed", 1, 1, 0, 1, 1, {"name": "load_weights", "error": ValueError("why")})
    assert read_ndjson([entry.to_line() + "\n"])[0].facts["error"] == "why"


def test_the_entry_of_a_transition_carries_its_record() -> None:
    life = LifeCycle()
    record = life.fire(WeightEvent.UPDATE, at_ns=5, epoch=2, sequence=3, kv_kept=False, cause="boot")
    entry = transition_entry(record, rank=1, wall_ns=9)
    assert entry == JournalEntry(
        "transition",
        5,
        9,
        1,
        2,
        3,
        {
            "machine": "weights",
            "source": "CLEARED",
            "event": "update",
            "dest": "UPDATING",
            "guard": None,
            "cause": "boot",
            "kv_kept": False,
        },
    )
    rebuilt = life.fire(KVEvent.UPDATE, at_ns=6, epoch=2, sequence=3)
    assert "kv_kept" not in transition_entry(rebuilt, rank=1, wall_ns=9).facts


def test_what_a_killed_process_left_of_its_last_line_is_skipped() -> None:
    text = TEXT
    torn = text + ENTRIES[0].to_line()[:40]
    assert read_ndjson(torn.splitlines(keepends=True)) == ENTRIES


def test_a_whole_last_line_without_its_line_feed_is_read() -> None:
    text = TEXT.rstrip("\n")
    assert read_ndjson(text.split("\n")) == ENTRIES


def test_a_broken_line_before_the_end_is_an_error_also_where_line_feeds_were_stripped() -> None:
    text = TEXT
    lines = text.splitlines()
    lines[2] = lines[2][:-1]
    with pytest.raises(JournalFormatError, match="line 3 of the journal"):
        read_ndjson(lines)
    with pytest.raises(JournalFormatError, match="line 3 of the journal"):
        read_ndjson([f"{each}\n" for each in lines])


def test_empty_lines_are_no_entries() -> None:
    assert read_ndjson(["\n", ENTRIES[0].to_line() + "\n", "   \n"]) == ENTRIES[:1]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("not json\n", "not JSON"),
        ("[1, 2]\n", "not an object"),
        (line(schema=SCHEMA + 1), f"schema {SCHEMA + 1}"),
        (line(schema=...), "schema None"),
        (line(rank=...), r"fields \['rank'\]"),
        (line(surprise=1), r"fields \['surprise'\]"),
        (line(epoch="1"), "epoch is '1'"),
        (line(epoch=True), "epoch is True"),
        (line(at_ns=1.5), "at_ns is 1.5"),
        (line(kind="gossip"), "unknown kind 'gossip'"),
        (line(kind=["transition"]), "unknown kind"),
        (line(facts=[]), "facts are not an object"),
    ],
)
def test_a_line_that_is_no_entry_names_itself_and_its_problem(text: str, problem: str) -> None:
    with pytest.raises(JournalFormatError, match=problem) as error:
        read_ndjson([ENTRIES[0].to_line() + "\n", text])
    assert error.value.context["line"] == 2


def test_the_documentation_names_every_kind() -> None:
    assert all(f"``{kind}``" in str(journal_module.__doc__) for kind in KINDS)
