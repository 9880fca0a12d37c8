"""Reading and writing whole: a reader, or a power cut, sees the old file or the new one and nothing between.

The order is the whole point: bytes, fsync of the file, rename, fsync of the directory. Where files name no
version, inode, size and time of modification tell whether they are the same as before; two writes within one
tick of the file system's clock that leave the size are not told apart. Knows nothing about what they mean.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from wsm.shared_directory import ForeignPathError, remove_ours
from wsm.strategies import errors
from wsm.strategies.errors import UnreadableFileError


def read_all(descriptor: int, position: int, destination: memoryview, *, file: str, expected: int) -> None:
    """Fill `destination` from `position` of an open file on. Blocks.

    Raises
    ------
    BadInputError (``bad-file-size``)
        If it ends before, though it was `expected` bytes long; `destination` may be partly filled.
    UnreadableFileError
        If reading fails.
    """
    rest = destination
    while rest:
        try:
            count = os.preadv(descriptor, [rest], position)
        except OSError as error:
            raise UnreadableFileError(file=file, reason=str(error)) from error
        if count == 0:
            raise errors.bad_file_size(file=file, expected=expected, actual=position)
        position += count
        rest = rest[count:]


def write_all(descriptor: int, data: bytes | bytearray | memoryview) -> None:
    """Write every byte of `data`; a single ``write`` may take fewer (2 GiB at most on Linux). Blocks."""
    with memoryview(data) as whole:
        written = 0
        while written < len(whole):
            with whole[written:] as rest:
                written += os.write(descriptor, rest)


def write_new(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Create `path`, which must not exist, with `data`. Blocks.

    Raises
    ------
    OSError
        If the file system refuses; a partly written file may be left.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        write_all(descriptor, data)
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes, *, durable: bool = True, alone: bool = False) -> None:
    """Let `path` hold `data`, atomically for readers. Blocks.

    A caller that is `alone`, since it keeps other writers of `path` out, removes what killed ones left.

    Raises
    ------
    OSError
        If the file system refuses; `path` is then as it was.
    """
    for left in list(path.parent.glob(f".{path.name}.{'[0-9a-f]' * 8}")) if alone else ():
        with suppress(OSError, ForeignPathError):
            remove_ours(left)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        write_new(temporary, data, durable=durable)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)  # there is none where it became `path`
    if durable:
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the entries of a directory (creations, renames) survive a power cut. Blocks."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
