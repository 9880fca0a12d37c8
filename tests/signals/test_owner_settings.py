"""What a group's owner says of the group, read while it writes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.segment_bytes import segment_bytes
from wsm.config import WsmConfig
from wsm.group_segment import own_group
from wsm.signals.owner_settings import OwnerSettings, owner_adds, owner_says, settings_in


@pytest.fixture
def segment(tmp_path):
    journals = str(tmp_path / "journals")
    with own_group(WsmConfig(name="owned", ranks=1, journal_directory=journals), directory=tmp_path) as made:
        yield made
        made.unlink()


def test_what_was_said_under_other_names_stays(segment, tmp_path):
    owner_adds(segment, entry={"number": 1})
    owner_adds(segment, entry={"number": 2})
    assert settings_in(segment.settings).entry == {"number": 2}
    assert settings_in(segment.settings).journals == Path(tmp_path / "journals")


def test_what_an_owner_said_that_died_does_not_stay(segment, tmp_path):
    owner_adds(segment, entry={"number": 1}, logs="/logs")
    owner_says(segment, OwnerSettings("/journals"))
    assert settings_in(segment.settings) == OwnerSettings("/journals")


def test_a_controller_that_reads_while_the_owner_writes_finds_the_journals_all_the_same(segment, tmp_path):
    def flip() -> None:
        with segment_bytes(segment) as found:
            found[segment.layout.settings] ^= 1

    flip()  # as half way through a write

    writer = threading.Timer(0.001, flip)
    writer.start()
    try:
        assert settings_in(segment.settings).journals == Path(tmp_path / "journals")
    finally:
        writer.join()
