"""One format searched in a process of its own, which keeps what it prints in a file.

Not in ``__main__``: other processes cannot import what they are to run from there.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from fuzz import searching
from fuzz.formats import all_formats


def search_apart(name: str, seconds: float, seed: int, found: Path, guided: bool) -> None:
    """Search one format; the process ends with 0 if nothing was found, else `found`/output says what."""
    with (found / "output").open("ab") as output:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(output.fileno(), stream.fileno())
    form = all_formats()[name]
    if guided:
        from fuzz.guided import search  # noqa: PLC0415 - atheris is an extra

        search(form, seconds, seed, found)
    else:
        searching.search(form, seconds, seed)
