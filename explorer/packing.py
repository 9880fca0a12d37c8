"""Dataclasses of small values as bytes and back, whatever their fields are.

The explored worlds hold the protocol's own :class:`~wsm.states.rank_state.RankState`. It is packed by the
fields that it has, so that a field that is added to it becomes part of every world by itself, and a value
that the bytes cannot hold is an error, never a world that is taken for another one.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Generic, TypeVar, get_type_hints

from explorer.errors import UnpackableError

Value = TypeVar("Value")

#: A packed tuple of booleans is one byte: a leading 1, then the booleans.
_MOST_BOOLEANS = 7


class Packing(Generic[Value]):
    """How the values of one dataclass become bytes: one byte per field.

    Parameters
    ----------
    kind : type
        The dataclass; its fields are integers (-128..127), booleans, enumerations, optional integers
        (0..126), or tuples of at most seven booleans.
    """

    def __init__(self, kind: type[Value]) -> None:
        hints = get_type_hints(kind)
        self._kind = kind
        self._fields = [(field.name, _coder(hints[field.name])) for field in fields(kind)]  # type: ignore[arg-type]  # `kind` is a dataclass; there is no type for that

    @property
    def size(self) -> int:
        """Bytes of a packed value."""
        return len(self._fields)

    def pack(self, value: Value) -> bytes:
        """Return the bytes of a value.

        Raises
        ------
        UnpackableError
            If a field's value does not fit.
        """
        found = bytearray()
        for name, (to_byte, _) in self._fields:
            part = getattr(value, name)
            byte = to_byte(part)
            if not 0 <= byte <= 0xFF:
                raise UnpackableError(field=name, value=part)
            found.append(byte)
        return bytes(found)

    def unpack(self, data: bytes) -> Value:
        """Return the value of what :meth:`pack` returned."""
        pairs = zip(self._fields, data, strict=True)
        return self._kind(**{name: from_byte(byte) for (name, (_, from_byte)), byte in pairs})


Coder = tuple[Callable[[Any], int], Callable[[int], Any]]


def _coder(hint: Any) -> Coder:
    if hint is bool:
        return int, bool
    if hint is int:
        return (lambda value: value + 0x80), (lambda byte: byte - 0x80)
    if hint == int | None:
        return (lambda value: 0 if value is None else value + 1), (lambda byte: byte - 1 if byte else None)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        members: list[enum.Enum] = list(hint)
        places = {member: place for place, member in enumerate(members)}
        return places.__getitem__, members.__getitem__
    if hint == tuple[bool, ...]:
        return _booleans_to_byte, _byte_to_booleans
    raise UnpackableError(field="a field of this type", value=hint)


def _booleans_to_byte(values: tuple[bool, ...]) -> int:
    if len(values) > _MOST_BOOLEANS:
        return -1
    byte = 1
    for value in values:
        byte = byte << 1 | value
    return byte


def _byte_to_booleans(byte: int) -> tuple[bool, ...]:
    return tuple(digit == "1" for digit in f"{byte:b}"[1:])
