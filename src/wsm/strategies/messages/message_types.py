"""The messages that two sides exchange: dataclasses to bytes and back, every field checked on the way in.

Pure; knows no message by name. A protocol is a table: which kind of frame is which dataclass, and the
check (:mod:`wsm.strategies.messages.fields`) of every field. What no field says by itself, the protocol
checks in the message that it gets.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from wsm.strategies.messages import frames
from wsm.strategies.messages.errors import PeerMessageError
from wsm.strategies.messages.fields import WRONG, Check


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
        return frames.encode_body({**fields, **written})

    def envelope(self, message: Any, session: int, body: bytes) -> bytes:
        """Return what stands before `body` when `message` is said in the stream `session`."""
        return frames.envelope(self._numbers[type(message)], session, body)

    def decode(self, data: bytes, *, peer: str) -> tuple[int, Any]:
        """Return the stream that a message belongs to, and the message.

        Raises
        ------
        PeerMessageError
            If the bytes are no message, or a field of it holds what its check refuses.
        """
        frame = frames.decode(data, peer=peer)
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
