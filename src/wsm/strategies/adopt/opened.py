"""What a caller names, opened below declared directories alone; and names of our own for what is open."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from wsm.errors import BadInputError
from wsm.own_descriptor import path_of, reopened
from wsm.shared_directory import EVERY_USER, create_ours, require, trusted_in

_FICLONE: Final = 0x40049409  # <linux/fs.h>


def open_below(
    path: Path | str, roots: Sequence[Path | str], *, kind: int = stat.S_IFREG, at: int | None = None
) -> int:
    """Open for reading what a caller names, if it lies below a declared directory. Does not wait.

    Links are followed first, and what they lead to is looked for again from the declared directory down,
    following none: what changes in between is refused. Where every user can make names on the way, what
    is found there must be ours. `at` is the directory that a relative path begins in.

    Raises
    ------
    FileNotFoundError, ForeignPathError
        If there is none; if it is not of `kind` (``stat.S_IF*``), or another user's.
    BadInputError (``outside-roots``)
        If it lies below none of them.
    OSError
        If it is exchanged while it is opened (``ESTALE``), or the operating system refuses otherwise.
    """
    named = [os.path.realpath(root) for root in roots]
    with ExitStack() as stack:
        held = os.open(path, os.O_PATH | os.O_CLOEXEC, dir_fd=at)
        stack.callback(os.close, held)
        leads_to = path_of(held)
        root = next((each for each in named if os.path.commonpath((each, leads_to)) == each), None)
        if root is None:
            below = ", ".join(named) or "no directory at all"
            raise BadInputError(
                f"{path} leads to {leads_to}, and only what lies below {below} is opened; "
                "write it there, or declare the directory that it lies in",
                code="outside-roots",
                path=str(path),
                leads_to=leads_to,
                roots=tuple(named),
            )
        require(Path(root), Path(root).lstat(), stat.S_IFDIR, also=trusted_in(Path(root).parent))
        found = os.open(root, os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY)
        stack.callback(os.close, found)
        names = Path(leads_to).relative_to(root).parts
        for depth, name in enumerate(names, 1):
            also = trusted_in(found)
            found = os.open(name, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=found)
            stack.callback(os.close, found)
            expected = kind if depth == len(names) else stat.S_IFDIR
            require(Path(root, *names[:depth]), os.fstat(found), expected, also=also)
        require(Path(leads_to), os.fstat(found), kind, also=EVERY_USER)
        if not os.path.samestat(os.fstat(found), os.fstat(held)):
            raise OSError(errno.ESTALE, "it was exchanged while it was opened", str(path))
        return reopened(found, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)


def link_opened(descriptor: int, path: Path) -> None:
    """Give the very file that is open another name, whatever lies under its own by now.

    OSError if it is another user's, of another file system, or without a name left.
    """
    # Python asks the kernel to follow the link in /proc only if it is given a directory, too.
    os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor, follow_symlinks=True)


def clone_opened(descriptor: int, path: Path, *, durable: bool) -> None:
    """Make a file of our own that shares the blocks of one that is open, until either is written.

    OSError if the file system cannot; an empty file may be left.
    """
    made = create_ours(path, mode=None)
    try:
        fcntl.ioctl(made, _FICLONE, descriptor)
        if durable:
            os.fsync(made)
    finally:
        os.close(made)
