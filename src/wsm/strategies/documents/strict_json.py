"""JSON from files that are not trusted: one meaning or an error.

Python's parser takes the last of duplicated keys, ``NaN``, and lone surrogates that no log can carry;
:func:`parse` refuses the first two, :func:`is_text` tells the third. Knows nothing of what a document means.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


class StrictJsonError(ValueError):
    """The bytes are no JSON document with a single meaning; the text says why."""


def parse(data: bytes) -> Any:
    """Parse a UTF-8 JSON document.

    Raises
    ------
    StrictJsonError
        If it is no JSON, repeats a key, holds NaN or an infinity, or is nested too deeply.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise StrictJsonError(f"it is not UTF-8 at byte {error.start}") from error
    try:
        return _DECODER.decode(text)
    except StrictJsonError:
        raise
    except RecursionError as error:
        raise StrictJsonError("it is nested too deeply") from error
    except ValueError as error:  # JSONDecodeError, and integers beyond Python's digit limit
        raise StrictJsonError(f"it is not JSON ({error})") from error


def is_count(value: object) -> bool:
    """Whether `value` is a non-negative integer; JSON's true and false are none."""
    return type(value) is int and value >= 0


def is_text(value: object) -> bool:
    """Whether `value` is a string that can be written out again (no lone surrogates)."""
    if not isinstance(value, str):
        return False
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def are_texts(values: Sequence[object]) -> bool:
    """Whether :func:`is_text` holds for all of many values, faster than one by one."""
    return set(map(type, values)) <= {str} and is_text("".join(map(str, values)))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]  # set.add returns None by design
        raise StrictJsonError(f"the key {twice!r} occurs twice")
    return found


def _refuse_constant(name: str) -> Any:
    raise StrictJsonError(f"it holds {name}, which is not JSON")


# Made once: with hooks, json.loads makes one per call, which takes longer than to parse a short message.
_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)
