"""What a group's owner says of the group, read while it writes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from wsm.config import WsmConfig
from wsm.group_segment import journal_directory_of, own_group, owner_adds
from wsm.signals.segment import owner_said


@pytest.fixture
def segment(tmp_path):
    journals = str(tmp_path / "journals")
    with own_group(WsmConfig(name="owned", ranks=1, journal_directory=journals), directory=tmp_path) as made:
        yield made
        made.unlink()


def test_what_was_said_under_other_names_stays(segment, tmp_path):
    owner_adds(segment, entry={"number": 1})
    owner_adds(segment, entry={"number": 2})
    assert owner_said(segment)["entry"] == {"number": 2}
    assert journal_directory_of(segment) == Path(tmp_path / "journals")


def test_a_controller_that_reads_while_the_owner_writes_finds_the_journals_all_the_same(segment, tmp_path):
    slot = segment.settings
    place = slot._offset
    slot._memory.bytes[place] ^= 1  # as half way through a write

    def written() -> None:
        slot._memory.bytes[place] ^= 1

    writer = threading.Timer(0.001, written)
    writer.start()
    try:
        assert journal_directory_of(segment) == Path(tmp_path / "journals")
    finally:
        writer.join()
