"""Names where other users can make some: what lies there is used only if it is ours, and never waited for."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.another_user import ANOTHER_USER, acting, as_another_user, fork, makers, shared_place
from tests.descriptors import open_below
from wsm import shared_directory
from wsm.errors import RefusedError
from wsm.own_descriptor import OwnDescriptor
from wsm.shared_directory import (
    BoundPath,
    FileLock,
    ForeignPathError,
    bind_alone,
    bind_socket,
    connect_socket,
    create_ours,
    open_or_create_ours,
    open_ours,
    remove_ours,
    try_lock_file,
)

KINDS = ("a directory", "a pipe", "a link", "a dangling link")


@pytest.fixture
def place() -> Iterator[Path]:
    with shared_place() as path:
        yield path


@pytest.fixture(params=[0, 0o777], ids=["umask 000", "umask 777"])
def umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("use", [open_ours, open_or_create_ours, try_lock_file, bind_alone, remove_ours])
def test_what_is_no_file_is_refused_by_every_use_and_left(place, kind, use):
    path = place / "name"
    makers(path)[kind]()
    before = path.lstat()
    with pytest.raises(ForeignPathError, match=f"{path} is not used: it is a .*; remove it"):
        use(path)
    assert path.lstat() == before
    assert open_below(place) == []


@pytest.mark.slow_but
@pytest.mark.needs("root")
@pytest.mark.parametrize("use", [open_ours, open_or_create_ours, try_lock_file, remove_ours])
def test_what_another_user_has_made_is_refused_by_root_and_left(place, use):
    path = place / "name"
    as_another_user(lambda: (makers(path)["a file"](), path.chmod(0o777)))
    before = path.lstat()
    with pytest.raises(ForeignPathError, match=f"it belongs to user {ANOTHER_USER}") as caught:
        use(path)
    assert caught.value.owner == ANOTHER_USER
    assert path.lstat() == before


@pytest.mark.needs("root")
def test_what_root_has_made_is_refused_by_another_user_with_its_owner_though_it_may_not_be_opened(place):
    os.close(create_ours(place / "name"))

    def use():
        with pytest.raises(ForeignPathError, match="it belongs to user 0"):
            open_ours(place / "name")

    as_another_user(use)


@pytest.mark.usefixtures("umask")
def test_what_is_made_has_its_mode_from_its_first_moment_on_whatever_the_umask_says(place):
    os.close(create_ours(place / "file"))
    lock = try_lock_file(place / "lock")
    bound = bind_socket(place / "socket")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in place.iterdir()}
    assert modes == {"file": 0o600, "lock": 0o600, "socket": 0o600}
    bound.close()
    lock.release()


@pytest.mark.needs("root")
def test_another_user_cannot_keep_us_from_a_lock_file_of_ours(place):
    lock = try_lock_file(place / "lock")
    assert isinstance(lock, FileLock)
    lock.release()

    def hold():
        with suppress(PermissionError):
            return os.open(place / "lock", os.O_RDONLY)
        return None

    with acting(hold):
        again = try_lock_file(place / "lock")
        assert again is not None
        again.release(remove=True)
    assert not (place / "lock").exists()


def test_a_lock_is_on_the_file_that_lies_there_or_it_is_none(place, monkeypatch):
    """Another process removes the file between our opening and our lock, and makes it anew."""
    path = place / "lock"
    path.touch()
    made = []

    def opened(path, **options):
        descriptor = open_or_create_ours(path, **options)
        if not made:
            path.unlink()
            made.append(path.touch())
        return descriptor

    monkeypatch.setattr(shared_directory, "open_or_create_ours", opened)
    lock = try_lock_file(path)
    assert lock is not None
    assert try_lock_file(path) is None
    lock.release(remove=True)
    assert not path.exists()


def test_of_many_that_want_to_listen_at_a_path_one_does_at_any_time(place):
    path, listening = place / "socket", threading.Semaphore(1)
    wrong = []

    def come_and_go():
        for _ in range(60):
            bound = bind_alone(path)
            if bound is None:
                continue
            if not listening.acquire(blocking=False):
                wrong.append("two listen")
            bound.socket.listen()
            with closing(connect_socket(path)) as caller, closing(bound.socket.accept()[0]) as taken:
                caller.sendall(b"x")
                wrong.extend(["another socket answers"] if taken.recv(1) != b"x" else [])
            bound.socket.close()
            listening.release()
            bound.release()

    threads = [threading.Thread(target=come_and_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert list(place.iterdir()) == []


def test_a_socket_that_a_dead_process_left_is_taken_away_and_only_ours_when_we_go(place):
    bind_socket(place / "socket").close()
    bound = bind_alone(place / "socket")
    assert isinstance(bound, BoundPath)
    (place / "socket").unlink()
    (place / "socket").write_bytes(b"another one's")
    bound.socket.close()
    bound.release()
    assert (place / "socket").exists()
    assert not (place / "socket.lock").exists()


def test_a_socket_that_a_child_has_by_a_fork_ends_with_its_parent(place):
    with closing(bind_socket(place / "socket")) as listening:
        listening.listen()
        with closing(connect_socket(place / "socket")) as caller, closing(listening.accept()[0]) as taken:
            end, tell_end = os.pipe()
            child = fork()
            if child == 0:
                os.close(tell_end)
                os.read(end, 1)
                os._exit(0)
            taken.settimeout(60)
            caller.close()
            ended = taken.recv(1)
            os.close(tell_end)
            os.close(end)
            os.waitpid(child, 0)
            assert ended == b""


def test_a_descriptor_is_its_process_s_own(place):
    own = OwnDescriptor(lambda: create_ours(place / "file"))
    assert own.try_lock_byte(7)
    other = OwnDescriptor(lambda: open_ours(place / "file"))
    assert other.is_byte_locked(7)
    child = fork()
    if child == 0:
        code = 1
        with suppress(RefusedError):
            try:
                _ = own.number
            finally:
                own.close()  # gives nothing back
                code = 0
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert other.is_byte_locked(7)
    own.close()
    assert not other.is_byte_locked(7)
    assert other.is_open
    other.close()
