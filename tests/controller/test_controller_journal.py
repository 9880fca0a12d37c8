"""What controllers write down, in a file and in the segment: asked, decided, found, and how it ended."""

from __future__ import annotations

import pytest

from wsm.controller.errors import RankFailedError, RankLostError
from wsm.states import journal as kinds
from wsm.states.journal import read_ndjson
from wsm.states.replay import replay

pytestmark = pytest.mark.processes


def entries_of(directory):
    with (directory / "controller.ndjson").open() as lines:
        return read_ndjson(lines)


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
            (kinds.COMMAND_ISSUED, 2),
            (kinds.DECISION, 2),
            (kinds.COMMAND_OVER, 2),
            (kinds.COMMAND_ISSUED, 3),
            (kinds.DECISION, 3),
            (kinds.COMMAND_OVER, 3),
        ]
        assert told[0].facts == {"operation": "UPDATE", "request_id": "nightly"}
        assert [one.facts["operation"] for one in told if one.kind == kinds.DECISION] == ["COMMIT", "ABORT"]
        assert "rank 1" in told[-1].facts["outcome"]
        assert replay(told).impossible is None
        plain.update(2)  # without a directory it stands in the segment alone
        ring = [one.kind for one in read_ndjson(segment_of(group).controller_journal.lines())]
        assert ring.count(kinds.COMMAND_ISSUED) == 4
        assert len(entries_of(journals)) == 6


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


def segment_of(group):
    return group._controllers[0]._access.group.segment
