"""One message as bytes: magic, protocol version, kind, length, session, digest, and a JSON body.

No pickle, nothing that is read before its length and its digest are right. Pure. What the kinds mean, each
protocol says in a table of its own (:mod:`wsm.strategies.messages.message_types`).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wsm.strategies.digest import digest_of
from wsm.strategies.documents import strict_json
from wsm.strategies.messages.errors import PeerMessageError

MAGIC = b"WSMB"
#: Grows when messages or the plan of buckets change their meaning.
PROTOCOL = 4
#: Longest body: the names and shapes of half a million tensors.
MAX_BODY_BYTES = 1 << 26

# magic, protocol, kind, reserved, body bytes, session; then the digest of these and the body
_HEAD = struct.Struct("<4sBBHIQ")
_DIGEST_BYTES = 16
HEADER_BYTES = _HEAD.size + _DIGEST_BYTES

# Made once: with separators, json.dumps makes one per call.
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True)


@dataclass(frozen=True)
class Frame:
    """A message whose envelope is right: its kind, the stream that it belongs to, its fields."""

    kind: int
    session: int
    fields: Mapping[str, Any]


def encode(frame: Frame) -> bytes:
    """Return the bytes of a message."""
    body = encode_body(frame.fields)
    return envelope(frame.kind, frame.session, body) + body


def encode_body(fields: Mapping[str, Any]) -> bytes:
    """Return the bytes of a message's fields, which may stand in more than one envelope."""
    return _ENCODER.encode(fields).encode("ascii")


def envelope(kind: int, session: int, body: bytes) -> bytes:
    """Return what stands before a body in a message."""
    head = _HEAD.pack(MAGIC, PROTOCOL, kind, 0, len(body), session)
    return head + bytes.fromhex(digest_of(head + body))


def decode(data: bytes, *, peer: str) -> Frame:
    """Read the bytes of a message.

    Raises
    ------
    PeerMessageError
        If they are none. Any bytes give this or a frame.
    """
    if len(data) < HEADER_BYTES:
        raise PeerMessageError(peer=peer, problem=f"it has {len(data)} bytes, no message has fewer than 36")
    magic, protocol, kind, reserved, length, session = _HEAD.unpack_from(data)
    body = data[HEADER_BYTES:]
    if magic != MAGIC:
        raise PeerMessageError(peer=peer, problem=f"it begins with {magic!r}, not with {MAGIC!r}")
    if protocol != PROTOCOL:
        raise PeerMessageError(peer=peer, problem=f"it speaks protocol {protocol}, we speak {PROTOCOL}")
    if length != len(body) or length > MAX_BODY_BYTES:
        raise PeerMessageError(
            peer=peer, problem=f"it announces {length} bytes and has {len(body)}, at most {MAX_BODY_BYTES}"
        )
    expected = data[_HEAD.size : HEADER_BYTES].hex()
    if reserved or digest_of(data[: _HEAD.size] + body) != expected:
        raise PeerMessageError(peer=peer, problem="it was damaged on the way, its digest does not match")
    try:
        fields = strict_json.parse(body)
    except strict_json.StrictJsonError as error:
        raise PeerMessageError(peer=peer, problem=str(error)) from error
    if not isinstance(fields, dict):
        raise PeerMessageError(peer=peer, problem="its body is no object")
    return Frame(kind, session, fields)
