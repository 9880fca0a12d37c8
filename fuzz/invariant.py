"""What holds for every format and all bytes. Knows no format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from wsm.errors import BadInputError, WsmError

#: Most memory that reading any input of a few KiB may take, beside the interpreter and its libraries.
MEMORY_BYTES = 1 << 30
#: Longest that one input may take, in seconds.
INPUT_S = 20


class BrokenInvariantError(AssertionError):
    """Bytes for which a reader does not do what it promises."""

    def __init__(self, name: str, data: bytes, problem: str) -> None:
        super().__init__(f"{name}: {problem}; the bytes are {data!r}")
        self.name = name
        self.data = data
        self.problem = problem


@dataclass(frozen=True)
class Format:
    """One format, as it is fuzzed.

    Parameters
    ----------
    name : str
        What it is called on the command line.
    reader : callable
        The function under test, by which a test finds those that have no target.
    decode : callable
        ``decode(bytes)`` gives a value or a typed error; values have an ``==``.
    encode : callable
        ``encode(value)`` gives bytes that decode to an equal value.
    samples : tuple of bytes
        Good ones, before `dress`.
    dress : callable
        Puts an envelope around fuzzed bytes, whose digests would otherwise keep them out.
    errors : tuple of type
        The typed errors that may come of it.
    """

    name: str
    reader: Callable[..., Any]
    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]
    samples: tuple[bytes, ...]
    dress: Callable[[bytes], bytes] = bytes
    errors: tuple[type[Exception], ...] = (BadInputError,)


def check(form: Format, drawn: bytes) -> bool:
    """Read what was drawn; return whether it was a value.

    Raises
    ------
    BrokenInvariantError
        If it is neither a typed error with one line of text nor a value that survives being written.
    """
    data = form.dress(drawn)
    try:
        value = form.decode(data)
    except form.errors as error:
        if isinstance(error, WsmError) and "\n" in str(error):
            raise BrokenInvariantError(form.name, data, "its error has several lines") from error
        return False
    except Exception as error:
        raise BrokenInvariantError(form.name, data, f"it raises {type(error).__name__}: {error}") from error
    try:
        again = form.decode(form.encode(value))
    except Exception as error:
        raise BrokenInvariantError(form.name, data, f"its value cannot be written: {error!r}") from error
    if again != value:
        raise BrokenInvariantError(form.name, data, f"its value {value!r} becomes {again!r} when written")
    return True
