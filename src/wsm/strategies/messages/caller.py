"""The side that connects: to a peer that listens now, or comes later; sees whether it is there, or has gone.

It connects when it is asked to wait, in turns as short as its user's, and reads no more than one message
ahead. Once another process was there and has gone it stays so: use a new one. Knows no message's meaning.
"""

from __future__ import annotations

import enum
import errno
import select
import socket
import stat
import struct
import time
from pathlib import Path

from wsm.own_descriptor import not_inherited
from wsm.shared_directory import require
from wsm.strategies.messages.connection import Connection, Place
from wsm.strategies.messages.errors import PeerMessageError
from wsm.strategies.messages.message_types import HEADER_BYTES, MAX_BODY_BYTES

# How long to wait before an address without a listener is tried again.
_AGAIN_S = 0.05
# How long what was said may take to leave when the caller is closed.
_LINGER_S = 1.0


class PeerPresence(enum.Enum):
    """Who is at the other end."""

    NOBODY_YET = "no process has been there"
    ABANDONED = "no process has been there, and the one that listened before has ended"
    HERE = "another process is there"
    GONE = "another process was there, and has gone"


class Caller:
    """One end. One thread at a time may use it.

    Parameters
    ----------
    place : Place
        Where to connect.
    peer : str
        How errors call the other side.
    most_bytes : int
        The longest message that may come.

    Attributes
    ----------
    presence : Presence
        Who is at the other end, as far as was looked. Only of a path can it be ABANDONED.
    """

    def __init__(self, place: Place, peer: str, *, most_bytes: int = HEADER_BYTES + MAX_BODY_BYTES) -> None:
        self.presence = PeerPresence.NOBODY_YET
        self._family, self._address = place
        self._peer = peer
        self._most_bytes = most_bytes
        self._socket: socket.socket | None = None
        self._connection: Connection | None = None
        self._waiting: list[bytes] = []
        self._message: bytes | None = None
        self._connect(0.0)

    def poll(self, seconds: float) -> bool:
        """Wait for a message, `seconds` at most; whether there is one.

        Raises
        ------
        PeerMessageError
            If what comes is none.
        wsm.shared_directory.ForeignPathError
            If another user's socket lies at the path, or something else.
        """
        until_s = time.monotonic() + seconds
        while self._message is None:
            remaining_s = max(until_s - time.monotonic(), 0.0)
            if self.presence in (PeerPresence.NOBODY_YET, PeerPresence.ABANDONED):
                self._connect(min(remaining_s, _AGAIN_S))
            elif self._connection is None:
                time.sleep(remaining_s)  # it will not come back
            else:
                self._listen(self._connection, remaining_s)
            if time.monotonic() >= until_s:
                break
        return self._message is not None

    def receive(self) -> bytes | None:
        """Return the message that :meth:`poll` announced."""
        message, self._message = self._message, None
        return message

    def send(self, data: bytes) -> None:
        """Say something, now or when a peer is there; one that has gone does not hear it. Does not block."""
        if self._connection is not None:
            self._connection.send(data)
        elif self.presence is not PeerPresence.GONE:
            self._waiting.append(data)

    def close(self, *, flush: bool = True) -> None:
        """Close; with `flush`, let what was said leave before, a second at most. Idempotent."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        connection, self._connection = self._connection, None
        if connection is None:
            return
        until_s = time.monotonic() + _LINGER_S
        while flush and connection.unsent and time.monotonic() < until_s:
            _wait(connection, select.POLLOUT, until_s - time.monotonic())
            connection.flush()
        connection.close()

    def _listen(self, connection: Connection, seconds: float) -> None:
        """Read once, if there is anything before `seconds` are over."""
        try:
            self._message = connection.next()
            if self._message is None and not connection.ended:
                _wait(connection, select.POLLIN | (select.POLLOUT if connection.unsent else 0), seconds)
                connection.flush()
                connection.read()
                self._message = connection.next()
        except ValueError as error:
            raise PeerMessageError(peer=self._peer, problem=str(error)) from error
        if self._message is None and connection.ended:
            self.presence = PeerPresence.GONE
            connection.close()
            self._connection = None

    def _begin(self, made: socket.socket) -> int:
        """Begin to connect; return the error number."""
        if isinstance(self._address, str):
            path = Path(self._address)
            try:
                require(path, path.lstat(), stat.S_IFSOCK)
            except OSError as error:
                return error.errno or errno.ENOENT
        return made.connect_ex(self._address)

    def _connect(self, seconds: float) -> None:
        """Try to connect, and wait `seconds` at most for that, or before it is tried again."""
        until_s = time.monotonic() + seconds
        made = self._socket
        if made is None:
            made = self._socket = not_inherited(socket.socket(self._family, socket.SOCK_STREAM))
            made.setblocking(False)
            try:
                failed = self._begin(made)
            except BaseException:
                self.close()
                raise
        else:
            _wait(made, select.POLLOUT, seconds)
            failed = made.connect_ex(self._address)
        if failed in (errno.EINPROGRESS, errno.EALREADY):
            if seconds and time.monotonic() < until_s:
                _wait(made, select.POLLOUT, until_s - time.monotonic())
            return
        if failed in (0, errno.EISCONN) and _is_own(made):
            # The port must be free again for the process that is to listen there.
            made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            failed = errno.ECONNREFUSED
        if failed not in (0, errno.EISCONN):
            self._socket = None
            made.close()
            gone = self._family == socket.AF_UNIX and failed == errno.ECONNREFUSED
            self.presence = PeerPresence.ABANDONED if gone else PeerPresence.NOBODY_YET
            time.sleep(max(until_s - time.monotonic(), 0.0))
            return
        self._socket = None
        self._connection = Connection(made, "DEALER", self._most_bytes)
        self.presence = PeerPresence.HERE
        for data in self._waiting:
            self._connection.send(data)
        self._waiting.clear()


def _is_own(connected: socket.socket) -> bool:
    """Whether a TCP socket has met itself, as happens at ports that the kernel gives to callers."""
    try:
        return connected.family != socket.AF_UNIX and connected.getsockname() == connected.getpeername()
    except OSError:
        return True  # it has gone again


def _wait(waited: socket.socket | Connection, event: int, seconds: float) -> None:
    poll = select.poll()
    poll.register(waited, event)
    poll.poll(seconds * 1000)
