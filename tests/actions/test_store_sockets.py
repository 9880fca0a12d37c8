"""A store's sockets among a process's others, on real loopback connections."""

from __future__ import annotations

import socket
import threading

import pytest

from wsm.actions.backends._gloo_sockets import (
    StoreDeadline,
    disable_nagle,
    reserve_port,
    sockets_of,
    without_nagle,
)


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
    threads = threading.active_count()
    with without_nagle(server.getsockname()[1]):
        client, accepted = connect(server)
    later, later_accepted = connect(server)
    with client, accepted, later, later_accepted:
        assert has_nodelay(client)
        assert has_nodelay(accepted)
        assert has_nodelay(later_accepted)
    assert threading.active_count() == threads


def test_sockets_of_others_are_not_touched(server):
    with socket.create_server(("127.0.0.1", 0)) as other:
        client, accepted = connect(other)
        with client, accepted:
            disable_nagle(server.getsockname()[1])
            assert not has_nodelay(client)
            assert not has_nodelay(accepted)


def test_looking_for_sockets_leaves_no_descriptor_open(server):
    port = server.getsockname()[1]
    first = {connection.fileno() for connection in sockets_of(port)}
    for _ in range(50):
        assert {connection.fileno() for connection in sockets_of(port)} == first


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
    threads = threading.active_count()
    client, accepted = connect(server)
    with client, accepted:
        with StoreDeadline(server.getsockname()[1], 60, bool) as deadline:
            accepted.send(b"x")
            assert client.recv(1) == b"x"
        assert deadline.cut == ""
        accepted.send(b"y")
        assert client.recv(1) == b"y"
    assert threading.active_count() == threads
