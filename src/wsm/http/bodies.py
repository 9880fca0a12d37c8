"""Bodies of requests: one JSON object each, read field by field, and refused by field. Pure.

Every front reads its bodies here. What another reader of the same bytes could take for something else (a name
that stands there twice, a number that is none) is refused, too.
"""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, TypeVar, final

from wsm.http import errors

_Value = TypeVar("_Value")
_Kind = TypeVar("_Kind", bound=enum.Enum)

#: Reads one value of JSON that is there; raises ValueError or TypeError with what it must be.
Reader: TypeAlias = Callable[[Any], _Value]

#: Bytes of the longest body of a verb, and of a request for text, which may be a batch.
MOST_BYTES: Final = 1 << 20
MOST_TEXT_BYTES: Final = 16 << 20

#: Objects and lists within each other, and the integers that every store and operating system has room for.
_DEEPEST: Final = 64
_LEAST_INTEGER, _MOST_INTEGER = -(1 << 63), (1 << 64) - 1

#: Characters of a value that a refusal quotes.
_QUOTED = 80


def object_of(body: bytes, *, most: int = MOST_BYTES) -> dict[str, Any]:
    """Return the JSON object of a body; of an empty one, or null, an empty one.

    Raises
    ------
    BadInputError
        If it is no JSON object (code ``bad-body``).
    RefusedError
        If it is longer than `most` (code ``body-too-large``): to read it would keep others waiting.
    """
    if len(body) > most:
        raise errors.body_too_large(limit=most)
    if not body.strip():
        return {}
    try:
        value = json.loads(
            body,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_bounded,
            object_pairs_hook=_each_once,
        )
        _require_shallow(value)
    except (ValueError, RecursionError) as error:
        raise errors.bad_body(field="body", problem=f"it is no JSON ({error})") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise errors.bad_body(field="body", problem=f"it is {type(value).__name__}, and must be an object")
    return value


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON value")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is too large")
    return value


def _bounded(text: str) -> int:
    value = int(text)
    if not _LEAST_INTEGER <= value <= _MOST_INTEGER:
        raise ValueError("a whole number is too large")
    return value


def _require_shallow(value: object) -> None:
    level = [value]
    for _ in range(_DEEPEST + 1):
        level = [
            within
            for each in level
            if isinstance(each, dict | list)
            for within in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return
    raise ValueError(f"objects and lists stand within each other deeper than {_DEEPEST}")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a name stands there twice")
    return made


# Readers of one value ---------------------------------------------------------------------------------------


def text_value(value: Any) -> str:
    """Return a text that is not empty."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise TypeError("it must be a text that is not empty")
    value.encode()  # a lone surrogate is no text
    return value


def flag_value(value: Any) -> bool:
    """Return a truth value."""
    if not isinstance(value, bool):
        raise TypeError("it must be true or false")
    return value


def label_value(value: Any) -> str:
    """Return the label of a version: text, which some write as a number."""
    if type(value) is int:
        return str(value)
    return text_value(value)


def mapping_value(value: Any) -> dict[str, Any]:
    """Return an object as it is."""
    if not isinstance(value, dict):
        raise TypeError("it must be an object")
    return value


def text_list(value: Any) -> tuple[str, ...]:
    """Return a list of texts, of which one may stand alone."""
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
        raise TypeError("it must be a list of texts")
    return tuple(values)


def token_ids(value: Any) -> tuple[int, ...]:
    """Return token ids."""
    if not isinstance(value, list) or any(type(token) is not int for token in value):
        raise TypeError("it must be a list of token ids")
    return tuple(value)


def whole_from(least: int) -> Reader[int]:
    """Return what reads a whole number from `least` on."""

    def read(value: Any) -> int:
        if type(value) is not int or value < least:
            raise TypeError(f"it must be a whole number from {least} on")
        return value

    return read


def number_up_to(most: float) -> Reader[float]:
    """Return what reads a number from 0 to `most`."""

    def read(value: Any) -> float:
        if type(value) not in (int, float) or not 0 <= value <= most:
            raise TypeError(f"it must be a number from 0 to {most:g}")
        return float(value)

    return read


def choice_among(kind: type[_Kind]) -> Reader[_Kind]:
    """Return what reads one of an enumeration's values."""

    def read(value: Any) -> _Kind:
        try:
            return kind(value)
        except ValueError:
            raise ValueError(f"it must be one of {', '.join(str(each.value) for each in kind)}") from None

    return read


# Fields -----------------------------------------------------------------------------------------------------


@final
class Fields:
    """The fields of an object, by name. What is missing, or of another type, is refused by its name.

    Fields that no verb here knows are no fault: trainers of other releases send more.

    Parameters
    ----------
    body : mapping
        A JSON object.
    within : str
        What stands before the names of its fields in a refusal.
    """

    def __init__(self, body: Mapping[str, Any], within: str = "") -> None:
        self.body = body
        self._within = within

    @classmethod
    def of(cls, body: bytes) -> Fields:
        """Return the fields of a body, as :func:`object_of`."""
        return cls(object_of(body))

    def __contains__(self, name: str) -> bool:
        return self.body.get(name) is not None

    def names(self) -> tuple[str, ...]:
        """Return the names of all fields that have a value."""
        return tuple(sorted(name for name, value in self.body.items() if value is not None))

    def get(self, name: str, read: Reader[_Value]) -> _Value | None:
        """Return what a field says; None where it is missing.

        Raises
        ------
        BadInputError
            If it is something else.
        """
        value = self.body.get(name)
        if value is None:
            return None
        try:
            return read(value)
        except (TypeError, ValueError) as error:
            problem = f"{error}, and is {value!a:.{_QUOTED}}"
            raise errors.bad_body(field=f"{self._within}{name}", problem=problem) from None

    def required(self, name: str, read: Reader[_Value]) -> _Value:
        """Return what a field says that must be there.

        Raises
        ------
        BadInputError
            If it is missing, or something else.
        """
        value = self.get(name, read)
        if value is None:
            raise errors.bad_body(field=f"{self._within}{name}", problem="it is missing")
        return value

    def text(self, name: str) -> str | None:
        """Return a text; None where it is missing."""
        return self.get(name, text_value)

    def label(self, name: str) -> str | None:
        """Return the label of a version; None where it is missing."""
        return self.get(name, label_value)

    def flag(self, name: str, *, otherwise: bool) -> bool:
        """Return a truth value, or `otherwise` where it is missing."""
        value = self.get(name, flag_value)
        return otherwise if value is None else value

    def texts(self, name: str) -> tuple[str, ...] | None:
        """Return a list of texts; None where it is missing."""
        return self.get(name, text_list)

    def fields(self, name: str) -> Fields | None:
        """Return the fields of an object in it; None where it is missing."""
        found = self.get(name, mapping_value)
        return None if found is None else Fields(found, f"{self._within}{name}.")
