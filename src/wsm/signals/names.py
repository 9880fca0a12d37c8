"""Where a group's files lie and what they are called.

``DIRECTORY/wsm.NAME`` is the segment, with ``.lock`` its lock file, with ``.new`` the segment while its owner
still fills it. No name of a group ends so, or as an engine's files beside it (``.run``, ``.requests``).
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from wsm.shared_directory import private_directory
from wsm.signals.errors import SegmentNameError

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
    """Return the path of the segment `name`, in `directory` or in the private directory of this user.

    Raises SegmentNameError; ForeignPathError if the private directory must not be used.
    """
    check_name(name)
    return (private_directory() if directory is None else Path(directory)) / f"wsm.{name}"


def lock_path(path: Path) -> Path:
    """Path of the lock file beside the segment `path`."""
    return path.with_name(path.name + ".lock")
