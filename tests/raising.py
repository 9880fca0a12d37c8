"""Expect an error by the function that makes it, as ``pytest.raises`` expects one by its type.

What no caller catches is no type, but a function in an errors module that returns its family with a code of
the function's name: ``raising(errors.not_owner, match="...")``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from wsm import errors
from wsm.errors import WsmError

#: A type, or a function that returns an error.
Kind: TypeAlias = "type[BaseException] | Callable[..., WsmError]"


def raising(kinds: Kind | tuple[Kind, ...], match: str | None = None) -> Any:
    """Return a context that ends with an error of one of `kinds`, whose message has `match`."""
    several = kinds if isinstance(kinds, tuple) else (kinds,)
    return pytest.raises(
        tuple(_family(kind) for kind in several),
        match=match,
        check=lambda error: matches(error, several),
    )


def matches(error: BaseException, kind: Kind | tuple[Kind, ...]) -> bool:
    """Whether `error` is of that type, or is what that function makes; of any of several."""
    if isinstance(kind, tuple):
        return any(matches(error, each) for each in kind)
    if isinstance(kind, type):
        return isinstance(error, kind)
    code = kind.__name__.replace("_", "-")
    return isinstance(error, _family(kind)) and isinstance(error, WsmError) and error.code == code


def _family(kind: Kind) -> type[BaseException]:
    if isinstance(kind, type):
        return kind
    found = getattr(errors, inspect.get_annotations(kind)["return"])
    assert isinstance(found, type)
    return found
