"""Where a group's files lie and what they are called. Pure: looks at no file.

``{directory}/wsm.{name}`` is the segment, with ``.lock`` appended its lock file, with ``.new`` appended
the segment while its owner still fills it. ``.run`` and ``.requests`` are kept for what an engine puts
beside its segment, so no group may have a name that ends so either.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from wsm.signals.errors import SegmentNameError

#: Where POSIX shared memory is a file on Linux; readable by everything that shares the IPC namespace.
SHARED_MEMORY_DIRECTORY = Path("/dev/shm")  # noqa: S108 - this is the place, not a temporary file

_SANE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_MAX_NAME_LENGTH = 100
_KEPT_SUFFIXES = (".lock", ".new", ".run", ".requests")


def check_name(name: str) -> str:
    """Return `name` if it can name a segment.

    Raises
    ------
    SegmentNameError
        If it is empty, too long, no single path component, or ends as wsm's own companion files do.
    """
    if not name or len(name) > _MAX_NAME_LENGTH:
        raise SegmentNameError(name=name, reason=f"it has {len(name)} characters")
    if not _SANE.fullmatch(name):
        raise SegmentNameError(name=name, reason="it holds a character that is not allowed there")
    if name.endswith(_KEPT_SUFFIXES):
        raise SegmentNameError(name=name, reason="it ends as a companion file of another segment would")
    return name


def segment_path(name: str, directory: str | os.PathLike[str] | None = None) -> Path:
    """Path of the segment `name`; `directory` is ``/dev/shm`` unless a test says otherwise."""
    return Path(directory or SHARED_MEMORY_DIRECTORY) / f"wsm.{check_name(name)}"


def lock_path(path: Path) -> Path:
    """Path of the lock file beside the segment `path`."""
    return path.with_name(path.name + ".lock")


def unfinished_path(path: Path) -> Path:
    """Path under which the segment `path` is filled before it is published."""
    return path.with_name(path.name + ".new")
