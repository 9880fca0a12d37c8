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
from contextlib import suppress

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
        self._socket = connected
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
        self._socket.settimeout(timeout_s)
        try:
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
    """
    family, place = parse_address(address)
    made = socket.socket(family, socket.SOCK_STREAM)
    made.settimeout(timeout_s)
    try:
        made.connect(place)
    except OSError as error:  # refused, no such path, timed out: all of them may pass
        made.close()
        if family == socket.AF_UNIX and isinstance(error, ConnectionRefusedError):
            raise PeerDiedError(peer=address, expected="its offer") from error
        return None
    return Channel(made, address)


def listen(address: str) -> socket.socket:
    """Listen for ranks.

    Raises
    ------
    EngineSettingsError
        If the address is none.
    AddressBusyError
        If somebody else listens there.
    """
    family, place = parse_address(address)
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        if isinstance(place, str):
            _clear_path(place)
        else:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(place)
        if isinstance(place, str):
            os.chmod(place, 0o600)  # noqa: PTH101 - a socket's path
        made.listen(_BACKLOG)
    except OSError as error:
        made.close()
        raise AddressBusyError(address=address, reason=str(error)) from error
    return made


def address_of(listening: socket.socket) -> str:
    """Return where a socket listens, port 0 replaced by the real one."""
    name = listening.getsockname()
    return f"ipc://{name}" if isinstance(name, str) else f"tcp://{name[0]}:{name[1]}"


def _clear_path(path: str) -> None:
    """Remove the socket of a publisher that has died; one that lives answers, and binding fails."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)  # noqa: PTH108 - a socket's path
        except OSError:
            return


def remove(address: str) -> None:
    """Remove the path of a socket that is closed. Idempotent."""
    with suppress(FileNotFoundError):
        os.unlink(address.removeprefix("ipc://"))  # noqa: PTH108 - a socket's path
