"""One connection that whole messages go through, from either end; no call of it blocks.

It speaks ZMQ's wire protocol (ZMTP 3, mechanism NULL), as far as one listening side and its callers need it,
and not through libzmq, because that takes in the parts of one message without any bound before its user sees
the first of them, and as many connections as come. A message has one part here, and a bound; a peer that says
more, or something else, is refused.

A connection holds no more of what comes than one message and one read. What is to leave waits here until the
other side takes it: its user says no more than its protocol allows. Knows no message's meaning, and waits for
no process.
"""

from __future__ import annotations

import socket
from collections import deque
from typing import TypeAlias

from wsm.own_descriptor import not_inherited

_SIGNATURE_BYTES = 10
_SIGNATURE_BEGIN, _SIGNATURE_END = 0xFF, 0x7F
_GREETING_BYTES = 64
_VERSION_AT = 10
_VERSION = 3
_MECHANISM = slice(12, 32)
_NULL = b"NULL".ljust(20, b"\0")
# Signature, version 3.0, mechanism, no server, filler.
_GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + _NULL + bytes(32)

_MORE, _LONG, _COMMAND = 1, 2, 4
_READY = b"\x05READY"
# The one command of a handshake says a socket's type and its name.
_MOST_COMMAND_BYTES = 512
_SHORT = 0xFF

#: Bytes that stand before a message at most.
HEAD_BYTES = 9


def opening(kind: str) -> bytes:
    """Return what a socket of `kind` (``ROUTER`` or ``DEALER``) says first."""
    body = _READY + _property(b"Socket-Type", kind.encode()) + _property(b"Identity", b"")
    return _GREETING + bytes([_COMMAND, len(body)]) + body


def head(nbytes: int) -> bytes:
    """Return what stands before a message of so many bytes."""
    return bytes([0, nbytes]) if nbytes <= _SHORT else bytes([_LONG]) + nbytes.to_bytes(8, "big")


class Incoming:
    """Messages out of the bytes of one connection. Holds one message and what was fed beyond it.

    Parameters
    ----------
    most_bytes : int
        The longest message.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._data = bytearray()
        self._greeted = self._open = False

    def feed(self, data: bytes | memoryview) -> None:
        """Take in bytes; not before :meth:`next` has returned None."""
        self._data += data

    def next(self) -> bytes | None:
        """Return the next whole message; None if there is none yet.

        Raises
        ------
        ValueError
            If the bytes are no ZMTP, or a message is longer than it may be or has a second part; says so in
            words. Nothing more can be read then.
        """
        if not self._greeted and not self._take_greeting():
            return None
        while (frame := self._frame()) is not None:
            flags, body = frame
            if not flags & _COMMAND:
                return body
            if self._open or not body.startswith(_READY):
                raise ValueError(f"a command came that was not due: {body[:16]!r}")
            self._open = True
        return None

    def _take_greeting(self) -> bool:
        data = self._data
        signed = len(data) < _SIGNATURE_BYTES or data[_SIGNATURE_BYTES - 1] == _SIGNATURE_END
        if not signed or (data and data[0] != _SIGNATURE_BEGIN):
            raise ValueError(f"it begins with {bytes(data[:4])!r}, as no ZMQ socket does")
        if len(data) < _GREETING_BYTES:
            return False
        if data[_VERSION_AT] < _VERSION or data[_MECHANISM] != _NULL:
            mechanism = bytes(data[_MECHANISM]).rstrip(b"\0")
            raise ValueError(f"it speaks ZMTP {data[_VERSION_AT]} with the mechanism {mechanism!r}")
        del data[:_GREETING_BYTES]
        self._greeted = True
        return True

    def _frame(self) -> tuple[int, bytes] | None:
        data = self._data
        if not data:
            return None
        flags = data[0]
        if flags & ~(_LONG | _COMMAND):
            raise ValueError("it has more than one part" if flags & _MORE else f"its flags are {flags}")
        if not self._open and not flags & _COMMAND:
            raise ValueError("a message came before the handshake was over")
        begin = 9 if flags & _LONG else 2
        if len(data) < begin:
            return None
        nbytes = int.from_bytes(data[1:begin], "big")
        most = _MOST_COMMAND_BYTES if flags & _COMMAND else self._most_bytes
        if nbytes > most:
            raise ValueError(f"it has {nbytes} bytes, {most} at most are taken")
        if len(data) < begin + nbytes:
            return None
        body = bytes(data[begin : begin + nbytes])
        del data[: begin + nbytes]
        return flags, body


def _property(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + len(value).to_bytes(4, "big") + value


#: What a socket takes for an address: its family, and a path or a host and a port.
Place: TypeAlias = tuple[socket.AddressFamily, "str | tuple[str, int]"]

# Bytes that one read brings at most.
_READ_BYTES = 1 << 16
# Pieces that one call hands over at most.
_PIECES = 16


class Connection:
    """One end.

    Parameters
    ----------
    connected : socket.socket
        Belongs to the connection from now on.
    kind : str
        ``ROUTER`` for the side that listened, ``DEALER`` for the other one.
    most_bytes : int
        The longest message that may come.

    Attributes
    ----------
    ended : bool
        Whether nothing will come any more; what came before can still be had.
    kept : bool
        Whether its listener must not give it up for another one.
    """

    def __init__(self, connected: socket.socket, kind: str, most_bytes: int) -> None:
        self.ended = self.kept = False
        self._socket = not_inherited(connected)
        self._incoming = Incoming(most_bytes)
        self._unsent: deque[memoryview] = deque()
        connected.setblocking(False)
        if connected.family in (socket.AF_INET, socket.AF_INET6):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._hand_over(opening(kind))

    def fileno(self) -> int:
        """Return its descriptor, for selectors; -1 once it is closed."""
        return self._socket.fileno()

    @property
    def unsent(self) -> bool:
        """Whether something waits until the other side takes it."""
        return bool(self._unsent)

    def next(self) -> bytes | None:
        """Return the next whole message of what was read; None if there is none.

        Raises
        ------
        ValueError
            If what came is no message that may come; says so in words.
        """
        return self._incoming.next()

    def read(self) -> bool:
        """Read once, after :meth:`next` has returned None; whether anything came."""
        try:
            data = self._socket.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data = b""
        self.ended = not data
        self._incoming.feed(data)
        return bool(data)

    def send(self, *parts: bytes) -> bool:
        """Say one message, whose bytes may come in several pieces; False if the other side is gone."""
        return self._hand_over(head(sum(map(len, parts))), *parts)

    def flush(self) -> bool:
        """Hand over what the other side takes; False if it is gone."""
        while self._unsent:
            pieces = [self._unsent[index] for index in range(min(len(self._unsent), _PIECES))]
            try:
                sent = self._socket.sendmsg(pieces, (), socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                return True
            except OSError:
                self._unsent.clear()
                return False
            while sent:
                first = self._unsent.popleft()
                if len(first) > sent:
                    self._unsent.appendleft(first[sent:])
                sent -= min(len(first), sent)
        return True

    def close(self) -> None:
        """Close; what has not left is lost. Idempotent."""
        self._unsent.clear()
        self._socket.close()

    def _hand_over(self, *pieces: bytes) -> bool:
        self._unsent.extend(memoryview(piece) for piece in pieces if piece)
        return self.flush()
