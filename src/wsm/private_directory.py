"""The directory of this user's shared memory: ``/dev/shm/wsm-UID``, or what ``WSM_DIRECTORY`` names.

Every user of the host may make any name in ``/dev/shm``. In a directory of mode 0700 its owner alone can
make, open and remove names: so the directory is looked at, and not each name in it. wsm never removes it:
another process may be about to use it. FastDeploy's words lie where FastDeploy makes them.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from wsm.shared_directory import ForeignPathError, fault_of

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
        with suppress(FileExistsError):
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
