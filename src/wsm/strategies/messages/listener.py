"""The side that listens: many connections, none of which can keep it from another, or fill its memory.

It reads when it is asked to and never besides, so what was not asked for stays in the kernel's buffers, which
have an end. Each call does a bounded amount of work, in turn for all connections. There are so many of them
at most; where one more comes, the oldest one that its user does not keep goes. Knows no message's meaning.
"""

from __future__ import annotations

import errno
import os
import resource
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from wsm import log
from wsm.own_descriptor import not_inherited
from wsm.shared_directory import bind_alone
from wsm.strategies.messages import errors as message_errors
from wsm.strategies.messages.connection import Connection, Place

#: Connections that a listener has at most at one time; a quarter of what its process may open, if less.
MOST_CONNECTIONS = 256
#: The longest message that a listener takes: one that says why a caller gave up.
MOST_BYTES = 1 << 15

# Bytes that the kernel holds of each connection that is not read (it doubles this).
_KERNEL_BYTES = 1 << 16
# Connections that wait to be taken.
_BACKLOG = 1024
# Connections that are taken, and looked at, in one go.
_TAKEN_AT_ONCE = 8
_SEEN_AT_ONCE = 64
# How long one may say nothing at all.
_SILENCE_S = 10.0
# How long no connection is taken when there is no room, and how often old connections are looked for.
_PAUSE_S = 0.1
# How long what was said may take to leave when the listener is closed.
_LINGER_S = 1.0

_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_log = log.logger("strategies")


class Listener:
    """Takes connections at a socket that listens. One thread at a time may use it.

    Parameters
    ----------
    listening : socket.socket
        Bound; belongs to the listener from now on, which begins to listen.
    address : str
        Where that is, as others call it.
    release : callable, optional
        Called once the socket is closed.
    most_connections, most_bytes : int
        How many connections, and the longest message of one.

    Attributes
    ----------
    address : str
        As given.
    """

    def __init__(
        self,
        listening: socket.socket,
        address: str,
        release: Callable[[], None] = lambda: None,
        *,
        most_connections: int = MOST_CONNECTIONS,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self.address = address
        self._listening = listening
        self._release = release
        self._most_connections = min(most_connections, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        self._most_bytes = most_bytes
        # By descriptor, in the order in which they came; and until when each has to say something.
        self._connections: dict[int, Connection] = {}
        self._silent: dict[Connection, float] = {}
        # Peers that may have said something, and those that may have said more than what was taken.
        self._ready: dict[Connection, None] = {}
        self._again: dict[Connection, None] = {}
        self._paused_until_s: float | None = None
        self._refused = 0
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _KERNEL_BYTES)
        listening.setblocking(False)
        listening.listen(_BACKLOG)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._woken = False
        self._waking = threading.Lock()
        self._epoll = select.epoll()
        self._epoll.register(self._wake, select.EPOLLIN)
        self._epoll.register(listening, select.EPOLLIN)

    def poll(self, seconds: float) -> bool:
        """Wait until a peer may have said something, `seconds` at most; whether so. Takes connections."""
        until_s = time.monotonic() + seconds
        self._woken = False
        while not self._ready and not self._woken:
            remaining_s = until_s - time.monotonic()
            self._gather(max(remaining_s, 0.0))
            if remaining_s <= 0:
                break
        return bool(self._ready)

    def wake(self) -> None:
        """Let who polls go on at once. Any thread may do so, until the listener is closed."""
        with self._waking:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def receive(self) -> tuple[Connection, bytes | None] | None:
        """Return what the next one says, None for its end; None if it says nothing whole. Does not block.

        One message of each in turn. A peer that speaks no ZMQ, or says more than may be said, is cut off.
        """
        if not self._ready:
            self._gather(0.0)
        if not self._ready:
            return None
        connection = next(iter(self._ready))
        del self._ready[connection]
        try:
            message = connection.next()
            if message is None and connection.read():
                message = connection.next()
        except ValueError as error:
            self.refuse(connection, str(error))
            return connection, None
        if message is not None:
            self._again[connection] = None
            self._silent.pop(connection, None)
            return connection, message
        if connection.ended:
            self.drop(connection)
            return connection, None
        return None

    def send(self, connection: Connection, *parts: bytes) -> bool:
        """Say something on a connection; False if it is gone. Does not block."""
        if connection.fileno() < 0:
            return False
        said = connection.send(*parts)
        self._watch(connection)
        return said

    def drop(self, connection: Connection) -> None:
        """End a connection. Idempotent."""
        for each in (self._ready, self._again, self._silent):
            each.pop(connection, None)
        descriptor = connection.fileno()
        if descriptor >= 0:
            del self._connections[descriptor]
            with suppress(OSError):
                self._epoll.unregister(descriptor)
            connection.close()

    def refuse(self, connection: Connection, problem: str) -> None:
        """End a connection that said what cannot be; say so, less and less often."""
        self.drop(connection)
        self._refused += 1
        if self._refused & (self._refused - 1) == 0:
            _log.warning(log.STREAM_MESSAGE_IGNORED, address=self.address, what=problem, so_far=self._refused)

    def flush(self, seconds: float = _LINGER_S) -> None:
        """Let what was said leave, `seconds` at most."""
        until_s = time.monotonic() + seconds
        while any(each.unsent for each in self._connections.values()) and time.monotonic() < until_s:
            poll = select.poll()
            for descriptor, each in self._connections.items():
                if each.unsent:
                    poll.register(descriptor, select.POLLOUT)
            for descriptor, _ in poll.poll((until_s - time.monotonic()) * 1000):
                self._connections[descriptor].flush()

    def close(self) -> None:
        """Listen no more; what was said leaves before, a second at most. Idempotent."""
        if self._listening.fileno() < 0:
            return
        self.flush()
        for connection in list(self._connections.values()):
            self.drop(connection)
        self._epoll.close()
        with self._waking:
            os.close(self._wake)
            self._wake = -1
        self._listening.close()
        self._release()

    def _gather(self, seconds: float) -> None:
        """See who may have something to say, and take new connections."""
        self._ready, self._again = {**self._ready, **self._again}, {}
        now_s = time.monotonic()
        if self._paused_until_s is not None:
            seconds = min(seconds, max(self._paused_until_s - now_s, 0.0))
            if now_s >= self._paused_until_s:
                self._paused_until_s = None
                self._epoll.register(self._listening, select.EPOLLIN)
        self._end_the_silent(now_s)
        for descriptor, event in self._epoll.poll(0.0 if self._ready else seconds, _SEEN_AT_ONCE):
            if descriptor == self._listening.fileno():
                self._accept()
                continue
            if descriptor == self._wake:
                os.eventfd_read(self._wake)
                self._woken = True
                continue
            connection = self._connections.get(descriptor)
            if connection is None:
                continue
            if event & select.EPOLLOUT:
                connection.flush()
                self._watch(connection)
            if event & ~select.EPOLLOUT:
                self._ready[connection] = None

    def _end_the_silent(self, now_s: float) -> None:
        """End those that have said nothing for too long; we may have been away ourselves meanwhile."""
        while self._silent:
            connection, until_s = next(iter(self._silent.items()))
            if now_s < until_s:
                return
            del self._silent[connection]
            if connection not in self._ready and not connection.read():
                self.drop(connection)
                continue
            self._silent[connection] = now_s + _SILENCE_S
            self._ready[connection] = None

    def _accept(self) -> None:
        for _ in range(_TAKEN_AT_ONCE):
            try:
                connected, _ = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _NO_ROOM and not self._make_room():
                    self._pause()
                    return
                continue
            if len(self._connections) >= self._most_connections and not self._make_room():
                connected.close()
                continue
            connection = Connection(connected, "ROUTER", self._most_bytes)
            self._connections[connection.fileno()] = connection
            self._silent[connection] = time.monotonic() + _SILENCE_S
            self._epoll.register(connection, select.EPOLLIN)
            self._watch(connection)

    def _make_room(self) -> bool:
        """End the oldest connection that its user does not keep; False if all are kept."""
        for connection in self._connections.values():
            if not connection.kept:
                self.drop(connection)
                return True
        return False

    def _pause(self) -> None:
        """Take no connection for a moment: those that wait would be seen again at once, and again in vain."""
        self._paused_until_s = time.monotonic() + _PAUSE_S
        self._epoll.unregister(self._listening)

    def _watch(self, connection: Connection) -> None:
        wanted = select.EPOLLIN | (select.EPOLLOUT if connection.unsent else 0)
        self._epoll.modify(connection, wanted)


def listen_at(place: Place, address: str, *, most_connections: int = MOST_CONNECTIONS) -> Listener:
    """Listen at a place; a path gets mode 0600, and is removed with the listener.

    Parameters
    ----------
    place : Place
        Where.
    address : str
        How others call that; of a port 0, ``tcp://`` and the real port will do so.
    most_connections : int
        As for :class:`Listener`.

    Raises
    ------
    RefusedError
        If another process listens there, or that cannot be.
    wsm.shared_directory.ForeignPathError
        If something else lies at the path, or in the place of its lock file.
    """
    family, where = place
    made: socket.socket | None = None
    release: Callable[[], None] = _nothing
    try:
        if isinstance(where, str):
            bound = bind_alone(Path(where))
            if bound is None:
                raise message_errors.address_busy(address=address, reason="another process listens there")
            made, release = bound.socket, bound.release
            return Listener(made, address, release, most_connections=most_connections)
        made = not_inherited(socket.socket(family, socket.SOCK_STREAM))
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(where)
        return Listener(made, _named(made), most_connections=most_connections)
    except OSError as error:
        if made is not None:
            made.close()
        release()
        raise message_errors.address_busy(address=address, reason=str(error)) from error


def _named(bound: socket.socket) -> str:
    """Return the ``tcp://`` address of a socket, port 0 replaced by the real one."""
    host, port = bound.getsockname()[:2]
    return f"tcp://[{host}]:{port}" if bound.family == socket.AF_INET6 else f"tcp://{host}:{port}"


def _nothing() -> None:
    """Release nothing: a port goes with its socket."""
