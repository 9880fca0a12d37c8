"""Types of the fixtures that run command lines."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import NamedTuple


class Ended(NamedTuple):
    """How a command line ended."""

    code: int
    out: str
    err: str


Run = Callable[..., Ended]
Start = Callable[..., "subprocess.Popen[str]"]
