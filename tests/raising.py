"""Expect an error by its code, as ``pytest.raises`` expects one by its type.

What no caller catches is no type: it is raised in place, as its family with a code of its own:
``raising("not-owner", match="...")``. Where a function makes it, that function stands for its code.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from wsm import errors
from wsm.errors import WsmError

#: A type, a code, or a function that returns an error.
Kind: TypeAlias = "type[BaseException] | str | Callable[..., WsmError]"


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
    code = kind if isinstance(kind, str) else kind.__name__.replace("_", "-")
    return isinstance(error, _family(kind)) and isinstance(error, WsmError) and error.code == code


def _family(kind: Kind) -> type[BaseException]:
    if isinstance(kind, type):
        return kind
    if isinstance(kind, str):
        return WsmError
    found = getattr(errors, inspect.get_annotations(kind)["return"])
    assert isinstance(found, type)
    return found
