"""A store's sockets among a process's others, and where members meet, with real files and processes."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path

import pytest

from tests.forkserver import WITHOUT_PADDLE
from wsm.actions.backends._gloo_sockets import (
    StoreDeadline,
    disable_nagle,
    reserve_port,
    sockets_of,
    without_nagle,
)
from wsm.actions.backends.rendezvous import FIRST_GROUP_ID, Endpoint, FileRendezvous
from wsm.errors import BadInputError, GroupError


def has_nodelay(connection):
    return bool(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))


@pytest.fixture
def server():
    """A listening socket on a reserved port, as a store opens it."""
    with reserve_port() as holder, socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", holder.getsockname()[1]))
        listening.listen()
        yield listening


def connect(server):
    client = socket.create_connection(server.getsockname())
    accepted, _ = server.accept()
    return client, accepted


def test_connections_that_come_later_inherit_the_option_from_the_server(server):
    disable_nagle(server.getsockname()[1])
    client, accepted = connect(server)
    with client, accepted:
        assert has_nodelay(accepted)
        assert not has_nodelay(client)
        disable_nagle(server.getsockname()[1])
        assert has_nodelay(client)


def test_a_connection_that_is_made_meanwhile_and_one_that_comes_later_have_it_too(server):
    threads = set(threading.enumerate())
    with without_nagle(server.getsockname()[1]):
        client, accepted = connect(server)
    later, later_accepted = connect(server)
    with client, accepted, later, later_accepted:
        assert has_nodelay(client)
        assert has_nodelay(accepted)
        assert has_nodelay(later_accepted)
    assert set(threading.enumerate()) <= threads  # those of others may end


def test_sockets_of_others_are_not_touched(server):
    with socket.create_server(("127.0.0.1", 0)) as other:
        client, accepted = connect(other)
        with client, accepted:
            disable_nagle(server.getsockname()[1])
            assert not has_nodelay(client)
            assert not has_nodelay(accepted)


def descriptors_of(connection):
    """Count this process's descriptors of a socket; others may come and go meanwhile."""
    place = Path("/proc/self/fd")
    name, found = (place / str(connection.fileno())).readlink(), 0
    for descriptor in place.iterdir():
        with contextlib.suppress(FileNotFoundError):
            found += descriptor.readlink() == name
    return found


def test_looking_for_sockets_leaves_no_descriptor_open(server):
    port = server.getsockname()[1]
    for _ in range(50):
        assert {each.getsockname()[1] for each in sockets_of(port)} == {port}
    assert descriptors_of(server) == 1


def test_a_reserved_port_is_given_to_nobody_else():
    with reserve_port() as holder:
        taken = holder.getsockname()[1]
        others = [reserve_port() for _ in range(50)]
        assert taken not in {other.getsockname()[1] for other in others}
        for other in others:
            other.close()


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_blocked_call_ends_at_the_deadline_or_when_it_is_interrupted(server, interrupted):
    client, accepted = connect(server)
    seconds = 60 if interrupted else 0.05
    port = server.getsockname()[1]
    with client, accepted, StoreDeadline(port, seconds, lambda: interrupted) as deadline:
        assert client.recv(1) == b""
    assert ("interrupted" in deadline.cut) is interrupted


def test_a_call_that_returns_in_time_cuts_nothing(server):
    threads = set(threading.enumerate())
    client, accepted = connect(server)
    with client, accepted:
        with StoreDeadline(server.getsockname()[1], 60, bool) as deadline:
            accepted.send(b"x")
            assert client.recv(1) == b"x"
        assert deadline.cut == ""
        accepted.send(b"y")
        assert client.recv(1) == b"y"
    assert set(threading.enumerate()) <= threads  # those of others may end


# -- the directory of a rendezvous, with real files, threads and processes -------------------------------


ENDPOINT = Endpoint(4000, 10_001)


@pytest.fixture
def meeting(tmp_path):
    return FileRendezvous(tmp_path / "run")


def find(meeting, incarnation, timeout_s=5.0, interrupted=bool):
    return meeting.find(incarnation, leader=0, timeout_s=timeout_s, interrupted=interrupted)


def test_what_is_announced_is_found_and_what_is_withdrawn_is_not(meeting):
    meeting.announce("tp-1", ENDPOINT)
    assert find(meeting, "tp-1") == ENDPOINT
    meeting.withdraw("tp-1")
    meeting.withdraw("tp-1")
    with pytest.raises(GroupError, match="rank 0"):
        find(meeting, "tp-1", timeout_s=0.01)


def test_a_member_that_is_early_waits_for_the_announcement(meeting):
    found = []
    waiting = threading.Thread(target=lambda: found.append(find(meeting, "tp-1")))
    waiting.start()
    meeting.announce("tp-1", ENDPOINT)
    waiting.join(5)
    assert found == [ENDPOINT]


def test_waiting_ends_at_once_when_it_has_become_pointless(meeting):
    with pytest.raises(GroupError) as caught:
        find(meeting, "tp-1", timeout_s=60, interrupted=lambda: True)
    assert caught.value.seconds < 60


def test_a_name_is_announced_once(meeting):
    meeting.announce("tp-1", ENDPOINT)
    with pytest.raises(BadInputError, match="already"):
        meeting.announce("tp-1", ENDPOINT)


@pytest.mark.parametrize("name", ["", "../tp", "a/b", ".hidden", "x" * 129])
def test_a_name_that_is_no_file_name_is_refused(meeting, name):
    with pytest.raises(BadInputError, match="file name"):
        meeting.announce(name, ENDPOINT)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{",
        '{"port": 2}',
        '{"port": "2", "group_id": 3}',
        '{"port": 70000, "group_id": 3}',
        "[" * 5000,
    ],
)
def test_a_file_that_is_no_endpoint_is_an_error_and_not_a_wait(meeting, tmp_path, content):
    (tmp_path / "run" / "tp-1.endpoint").write_text(content)
    with pytest.raises(BadInputError, match="not an endpoint"):
        find(meeting, "tp-1")


@pytest.mark.processes
def test_no_group_id_is_handed_out_twice_by_processes_that_ask_at_once(meeting, tmp_path):
    program = (
        "import sys; from wsm.actions.backends.rendezvous import FileRendezvous\n"
        "meeting = FileRendezvous(sys.argv[1])\n"
        "print(*(meeting.next_group_id() for _ in range(200)))"
    )
    asking = [WITHOUT_PADDLE.start("-c", program, tmp_path / "run", stderr=None) for _ in range(3)]
    taken = [int(number) for process in asking for number in process.communicate()[0].split()]
    assert sorted(taken) == list(range(FIRST_GROUP_ID, FIRST_GROUP_ID + 600))
