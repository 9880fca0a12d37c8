"""What a rank makes of words that no controller of this build writes: epochs, operations, bad arguments."""

from __future__ import annotations

import pytest

from wsm import HOLD, SERVE, Deadlines
from wsm.command import ARGUMENTS_KIND, CommandArguments
from wsm.controller.group_view import GroupView
from wsm.journal import entry as kinds
from wsm.journal.replay import replay
from wsm.states.epochs import next_epoch
from wsm.states.words import CommandWord, Operation, StatusCode
from wsm.worker.errors import TeardownFailedError


@pytest.fixture
def write(lone):
    """`write(operation, data)`: the next command, with these bytes as its arguments; returns its word."""
    group = GroupView(lone.segment)

    def command(operation: Operation, data: bytes | None) -> CommandWord:
        before = group.view().command
        word = CommandWord(before.epoch, before.sequence + 1, operation)
        if data is not None:
            slot = lone.segment.arguments(word.sequence)
            slot.write(word.epoch, word.sequence, ARGUMENTS_KIND, data)
        group.write_command(word)
        return word

    with group.role.acquire(0):  # or the group would end the command by itself
        yield command
    group.close()


def look(lone):
    view = GroupView(lone.segment)
    try:
        return view.view().statuses[0]
    finally:
        view.close()


def failure(lone, word):
    view = GroupView(lone.segment)
    try:
        found = view.failure(0, word)
        assert found is not None
        return found
    finally:
        view.close()


def poll_until(lone, code):
    for _ in range(2000):
        lone.worker.poll()
        if look(lone).code is code:
            return
    pytest.fail(f"the rank never said {code.name}, but {look(lone)}")


def abort(lone, word):
    view = GroupView(lone.segment)
    view.write_command(word._replace(operation=Operation.ABORT))
    view.close()
    poll_until(lone, StatusCode.DONE_KEPT)
    assert lone.worker.poll() is SERVE
    assert lone.worker.version == "1"


def test_a_hot_update_that_the_group_decides_against_leaves_what_is_served(lone, write):
    before = bytes(lone.runner.weights.readable("weight"))
    word = write(Operation.HOT_UPDATE, CommandArguments("hot", "2").to_bytes())
    poll_until(lone, StatusCode.PREPARED)
    assert lone.worker.poll() is SERVE  # what is staged stops nobody
    view = GroupView(lone.segment)
    view.write_command(word._replace(operation=Operation.HOT_ABORT))
    view.close()
    poll_until(lone, StatusCode.DONE_KEPT)
    assert (lone.worker.poll(), lone.worker.version) == (SERVE, "1")
    assert bytes(lone.runner.weights.readable("weight")) == before
    assert replay(lone.worker.journal).impossible is None


@pytest.mark.parametrize("data", [b"", b"no json", b'{"request_id": 1}', b"\xff\xfe"])
def test_arguments_that_make_no_sense_are_refused_and_nothing_changes(lone, write, data):
    word = write(Operation.UPDATE, data)
    poll_until(lone, StatusCode.REFUSED)
    report, refused = failure(lone, word)
    assert (refused, report.error) == (True, "command-arguments")
    abort(lone, word)


def test_arguments_that_never_come_fail_the_command_by_its_deadline(make_lone):
    lone = make_lone(deadlines=Deadlines(arguments_s=5))
    lone.update(1)
    view = GroupView(lone.segment)
    before = view.view().command
    word = CommandWord(before.epoch, before.sequence + 1, Operation.UPDATE)
    with view.role.acquire(0):
        view.write_command(word)
        lone.worker.poll()
        lone.group.clock.advance(6)
        poll_until(lone, StatusCode.FAILED)
        report, refused = failure(lone, word)
        assert (refused, report.error) == (False, "wait-expired")
        abort(lone, word)
    view.close()


def begin_epoch(lone):
    view = GroupView(lone.segment)
    word = next_epoch(view.view())
    view.write_command(word)
    view.close()
    return word


def poll_until_joined(lone, word):
    for _ in range(100):
        assert lone.worker.poll() is HOLD
        if look(lone).epoch == word.epoch:
            return
    pytest.fail(f"the rank never joined, but says {look(lone)}")


def test_a_new_epoch_takes_weights_and_cache_of_the_old_one(lone):
    """What a rank held belonged to a group that is gone; a cache that stood would serve old blocks."""
    assert lone.runner.memory.resident_bytes() > 0
    word = begin_epoch(lone)
    poll_until_joined(lone, word)
    assert lone.runner.memory.resident_bytes() == 0
    assert (lone.worker.version, lone.worker.weights.name, lone.worker.kv.name) == (
        None,
        "CLEARED",
        "CLEARED",
    )
    status = look(lone)
    assert (status.epoch, status.code) == (word.epoch, StatusCode.ATTACHED)
    assert lone.update(3).version == "3"
    with lone.worker.step() as permit:
        assert (permit.step, permit.version) == (1, "3")  # steps begin anew
    assert replay(lone.worker.journal).impossible is None


def test_the_pause_that_a_new_epoch_begins_is_counted_until_the_rank_serves_again(make_lone):
    lone = make_lone()
    clock = lone.group.clock
    lone.update(1)
    clock.advance(5)
    poll_until_joined(lone, begin_epoch(lone))
    clock.advance(7)
    assert lone.update(1, force=True).pause_s == 7


def test_a_new_epoch_ends_a_command_in_the_middle(lone):
    pending = lone.controller.begin_clear(settle_s=0.1)
    pending.written(10)
    for _ in range(4):
        lone.worker.poll()
    poll_until_joined(lone, begin_epoch(lone))
    assert look(lone).code is StatusCode.ATTACHED
    assert lone.worker.weights.name == "CLEARED"
    pending.give_up()


def test_a_rank_that_cannot_give_back_what_it_held_does_not_join_the_new_epoch(lone, monkeypatch):
    def stuck():
        raise OSError("somebody still holds it")

    monkeypatch.setattr(lone.runner.weights, "release", stuck)
    word = begin_epoch(lone)
    with pytest.raises(TeardownFailedError, match="rank 0"):
        poll_until_joined(lone, word)
    assert look(lone).epoch == 1
    assert lone.worker.weights.name == "FAULTED"


def test_a_rank_that_failed_to_leave_its_epoch_joins_none_though_the_cause_has_passed(lone, monkeypatch):
    release = lone.runner.weights.release
    fails = [OSError("a moment too early")]

    def once():
        if fails:
            raise fails.pop()
        return release()

    monkeypatch.setattr(lone.runner.weights, "release", once)
    word = begin_epoch(lone)
    for _ in range(3):
        with pytest.raises(TeardownFailedError):
            poll_until_joined(lone, word)
    assert look(lone).epoch == 1
    assert lone.worker.weights.name == "FAULTED"
    assert replay(lone.worker.journal).impossible is None


def test_a_rank_leaves_its_epoch_one_action_per_poll_and_writes_no_word_before_all_is_given_back(lone):
    def done():
        return sum(one.kind == kinds.ACTION_FINISHED for one in lone.worker.journal)

    def words():
        memory, layout = lone.segment.words, lone.segment.layout
        return memory[layout.step[0]], memory[layout.status[0]]

    word, before, finished, polls = begin_epoch(lone), words(), done(), 0
    while look(lone).epoch != word.epoch:
        assert words() == before
        was = done()
        assert lone.worker.poll() is HOLD
        assert done() - was <= 1
        polls += 1
    assert done() - finished > 2
    assert polls == done() - finished + 1
    assert (lone.worker.weights.name, lone.worker.kv.name) == ("CLEARED", "CLEARED")
