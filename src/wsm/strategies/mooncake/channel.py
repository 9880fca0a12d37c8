"""A stream socket that whole messages go through, between one rank and one publisher.

Every call ends within the time that it was given. The end of either process ends the connection, and so is
seen at once; a message is taken in only as far as its length is allowed. Knows no message's meaning.
"""

from __future__ import annotations

import os
import re
import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from wsm.own_descriptor import not_inherited
from wsm.shared_directory import bind_alone, connect_socket
from wsm.strategies.messages import frames
from wsm.strategies.messages.errors import AddressBusyError, PeerDiedError, PeerMessageError, PeerSilentError
from wsm.strategies.mooncake import messages as say
from wsm.strategies.mooncake.errors import EngineSettingsError

_TCP = re.compile(r"tcp://([0-9.]{7,15}):([0-9]{1,5})")
# A socket's address on Linux holds 108 characters, the last of them zero.
_LONGEST_PATH = 107
_RECEIVE_BYTES = 1 << 20
# Ranks whose connections wait to be taken.
_BACKLOG = 256


def parse_address(address: str) -> tuple[socket.AddressFamily, str | tuple[str, int]]:
    """Return what a socket takes for ``ipc:///absolute/path`` or ``tcp://IPv4:port`` (port 0: any).

    Raises
    ------
    EngineSettingsError
        If it is neither.
    """
    path = address.removeprefix("ipc://")
    if path != address and path.startswith("/") and len(os.fsencode(path)) <= _LONGEST_PATH:
        return socket.AF_UNIX, path
    found = _TCP.fullmatch(address)
    if found is None or int(found[2]) > 0xFFFF:
        raise EngineSettingsError(
            field="address",
            value=address,
            problem=f"is neither tcp://IPv4:port nor ipc:///absolute/path of at most {_LONGEST_PATH} bytes",
        )
    return socket.AF_INET, (found[1], int(found[2]))


class Channel:
    """One end of a connection.

    Parameters
    ----------
    connected : socket.socket
        Belongs to the channel from now on.
    peer : str
        What errors call the other end.
    """

    def __init__(self, connected: socket.socket, peer: str) -> None:
        self.peer = peer
        self._socket = not_inherited(connected)
        self._received = bytearray()
        if connected.family == socket.AF_INET:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, message: say.Message, timeout_s: float) -> None:
        """Hand a message over. Blocks while the other end does not take it.

        Raises
        ------
        PeerSilentError, PeerDiedError
            If it takes nothing for so long, or is gone.
        """
        try:
            self._socket.settimeout(timeout_s)  # which fails, too, if another thread has closed it
            self._socket.sendall(say.to_bytes(message))
        except TimeoutError as error:
            raise PeerSilentError(
                peer=self.peer, waited_s=timeout_s, expected="to take our message"
            ) from error
        except OSError as error:
            raise PeerDiedError(peer=self.peer, expected="to take our message") from error

    def receive(self, wait_s: float, *, expected: str = "a message") -> say.Message | None:
        """Return the next message; None if it is not whole within `wait_s` (0: what is there already).

        Raises
        ------
        PeerDiedError
            If the other end is closed.
        PeerMessageError
            If what came is no message.
        """
        deadline_s = time.monotonic() + wait_s
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        while True:
            message = self._taken()
            if message is not None:
                return message
            remaining_s = deadline_s - time.monotonic()
            if not poll.poll(max(remaining_s * 1000, 0)):
                return None
            try:
                data = self._socket.recv(_RECEIVE_BYTES)
            except (BlockingIOError, TimeoutError):
                return None
            except OSError:
                data = b""
            if not data:
                raise PeerDiedError(peer=self.peer, expected=expected)
            self._received += data

    def end(self) -> None:
        """Let whoever waits on this channel, here or there, see its end. Any thread may do so."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close. Idempotent."""
        self._socket.close()

    def _taken(self) -> say.Message | None:
        """Take a whole message off what was received."""
        if len(self._received) < frames.HEADER_BYTES:
            if not frames.MAGIC.startswith(bytes(self._received[: len(frames.MAGIC)])):
                raise PeerMessageError(
                    peer=self.peer, problem=f"it begins with {bytes(self._received[:4])!r}"
                )
            return None
        head = bytes(self._received[: frames.HEADER_BYTES])
        length = frames.announced_bytes(head, peer=self.peer)
        if len(self._received) < length:
            return None
        data = bytes(self._received[:length])
        del self._received[:length]
        return say.from_bytes(data, peer=self.peer)


def connect(address: str, timeout_s: float) -> Channel | None:
    """Connect to a publisher; None if nobody listens there (yet).

    Raises
    ------
    EngineSettingsError
        If the address is none.
    PeerDiedError
        If somebody listened there and has ended. Only a path can say that.
    wsm.shared_directory.ForeignPathError
        If another user listens at the path, or it is no socket.
    """
    family, place = parse_address(address)
    try:
        if isinstance(place, str):
            return Channel(connect_socket(Path(place), timeout_s), address)
        made = not_inherited(socket.socket(family, socket.SOCK_STREAM))
        try:
            made.settimeout(timeout_s)
            made.connect(place)
        except BaseException:
            made.close()
            raise
    except OSError as error:  # refused, no such path, timed out: all of them may pass
        if family == socket.AF_UNIX and isinstance(error, ConnectionRefusedError):
            raise PeerDiedError(peer=address, expected="its offer") from error
        return None
    return Channel(made, address)


@dataclass(frozen=True)
class Listening:
    """Where ranks come: a socket that listens, its address with port 0 replaced by the real one.

    `release` lets others listen there once the socket is closed. Idempotent.
    """

    socket: socket.socket
    address: str
    release: Callable[[], None]


def listen(address: str) -> Listening:
    """Listen for ranks.

    Raises
    ------
    EngineSettingsError
        If the address is none.
    AddressBusyError
        If somebody else listens there.
    wsm.shared_directory.ForeignPathError
        If something else lies at the path, or in the place of its lock file.
    """
    family, place = parse_address(address)
    made: socket.socket | None = None
    release: Callable[[], None] = _nothing
    try:
        if isinstance(place, str):
            bound = bind_alone(Path(place))
            if bound is None:
                raise AddressBusyError(address=address, reason="another process listens there")
            made, release = bound.socket, bound.release
        else:
            made = not_inherited(socket.socket(family, socket.SOCK_STREAM))
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(place)
            address = f"tcp://{made.getsockname()[0]}:{made.getsockname()[1]}"
        made.listen(_BACKLOG)
    except OSError as error:
        if made is not None:
            made.close()
        release()
        raise AddressBusyError(address=address, reason=str(error)) from error
    return Listening(made, address, release)


def _nothing() -> None:
    """Release nothing: a port goes with its socket."""
