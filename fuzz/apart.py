"""One format searched in a process of its own, which bounds its memory and keeps what it prints in a file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from fuzz.formats import all_formats
from fuzz.searching import search_with_bounds


def search_apart(name: str, seconds: float, seed: int, found: Path, guided: bool) -> None:
    """Search one format; the process ends with 0 if nothing was found, else what was is in `found`/output."""
    found.mkdir(parents=True, exist_ok=True)
    with (found / "output").open("wb") as output:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(output.fileno(), stream.fileno())
    form = all_formats()[name]
    if guided:
        from fuzz.guided import search  # noqa: PLC0415 - atheris is an extra

        search(form, seconds, seed, found)
    else:
        search_with_bounds(form, seconds, seed)
