"""What controllers write down, in a file and in the segment: asked, decided, found, and how it ended."""

from __future__ import annotations

import pytest
from recovered_group import recovered

from wsm import Outcome
from wsm.controller.errors import RankFailedError, RankLostError
from wsm.journal import entry as kinds
from wsm.journal.entry import read_ndjson
from wsm.journal.replay import replay

pytestmark = pytest.mark.processes


def entries_of(directory):
    with (directory / "controller.ndjson").open() as lines:
        return [one for one in read_ndjson(lines) if one.kind != kinds.INPUT]


def test_a_command_is_told_from_its_word_to_its_end_and_the_tables_allow_it(group, tmp_path):
    group.publish(2)
    journals = tmp_path / "journals of controllers"
    with group.boot() as plain, group.controller(journal_directory=journals) as controller:
        controller.update(2, request_id="nightly")
        group.order(1, "write", "raise once")
        with pytest.raises(RankFailedError):
            controller.update(1)
        told = entries_of(journals)
        assert [(one.kind, one.sequence) for one in told] == [
            (kinds.STARTED, 0),
            (kinds.COMMAND_ISSUED, 2),
            (kinds.DECISION, 2),
            (kinds.COMMAND_OVER, 2),
            (kinds.COMMAND_ISSUED, 3),
            (kinds.DECISION, 3),
            (kinds.COMMAND_OVER, 3),
        ]
        assert told[1].facts == {"operation": "UPDATE", "request_id": "nightly"}
        assert [one.facts["operation"] for one in told if one.kind == kinds.DECISION] == ["COMMIT", "ABORT"]
        assert "rank 1" in told[-1].facts["outcome"]
        assert replay(told).impossible is None
        plain.update(2)  # beside the journals of the ranks, and in the segment
        ring = [one.kind for one in read_ndjson(segment_of(group).controller_journal.lines())]
        assert ring.count(kinds.COMMAND_ISSUED) == 4
        assert len(entries_of(journals)) == 7


def test_a_lost_rank_is_written_down_with_its_number(group, tmp_path):
    journals = tmp_path / "journals of controllers"
    with group.boot(), group.controller(journal_directory=journals) as controller:
        group.order(1, "settle", "hold")
        pending = controller.begin_clear()
        group.await_held(1, "settle")
        group.programs[1].kill()
        with pytest.raises(RankLostError):
            pending.result(60)
        assert [one.facts for one in entries_of(journals) if one.kind == kinds.RANK_LOST] == [{"lost": 1}]


def test_a_journal_that_cannot_be_written_stops_no_command(group, tmp_path):
    (tmp_path / "file").touch()
    with group.boot(), group.controller(journal_directory=tmp_path / "file" / "below") as controller:
        assert controller.clear().outcome.value == "cleared"


def test_a_recovery_is_told_beside_the_journals_of_the_ranks(make_group):
    with recovered(make_group()) as kept:
        kept.group.boot()
        kept.kill(1)
        kept.recover(1)
        told = entries_of(kept.group.directory / "journals")
    issued = [one.facts["request_id"] for one in told if one.kind == kinds.COMMAND_ISSUED]
    assert issued[-1] == "recovery-epoch-2"


def test_every_controller_of_a_group_finds_the_journals_that_its_owner_named(group):
    """A terminal knows the segment alone; what it commands is told beside the ranks' journals."""
    group.publish(2)
    with group.boot() as controller:
        controller.update(2, request_id="by the terminal")
        told = entries_of(group.directory / "journals")
        assert "by the terminal" in [one.facts.get("request_id") for one in told]
        assert [one.kind for one in told[-3:]] == [kinds.COMMAND_ISSUED, kinds.DECISION, kinds.COMMAND_OVER]


def test_a_command_and_its_decision_carry_the_time_before_any_rank_could_see_them(group):
    group.publish(2)
    with group.boot() as controller:
        controller.update(2)
        said = read_ndjson((group.directory / "journals" / "rank0.ndjson").read_text().splitlines())
        told = entries_of(group.directory / "journals")
    sequence = told[-1].sequence
    at = {one.kind: one.at_ns for one in told if one.sequence == sequence}
    first = min(one.at_ns for one in said if one.sequence == sequence)
    last = max(one.at_ns for one in said if one.kind == kinds.TRANSITION and one.sequence == sequence)
    assert at[kinds.COMMAND_ISSUED] < first < at[kinds.DECISION] < last


def test_what_was_asked_and_led_to_no_command_is_kept_nowhere(group):
    with group.boot() as controller:
        for _ in range(5):
            assert controller.update(1).outcome is Outcome.ALREADY_SERVED
        controller.clear()
    with (group.directory / "journals" / "controller.ndjson").open() as lines:
        entries = read_ndjson(lines)
    answers = [one.facts["answer"] for one in entries if one.kind == kinds.INPUT]
    assert all({"command", "committed"} & set(answer) for answer in answers)


def test_a_directory_of_a_controllers_own_tells_groups_that_follow_each_other_apart(make_group, tmp_path):
    """Commands of a group that is started again are counted from the beginning."""
    journals = tmp_path / "journals of controllers"
    for _ in range(2):
        group = make_group(1)
        group.publish(1)
        group.start()
        with group.controller(journal_directory=journals) as controller:
            controller.update(1)
            controller.clear()
    found = replay(entries_of(journals))
    assert (found.findings, found.gaps, found.states) == ([], [], {})


def segment_of(group):
    return group.controllers[0]._access.group.segment
