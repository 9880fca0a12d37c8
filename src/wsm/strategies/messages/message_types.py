"""The messages that two sides exchange: dataclasses to bytes and back, every field checked on the way in.

One message as bytes is a frame: magic, protocol version, kind, length, session, digest, and a JSON body. No
pickle, nothing that is read before its length and its digest are right. A protocol is a table: which kind of
frame is which dataclass, and the check (:mod:`wsm.strategies.messages.fields`) of every field. What no field
says by itself, the protocol checks in the message that it gets. Pure; knows no message by name.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wsm.strategies import documents
from wsm.strategies.digest import digest_of
from wsm.strategies.messages.errors import PeerMessageError
from wsm.strategies.messages.fields import WRONG, Check

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
        fields = documents.parse(body)
    except documents.StrictJsonError as error:
        raise PeerMessageError(peer=peer, problem=str(error)) from error
    if not isinstance(fields, dict):
        raise PeerMessageError(peer=peer, problem="its body is no object")
    return Frame(kind, session, fields)


class MessageTypes:
    """The messages of one protocol.

    Parameters
    ----------
    kinds : mapping of int to type
        The dataclass that each kind of frame carries.
    checks : mapping of str to callable
        The check of every field, by the field's name.
    """

    def __init__(self, kinds: Mapping[int, type[Any]], checks: Mapping[str, Check]) -> None:
        self._kinds = kinds
        self._checks = checks
        self._numbers = {kind: number for number, kind in kinds.items()}
        # Looked up once: for a message of one number it takes as long as all the rest.
        self._fields = {kind: [field.name for field in dataclasses.fields(kind)] for kind in self._numbers}

    def encode(self, message: Any, session: int = 0, **written: Any) -> bytes:
        """Return the bytes that say `message` in the stream `session`.

        Parameters
        ----------
        message : dataclass
            One of the kinds.
        session : int
            The stream that it belongs to, where several share a connection.
        **written : Any
            What is written for the fields whose values JSON does not know.
        """
        body = self.encode_body(message, **written)
        return self.envelope(message, session, body) + body

    def encode_body(self, message: Any, **written: Any) -> bytes:
        """Return the body of `message`, the same for every stream that it is said in."""
        fields = {name: getattr(message, name) for name in self._fields[type(message)]}
        return encode_body({**fields, **written})

    def envelope(self, message: Any, session: int, body: bytes) -> bytes:
        """Return what stands before `body` when `message` is said in the stream `session`."""
        return envelope(self._numbers[type(message)], session, body)

    def decode(self, data: bytes, *, peer: str) -> tuple[int, Any]:
        """Return the stream that a message belongs to, and the message.

        Raises
        ------
        PeerMessageError
            If the bytes are no message, or a field of it holds what its check refuses.
        """
        frame = decode(data, peer=peer)
        kind = self._kinds.get(frame.kind)
        if kind is None:
            raise PeerMessageError(peer=peer, problem=f"its kind is {frame.kind}, which is none")
        names = self._fields[kind]
        if frame.fields.keys() != set(names):
            raise PeerMessageError(
                peer=peer, problem=f"a {kind.__name__} has the fields {names}, not {sorted(frame.fields)}"
            )
        values = {name: self._value(kind, name, frame.fields[name], peer) for name in names}
        return frame.session, kind(**values)

    def _value(self, kind: type[Any], name: str, value: Any, peer: str) -> Any:
        checked = self._checks[name](value)
        if checked is WRONG:
            raise PeerMessageError(
                peer=peer, problem=f"the field {name} of its {kind.__name__} is wrong: {value!r:.100}"
            )
        return checked
