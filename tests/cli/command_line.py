"""Types of the fixtures that run command lines."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from click.testing import CliRunner

#: click 8.1 mixes standard output and standard error unless it is told not to.
SEPARATE: dict[str, Any] = (
    {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}
)


class Ended(NamedTuple):
    """How a command line ended."""

    code: int
    out: str
    err: str


Run = Callable[..., Ended]
Start = Callable[..., Any]
