"""Loops that wait: nothing is lost between a look and a wait, and nothing rings without end."""

from __future__ import annotations

import os
import select
import time

import pytest
from living_group import eventually

from tests.incident import incident
from wsm import HOLD, SERVE
from wsm.signals.errors import SegmentClosedError


def readable(worker) -> bool:
    return bool(select.select([worker.fileno()], [], [], 0)[0])


def until_quiet(worker) -> None:
    while worker.poll() is not SERVE:
        pass
    eventually(lambda: worker.poll() and not readable(worker), "the descriptor to become quiet")


def test_a_command_makes_the_descriptor_readable_and_the_poll_after_it_makes_it_quiet(lone):
    until_quiet(lone.worker)
    pending = lone.controller.begin_update(2)
    pending.written(10)
    eventually(lambda: readable(lone.worker))
    lone.run(pending)
    until_quiet(lone.worker)


def test_a_ring_that_comes_after_its_command_was_served_is_silenced_too(lone):
    """The bell's thread may be late: the loop has done the command, and is on its quiet path again."""
    until_quiet(lone.worker)
    bell = lone.worker._bell
    os.eventfd_write(bell.fileno(), 1)
    bell._on_ring()
    assert readable(lone.worker)
    assert lone.worker.poll() is SERVE
    assert not readable(lone.worker)


def test_a_ring_while_poll_is_inside_is_not_taken_for_an_old_one(lone, monkeypatch):
    until_quiet(lone.worker)
    bell, turn = lone.worker._bell, lone.worker._loop.turn

    def ring_in_the_middle():
        todo = turn()
        os.eventfd_write(bell.fileno(), 1)
        bell._on_ring()
        return todo

    lone.worker._quiet = -1
    monkeypatch.setattr(lone.worker._loop, "turn", ring_in_the_middle)
    lone.worker.poll()
    monkeypatch.undo()
    assert readable(lone.worker)
    lone.worker.poll()
    assert not readable(lone.worker)


def test_a_command_that_came_before_the_bell_was_there_rings_it(lone):
    lone.worker.poll()
    pending = lone.controller.begin_update(2)
    pending.written(10)
    assert lone.worker._bell is None
    eventually(lambda: readable(lone.worker))
    lone.run(pending)


def test_wait_sees_a_command_that_arrives_between_its_look_and_its_sleep(lone, monkeypatch):
    lone.worker.poll()
    words = lone.worker._words
    looked = words.read
    pending = []

    def command_arrives_now():
        found = looked()
        pending.append(lone.controller.begin_update(2))
        pending[0].written(10)
        return found

    monkeypatch.setattr(words, "read", command_arrives_now)
    began = time.monotonic()
    assert lone.worker.wait(30) is True
    assert time.monotonic() - began < 30
    monkeypatch.undo()
    lone.run(pending[0])


def test_wait_returns_at_once_while_there_is_something_to_do(lone):
    pending = lone.controller.begin_update(2)
    pending.written(10)
    assert lone.worker.wait(30) is True
    lone.run(pending)


def test_wait_gives_up_when_nothing_comes(lone):
    lone.worker.poll()
    assert lone.worker.wait(0.01) is False


def test_poll_that_blocks_stays_inside_until_it_may_serve(lone):
    pending = lone.controller.begin_update(2)
    pending.written(10)
    assert lone.worker.poll(block=True) is SERVE
    assert pending.result(30).version == "2"
    assert lone.worker.version == "2"


def test_a_closed_worker_says_so_instead_of_reading_memory_that_is_gone(lone):
    lone.worker.close()
    lone.worker.close()
    with pytest.raises(SegmentClosedError):
        lone.worker.poll()


@incident("FastDeploy#5249")
def test_poll_does_one_action_at_a_time(lone):
    """An engine's loop goes on between two actions of a plan."""
    pending = lone.controller.begin_clear()
    pending.written(10)
    started = []
    while not pending.over:
        before = [e.facts["name"] for e in lone.worker.journal if e.kind == "action_started"]
        assert lone.worker.poll() in (HOLD, SERVE)
        after = [e.facts["name"] for e in lone.worker.journal if e.kind == "action_started"]
        started.append(len(after) - len(before))
    assert max(started) == 1
