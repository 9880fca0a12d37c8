"""Messages on the request socket: JSON objects, each behind its length. Pure: opens no socket.

Four bytes of length, big-endian, then UTF-8 JSON. Both ends bound what they accept. No pickle: whatever
arrives is data.
"""

from __future__ import annotations

import json
import struct
from typing import Any

from wsm.rollout.errors import FrameError

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
