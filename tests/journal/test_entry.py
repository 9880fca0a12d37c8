"""The journal: bounded, exported line by line, read back as it was, torn ends included."""

from __future__ import annotations

import json

import pytest

from wsm.journal import entry as kinds
from wsm.journal.entry import (
    KINDS,
    SCHEMA,
    Journal,
    JournalEntry,
    JournalFormatError,
    iterate_ndjson,
    read_ndjson,
    transition_entry,
)
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


def test_the_last_entries_are_kept() -> None:
    journal = Journal()
    for number in range(5000):
        journal.append(JournalEntry("decision", number, 1, -1, 1, 1))
    assert [entry.at_ns for entry in journal][-1] == 4999
    assert len(journal) < 5000


def test_a_journal_may_grow_while_it_is_read() -> None:
    journal = Journal()
    filled(journal)
    for entry in journal:
        journal.append(entry)
    assert len(journal) == 2 * len(ENTRIES)


def test_a_fact_that_json_does_not_know_becomes_text_and_never_stops_the_worker() -> None:
    entry = JournalEntry("action_failed", 1, 1, 0, 1, 1, {"name": "load_weights", "error": ValueError("why")})
    assert read_ndjson([entry.to_line() + "\n"])[0].facts["error"] == "why"


def test_a_file_name_that_is_no_text_is_written_as_far_as_it_is() -> None:
    entry = JournalEntry("action_failed", 1, 1, 0, 1, 1, {"name": "load", "message": "no \udcff here"})
    (read,) = read_ndjson([entry.to_line() + "\n"])
    assert read.facts == {"name": "load", "message": "no ? here"}


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


@pytest.mark.parametrize("kept", [3, 12, 60])
def test_a_line_that_was_cut_short_is_skipped_wherever_it_stands_and_its_number_is_told(kept: int) -> None:
    lines = TEXT.splitlines(keepends=True)
    lines[2] = lines[2][:kept] + "\n"
    numbers: list[int] = []
    assert list(iterate_ndjson(lines, numbers.append)) == [*ENTRIES[:2], *ENTRIES[3:]]
    assert numbers == [3]


def test_a_torn_line_that_nests_deeper_than_anybody_reads_is_skipped_as_any_other() -> None:
    torn = line(facts={"error": 1}).replace("1}", "[" * 100_000)
    assert read_ndjson([torn, ENTRIES[0].to_line() + "\n"]) == ENTRIES[:1]


def test_empty_lines_are_no_entries() -> None:
    assert read_ndjson(["\n", ENTRIES[0].to_line() + "\n", "   \n"]) == ENTRIES[:1]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("not json\n", "not JSON"),
        ("not json", "not JSON"),
        ("[" * 100_000 + "\n", "not JSON"),
        ("[1, 2]\n", "not an object"),
        (line(schema=SCHEMA + 1), f"schema {SCHEMA + 1}"),
        (line(schema=...), "schema None"),
        (line(schema=1), f"schema 1, this build reads {SCHEMA}"),
        (line(rank=...), "missing required field `rank`"),
        (line(surprise=1), "unknown field `surprise`"),
        (line(epoch="1"), r"Expected `int`, got `str` - at `\$.epoch`"),
        (line(epoch=True), r"Expected `int`, got `bool` - at `\$.epoch`"),
        (line(at_ns=1.5), r"Expected `int`, got `float` - at `\$.at_ns`"),
        (line(kind="gossip"), "unknown kind 'gossip'"),
        (line(kind=["transition"]), r"Expected `str`, got `array` - at `\$.kind`"),
        (line(facts=[]), r"Expected `object`, got `array` - at `\$.facts`"),
    ],
)
def test_a_line_that_is_no_entry_names_itself_and_its_problem(text: str, problem: str) -> None:
    with pytest.raises(JournalFormatError, match=problem) as error:
        read_ndjson([ENTRIES[0].to_line() + "\n", text])
    assert error.value.context["line"] == 2


def test_the_documentation_names_every_kind() -> None:
    assert all(f"``{kind}``" in str(kinds.__doc__) for kind in KINDS)
