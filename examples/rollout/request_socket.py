"""The Unix-domain socket on which rank 0 takes requests: connections, bytes, bounds.

A message is a JSON object behind its length: four bytes, big-endian, then UTF-8. Both ends bound what they
accept, and nothing is unpickled. The socket is non-blocking, one thread, driven by the worker's event loop
between steps. Knows messages, but not what they mean. A client that sends garbage, or does not read what it
asked for, loses its connection and nothing else happens.
"""

from __future__ import annotations

import json
import selectors
import socket
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from examples.rollout.errors import FrameError
from wsm import log
from wsm.shared_directory import bind_socket
from wsm.signals.layout import segment_path

#: A batch of 10,000 prompts of 100 tokens is 5 MiB.
MAX_FRAME_BYTES = 16 * 1024 * 1024

_LENGTH = struct.Struct(">I")

Message = dict[str, Any]


def encode(message: Message) -> bytes:
    """Return the frame of a message.

    Raises
    ------
    FrameError
        If it is longer than :data:`MAX_FRAME_BYTES`.
    """
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(problem=f"a message of {len(body)} bytes; at most {MAX_FRAME_BYTES} travel at once")
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Cuts a stream of bytes into messages."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Take what arrived, return the messages that it completes.

        Raises
        ------
        FrameError
            If a frame is too long or no JSON object. The stream cannot be read on.
        """
        self._pending += data
        messages = []
        while len(self._pending) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._pending)
            if length > MAX_FRAME_BYTES:
                raise FrameError(problem=f"a frame of {length} bytes; at most {MAX_FRAME_BYTES} are accepted")
            if len(self._pending) < _LENGTH.size + length:
                break
            body = bytes(self._pending[_LENGTH.size : _LENGTH.size + length])
            del self._pending[: _LENGTH.size + length]
            messages.append(_parse(body))
        return messages


def _parse(body: bytes) -> Message:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise FrameError(problem=f"a frame that is no JSON: {error}") from error
    if not isinstance(message, dict):
        raise FrameError(problem=f"a frame that is a {type(message).__name__}, not an object")
    return message


MAX_CONNECTIONS = 64
#: What a client that does not read may have outstanding.
MAX_UNSENT_BYTES = 64 * 1024 * 1024
_READ_BYTES = 256 * 1024


def request_socket_path(name: str, directory: str | Path | None = None) -> Path:
    """Return where the group `name` takes requests: beside its segment."""
    path = segment_path(name, directory)
    return path.with_name(f"{path.name}.requests")


@dataclass(eq=False)
class ClientConnection:
    """One client."""

    socket: socket.socket
    reader: FrameReader = field(default_factory=FrameReader)
    unsent: bytearray = field(default_factory=bytearray)


class RequestSocket:
    """The listening end.

    Parameters
    ----------
    path : Path
        Made with mode 0600. A socket that a dead process left there is replaced: the caller holds rank 0's
        slot of the group, so no other process of it can be listening.

    Raises
    ------
    wsm.shared_directory.ForeignPathError
        If something else lies there, or another user's socket.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log = log.logger("rollout.requests")
        self._listener = bind_socket(path)
        self._listener.setblocking(False)
        self._listener.listen(MAX_CONNECTIONS)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._connections: list[ClientConnection] = []

    def watch(self, descriptor: int) -> None:
        """Let :meth:`exchange` return as soon as `descriptor` is readable, too."""
        self._selector.register(descriptor, selectors.EVENT_READ)

    def exchange(self, timeout_s: float = 0.0) -> list[tuple[ClientConnection, Message | None]]:
        """Send and receive what is possible; wait up to `timeout_s` if there is nothing.

        Returns
        -------
        list of (Connection, dict or None)
            What arrived; None: that client is gone.
        """
        received: list[tuple[ClientConnection, Message | None]] = []
        for key, events in self._selector.select(timeout_s):
            connection = key.data
            if key.fileobj is self._listener:
                self._accept()
            elif isinstance(connection, ClientConnection):
                if events & selectors.EVENT_WRITE:
                    self._flush(connection)
                if events & selectors.EVENT_READ:
                    received += self._receive(connection)
        gone = [connection for connection in self._connections if connection.socket.fileno() < 0]
        self._connections = [connection for connection in self._connections if connection not in gone]
        return received + [(connection, None) for connection in gone]

    def send(self, connection: ClientConnection, message: Message) -> None:
        """Queue a message for a client, and send what can be sent now. Never blocks."""
        if connection.socket.fileno() < 0:
            return
        try:
            connection.unsent += encode(message)
        except FrameError as error:
            self._drop(connection, str(error))
            return
        self._flush(connection)
        if len(connection.unsent) > MAX_UNSENT_BYTES:
            self._drop(connection, "it does not read its answers")

    def close(self) -> None:
        """Close everything and remove the socket. Idempotent."""
        for connection in self._connections:
            connection.socket.close()
        self._connections = []
        if self._listener.fileno() >= 0:
            self._listener.close()
            self._selector.close()
            self._path.unlink(missing_ok=True)

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        if len(self._connections) >= MAX_CONNECTIONS:
            client.close()
            return
        client.setblocking(False)
        connection = ClientConnection(client)
        self._connections.append(connection)
        self._selector.register(client, selectors.EVENT_READ, connection)

    def _receive(self, connection: ClientConnection) -> list[tuple[ClientConnection, Message | None]]:
        if connection.socket.fileno() < 0:
            return []
        try:
            data = connection.socket.recv(_READ_BYTES)
            messages = connection.reader.feed(data)
        except BlockingIOError:
            return []
        except (OSError, FrameError) as error:
            self._drop(connection, str(error))
            return []
        if not data:
            self._drop(connection, "it closed the connection")
        return [(connection, message) for message in messages]

    def _flush(self, connection: ClientConnection) -> None:
        try:
            while connection.unsent:
                sent = connection.socket.send(connection.unsent)
                del connection.unsent[:sent]
        except BlockingIOError:
            pass  # the rest goes when the selector says so
        except OSError as error:
            self._drop(connection, str(error))
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.unsent else 0)
        self._selector.modify(connection.socket, wanted, connection)

    def _drop(self, connection: ClientConnection, why: str) -> None:
        if connection.socket.fileno() < 0:
            return
        self._log.debug("client.gone", why=why)
        self._selector.unregister(connection.socket)
        connection.socket.close()
