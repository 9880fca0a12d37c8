"""What the fields of messages may hold: one check per kind of field, the same for every protocol.

A check takes what a peer sent and returns the field's value, or :data:`WRONG`. Pure; knows no message by
name: the protocols in :mod:`wsm.strategies.buckets._bucket_messages` and
:mod:`wsm.strategies.mooncake._lease_messages` say which field takes which check.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from wsm.labels import is_label
from wsm.strategies.digest import DIGEST_LENGTH
from wsm.strategies.documents import is_count, is_plain_file_name, is_text
from wsm.strategies.tensor import ITEM_BYTES, TensorSpec, is_shape

Check: TypeAlias = Callable[[Any], Any]

#: What a check returns for a value that the field cannot have.
WRONG: Any = object()
#: Numbers, addresses and sums of bytes all fit into a signed 64-bit word.
MAX_COUNT = (1 << 63) - 1

_MAX_TEXT = 1 << 16
_MAX_FILE_NAME = 255
_DIGEST = re.compile(rf"[0-9a-f]{{{DIGEST_LENGTH}}}")


def count(limit: int = MAX_COUNT, *, least: int = 0, multiple_of: int = 1) -> Check:
    """Return the check of an integer from `least` to `limit`."""
    return lambda value: (
        value if is_count(value) and least <= value <= limit and value % multiple_of == 0 else WRONG
    )


def or_none(check: Check) -> Check:
    """Return the check of a field that may also say nothing."""
    return lambda value: None if value is None else check(value)


def one_of(words: Sequence[str]) -> Check:
    """Return the check of one of some words."""
    return lambda value: value if isinstance(value, str) and value in words else WRONG


def matching(pattern: re.Pattern[str]) -> Check:
    """Return the check of a string that `pattern` describes from its first to its last character."""
    return lambda value: value if isinstance(value, str) and pattern.fullmatch(value) else WRONG


def flag(value: Any) -> Any:
    """Check a boolean."""
    return value if isinstance(value, bool) else WRONG


def text(value: Any) -> Any:
    """Check a string of bounded length that can be written out again."""
    return value if is_text(value) and len(value) <= _MAX_TEXT else WRONG


def name(value: Any) -> Any:
    """Check a text that says something."""
    return text(value) if value else WRONG


def file_name(value: Any) -> Any:
    """Check the name of a file, which leads into no other directory."""
    fits = is_text(value) and len(value) <= _MAX_FILE_NAME and is_plain_file_name(value)
    return value if fits else WRONG


def version(value: Any) -> Any:
    """Check the label of a version."""
    return value if isinstance(value, str) and is_label(value) else WRONG


def version_or_count(value: Any) -> Any:
    """Check the label of a version, which is a text, or a number of ranks."""
    return value if is_count(value) and value <= MAX_COUNT else version(value)


digest = matching(_DIGEST)


def digests(value: Any) -> Any:
    """Check a list of digests; a tuple of them."""
    if not isinstance(value, list) or any(digest(entry) is WRONG for entry in value):
        return WRONG
    return tuple(value)


def spec_row(spec: TensorSpec) -> list[Any]:
    """Return what :func:`spec` reads."""
    return [spec.name, spec.dtype, list(spec.shape)]


def spec(row: Any) -> Any:
    """Check name, dtype and shape of a tensor; a TensorSpec."""
    if not isinstance(row, list) or len(row) != 3:
        return WRONG
    name, dtype, shape = row
    if not is_text(name) or not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        return WRONG
    if not is_shape(shape):
        return WRONG
    return TensorSpec(name, dtype, tuple(shape))


def are_counts(row: Any, length: int) -> bool:
    """Whether `row` is a list of so many non-negative integers."""
    return isinstance(row, list) and len(row) == length and all(map(is_count, row))
