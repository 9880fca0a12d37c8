"""How many bytes this process may still take from its host: the kernel's estimate, within every limit on it.

Reads ``/proc`` and the control groups (version 2, and 1 beside it). A file that is not there, or not for this
user, is no limit; one that cannot be read for want of descriptors or memory may be any, so there is no figure
then. It must not know what the bytes are for.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_MOUNT = "sys/fs/cgroup"


#: What says nothing about the file that was to be read.
_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def available_bytes(root: Path = Path("/")) -> int | None:
    """Return the bytes that can be taken without swapping, and without passing a limit; None: not known.

    Parameters
    ----------
    root : Path
        Where ``proc`` and ``sys`` are found.
    """
    try:
        estimate = _fields(root / "proc/meminfo").get("MemAvailable:")
        return None if estimate is None else max(0, min([estimate * 1024, *_left_in_groups(root)]))
    except OSError:
        return None


def _left_in_groups(root: Path) -> Iterator[int]:
    """Iterate over what every limited group that this process is in has left, its own and those above."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from _left(root / _MOUNT, path, "memory.max", "memory.current", "")
        elif "memory" in controllers.split(","):
            mount = root / _MOUNT / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
            yield from _left(mount, path, *names)


def _left(mount: Path, path: str, limit: str, usage: str, prefix: str) -> Iterator[int]:
    inside = PurePosixPath(path.lstrip("/"))
    # A container often sees its own group at the mount itself, whatever the path says.
    for group in dict.fromkeys((inside, *inside.parents, PurePosixPath())):
        directory = mount / group
        bound, used = _number(directory / limit), _number(directory / usage)
        if bound is not None and used is not None:
            # Cached pages of files count as used, and are given up before the limit is passed: also those
            # read more than once, as snapshots are, which the kernel calls active.
            counted = _fields(directory / "memory.stat")
            cached = sum(counted.get(f"{prefix}{kind}_file", 0) for kind in ("inactive", "active"))
            yield bound - used + cached


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None  # no such group, no right to look, or "max"


def _fields(path: Path) -> dict[str, int]:
    """Return the second word of every line that has a number there, by the first."""
    rows = [line.split() for line in _text(path).splitlines()]
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdecimal()}


def _text(path: Path) -> str:
    """Return a file's text, empty if it cannot be read; a shortage is passed on."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        if error.errno in _SHORTAGES:
            raise
        return ""
