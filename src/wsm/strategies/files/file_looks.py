"""What files are there, seen without opening them, and whether they are still the same later.

What names no version has nothing else to be told apart by: inode, size and time of modification. Two writes
within one tick of the file system's clock that leave the size are not told apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class FileLook:
    """One file, as it was seen.

    Parameters
    ----------
    path : str
        Where it lies.
    device, inode, size, mtime_ns : int or None
        Which file it is, its bytes and when they were changed last; None: there was none.
    """

    path: str
    device: int | None = None
    inode: int | None = None
    size: int | None = None
    mtime_ns: int | None = None

    @classmethod
    def at(cls, path: str) -> FileLook:
        """Look at what stands at `path` now; what cannot be looked at counts as absent."""
        with suppress(OSError, ValueError):
            found = Path(path).stat()
            return cls(path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        return cls(path)


def look_at(paths: Iterable[str]) -> tuple[FileLook, ...]:
    """Look at each of the files."""
    return tuple(FileLook.at(path) for path in paths)


def first_changed(looks: Iterable[FileLook]) -> str | None:
    """Look again; return the path of the first file that is not what it was, None if all are."""
    return next((look.path for look in looks if FileLook.at(look.path) != look), None)
