from __future__ import annotations

import errno
import os
import select
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.incident import incident
from tests.needs import OWN_PIDS, OWN_TIMES
from tests.raising import raising
from wsm.signals.errors import SlotTakenError
from wsm.signals.liveness import Life, Liveness, register
from wsm.signals.presence import Occupant, ProcessIdentity, start_time_of, write_occupant
from wsm.signals.segment import Segment

pytestmark = pytest.mark.processes

PARTICIPANT = """
segment = Segment.attach(sys.argv[1])
registration = register(segment, 1)
say("registered", os.getpid())
while heard() == "release":
    registration.release()
    say("released")
"""


@pytest.fixture
def liveness(segment):
    liveness = Liveness(segment)
    yield liveness
    liveness.close()


@pytest.fixture(params=["pidfd", "no pidfd"])
def either_way(request, monkeypatch):
    """The same test by pidfd, and by byte lock on a kernel that refuses pidfds."""
    if request.param == "no pidfd":

        def refuse(pid, flags=0):
            raise OSError(errno.ENOSYS, "Function not implemented")

        monkeypatch.setattr(os, "pidfd_open", refuse)
    return request.param


def test_a_participant_is_alive_until_it_is_killed(segment, name, liveness, launch, either_way):
    assert liveness.look(1) is Life.NEVER
    assert liveness.pid(1) is None
    child = launch(PARTICIPANT, name)
    child.says()
    assert liveness.look(1) is Life.ALIVE
    assert liveness.pid(1) == child.pid
    assert (liveness.fd(1) is None) == (either_way == "no pidfd")
    child.kill()
    assert liveness.look(1) is Life.DEAD
    assert liveness.look(0) is Life.NEVER


def test_a_stopped_participant_is_alive(segment, name, liveness, launch, either_way):
    child = launch(PARTICIPANT, name)
    child.says()
    child.freeze()
    assert liveness.look(1) is Life.ALIVE
    with pytest.raises(SlotTakenError):
        register(segment, 1, timeout_s=0.01)


def test_a_zombie_is_dead_whether_it_was_watched_before_or_not(segment, name, liveness, launch, either_way):
    child = launch(PARTICIPANT, name)
    child.says()
    assert liveness.look(1) is Life.ALIVE
    child.leave_zombie()
    assert liveness.look(1) is Life.DEAD
    late = Liveness(segment)
    assert late.look(1) is Life.DEAD
    late.close()


def test_a_participant_that_left_in_good_order_is_gone_although_its_process_lives(
    segment, name, liveness, launch, either_way
):
    child = launch(PARTICIPANT, name)
    child.says()
    assert liveness.look(1) is Life.ALIVE
    child.tell("release")
    assert child.says() == "released"
    assert liveness.look(1) is Life.DEAD
    with segment.lock_file.try_acquire(
        3
    ):  # as one who is about to register, or a starter that looks who lives
        assert liveness.look(1) is Life.DEAD
    register(segment, 1).release()


def test_the_descriptor_becomes_readable_with_the_death(segment, name, liveness, launch):
    child = launch(PARTICIPANT, name)
    child.says()
    fd = liveness.fd(1)
    assert select.select([fd], [], [], 0)[0] == []
    child.kill()
    assert select.select([fd], [], [], 30)[0] == [fd]


def test_a_replacement_is_watched_in_place_of_the_dead(segment, name, liveness, launch, either_way):
    first = launch(PARTICIPANT, name)
    first.says()
    assert liveness.look(1) is Life.ALIVE
    first.kill()
    assert liveness.look(1) is Life.DEAD
    second = launch(PARTICIPANT, name)
    second.says()
    assert liveness.look(1) is Life.ALIVE
    assert liveness.pid(1) == second.pid
    second.kill()
    assert liveness.look(1) is Life.DEAD


@incident("4.8-8")
def test_a_place_that_a_live_process_has_is_refused_with_its_pid(segment, name, launch):
    child = launch(PARTICIPANT, name)
    child.says()
    with pytest.raises(SlotTakenError, match="end it before it is replaced") as caught:
        register(segment, 1, timeout_s=0.01)
    assert (caught.value.participant, caught.value.pid) == (1, child.pid)


def test_a_place_is_taken_within_one_process_too(segment):
    with register(segment, 0), pytest.raises(SlotTakenError) as caught:
        register(segment, 0, timeout_s=0.01)
    assert caught.value.pid == os.getpid()
    register(segment, 0).release()


def test_a_replacement_may_start_while_its_predecessor_is_still_dying(segment, name, launch):
    child = launch(PARTICIPANT, name)
    child.says()
    os.kill(child.pid, 9)
    with register(segment, 1, timeout_s=30) as registration:
        assert registration.is_held


def test_a_place_that_does_not_exist_is_refused(segment, liveness):
    for use in (lambda: register(segment, 3), lambda: liveness.look(-1), lambda: liveness.fd(3)):
        with raising("participant-unknown"):
            use()


def test_a_reused_pid_is_nobody(segment, liveness, launch):
    """The record names a process of this pid that started at another time."""
    child = launch("say('here')\nheard()")
    child.says()
    identity = ProcessIdentity.current()._replace(pid=child.pid, start_time=start_time_of(child.pid) - 1)
    write_occupant(segment.words, segment.layout.occupant[1], Occupant(identity, present=True))
    assert liveness.look(1) is Life.DEAD
    assert liveness.fd(1) is None
    register(segment, 1).release()


def test_a_live_process_that_lost_its_lock_still_has_its_place(segment, name, liveness, launch):
    """A library that opens and closes the lock file on its own takes the locks with it."""
    child = launch(
        """
        segment = Segment.attach(sys.argv[1])
        registration = register(segment, 1)
        open(segment.lock_file.path).close()
        say("lost")
        heard()
        """,
        name,
    )
    child.says()
    assert segment.lock_file.holder(3) is None
    assert liveness.look(1) is Life.ALIVE
    with pytest.raises(SlotTakenError) as caught:
        register(segment, 1)
    assert caught.value.pid == child.pid
    child.kill()
    register(segment, 1).release()


def test_a_record_that_was_torn_leaves_the_question_to_the_lock(segment, name, liveness, launch):
    child = launch(PARTICIPANT, name)
    child.says()
    segment.words[segment.layout.occupant[1] + 1] += 1
    assert liveness.look(1) is Life.ALIVE
    assert liveness.fd(1) is None
    assert liveness.pid(1) is None
    child.kill()
    assert liveness.look(1) is Life.DEAD


@pytest.mark.needs("pids")
def test_a_process_in_another_pid_namespace_is_watched_by_its_lock(segment, name, liveness, launch):
    child = launch(
        """
        segment = Segment.attach(sys.argv[1])
        registration = register(segment, 1)
        say(os.getpid())
        say(Liveness(segment).look(0), Liveness(segment).fd(0))
        say(segment.lock_file.holder(1))
        heard()
        """,
        name,
        prefix=OWN_PIDS,
    )
    with register(segment, 0):
        assert child.says() == "1"
        assert child.says() == "Life.ALIVE None"
        assert child.says() == "0"
        assert liveness.fd(1) is None
        assert liveness.look(1) is Life.ALIVE
        with pytest.raises(SlotTakenError):
            register(segment, 1, timeout_s=0.01)
        child.kill()
        # The one that was killed is unshare, outside; what it ran dies with it, a moment later.
        register(segment, 1, timeout_s=30).release()
        assert liveness.look(1) is Life.DEAD


@pytest.mark.needs("times")
def test_a_process_whose_clocks_began_at_another_moment_is_watched_by_its_lock(
    segment, name, liveness, launch
):
    """The start times of processes differ there, so that no pidfd can be trusted."""
    with register(segment, 0):
        child = launch(
            """
            segment = Segment.attach(sys.argv[1])
            registration = register(segment, 1)
            say(Liveness(segment).look(0), Liveness(segment).fd(0))
            heard()
            """,
            name,
            prefix=OWN_TIMES,
        )
        assert child.says() == "Life.ALIVE None"
        assert liveness.look(1) is Life.ALIVE
        with pytest.raises(SlotTakenError):
            register(segment, 1, timeout_s=0.01)
        child.kill()
        # The one that was killed is unshare, outside; what it ran dies with it, a moment later.
        register(segment, 1, timeout_s=30).release()
        assert liveness.look(1) is Life.DEAD


@pytest.mark.needs("pids")
def test_a_child_that_was_forked_into_another_pid_namespace_knows_it(launch):
    child = launch(
        """
        import ctypes
        from wsm.signals.presence import own_pid_namespace
        before = own_pid_namespace()
        assert ctypes.CDLL(None).unshare(0x20000000) == 0  # CLONE_NEWPID: for children
        if os.fork() == 0:
            say(own_pid_namespace() != before)
            os._exit(0)
        os.wait()
        """,
        prefix=OWN_PIDS,
    )
    assert child.says() == "True"


def test_a_registration_that_outlives_its_segment_ends_quietly(name):
    segment = Segment.create_or_adopt(name, world_size=1, run_id="", configuration_digest=0)
    registration = register(segment, 0)
    segment.unlink()
    segment.close()
    registration.release()
    registration.release()
    assert not registration.is_held


@pytest.mark.slow
def test_several_threads_look_at_once(segment, name, liveness, launch):
    child = launch(PARTICIPANT, name)
    child.says()
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: liveness.look(1), range(2000)))
    assert set(found) == {Life.ALIVE}
