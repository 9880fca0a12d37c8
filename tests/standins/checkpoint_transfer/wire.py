"""What the stand-in's two ends say to each other: a JSON header, then the bytes of one bucket."""

from __future__ import annotations

import json
import socket
import struct
import zlib
from typing import Any

_LENGTHS = struct.Struct("!II")
_LIMIT = 1 << 28


def send(connection: socket.socket, header: dict[str, Any], payload: bytes = b"") -> None:
    text = json.dumps({**header, "crc": zlib.crc32(payload)}).encode()
    connection.sendall(_LENGTHS.pack(len(text), len(payload)) + text)
    connection.sendall(payload)


def receive(connection: socket.socket, buffer: bytearray) -> dict[str, Any]:
    """Receive one message, its payload into `buffer`, which grows if it must."""
    text_bytes, payload_bytes = _LENGTHS.unpack(_exactly(connection, bytearray(_LENGTHS.size)))
    if max(text_bytes, payload_bytes) > _LIMIT:
        raise ValueError(f"{max(text_bytes, payload_bytes)} is no length")
    header: dict[str, Any] = json.loads(_exactly(connection, bytearray(text_bytes)))
    if payload_bytes > len(buffer):
        buffer.extend(bytes(payload_bytes - len(buffer)))
    _exactly(connection, memoryview(buffer)[:payload_bytes])
    header["nbytes"] = payload_bytes
    return header


def _exactly(connection: socket.socket, buffer: Any) -> Any:
    view = memoryview(buffer)
    got = 0
    while got < len(view):
        more = connection.recv_into(view[got:])
        if not more:
            raise ConnectionError("the sender closed the connection")
        got += more
    return buffer
