"""A rank whose reports nobody can read is not committed, is named, and does not keep the group for ever."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from wsm.command import RankReport, ReportFormatError
from wsm.controller._transaction import Transaction
from wsm.controller.abandoned_commands import AbandonedCommands
from wsm.controller.recovery import Recovery
from wsm.states.errors import CommandOpenError

sys.path.insert(0, str(Path(__file__).parent.parent / "worker"))
from lone_rank import LoneRank


@pytest.fixture
def lone(tmp_path):
    rank = LoneRank(tmp_path)
    yield rank
    rank.close()


class DeadError(Exception):
    """The controller ends here, with the command open."""


def die(*_, **__):
    raise DeadError


def controller_dies(monkeypatch):
    known = Transaction.known
    monkeypatch.setattr(
        Transaction,
        "known",
        lambda self, *args, **own: (die if self.is_written else known)(self, *args, **own),
    )
    # The rank itself would end what is left, too, on a busy machine before it has prepared.
    monkeypatch.setattr(AbandonedCommands, "look", lambda _: None)


def of_another_build(monkeypatch):
    real = RankReport.to_bytes
    monkeypatch.setattr(RankReport, "to_bytes", lambda self: real(self).replace(b'"pause_s"', b'"pause_ms"'))


def test_it_is_aborted_and_named_and_the_next_command_finds_the_group_closed(lone, monkeypatch):
    with monkeypatch.context() as patched:
        of_another_build(patched)
        with pytest.raises(ReportFormatError, match="rank 0"):
            lone.update(1)
        status = lone.controller.status()
        assert status.over
        assert status.version is None
        assert status.state == "CLEARED"
    assert lone.update(2).version == "2"


def test_a_successor_aborts_what_a_dead_controller_left_with_unusable_reports(lone, monkeypatch):
    """Without that every later command would fail on the same report, and the group hang in PREPARED."""
    with monkeypatch.context() as patched:
        of_another_build(patched)
        controller_dies(patched)
        pending = lone.controller.begin_update(1)
        lone.run(pending)
        with pytest.raises(DeadError):
            pending.result()
        while lone.controller.status().ranks[0].code != "PREPARED":
            lone.worker.poll()
    with pytest.raises(CommandOpenError, match="ABORT"):
        lone.controller.update(2, settle_s=0)
    while not lone.controller.status().over:
        lone.worker.poll()
    assert lone.update(2).version == "2"


def test_a_recovery_decides_against_what_it_cannot_read(lone, monkeypatch):
    """It raises the epoch next; an error here would leave the group without one for ever."""
    with monkeypatch.context() as patched:
        of_another_build(patched)
        controller_dies(patched)
        pending = lone.controller.begin_update(1)
        with pytest.raises(DeadError):
            pending.result()
        while lone.controller.status().ranks[0].code != "PREPARED":
            lone.worker.poll()
    recovery = Recovery(lone.segment)
    recovery.turn()
    recovery.close()
    assert lone.controller.status().operation == "ABORT"
    while not lone.controller.status().over:
        lone.worker.poll()
    assert lone.update(2).version == "2"
