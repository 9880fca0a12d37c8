"""What is counted of journals, in files and in rings, each line once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.leftovers import group_name
from wsm.config import config_from_mapping
from wsm.controller.group_view import ControllerJournal
from wsm.group_segment import own_group
from wsm.journal import entry as kinds
from wsm.journal.entry import CONTROLLER, JournalEntry
from wsm.metrics.follow import Followed
from wsm.metrics.history import UNTOLD, JournalCounts
from wsm.signals.segment import SegmentImage
from wsm.states.words import CommandWord, Operation


def entry(
    kind: str, at_s: float = 0.0, *, rank: int = CONTROLLER, sequence: int = 1, **facts
) -> JournalEntry:
    return JournalEntry(kind, int(at_s * 1e9), 0, rank, 1, sequence, facts)


def counts(found) -> dict[tuple[str, ...], int]:
    return {names: sum(each.counts) for names, each in found.items()}


def told(*entries: JournalEntry) -> JournalCounts:
    history = JournalCounts()
    for one in entries:
        history.take(one)
    return history


def test_a_command_is_counted_by_how_it_ended_and_by_what_its_receipt_measured() -> None:
    history = told(
        entry(kinds.COMMAND_ISSUED, 1.0, operation="HOT_UPDATE"),
        entry(kinds.COMMAND_OVER, 3.0, ended="updated", pause_s=0.004, staging_s=1.5, bytes=1000),
        entry(kinds.COMMAND_ISSUED, 4.0, sequence=2, operation="UPDATE"),
        entry(kinds.COMMAND_OVER, 4.5, sequence=2, ended="failed", error="rank-failed"),
        entry(kinds.COMMAND_ISSUED, 5.0, sequence=3, operation="CLEAR"),  # its controller is killed
        entry(kinds.COMMAND_ISSUED, 8.0, sequence=4, operation="CLEAR"),
    )
    assert counts(history.commands) == {
        ("hot_update", "updated"): 1,
        ("update", "failed"): 1,
        ("clear", UNTOLD): 1,
    }
    durations = history.commands["hot_update", "updated"]
    assert (durations.total_s, dict(durations.buckets())["2.5"], dict(durations.buckets())["1.0"]) == (
        2,
        1,
        0,
    )
    assert counts(history.pauses) == {("hot_update",): 1}
    assert history.staging["hot_update",].total_s == 1.5
    assert (history.loaded_bytes, dict(history.command_errors)) == (1000, {("update", "rank-failed"): 1})
    assert history.open == ("clear", 8_000_000_000)


def test_what_a_damaged_line_says_is_no_measure_and_makes_no_endless_metrics() -> None:
    history = told(
        *(entry(kinds.ACTION_FINISHED, rank=0, name=f"n{number}", seconds=0.1) for number in range(3000)),
        *(
            entry(kinds.ACTION_FINISHED, rank=0, name="load", seconds=seconds)
            for seconds in ("long", -1, float("nan"), None, [1])
        ),
        entry(kinds.COMMAND_ISSUED),
        entry(kinds.COMMAND_OVER, ended={"x": 1}, bytes="many", pause_s=True),
    )
    assert len(history.actions) == 1001
    assert sum(counts(history.actions).values()) == 3000
    assert history.loaded_bytes == 0


def line(number: int) -> str:
    return entry(kinds.STEP_BROKEN, rank=number).to_line() + "\n"


def test_of_files_each_line_is_counted_once_when_it_is_whole(tmp_path: Path) -> None:
    journal, followed = tmp_path / "rank0.ndjson", Followed(tmp_path)
    seen = lambda: sum(followed.history.events.values())  # noqa: E731 - asked again and again
    first, second = line(0), line(0)
    journal.write_text(f"{first}{second[:30]}")
    for _ in range(2):
        followed.look(None)
        assert seen() == 1
    with journal.open("a") as file:
        file.write(second[30:])
        file.write("torn {\n" + entry(kinds.INPUT, rank=0, function="f").to_line() + "\n")
    followed.look(None)
    assert (seen(), followed.history.unreadable_lines) == (2, 1)
    journal.unlink()
    journal.write_text(first)  # another file, which begins anew
    (tmp_path / "rank1.ndjson").symlink_to(journal)
    followed.look(None)
    assert seen() == 3, "a link is not followed"
    (tmp_path / "rank2.ndjson").write_bytes(b"x" * (3 << 20) + b"\n" + first.encode())
    followed.look(None)
    assert seen() == 4


@pytest.fixture
def segment():
    found = own_group(config_from_mapping({"name": group_name("metrics"), "ranks": 1}))
    yield found
    found.unlink()
    found.close()


def test_of_rings_each_line_is_counted_once_and_lost_ones_are_told(segment) -> None:
    followed, journal = Followed(), ControllerJournal(segment.controller_journal)
    for number in range(3):
        journal.note(kinds.RANK_LOST, CommandWord(1, number, Operation.UPDATE), lost=0)
        followed.look(SegmentImage.of(segment))
        assert followed.history.events == {("0", kinds.RANK_LOST): number + 1}
    for number in range(1000):
        journal.note(kinds.RANK_LOST, CommandWord(1, number, Operation.UPDATE), lost=1)
    followed.look(SegmentImage.of(segment))
    assert followed.history.lost_lines == 1
    assert 100 < followed.history.events["1", kinds.RANK_LOST] < 1000
    assert followed.history.unreadable_lines == 0
