"""The one place that opens, makes, locks and removes names where other users can make some, too.

``/dev/shm`` and ``/tmp`` let every user of the host make any name, so what lies under one of ours need not
be ours: it may be another user's file, a link, a pipe that blocks who opens it, a directory. Here a name is
never followed and opening it never waits. What was opened is used only if it is what it must be and belongs
to the user of this process; root trusts root alone. What is made is made anew, with its mode whatever the
umask says. What is removed was seen to be ours before. A lock is held on the file that lies at its path, or
it is none.

A directory that only trusted users can write in (no sticky bit, not open to the world) is theirs to fill:
there a lock file of another user is used, since that user could replace it anyway.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
import struct
from collections.abc import Container, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, final

from wsm.errors import BadInputError, RefusedError
from wsm.own_descriptor import OwnDescriptor, not_inherited, path_of, reopened

#: How a name is opened: never followed, never waited for, never passed on to another program.
_CAREFULLY: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
#: A file that comes and goes under one name so often is not one that an honest process makes.
_ATTEMPTS: Final = 100
#: For files that are only looked at, and those in directories that only trusted users can write in.
EVERY_USER: Final = range(1 << 32)
_PEER = struct.Struct("3i")  # struct ucred: pid, uid, gid

_KINDS: Final = {
    stat.S_IFREG: "regular file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symbolic link",
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
}


class ForeignPathError(RefusedError):
    """What lies under a name of ours is not ours, or not what it must be; it was left as it is.

    `owner` is the user that it belongs to; None where that cannot be seen.
    """

    def __init__(self, *, path: str, problem: str, owner: int | None = None, fix: str = "") -> None:
        by = "" if owner is None else f" (as user {owner}, or as root)"
        super().__init__(
            f"{path} is not used: {problem}; {fix or f'remove it{by}, or use another name'}",
            path=path,
            problem=problem,
            owner=owner,
        )


def fault_of(status: os.stat_result, kind: int = stat.S_IFREG, *, also: Container[int] = ()) -> str | None:
    """Return what keeps something from being used, in words; None if nothing does. Pure but for our own user.

    Parameters
    ----------
    status : os.stat_result
        Of what was found, links not followed.
    kind : int
        What it must be, one of ``stat.S_IF*``.
    also : container of int
        Users whose it may be besides ours.
    """
    found = stat.S_IFMT(status.st_mode)
    if found != kind:
        return f"it is a {_KINDS.get(found, 'device')}, not a {_KINDS[kind]}"
    if status.st_uid != os.geteuid() and status.st_uid not in also:
        return f"it belongs to user {status.st_uid}"
    return None


def require(
    path: Path, status: os.stat_result, kind: int = stat.S_IFREG, *, also: Container[int] = ()
) -> None:
    """Refuse what has a fault.

    Raises
    ------
    ForeignPathError
        If it is not of that kind, or another user's.
    """
    problem = fault_of(status, kind, also=also)
    if problem is not None:
        raise ForeignPathError(path=str(path), problem=problem, owner=status.st_uid)


def is_ours(path: Path) -> bool:
    """Whether a regular file of ours lies there."""
    try:
        return fault_of(path.lstat()) is None
    except FileNotFoundError:
        return False


def open_ours(path: Path, flags: int = os.O_RDWR, *, also: Container[int] = ()) -> int:
    """Open a regular file that is there and ours; return its descriptor. Does not wait.

    Parameters
    ----------
    path : Path
        Where.
    flags : int
        How; what makes it careful is added.
    also : container of int
        Users whose it may be besides ours.

    Raises
    ------
    FileNotFoundError
        If there is none.
    ForeignPathError
        If what is there must not be used.
    OSError
        If the operating system refuses for another reason.
    """
    try:
        descriptor = os.open(path, flags | _CAREFULLY)
    except FileNotFoundError:
        raise
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            require(path, path.lstat(), also=also)  # it says more than "permission denied"
        raise
    try:
        require(path, os.fstat(descriptor), also=also)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def create_ours(path: Path, *, mode: int | None = 0o600) -> int:
    """Create a file that is not there, with exactly this mode; return its descriptor, read and write.

    A mode of None is what the umask leaves of that of any new file.

    Raises
    ------
    FileExistsError
        If something is there, whatever it is.
    OSError
        If the operating system refuses.
    """
    first = 0o666 if mode is None else mode & 0o600
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _CAREFULLY, first)
    try:
        if mode is not None:
            os.fchmod(descriptor, mode)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_or_create_ours(
    path: Path, flags: int = os.O_RDWR, *, mode: int | None = 0o600, also: Container[int] = ()
) -> int:
    """Open a regular file that is ours, or create it as :func:`create_ours`. Does not wait.

    Raises
    ------
    ForeignPathError
        If what is there must not be used.
    OSError
        If the operating system refuses.
    """
    for _ in range(_ATTEMPTS):
        # Opened first: a sticky directory may forbid root to "create" what exists.
        with contextlib.suppress(FileNotFoundError):
            return open_ours(path, flags, also=also)
        with contextlib.suppress(FileExistsError):
            os.close(create_ours(path, mode=mode))
    raise ForeignPathError(path=str(path), problem=f"it came and went {_ATTEMPTS} times")


def is_shared(directory: Path) -> bool:
    """Whether other users can make names in a directory: it is sticky, or open to the world."""
    return _is_open_to_all(directory.stat())


def _is_open_to_all(status: os.stat_result) -> bool:
    return bool(status.st_mode & (stat.S_ISVTX | stat.S_IWOTH))


def trusted_in(directory: Path) -> Container[int]:
    """Return the users whose files will do besides ours: none where every user can make some, else all."""
    return _trusted_by(directory.stat())


def _trusted_by(status: os.stat_result) -> Container[int]:
    return () if _is_open_to_all(status) else EVERY_USER


def read_ours(path: Path) -> bytes:
    """Return the content of a file of ours, or of any user where only trusted ones can make names. Blocks.

    Raises
    ------
    ForeignPathError
        If what is there must not be used.
    OSError
        If there is none, or the operating system refuses.
    """
    with os.fdopen(open_ours(path, os.O_RDONLY, also=trusted_in(path.parent)), "rb") as file:
        return file.read()


def outside_roots(*, path: str, leads_to: str, roots: Sequence[str]) -> BadInputError:
    """A path that a caller names leads out of the directories that were declared for such paths."""
    below = ", ".join(roots) or "no directory at all"
    return BadInputError(
        f"{path} leads to {leads_to}, and only what lies below {below} is opened; "
        "write it there, or declare the directory that it lies in",
        code="outside-roots",
        path=path,
        leads_to=leads_to,
        roots=tuple(roots),
    )


def open_below(
    path: Path | str, roots: Sequence[Path | str], *, kind: int = stat.S_IFREG, at: int | None = None
) -> int:
    """Open for reading what a caller names, if it lies below a declared directory. Does not wait.

    Links are followed first, and what they lead to is looked for again from the declared directory down,
    following none: what changes in between is refused. Where every user can make names on the way, what
    is found there must be ours.

    Parameters
    ----------
    path : path or str
        Where.
    roots : sequence of path or str
        The declared directories.
    kind : int
        What it must be, ``stat.S_IFREG`` or ``stat.S_IFDIR``.
    at : int, optional
        Descriptor of the directory that a relative path begins in.

    Raises
    ------
    FileNotFoundError
        If there is none.
    BadInputError (``outside-roots``)
        If it lies below none of them.
    ForeignPathError
        If it is of another kind, another user's, or changes while it is opened.
    OSError
        If the operating system refuses for another reason.
    """
    named = [os.path.realpath(root) for root in roots]
    with ExitStack() as stack:
        held = os.open(path, os.O_PATH | os.O_CLOEXEC, dir_fd=at)
        stack.callback(os.close, held)
        leads_to = path_of(held)
        root = next((each for each in named if os.path.commonpath((each, leads_to)) == each), None)
        if root is None:
            raise outside_roots(path=str(path), leads_to=leads_to, roots=named)
        require(Path(root), Path(root).lstat(), stat.S_IFDIR, also=trusted_in(Path(root).parent))
        found = os.open(root, os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY)
        stack.callback(os.close, found)
        names = Path(leads_to).relative_to(root).parts
        for depth, name in enumerate(names, 1):
            also = _trusted_by(os.fstat(found))
            found = os.open(name, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=found)
            stack.callback(os.close, found)
            expected = kind if depth == len(names) else stat.S_IFDIR
            require(Path(root, *names[:depth]), os.fstat(found), expected, also=also)
        require(Path(leads_to), os.fstat(found), kind, also=EVERY_USER)
        if not os.path.samestat(os.fstat(found), os.fstat(held)):
            raise ForeignPathError(path=str(path), problem="it was exchanged while it was opened")
        return reopened(found, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)


def link_opened(descriptor: int, path: Path) -> None:
    """Give the very file that is open another name, whatever lies under its own by now.

    Raises
    ------
    OSError
        If the operating system refuses: another file system, another user's file, one without a name left.
    """
    # Python asks the kernel to follow the link in /proc only if it is given a directory, too.
    os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor, follow_symlinks=True)


def open_to_append(path: Path, *, reads: bool = False) -> int:
    """Open a file to append to, created as the umask says; return its descriptor. Does not wait.

    Where only trusted users can make names it may be what they made there: a link, or another user's file.
    It can be read, too, if `reads`.

    Raises
    ------
    ForeignPathError
        If every user can make names there, and what is there is no regular file of ours.
    OSError
        If the operating system refuses.
    """
    return _open_or_create(path, (os.O_RDWR if reads else os.O_WRONLY) | os.O_APPEND)


def open_to_write(path: Path) -> int:
    """Open a file to write over from its beginning; what it holds stays. Else as :func:`open_to_append`."""
    return _open_or_create(path, os.O_WRONLY)


def _open_or_create(path: Path, flags: int) -> int:
    if is_shared(path.parent):
        return open_or_create_ours(path, flags, mode=None)
    return os.open(path, flags | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)


def make_private_directory(path: Path) -> None:
    """Make a directory that only this user can enter, whatever the umask says.

    Raises
    ------
    FileExistsError
        If something is there.
    """
    path.mkdir(0o700)
    path.chmod(0o700)


def remove_directory(path: Path) -> None:
    """Remove a directory of ours and everything in it; nothing if there is none.

    Raises
    ------
    ForeignPathError
        If what is there is no directory, or not ours; it was left as it is.
    """
    with contextlib.suppress(FileNotFoundError):
        require(path, path.lstat(), stat.S_IFDIR)
        shutil.rmtree(path)


def remove_ours(path: Path, kind: int = stat.S_IFREG) -> None:
    """Remove a file of ours, or a socket; nothing if there is none.

    Raises
    ------
    ForeignPathError
        If what is there is something else, or not ours; it was left as it is.
    """
    with contextlib.suppress(FileNotFoundError):
        require(path, path.lstat(), kind)
        path.unlink()


def remove_socket(path: Path) -> None:
    """Remove a socket of ours; nothing if there is none. As :func:`remove_ours`."""
    remove_ours(path, stat.S_IFSOCK)


def is_at(path: Path, status: os.stat_result) -> bool:
    """Whether a path names the very file that has this status; links are not followed."""
    try:
        return os.path.samestat(os.lstat(path), status)
    except OSError:
        return False


def remove_same(path: Path, status: os.stat_result) -> bool:
    """Remove the name of the very file that has this status; whether it had that name still."""
    if not is_at(path, status):
        return False
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    return True


@final
class FileLock:
    """A lock file that is locked, until it is released or its process ends; from :func:`try_lock_file`.

    Parameters
    ----------
    path : Path
        The file.
    descriptor : OwnDescriptor
        It, open and locked.
    """

    def __init__(self, path: Path, descriptor: OwnDescriptor) -> None:
        self.path = path
        self._descriptor = descriptor

    @property
    def is_held(self) -> bool:
        """Whether this process has the lock; false in a forked child."""
        return self._descriptor.is_open

    def release(self, *, remove: bool = False) -> None:
        """Unlock, and remove the file first if asked to. Idempotent; does nothing in a forked child."""
        if self._descriptor.is_open:
            if remove:
                remove_same(self.path, os.fstat(self._descriptor.number))
            self._descriptor.close()


def try_lock_file(path: Path) -> FileLock | None:
    """Lock the file that lies at `path`, made if there is none; None if another process has it.

    Users who may write in its directory may open it, and no others: those who may only read cannot lock it.

    Parameters
    ----------
    path : Path
        The lock file. In a directory where other users can make names it must be ours.

    Raises
    ------
    ForeignPathError
        If what is there must not be locked.
    OSError
        If the operating system refuses, or has no such locks there.
    """
    also, mode = trusted_in(path.parent), _mode_for_writers(path.parent)
    for _ in range(_ATTEMPTS):
        made = OwnDescriptor(lambda: open_or_create_ours(path, mode=mode, also=also))
        status = os.fstat(made.number)
        try:
            if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) != mode:
                os.fchmod(made.number, mode)
            if not made.try_lock():
                made.close()
                return None
        except BaseException:
            made.close()
            raise
        # The holder before us may have removed it between our opening and our lock.
        if is_at(path, status):
            return FileLock(path, made)
        made.close()
    raise ForeignPathError(path=str(path), problem=f"it came and went {_ATTEMPTS} times")


def _mode_for_writers(directory: Path) -> int:
    group_writes = directory.stat().st_mode & stat.S_IWGRP
    return 0o660 if group_writes and not is_shared(directory) else 0o600


def bind_socket(path: Path, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    """Bind a socket to a path, mode 0600 from its first moment on; not listening yet.

    A socket of ours that lies there is taken away: the caller has the right to the path.

    Raises
    ------
    ForeignPathError
        If something else lies there.
    OSError
        If the operating system refuses.
    """
    remove_socket(path)
    made = not_inherited(socket.socket(socket.AF_UNIX, kind))
    try:
        os.fchmod(made.fileno(), 0o600)  # Linux makes the name with the mode that the socket has
        made.bind(str(path))
        if stat.S_IMODE(path.lstat().st_mode) != 0o600:  # the umask takes away what even its user needs
            path.chmod(0o600)
    except BaseException:
        made.close()
        raise
    return made


@final
class BoundPath:
    """A socket at a path that one process at a time has, by a lock file beside it; from :func:`bind_alone`.

    Parameters
    ----------
    path : Path
        Of the socket.
    made : socket.socket
        Bound there, not listening yet.
    lock : FileLock
        The right to the path.
    """

    def __init__(self, path: Path, made: socket.socket, lock: FileLock) -> None:
        self.socket = made
        self._path = path
        self._status = path.lstat()
        self._lock = lock

    def release(self) -> None:
        """Take both names away, and let others bind there; after the socket was closed. Idempotent.

        In a forked child it does nothing: the names are its parent's.
        """
        if self._lock.is_held:
            remove_same(self._path, self._status)
            self._lock.release(remove=True)


def bind_alone(path: Path) -> BoundPath | None:
    """Bind a stream socket to a path, mode 0600, that no other process has; None if one has it.

    Raises
    ------
    ForeignPathError
        If something else lies there, or in the place of the lock file.
    OSError
        If the operating system refuses.
    """
    lock = try_lock_file(path.with_name(f"{path.name}.lock"))
    if lock is None:
        return None
    try:
        return BoundPath(path, bind_socket(path), lock)
    except BaseException:
        lock.release(remove=True)
        raise


def connect_socket(path: Path, timeout_s: float | None = None) -> socket.socket:
    """Connect to the stream socket of a process of this user.

    Raises
    ------
    ForeignPathError
        If another user listens there, or it is no socket.
    OSError
        If there is none to connect to.
    """
    require(path, path.lstat(), stat.S_IFSOCK)  # connecting may wait for the process that listens there
    made = not_inherited(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    try:
        made.settimeout(timeout_s)
        made.connect(str(path))
        _require_our_peer(path, made)
    except BaseException:
        made.close()
        raise
    return made


def _require_our_peer(path: Path, connected: socket.socket) -> None:
    _, user, _ = _PEER.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    if user != os.geteuid():
        raise ForeignPathError(
            path=str(path), problem=f"user {user} listens there", owner=user, fix=f"run as user {user}"
        )
