from __future__ import annotations

import os
import selectors
import threading

import pytest

from wsm.signals import waiting
from wsm.signals.errors import SegmentClosedError
from wsm.signals.segment import Segment
from wsm.signals.waiting import Bell, WaitMode, Watch, best_mode, wait, wake

LONG_S = 60.0

WAITER = """
segment = Segment.attach(sys.argv[1])
mode, high = WaitMode(sys.argv[2]), sys.argv[3] == "high"
layout = segment.layout
indexes = [layout.command, layout.status[0], layout.step[1]]
say("waits")
say(wait(segment, [Watch(index, high, 0) for index in indexes], 60.0, mode=mode))
"""


ANY = pytest.param("any", marks=pytest.mark.needs("futex_waitv"))


@pytest.fixture(params=[ANY, *(mode.value for mode in WaitMode if mode is not WaitMode.ANY)])
def mode(request):
    return WaitMode(request.param)


@pytest.mark.processes
@pytest.mark.parametrize("high", [False, True])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_waiter_returns_when_any_of_its_words_changes(segment, launch, mode, which, high):
    child = launch(WAITER, segment.name, mode.value, "high" if high else "low")
    assert child.says() == "waits"
    index = [segment.layout.command, segment.layout.status[0], segment.layout.step[1]][which]
    segment.words[index] = 1 << 32 if high else 1
    wake(segment, index, high)
    assert child.says() == "True"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("mode", "which"),
    [
        pytest.param("any", 0, marks=pytest.mark.needs("futex_waitv")),
        pytest.param("any", 2, marks=pytest.mark.needs("futex_waitv")),
        ("first", 0),
    ],
)
def test_the_kernel_itself_wakes_the_waiter(segment, launch, eventually, mode, which):
    child = launch(WAITER, segment.name, mode, "low")
    child.says()
    index = [segment.layout.command, segment.layout.status[0], segment.layout.step[1]][which]
    # Woken without a change it goes back to sleep, so this says that the kernel knows it.
    eventually(lambda: wake(segment, index) == 1)
    eventually(lambda: wake(segment, index) == 1)
    segment.words[index] = 1
    wake(segment, index)
    assert child.says() == "True"


def test_a_word_that_has_changed_already_is_not_waited_for(segment, mode):
    command, committed = segment.layout.command, segment.layout.committed
    segment.words[committed] = 5
    assert wait(segment, [Watch(command, False, 0), Watch(committed, False, 4)], LONG_S, mode=mode)
    assert wait(segment, [Watch(committed, False, 5 | 1 << 40)], LONG_S, mode=mode)


def test_a_wait_ends_when_its_time_is_up(segment, mode):
    watches = [Watch(segment.layout.command, False, 0)]
    assert not wait(segment, watches, 0.005, mode=mode)
    assert not wait(segment, watches, 0, mode=mode)
    assert not wait(segment, [], 0.005, mode=mode)


@pytest.mark.processes
@pytest.mark.parametrize("half", ["low", "high"])
def test_each_half_of_a_word_is_a_futex_of_its_own(segment, launch, eventually, half):
    child = launch(WAITER, segment.name, "first", half)
    child.says()
    halves = {"low": segment.address + segment.layout.command * 8}
    halves["high"] = halves["low"] + 4
    eventually(lambda: waiting.wake_all(halves[half]) == 1)
    segment.words[segment.layout.command] = 2**64 - 1
    assert child.says() == "True"


def test_a_wait_sleeps_until_its_time_is_up_and_does_not_spin(segment, monkeypatch):
    calls = []

    def counted(how):
        return lambda *arguments: (calls.append(how), how(*arguments))

    for name in ("wait_any", "wait_one"):
        monkeypatch.setattr(waiting, name, counted(getattr(waiting, name)))
    watches = [Watch(segment.layout.command, True, 0), Watch(segment.layout.committed, False, 0)]
    assert not wait(segment, watches, 0.05)
    assert 1 <= len(calls) <= (3 if best_mode() is WaitMode.ANY else 60)


def test_the_kernel_compares_before_it_sleeps(segment):
    """A change between looking and sleeping: the value given to the kernel is not there any more."""
    address = segment.address + segment.layout.command * 8
    waiting.wait_one(address, 1, LONG_S)
    if waiting.has_wait_any():
        waiting.wait_any([(address + 64, 0), (address, 1)], LONG_S)


@pytest.mark.processes
def test_no_wake_up_is_lost_between_two_processes(segment, name, launch, mode):
    """Each waits for the other's word; one lost wake-up and a wait would run into its deadline."""
    rounds = 2000 if mode is not WaitMode.SLEEP else 200
    child = launch(
        """
        segment = Segment.attach(sys.argv[1])
        mode, rounds = WaitMode(sys.argv[2]), int(sys.argv[3])
        mine, theirs = segment.layout.status[1], segment.layout.command
        say("ready")
        answered = all(
            (wait(segment, [Watch(theirs, False, turn)], 20.0, mode=mode),
             segment.words.__setitem__(mine, turn + 1), wake(segment, mine))[0]
            for turn in range(rounds)
        )
        say(answered)
        """,
        name,
        mode.value,
        str(rounds),
    )
    child.says()
    command, status = segment.layout.command, segment.layout.status[1]
    for turn in range(rounds):
        segment.words[command] = turn + 1
        wake(segment, command)
        assert wait(segment, [Watch(status, False, turn)], 20.0, mode=mode)
        assert segment.words[status] == turn + 1
    assert child.says() == "True"


def test_more_words_than_the_kernel_watches_are_all_watched(name):
    with Segment.create(name, world_size=300, run_id="", configuration_digest=0) as segment:
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


@pytest.mark.parametrize(
    ("vector", "single", "expected"),
    [(True, True, WaitMode.ANY), (False, True, WaitMode.FIRST), (False, False, WaitMode.SLEEP)],
)
def test_the_best_way_that_the_kernel_allows_is_taken(monkeypatch, vector, single, expected):
    monkeypatch.setattr(waiting, "has_wait_any", lambda: vector)
    monkeypatch.setattr(waiting, "has_futex", lambda: single)
    best_mode.cache_clear()
    assert best_mode() is expected
    best_mode.cache_clear()


def test_a_processor_without_known_call_numbers_has_no_futex(monkeypatch):
    monkeypatch.setattr(waiting, "_FUTEX_NUMBER", None)
    assert not waiting.has_futex.__wrapped__()
    assert not waiting.has_wait_any.__wrapped__()


def test_waiting_on_a_closed_segment_is_refused(name, mode):
    segment = Segment.create(name, world_size=1, run_id="", configuration_digest=0)
    segment.unlink()
    segment.close()
    with pytest.raises(SegmentClosedError, match="attach it again"):
        wait(segment, [Watch(40, False, 0)], LONG_S, mode=mode)
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
    bell.clear()
    bell.clear()
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
    segment = Segment.create(name, world_size=1, run_id="", configuration_digest=0)
    bell = Bell(segment)
    segment.unlink()
    segment.close()
    bell.close()
