"""The groups of this host, by name: which there are, and what to say where one is not."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from wsm.cli import errors
from wsm.cli._base import wrong_usage
from wsm.shared_directory import EVERY_USER, ForeignPathError, open_ours
from wsm.signals.errors import SegmentMissingError
from wsm.signals.layout import MAGIC
from wsm.signals.names import SHARED_MEMORY_DIRECTORY, check_name, segment_path

_PREFIX = "wsm."


def existing_groups(directory: Path = SHARED_MEMORY_DIRECTORY) -> list[str]:
    """Return the names of all groups that have a segment, living or dead, in order."""
    return sorted(
        path.name.removeprefix(_PREFIX) for path in directory.glob(f"{_PREFIX}*") if _is_segment(path)
    )


@contextlib.contextmanager
def known_group(name: str) -> Iterator[None]:
    """Inside, a group that does not exist is wrong usage, with the names of those that do.

    Raises
    ------
    CommandEndedError
        With the exit code of wrong usage.
    """
    with wrong_usage():
        check_name(name)
    try:
        yield
    except SegmentMissingError as error:
        if segment_path(name).exists():
            raise
        with wrong_usage():
            raise errors.no_such_group(group=name, existing=existing_groups()) from error


def _is_segment(path: Path) -> bool:
    """Whether a file begins as segments do; what lies beside a segment under its name does not."""
    try:
        descriptor = open_ours(path, os.O_RDONLY, also=EVERY_USER)
    except (OSError, ForeignPathError):  # gone meanwhile, another user's, or no file at all
        return False
    try:
        return os.pread(descriptor, len(MAGIC), 0) == MAGIC
    finally:
        os.close(descriptor)
