"""How a command comes to its end, by words that a test writes in the place of the ranks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from tests.forkserver import WITHOUT_PADDLE
from wsm.clock import Clock, ManualClock, SystemClock
from wsm.command import CommandArguments
from wsm.committed_record import CommittedRecord, write_record
from wsm.config import WsmConfig
from wsm.controller._drive import Drive
from wsm.controller._transaction import Transaction
from wsm.controller.errors import CommandTimeoutError, EpochEndedError
from wsm.controller.group_view import ControllerJournal, GroupView, committed_by
from wsm.controller.pending import Pending
from wsm.group_segment import own_group
from wsm.journal import entry as kinds
from wsm.journal.entry import CONTROLLERS_FILE, read_ndjson
from wsm.signals.liveness import register
from wsm.states.group import GroupTodo, Opens
from wsm.states.vocabulary import TransferMode
from wsm.states.words import CommandWord, Operation, StatusCode, StatusWord

UPDATE = CommandWord(1, 5, Operation.UPDATE)

STAND = """
import sys, time
from wsm.signals.liveness import register
from wsm.signals.segment import Segment
registration = register(Segment.attach(sys.argv[1], directory=sys.argv[2]), 1)
print("standing", flush=True)
time.sleep(600)
"""


@pytest.fixture
def group(tmp_path):
    with own_group(WsmConfig(name="words", ranks=2), directory=tmp_path) as segment:
        with closing(GroupView(segment)) as group:
            yield group
        segment.unlink()


def write_status(group: GroupView, code: StatusCode, sequence: int) -> None:
    for place in group.segment.layout.status[:2]:
        group.segment.words[place] = StatusWord(1, sequence, code).pack()


def begin(
    group: GroupView, clock: Clock, *, deadline_s: float | None = 60.0, **options: Any
) -> tuple[Drive, Transaction]:
    """Give the first command of the group, with the role, and go one turn at a time from there."""
    write_status(group, StatusCode.ATTACHED, sequence=0)
    drive = Drive(group)
    drive.take_role(0)
    update = Transaction(
        group,
        CommandArguments("asked", version="8", deadline_s=deadline_s),
        clock,
        5.0,
        opens=Opens(Operation.UPDATE),
        **options,
    )
    assert drive.turn(update) is GroupTodo.LOOK
    assert group.view().command == CommandWord(1, 1, Operation.UPDATE)
    return drive, update


def test_words_that_come_before_their_reports_are_looked_at_once_more(group):
    pending = Pending("asked", group.ring)
    drive, update = begin(group, ManualClock(), pending=pending)
    write_status(group, StatusCode.PREPARED, sequence=1)
    assert drive.turn(update) is GroupTodo.READ_REPORTS
    assert not group.view().command.operation.is_decision
    pending.give_up()
    assert drive.turn(update) is GroupTodo.LOOK
    assert group.view().command.operation is Operation.ABORT


def test_a_deadline_is_counted_by_the_clock_that_is_given_and_driven_in_the_callers_thread(group):
    clock = ManualClock()
    drive, update = begin(group, clock)
    clock.advance(59)
    assert drive.turn(update) is GroupTodo.WAIT
    clock.advance(2)
    assert drive.turn(update) is GroupTodo.LOOK
    assert group.view().command.operation is Operation.ABORT
    write_status(group, StatusCode.DONE_KEPT, sequence=1)
    with pytest.raises(CommandTimeoutError):
        update.run(drive)
    drive.release()
    told = {one.kind: one.facts for one in read_ndjson(group.segment.controller_journal.lines())}
    assert told[kinds.DECISION]["because"] == "its deadline was over"
    assert (told[kinds.COMMAND_OVER]["ended"], told[kinds.COMMAND_OVER]["error"]) == (
        "failed",
        "command-timeout",
    )


def test_of_several_words_none_waits_for_the_file_of_the_journal(group, tmp_path):
    journal = ControllerJournal(group.segment.controller_journal, tmp_path)
    with journal.words_first():
        journal.note(kinds.COMMAND_OVER, UPDATE, outcome="updated")
        assert not (tmp_path / CONTROLLERS_FILE).exists()
    with (tmp_path / CONTROLLERS_FILE).open() as lines:
        assert [one.facts for one in read_ndjson(lines)] == [{"outcome": "updated"}]


def test_a_command_without_a_deadline_waits_for_ranks_that_live(group):
    clock = ManualClock()
    drive, update = begin(group, clock, deadline_s=None)
    clock.advance(1e6)
    assert drive.turn(update) is GroupTodo.WAIT
    drive.release()


def test_the_late_end_of_a_command_that_was_left_open_is_not_taken_for_that_of_the_next_one(group):
    clock = ManualClock()
    drive, _ = begin(group, clock)  # its controller dies here
    drive.release()
    drive.take_role(0)
    assert drive.state.follows
    left = group.view().command
    group.write_command(left._replace(operation=Operation.ABORT))
    write_status(group, StatusCode.DONE_KEPT, sequence=1)
    pending = Pending("next", group.ring)
    pending.give_up()
    clear = Transaction(
        group,
        CommandArguments("next", clears=True, deadline_s=60.0),
        clock,
        0.0,
        opens=Opens(Operation.CLEAR),
        pending=pending,
    )
    with ThreadPoolExecutor(1) as thread:
        ending = thread.submit(clear.run, drive)
        while not group.view().command.operation.is_abort or group.view().command.sequence == 1:
            assert not ending.done()
            group.wait(group.look(), 0.05)
        write_status(group, StatusCode.DONE_KEPT, sequence=2)
        with pytest.raises(CommandTimeoutError, match="clear"):
            ending.result(10)
    drive.release()


@pytest.mark.parametrize("command", [CommandWord(2, 1, Operation.UPDATE), CommandWord(1, 2, Operation.CLEAR)])
def test_a_command_of_another_epoch_is_not_taken_for_ones_own_by_its_sequence(group, command):
    drive, update = begin(group, ManualClock())
    group.write_command(command)
    with pytest.raises(EpochEndedError):
        update.run(drive)
    assert group.view().command == command


def test_a_partial_update_is_restored_by_the_load_options_of_the_version_that_it_was_put_on(group):
    base = CommittedRecord(4, "7", "digest", 4, load={"transfer_mode": "rdma", "verify_checksum": False})
    write_record(group.segment, 1, base)
    group.write_committed(base.word)
    group.write_command(UPDATE)
    partial = CommandArguments("asked", version="8", partial=True, transfer_mode=TransferMode.GDR)
    record = committed_by(group, group.view(), "8", partial)
    assert record.load == {"transfer_mode": "gdr", "verify_checksum": False}


@pytest.mark.processes
def test_a_rank_that_dies_behind_a_deadline_is_not_to_blame_for_it(group):
    segment = group.segment
    rank_1 = WITHOUT_PADDLE.start("-c", STAND, segment.name, segment.path.parent, stderr=None)
    with register(segment, 0), rank_1, ThreadPoolExecutor(1) as thread:
        assert rank_1.stdout.readline() == b"standing\n"
        drive, update = begin(group, SystemClock(), deadline_s=0.1)
        ending = thread.submit(update.run, drive)
        while not (group.view().command.operation.is_abort or ending.done()):
            group.wait(group.look(), 0.1)
        rank_1.kill()
        with pytest.raises(CommandTimeoutError, match=r"rank 0.*and rank 1"):
            ending.result()
