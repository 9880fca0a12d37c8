"""What processes of a group write for each other: typed structs, as JSON text in slots and files.

A constructor of msgspec checks nothing. So a payload is checked where it is written and where it is read, by
the types of its fields: no unknown or doubled key, no number that is not finite, no scalar of numpy. Whatever
is refused is named by its path.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

import msgspec

from wsm.errors import BadInputError
from wsm.typed import fits, resolved, said, shown

_Payload = TypeVar("_Payload", bound=msgspec.Struct)

#: Every integer that is stored or handed to the operating system has as many bits.
_SMALLEST, _LARGEST = -(1 << 63), (1 << 64) - 1

#: Mappings and lists within each other.
_DEEPEST = 32

_as_text = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


class PayloadError(ValueError):
    """What is to be written, or was read, is not what its struct says; the text names the field."""


def encode(payload: msgspec.Struct) -> bytes:
    """Return the JSON text of a payload; a PayloadError names a field that is not what its type says."""
    said = as_mapping(payload)
    try:
        return json_bytes(said)
    except ValueError as error:
        plain(said)  # which names the number that is not finite
        raise PayloadError(str(error)) from error


def as_mapping(payload: msgspec.Struct) -> dict[str, Any]:
    """Return a payload as plain values; raises as :func:`encode`."""
    try:
        said: dict[str, Any] = msgspec.to_builtins(payload, enc_hook=_as_builtin)
        msgspec.convert(said, resolved(type(payload)))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        plain(payload)  # which names the field, where JSON has no such value
        raise PayloadError(str(error)) from error
    return said


def decode(kind: type[_Payload], data: bytes) -> _Payload:
    """Return the payload that a JSON text describes; PayloadError: it describes none."""
    return convert(kind, json_value(data))


def convert(kind: type[_Payload], said: object) -> _Payload:
    """Return the payload that plain values describe; PayloadError: they describe none."""
    try:
        return msgspec.convert(said, resolved(kind))
    except msgspec.ValidationError as error:
        raise PayloadError(str(error)) from error


def json_value(data: bytes) -> Any:
    """Return the plain values of a JSON text in which no key stands twice, and every number is finite."""
    try:
        return json.loads(data, object_pairs_hook=_mapping, parse_constant=_finite, parse_float=_finite)
    except PayloadError:
        raise
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"{type(error).__name__}: {error}") from error


def json_bytes(said: object) -> bytes:
    """Return plain values as JSON; text of any language as it is, since escapes take six times the room."""
    return _as_text(said).encode("utf-8", "backslashreplace")


def plain(value: Any, at: str = "$", *, depth: int = 0, scalars: bool = False) -> Any:
    """Return a value as JSON has it, a struct as a mapping; `scalars`: those of numpy as Python's numbers.

    PayloadError: JSON has no such value, or it is deeper than any reader would follow.
    """
    if scalars and getattr(value, "ndim", None) == 0:
        value = value.item()
    kind = type(value)
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, str) or kind is bool:
        return value
    if (kind is int and _SMALLEST <= value <= _LARGEST) or (kind is float and math.isfinite(value)):
        return value
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value)
    if depth < _DEEPEST:
        within = functools.partial(plain, depth=depth + 1, scalars=scalars)
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            return {key: within(each, f"{at}.{key}") for key, each in value.items()}
        if isinstance(value, (list, tuple, frozenset)):
            return [within(each, f"{at}[{place}]") for place, each in enumerate(value)]
    raise PayloadError(f"{shown(value)} is a {kind.__module__}.{kind.__name__} that JSON has not - at `{at}`")


def _as_builtin(value: object) -> object:
    """Return a text or a number of a type of the caller's own as Python's; scalars of numpy are refused."""
    for kind in (str, int, float):
        if isinstance(value, kind) and (kind is str or not hasattr(value, "dtype")):
            return kind(value)
    raise TypeError(f"{shown(value)} is a {type(value).__name__}")


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        doubled = next(name for name in names if names.count(name) > 1)
        raise PayloadError(f"the key {shown(doubled)} stands there twice")
    return found


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise PayloadError(f"the number {text} is not finite")
    return number


def plain_facts(of: str, told: object, annotations: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts of an action or a load as JSON has them; scalars of numpy become Python's numbers.

    BadInputError (``bad-fact``): they are no mapping, JSON has no such value, or it is not as annotated.
    """

    def bad_fact(fact: object, value: object, needed: str) -> BadInputError:
        return BadInputError(
            f"{of} says {shown(fact)}: {shown(value)}; it must be {needed}",
            code="bad-fact",
            fact=str(fact),
            need=needed,
        )

    if not isinstance(told, Mapping):
        raise bad_fact("the whole", told, "a mapping")
    facts: dict[str, Any] = {}
    for name, value in told.items():
        if not isinstance(name, str):
            raise bad_fact(name, value, "under a text")
        try:
            facts[name] = plain(value, scalars=True)
        except PayloadError:
            raise bad_fact(name, value, "what JSON has") from None
        if name in annotations and not fits(annotations[name], facts[name]):
            raise bad_fact(name, value, said(annotations[name]))
    return facts
