from __future__ import annotations

import ctypes
import os
import selectors
import threading

import pytest

from wsm.signals import waiting
from wsm.signals.errors import SegmentClosedError
from wsm.signals.segment import Segment
from wsm.signals.waiting import Alarm, Bell, Watch, has_wait_any, wait, wake

LONG_S = 60.0

WAITER = """
segment = Segment.attach(sys.argv[1])
by_kernel, high = sys.argv[2] == "True", sys.argv[3] == "high"
waiting.has_wait_any = lambda: by_kernel
layout = segment.layout
indexes = [layout.command, layout.status[0], layout.step[1]]
say("waits")
say(wait(segment, [Watch(index, high, 0) for index in indexes], 60.0))
"""


@pytest.mark.processes
@pytest.mark.parametrize("high", [False, True])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_waiter_returns_when_any_of_its_words_changes(segment, launch, by_kernel, which, high):
    child = launch(WAITER, segment.name, str(by_kernel), "high" if high else "low")
    assert child.says() == "waits"
    index = [segment.layout.command, segment.layout.status[0], segment.layout.step[1]][which]
    segment.words[index] = 1 << 32 if high else 1
    wake(segment, index, high)
    assert child.says() == "True"


def test_the_kernel_sees_each_ring_of_an_alarm():
    alarm = Alarm()
    for rings in (1, 2):
        alarm.ring()
        assert ctypes.c_uint32.from_address(alarm.address).value == alarm.rings == rings


@pytest.mark.processes
@pytest.mark.needs("futex_waitv")
@pytest.mark.parametrize("which", [0, 2])
def test_the_kernel_itself_wakes_the_waiter(segment, launch, eventually, which):
    child = launch(WAITER, segment.name, "True", "low")
    child.says()
    index = [segment.layout.command, segment.layout.status[0], segment.layout.step[1]][which]
    # Woken without a change it goes back to sleep, so this says that the kernel knows it.
    eventually(lambda: wake(segment, index) == 1)
    eventually(lambda: wake(segment, index) == 1)
    segment.words[index] = 1
    wake(segment, index)
    assert child.says() == "True"


def test_a_word_that_has_changed_already_is_not_waited_for(segment, by_kernel):
    command, committed = segment.layout.command, segment.layout.committed
    segment.words[committed] = 5
    assert wait(segment, [Watch(command, False, 0), Watch(committed, False, 4)], LONG_S)
    assert wait(segment, [Watch(committed, False, 5 | 1 << 40)], LONG_S)


def test_a_wait_ends_when_its_time_is_up(segment, by_kernel):
    watches = [Watch(segment.layout.command, False, 0)]
    assert not wait(segment, watches, 0.005)
    assert not wait(segment, watches, 0)
    assert not wait(segment, [], 0.005)


@pytest.mark.needs("futex_waitv")
@pytest.mark.processes
@pytest.mark.parametrize("half", ["low", "high"])
def test_each_half_of_a_word_is_a_futex_of_its_own(segment, launch, eventually, half):
    child = launch(WAITER, segment.name, "True", half)
    child.says()
    halves = {"low": segment.address + segment.layout.command * 8}
    halves["high"] = halves["low"] + 4
    eventually(lambda: waiting.wake_all(halves[half]) == 1)
    segment.words[segment.layout.command] = 2**64 - 1
    waiting.wake_all(halves[half])  # it may have looked before the store, and sleep again
    assert child.says() == "True"


def test_a_wait_sleeps_until_its_time_is_up_and_does_not_spin(segment, monkeypatch):
    calls = []

    for module, name in ((waiting, "wait_any"), (waiting.time, "sleep")):
        how = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *seconds, how=how: (calls.append(how), how(*seconds)))
    watches = [Watch(segment.layout.command, True, 0), Watch(segment.layout.committed, False, 0)]
    assert not wait(segment, watches, 0.05)
    assert 1 <= len(calls) <= (3 if has_wait_any() else 60)


@pytest.mark.needs("futex_waitv")
def test_the_kernel_compares_before_it_sleeps(segment):
    """A change between looking and sleeping: the value given to the kernel is not there any more."""
    address = segment.address + segment.layout.command * 8
    waiting.wait_any([(address + 64, 0), (address, 1)], LONG_S)


@pytest.mark.processes
def test_no_wake_up_is_lost_between_two_processes(segment, name, launch, by_kernel):
    """Each waits for the other's word; one lost wake-up and a wait would run into its deadline."""
    rounds = 2000 if by_kernel else 200
    child = launch(
        """
        segment = Segment.attach(sys.argv[1])
        by_kernel, rounds = sys.argv[2] == "True", int(sys.argv[3])
        waiting.has_wait_any = lambda: by_kernel
        mine, theirs = segment.layout.status[1], segment.layout.command
        say("ready")
        answered = all(
            (wait(segment, [Watch(theirs, False, turn)], 20.0),
             segment.words.__setitem__(mine, turn + 1), wake(segment, mine))[0]
            for turn in range(rounds)
        )
        say(answered)
        """,
        name,
        str(by_kernel),
        str(rounds),
    )
    child.says()
    command, status = segment.layout.command, segment.layout.status[1]
    for turn in range(rounds):
        segment.words[command] = turn + 1
        wake(segment, command)
        assert wait(segment, [Watch(status, False, turn)], 20.0)
        assert segment.words[status] == turn + 1
    assert child.says() == "True"


def test_more_words_than_the_kernel_watches_are_all_watched(name):
    with Segment.create_or_adopt(name, world_size=300, run_id="", configuration_digest=0) as segment:
        last = segment.layout.status[-1]
        watches = [Watch(index, False, 0) for index in segment.layout.status]
        waiter = threading.Thread(target=lambda: seen.append(wait(segment, watches, LONG_S)))
        seen: list[bool] = []
        waiter.start()
        segment.words[last] = 1
        wake(segment, last)
        waiter.join()
        segment.unlink()
    assert seen == [True]


def test_a_processor_without_known_call_numbers_has_no_futex(monkeypatch):
    monkeypatch.setattr(waiting, "_FUTEX_NUMBER", None)
    assert not waiting.has_wait_any.__wrapped__()


def test_waiting_on_a_closed_segment_is_refused(name, by_kernel):
    segment = Segment.create_or_adopt(name, world_size=1, run_id="", configuration_digest=0)
    segment.unlink()
    segment.close()
    with pytest.raises(SegmentClosedError, match="attach it again"):
        wait(segment, [Watch(40, False, 0)], LONG_S)
    with pytest.raises(SegmentClosedError):
        wake(segment, 40)


@pytest.fixture
def bell(segment):
    bell = Bell(segment)
    yield bell
    bell.close()


def rings(bell, timeout_s):
    with selectors.DefaultSelector() as selector:
        selector.register(bell, selectors.EVENT_READ)
        return bool(selector.select(timeout_s))


@pytest.mark.processes
def test_the_bell_rings_in_a_selector_when_another_process_writes_a_command(segment, name, bell, launch):
    assert not rings(bell, 0)
    child = launch(
        """
        segment = Segment.attach(sys.argv[1])
        while heard():
            segment.words[segment.layout.command] += 1
            wake(segment, segment.layout.command)
        """,
        name,
    )
    for _ in range(5):
        child.tell("write")
        assert rings(bell, LONG_S)
        bell.clear()
        assert not rings(bell, 0)
    assert segment.words[segment.layout.command] == 5


def test_a_ring_that_nobody_heard_stays(segment, bell):
    segment.words[segment.layout.command] = 1
    wake(segment, segment.layout.command)
    assert rings(bell, LONG_S)
    assert rings(bell, 0)
    assert bell.clear()
    assert not bell.clear()
    assert not rings(bell, 0)


def test_the_bell_rings_once_when_the_segment_was_removed(segment, bell):
    segment.unlink()
    assert rings(bell, LONG_S)
    bell.clear()
    assert segment.inode_changed()


def test_a_bell_that_has_rung_sleeps_until_the_next_command(segment, bell, eventually):
    command = segment.layout.command
    segment.words[command] = 1
    wake(segment, command)
    assert rings(bell, LONG_S)
    eventually(lambda: wake(segment, command) == 1)  # it sleeps in the kernel
    bell.clear()
    eventually(lambda: wake(segment, command) == 1)
    assert not rings(bell, 0)


def test_closing_the_bell_ends_its_thread_and_closes_its_descriptor(segment):
    before = set(threading.enumerate())
    bell = Bell(segment)
    (thread,) = set(threading.enumerate()) - before
    assert thread.daemon
    fd = bell.fileno()
    bell.close()
    bell.close()
    assert not thread.is_alive()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_bell_that_outlives_its_segment_ends_by_itself(name):
    segment = Segment.create_or_adopt(name, world_size=1, run_id="", configuration_digest=0)
    bell = Bell(segment)
    segment.unlink()
    segment.close()
    bell.close()
