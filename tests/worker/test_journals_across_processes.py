"""A journal that several processes of one rank append to, one after the other, whatever the last one left."""

from __future__ import annotations

from pathlib import Path

import pytest

from wsm.clock import SystemClock
from wsm.journal.entry import read_ndjson
from wsm.journal.replay import replay
from wsm.worker.recording import Recorder


@pytest.mark.parametrize("torn", ["", '{"sch', '{"schema":2,"kind":"sta'])
def test_what_a_killed_process_left_of_its_last_line_does_not_spoil_the_lines_of_the_next(
    tmp_path: Path, torn: str
) -> None:
    path = tmp_path / "rank3.ndjson"
    for _ in range(3):
        Recorder(rank=3, clock=SystemClock(), directory=str(tmp_path)).close()
        with path.open("a") as journal:
            journal.write(torn)
    with path.open() as lines:
        entries = read_ndjson(lines)
    assert [entry.kind for entry in entries] == ["started", "ended"] * 3
    assert replay(entries).impossible is None


def test_a_journal_that_is_nothing_but_a_torn_line_begins_anew(tmp_path: Path) -> None:
    (tmp_path / "rank0.ndjson").write_text('{"schema"')
    Recorder(rank=0, clock=SystemClock(), directory=str(tmp_path)).close()
    with (tmp_path / "rank0.ndjson").open() as lines:
        assert [entry.kind for entry in read_ndjson(lines)] == ["started", "ended"]
