"""A journal file on a disk that is full ends; the rank goes on, and so do the journals elsewhere."""

from __future__ import annotations

import contextlib
import json

import pytest
from lone_rank import LoneRank, load

from tests.another_user import makers, shared_place
from wsm.clock import SystemClock
from wsm.journal.entry import read_ndjson
from wsm.journal.replay import replay
from wsm.shared_directory import ForeignPathError
from wsm.worker.recording import Recorder


def test_a_file_goes_on_with_the_next_command_once_there_is_room_and_readers_name_the_gap(tmp_path):
    directory = tmp_path / "journals"
    with contextlib.closing(LoneRank(tmp_path, load=load, journal_directory=str(directory))) as lone:
        lone.update(1)
        there, away = directory / "rank0.ndjson", directory / "before"
        there.rename(away)
        there.symlink_to("/dev/full")
        lone.worker._loop.recorder._file.close()  # it is opened again with the next lines
        lone.update(2)
        there.unlink()
        lone.update(3)
    lines = (away.read_text() + there.read_text()).splitlines(keepends=True)
    entries = read_ndjson(lines)
    assert [one.facts["version"] for one in entries if one.kind == "served_version"] == ["1", "3"]
    checked = replay(entries)
    assert (checked.impossible, len(checked.gaps)) == (None, 1)
    assert "could not write lines" in checked.gaps[0]


def test_an_action_stands_in_the_file_before_its_work_begins(tmp_path):
    last = []

    def looks(context, target):
        lines = (tmp_path / "journals" / "rank0.ndjson").read_text().splitlines()
        last.append(json.loads(lines[-1]))
        return load(context, target)

    with contextlib.closing(
        LoneRank(tmp_path, load=looks, journal_directory=str(tmp_path / "journals"))
    ) as lone:
        lone.update(1)
    assert [(line["kind"], line["facts"]) for line in last] == [("action_started", {"name": "load_weights"})]


@pytest.mark.parametrize("kind", ["a pipe", "a link", "a directory"])
def test_what_lies_in_the_place_of_a_journal_where_every_user_can_make_names_is_refused_at_once(kind):
    with shared_place() as place:
        makers(place / "rank0.ndjson")[kind]()
        with pytest.raises(ForeignPathError, match="not a regular file"):
            Recorder(rank=0, clock=SystemClock(), directory=str(place))
