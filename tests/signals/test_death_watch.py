"""A death ends a wait at once; a stopped process is seen to be stopped; nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading

import pytest

from tests.descriptors import open_before, open_descriptors
from wsm.signals.liveness import DeathWatch, Life, Liveness, register
from wsm.signals.waiting import Alarm, AlarmClock, Watch, wait

LONG_S = 60.0

STAND = """
segment = Segment.attach(sys.argv[1])
registration = register(segment, int(sys.argv[2]))
say("standing")
time.sleep(600)
"""


@pytest.fixture
def liveness(segment):
    liveness = Liveness(segment)
    yield liveness
    liveness.close()


def watch_all(segment) -> list[Watch]:
    words = segment.words
    return [Watch(index, high=False, seen=words[index]) for index in segment.layout.status]


@pytest.mark.usefixtures("by_kernel")
def test_a_death_ends_a_wait_for_words(segment, name, launch, liveness):
    alarm = Alarm()
    children = [launch(STAND, name, str(participant)) for participant in (0, 1)]
    for child in children:
        child.says()
    watch = DeathWatch(liveness, range(3), alarm.ring)
    watch.refresh()
    for rings, child in enumerate(children):
        killer = threading.Thread(target=child.kill)
        killer.start()
        assert wait(segment, watch_all(segment), LONG_S, alarm=alarm, heard=rings)
        killer.join()
        assert liveness.look(rings) is Life.DEAD
    watch.close()


def test_a_ring_between_looking_and_waiting_is_not_lost(segment):
    alarm = Alarm()
    heard = alarm.rings
    alarm.ring()
    assert wait(segment, watch_all(segment), LONG_S, alarm=alarm, heard=heard)
    assert not wait(segment, watch_all(segment), 0.0, alarm=alarm, heard=alarm.rings)


def test_who_takes_a_dead_ones_place_is_watched_too(segment, name, launch, liveness):
    alarm = Alarm()
    watch = DeathWatch(liveness, range(3), alarm.ring)
    for rings in range(3):
        child = launch(STAND, name, "1")
        child.says()
        watch.refresh()
        watch.refresh()
        child.kill()
        assert wait(segment, watch_all(segment), LONG_S, alarm=alarm, heard=rings)
        assert alarm.rings == rings + 1
    watch.close()


def test_a_closed_watch_leaves_no_descriptor_and_no_thread(segment, name, launch):
    child = launch(STAND, name, "0")
    child.says()
    before, threads = open_before(), set(threading.enumerate())
    for _ in range(3):
        liveness = Liveness(segment)
        watch = DeathWatch(liveness, range(3), Alarm().ring)
        watch.refresh()
        watch.close()
        watch.close()
        liveness.close()
    assert open_descriptors() <= before
    assert set(threading.enumerate()) <= threads  # those of others may end


def test_a_turn_has_its_time_and_a_death_waits_for_none(segment, name, launch, liveness):
    turns, deaths = threading.Event(), threading.Event()
    child = launch(STAND, name, "0")
    child.says()
    watch = DeathWatch(liveness, range(3), deaths.set, turns.set, turn_after_s=LONG_S)
    watch.refresh()
    assert turns.wait(LONG_S)  # at once, since a process is new
    turns.clear()
    watch.turn_soon()
    assert not turns.is_set()
    child.kill()
    assert deaths.wait(LONG_S)
    assert turns.wait(LONG_S)
    watch.close()


def test_an_alarm_clock_is_quiet_until_its_time_and_once_it_was_cleared():
    with contextlib.closing(AlarmClock()) as clock:
        clock.set(LONG_S)
        assert not select.select([clock], [], [], 0)[0]
        clock.set(0.0)
        assert select.select([clock], [], [], LONG_S)[0]
        clock.clear()
        clock.clear()
        assert not select.select([clock], [], [], 0)[0]


def test_a_stopped_process_is_seen_to_be_stopped(segment, name, launch, liveness):
    child = launch(STAND, name, "1")
    child.says()
    assert not liveness.is_stopped(1)
    os.kill(child.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
    assert liveness.is_stopped(1)
    assert liveness.look(1) is Life.ALIVE
    os.kill(child.pid, signal.SIGCONT)
    os.waitid(os.P_PID, child.pid, os.WCONTINUED | os.WNOWAIT)
    assert not liveness.is_stopped(1)
    child.kill()
    assert not liveness.is_stopped(1)
    assert not liveness.is_stopped(0)


def test_who_left_in_good_order_is_nobody(segment, liveness):
    with register(segment, 1):
        assert liveness.identity(1).pid == os.getpid()
    assert liveness.identity(1) is None
    assert liveness.identity(0) is None
