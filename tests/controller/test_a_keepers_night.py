"""A night of a keeper, with deaths, a failed update, restores and kills, is asked again to its last kill."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from wsm import RankFailedError
from wsm.journal import entry as kinds
from wsm.journal.entry import JournalEntry, read_ndjson
from wsm.journal.replay import replay

sys.path.insert(0, str(Path(__file__).parent.parent / "worker"))
from kept_group import kept_group
from living_group import eventually

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> list[JournalEntry]:
    """What the controllers of a group wrote in which two ranks died, and an update failed between."""
    directory = tmp_path_factory.mktemp("night")
    with kept_group(directory) as kept:
        kept.kill(1)
        kept.until_told("serves version 1 again")
        kept.until_whole()
        kept.group.publish(2)
        kept.group.order(1, "write", "raise once")
        with pytest.raises(RankFailedError):
            kept.controller.update(2)
        kept.controller.update(2)
        kept.controller.clear()  # no step breaks by the death then: the words alone do not tell of it
        kept.kill(0)
        eventually(lambda: kept.controller.status().epoch == 3, "the next epoch")
        kept.until_whole()
    with (directory / "journals" / "controller.ndjson").open() as lines:
        return read_ndjson(lines)


def test_it_is_answered_as_it_was(night: list[JournalEntry]) -> None:
    found = replay(night)
    assert found.findings == []
    assert found.inputs == len([one for one in night if one.kind == kinds.INPUT])


def test_each_death_that_ended_an_epoch_is_an_input(night: list[JournalEntry]) -> None:
    ended = [one for one in night if one.kind == kinds.INPUT and _begins_an_epoch(one)]
    assert [sorted(one.facts["known"]["dead"]) for one in ended] == [[1], [0]]


def test_each_process_that_was_replaced_is_an_input_and_another_choice_differs_at_its_line(
    night: list[JournalEntry],
) -> None:
    chosen = [place for place, one in enumerate(night) if one.kind == kinds.INPUT and _chooses(one)]
    assert [night[place].facts["known"]["replaced"] for place in chosen] == [
        {"1": "its process has ended"},
        {"0": "its process has ended"},
    ]
    facts = night[chosen[-1]].facts
    entry = msgspec.structs.replace(
        night[chosen[-1]], facts={**facts, "known": {**facts["known"], "replaced": {}}}
    )
    (found,) = replay([*night[: chosen[-1]], entry, *night[chosen[-1] + 1 :]]).findings
    assert (found.index, found.of_core) == (chosen[-1], True)


@pytest.mark.parametrize(
    ("fact", "changed"),
    [("dead", []), ("role", "free"), ("may", "drive"), ("may", "stand in")],
)
def test_another_death_role_or_right_differs_at_the_line_of_the_last_kill(
    night: list[JournalEntry], fact: str, changed: object
) -> None:
    last = max(place for place, one in enumerate(night) if one.kind == kinds.INPUT and _begins_an_epoch(one))
    known = {**night[last].facts["known"], fact: changed}
    entry = msgspec.structs.replace(night[last], facts={**night[last].facts, "known": known})
    (found,) = replay([*night[:last], entry, *night[last + 1 :]]).findings
    assert (found.index, found.of_core) == (last, True)


def test_every_word_that_was_written_has_the_input_that_led_to_it(night: list[JournalEntry]) -> None:
    written = [one for one in night if one.kind in (kinds.COMMAND_ISSUED, kinds.DECISION)]
    asked = [one.facts["answer"] for one in night if one.kind == kinds.INPUT]
    commands = [answer["command"] for answer in asked if "command" in answer]
    assert len(commands) >= len(written) > 0


def _begins_an_epoch(entry: JournalEntry) -> bool:
    command = entry.facts["answer"].get("command")
    return command is not None and command[0] > entry.facts["look"]["command"][0]


def _chooses(entry: JournalEntry) -> bool:
    return entry.facts["answer"]["todo"] == "replace"
