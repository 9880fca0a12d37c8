"""ZMQ's wire protocol (ZMTP 3, mechanism NULL), as far as one listening side and its callers need it. Pure.

Spoken here and not by libzmq, because that takes in the parts of one message without any bound before its
user sees the first of them, and as many connections as come. A message has one part here, and a bound; who
says more, or something else, is refused. Knows nothing of what messages mean.
"""

from __future__ import annotations

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
