"""Names in directories that a user chose: what lies there is used only if it is ours, and never waited for.

In ``/tmp`` or a trainer's directory other users may make names, too: a file of theirs, a link, a pipe that
blocks who opens it. Here a name is never followed and opening it never waits; what was opened is used only if
it is what it must be and belongs to the user of this process; root trusts root alone. Where it must not be
used, a function raises ForeignPathError; where the operating system refuses, OSError. A lock is held on the
file that lies at its path, or it is none. In a directory that only trusted users can write in (no sticky bit,
not open to the world) a lock file of another user is used: that user could replace it anyway.

Memory of wsm's own choice lies in one directory of this user: ``/dev/shm/wsm-UID``, or what ``WSM_DIRECTORY``
names. In a directory of mode 0700 its owner alone can make, open and remove names: so the directory is looked
at, and not each name in it. wsm never removes it: another process may be about to use it. FastDeploy's words
lie where FastDeploy makes them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Container
from pathlib import Path
from typing import Final, final

from wsm.errors import RefusedError
from wsm.own_descriptor import OwnDescriptor, not_inherited

#: How a name is opened: never followed, never waited for, never passed on to another program.
_CAREFULLY: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
#: A file that comes and goes under one name so often is not one that an honest process makes.
_ATTEMPTS: Final = 100
#: For files that are only looked at, and those in directories that only trusted users can write in.
EVERY_USER: Final = range(1 << 32)

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
    """Return what keeps something from being used, in words; None if nothing does.

    It must be of that kind (``stat.S_IF*``), and belong to our own user or to one of `also`.
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
    """Raise ForeignPathError for what has a fault (:func:`fault_of`)."""
    problem = fault_of(status, kind, also=also)
    if problem is not None:
        raise ForeignPathError(path=str(path), problem=problem, owner=status.st_uid)


def open_ours(path: Path, flags: int = os.O_RDWR, *, also: Container[int] = ()) -> int:
    """Open a regular file of ours, or of one of `also`; FileNotFoundError if there is none. Does not wait."""
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
    """Create a file with exactly this mode, None: as the umask says; FileExistsError if something is there.

    Returns its descriptor, read and write.
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
    """Open a regular file that is ours, or create it as :func:`create_ours`. Does not wait."""
    for _ in range(_ATTEMPTS):
        # Opened first: a sticky directory may forbid root to "create" what exists.
        with contextlib.suppress(FileNotFoundError):
            return open_ours(path, flags, also=also)
        with contextlib.suppress(FileExistsError):
            os.close(create_ours(path, mode=mode))
    raise ForeignPathError(path=str(path), problem=f"it came and went {_ATTEMPTS} times")


def is_shared(directory: Path | int) -> bool:
    """Whether other users can make names in a directory: it is sticky, or open to the world."""
    return bool(os.stat(directory).st_mode & (stat.S_ISVTX | stat.S_IWOTH))  # noqa: PTH116 - of a descriptor, too


def trusted_in(directory: Path | int) -> Container[int]:
    """Return the users whose files will do besides ours: none where every user can make some, else all."""
    return () if is_shared(directory) else EVERY_USER


def read_ours(path: Path) -> bytes:
    """Return the content of a file of ours, or of any user where only trusted ones can make names. Blocks."""
    with os.fdopen(open_ours(path, os.O_RDONLY, also=trusted_in(path.parent)), "rb") as file:
        return file.read()


def open_to_append(path: Path) -> int:
    """Open a file to read and to append to, created as the umask says; return its descriptor. Does not wait.

    Where only trusted users can make names it may be what they made there: a link, or another user's file.
    """
    return _open_or_create(path, os.O_RDWR | os.O_APPEND)


def open_to_write(path: Path) -> int:
    """Open a file to write over from its beginning; what it holds stays. Else as :func:`open_to_append`."""
    return _open_or_create(path, os.O_WRONLY)


def _open_or_create(path: Path, flags: int) -> int:
    if is_shared(path.parent):
        return open_or_create_ours(path, flags, mode=None)
    return os.open(path, flags | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)


def remove_ours(path: Path, kind: int = stat.S_IFREG) -> None:
    """Remove a file of ours, or a socket; nothing if there is none."""
    with contextlib.suppress(FileNotFoundError):
        require(path, path.lstat(), kind)
        path.unlink()


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
    """A lock file that is locked, until it is released or its process ends; from :func:`try_lock_file`."""

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
    In a directory where other users can make names it must be ours.
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
    """
    remove_ours(path, stat.S_IFSOCK)
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
    """A socket at a path that one process at a time has, by a lock file beside it: of :func:`bind_alone`."""

    def __init__(self, path: Path, made: socket.socket, lock: FileLock) -> None:
        self.socket = made
        self._path = path
        self._status = path.lstat()
        self._lock = lock

    def release(self) -> None:
        """Take both names away after the socket was closed. Idempotent. In a forked child it does nothing."""
        if self._lock.is_held:
            remove_same(self._path, self._status)
            self._lock.release(remove=True)


def bind_alone(path: Path) -> BoundPath | None:
    """Bind a stream socket to a path, mode 0600, that no other process has; None if one has it."""
    lock = try_lock_file(path.with_name(f"{path.name}.lock"))
    if lock is None:
        return None
    try:
        return BoundPath(path, bind_socket(path), lock)
    except BaseException:
        lock.release(remove=True)
        raise


def connect_socket(path: Path) -> socket.socket:
    """Connect to the stream socket of a process of this user."""
    require(path, path.lstat(), stat.S_IFSOCK)  # where it is ours, its owner alone can put another one there
    made = not_inherited(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    try:
        made.connect(str(path))
    except BaseException:
        made.close()
        raise
    return made


#: Where POSIX shared memory is a file on Linux; all processes that share it are of one IPC namespace.
SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - this is the place, not a temporary file

#: Names the directory in the environment, alike in all processes of a group.
VARIABLE: Final = "WSM_DIRECTORY"

_ANOTHER: Final = f"name a directory of your own in {VARIABLE} (or directory=), in all processes of the group"


def private_directory() -> Path:
    """Return the directory; it is made if there is none, and seen to be ours.

    One look by path is enough: in a sticky directory such as ``/dev/shm`` no other user can put something
    else in its place.

    Raises
    ------
    ForeignPathError
        If it is another user's, no directory, open to other users, or cannot be made; it was left as it is.
    """
    path = Path(os.environ.get(VARIABLE) or SHARED_MEMORY / f"wsm-{os.geteuid()}").absolute()
    try:
        with contextlib.suppress(FileExistsError):
            path.mkdir(0o700)
        status = path.lstat()
    except OSError as error:
        reason = f"it cannot be made ({error.strerror})"
        raise ForeignPathError(path=str(path), problem=reason, fix=_ANOTHER) from error
    require_private(path, status, another=_ANOTHER)
    if status.st_mode & 0o777 != 0o700:
        path.chmod(0o700)  # the umask of who made it took away what even its user needs
    return path


def require_private(path: Path, status: os.stat_result, *, another: str) -> None:
    """Raise ForeignPathError for what is no directory of ours, or open to others; `another`: the way out."""
    problem, mode = fault_of(status, stat.S_IFDIR), status.st_mode & 0o777
    fix = f"let user {status.st_uid} or root remove it"
    if problem is None and mode & 0o077:
        problem = f"its mode is {mode:04o}, and other users may have made names in it"
        fix = "look at what lies there, and chmod 700 it"
    if problem is not None:
        raise ForeignPathError(
            path=str(path), problem=problem, owner=status.st_uid, fix=f"{fix}, or {another}"
        )
