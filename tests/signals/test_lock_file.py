from __future__ import annotations

import os
import threading

import pytest

from tests.incident import incident
from wsm.signals.errors import RoleBusyError, SegmentAccessError
from wsm.signals.liveness import ControllerRole
from wsm.signals.lock_file import UNBOUNDED, create_lock_file, open_lock_file
from wsm.signals.segment import Segment

CONTROLLER = """
segment = Segment.attach(sys.argv[1])
role = ControllerRole(segment).acquire(float(sys.argv[2]))
say("commands")
heard()
role.release()
say("released")
heard()
"""


@pytest.fixture
def lock_file(tmp_path):
    file = create_lock_file(tmp_path / "lock")
    yield file
    file.close()


def test_a_process_opens_a_lock_file_once_whoever_asks(lock_file, tmp_path):
    again = create_lock_file(tmp_path / "lock")
    assert again is lock_file
    again.close()
    assert lock_file.is_current()


def test_a_missing_lock_file_is_not_created_by_opening(tmp_path):
    assert open_lock_file(tmp_path / "none") is None
    assert not list(tmp_path.iterdir())


def test_a_lock_file_is_a_regular_file_or_refused(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "target")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(SegmentAccessError):
            create_lock_file(tmp_path / name)


def test_bytes_are_excluded_within_a_process_as_well(lock_file):
    with lock_file.try_acquire(5) as hold:
        assert hold.is_held
        assert lock_file.holder(5) == os.getpid()
        assert lock_file.try_acquire(5) is None
        assert lock_file.try_acquire(2, UNBOUNDED) is None
        assert lock_file.try_acquire(4, 2) is None
        with lock_file.try_acquire(4), lock_file.try_acquire(6):
            assert lock_file.holder(7) is None
    assert not hold.is_held
    with lock_file.try_acquire(2, UNBOUNDED):
        assert lock_file.try_acquire(1000) is None
        assert lock_file.holder(1000) == os.getpid()
    hold.release()
    assert lock_file.holder(1000) is None


def test_releasing_one_byte_leaves_its_neighbours_locked(segment, name, launch):
    file = segment.lock_file
    left, right = file.try_acquire(2), file.try_acquire(3)
    left.release()
    child = launch("say(Segment.attach(sys.argv[1]).lock_file.holder(3))", name)
    assert child.says() == str(os.getpid())
    right.release()


@pytest.mark.processes
def test_closing_another_use_of_the_file_keeps_the_locks(segment, name, launch):
    """POSIX would drop all locks with the first descriptor that is closed; hence the registry."""
    role = ControllerRole(segment).acquire(0)
    Segment.attach(name).close()
    child = launch("say(Segment.attach(sys.argv[1]).lock_file.holder(0))", name)
    assert child.says() == str(os.getpid())
    role.release()


@pytest.mark.processes
def test_a_lock_on_a_file_that_was_removed_meanwhile_is_noticed(lock_file, tmp_path):
    (tmp_path / "lock").unlink()
    assert not lock_file.is_current()
    with lock_file.try_acquire(0):
        other = create_lock_file(tmp_path / "lock")
        assert other is not lock_file
        with other.try_acquire(0):
            assert other.is_current()
        lock_file.remove()
        assert (tmp_path / "lock").exists()
        other.close()


@incident("FastDeploy C2-3")
@pytest.mark.processes
def test_a_second_controller_is_refused_with_the_firsts_pid_if_it_does_not_wait(segment, name, launch):
    first = launch(CONTROLLER, name, "0")
    assert first.says() == "commands"
    with pytest.raises(RoleBusyError, match=f"held by process {first.pid}") as caught:
        ControllerRole(segment).acquire(0)
    assert caught.value.pid == first.pid
    assert ControllerRole(segment).holder() == first.pid
    with pytest.raises(RoleBusyError, match=r"waited 0\.01 s"):
        ControllerRole(segment).acquire(0.01)


@pytest.mark.processes
def test_a_second_controller_that_waits_gets_the_role_when_the_first_is_done(segment, name, launch):
    role = ControllerRole(segment).acquire(0)
    second = launch(CONTROLLER, name, "30")
    third = launch(CONTROLLER, name, "0")
    assert third.ends() == 1
    assert "RoleBusyError" in third.errors()
    role.release()
    assert second.says() == "commands"
    assert ControllerRole(segment).holder() == second.pid
    second.tell()
    assert second.says() == "released"
    with ControllerRole(segment).acquire(0) as role:
        assert role.is_held
        assert ControllerRole(segment).holder() == os.getpid()
    assert ControllerRole(segment).holder() is None


@pytest.mark.processes
def test_a_killed_controller_leaves_the_role_to_the_next(segment, name, launch):
    first = launch(CONTROLLER, name, "0")
    first.says()
    first.kill()
    with ControllerRole(segment).acquire(30):
        pass


@pytest.mark.processes
def test_a_stopped_controller_keeps_the_role(segment, name, launch):
    first = launch(CONTROLLER, name, "0")
    first.says()
    first.freeze()
    with pytest.raises(RoleBusyError):
        ControllerRole(segment).acquire(0.01)


def test_two_threads_never_have_the_role_together(segment):
    inside, most, rounds = [], [], []

    def command():
        for _ in range(50):
            with ControllerRole(segment).acquire(30):
                inside.append(1)
                most.append(len(inside))
                rounds.append(1)
                inside.pop()

    threads = [threading.Thread(target=command) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(rounds) == 200
    assert max(most) == 1
