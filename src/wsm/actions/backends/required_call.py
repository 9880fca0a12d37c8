"""Finding a call of an engine's object or of paddle, or saying which one an installed build lacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wsm.actions.backends import errors


def required_call(owner: Any, *spellings: str, needed_for: str) -> Callable[..., Any]:
    """Return the first of `spellings` that `owner` has: where builds spell a call differently, all are given.

    Raises
    ------
    BadInputError (``call-missing``)
        If it has none of them.
    """
    for spelling in spellings:
        call = getattr(owner, spelling, None)
        if callable(call):
            found: Callable[..., Any] = call
            return found
    name = getattr(owner, "__name__", type(owner).__name__)  # of a class or module its own
    raise errors.call_missing(owner=name, call=" or ".join(spellings), needed_for=needed_for)
