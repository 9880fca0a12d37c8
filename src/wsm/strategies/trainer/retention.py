"""Which published versions stay, and how one goes without disturbing anyone who reads it.

A version vanishes by a rename to a hidden name, in one step; its files are removed after that. One that
somebody reads, or may have to read again (:mod:`wsm.strategies.snapshot.version_pins`), is left for the next
time. One that is replaced changes places with its successor in one step, where the file system can; where it
cannot, it is put back if the publisher died in between. All of it happens under the publisher's lock. Knows
nothing about tensors.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from wsm import log

# What nobody needs any more.
_REMOVED_PREFIX = ".removed-"
# What is whole, and was about to be replaced.
_REPLACED_PREFIX = ".replaced-"
# From <linux/fs.h> and <fcntl.h>.
_RENAME_EXCHANGE = 2
_AT_FDCWD = -100

_log = log.logger("strategies")


@dataclass(frozen=True)
class Retention:
    """Which versions stay when a new one is published.

    Parameters
    ----------
    keep : int
        How many of the newest, by time of publication, the new one included; at least 1.
    protect : iterable of int
        Versions that stay whatever their age. What a group on this host, or on a file system with locks,
        serves or is loading stays anyway: its ranks hold it (:mod:`wsm.strategies.snapshot.version_pins`).
    """

    keep: int = 2
    protect: Iterable[int] = ()


#: The default: the newest and the one before it, which the group may still serve.
KEEP_TWO = Retention()


def retire(versions: Path, current: int, retention: Retention) -> tuple[int, ...]:
    """Remove the versions that need not stay; return which went. Blocks, never raises OSError.

    Newest is by time of publication, not by number: a trainer that went back to version 3 after 7 still
    publishes something new. Versions that are being read stay until the next call.
    """
    stay = {current, *retention.protect}
    published = sorted(_published(versions), reverse=True)
    doomed = sorted(version for _, version in published[max(retention.keep, 1) :] if version not in stay)
    return tuple(version for version in doomed if _remove(versions / str(version)))


def bring_in(staged: Path, final: Path) -> None:
    """Let `staged` be `final`; what was there is taken away in the same moment and removed. Blocks.

    A file system without ``RENAME_EXCHANGE`` takes two moments: in between there is nothing.

    Raises
    ------
    OSError
        If the file system refuses; `final` is then as it was.
    """
    replaced = staged
    if not _exchanged(staged, final):
        replaced = _hidden(final, _REPLACED_PREFIX)
        with suppress(FileNotFoundError):
            final.rename(replaced)
        try:
            staged.rename(final)
        except BaseException:
            with suppress(FileNotFoundError):
                replaced.rename(final)
            raise
    with suppress(OSError):  # there was none; or it is left as it is for the next publisher
        remove_unless_read(replaced.rename(_hidden(final, _REMOVED_PREFIX)))


def take_away(final: Path) -> None:
    """Take what is at `final` out of sight, if there is anything, and remove it. Blocks; raises OSError."""
    with suppress(FileNotFoundError):
        remove_unless_read(final.rename(_hidden(final, _REMOVED_PREFIX)))


def finish_removals(versions: Path) -> None:
    """Put back what a publisher that died was replacing, then remove what it had taken out of sight. Blocks.

    Raises
    ------
    OSError
        If a version cannot be put back.
    """
    for replaced in versions.glob(f"{_REPLACED_PREFIX}*"):
        final = versions / replaced.name.removeprefix(_REPLACED_PREFIX).partition("-")[0]
        replaced.rename(_hidden(final, _REMOVED_PREFIX) if final.exists() else final)
    for leftover in versions.glob(f"{_REMOVED_PREFIX}*"):
        remove_unless_read(leftover)


def remove_unless_read(hidden: Path) -> None:
    """Remove a directory that is out of sight; one that is still read waits for the next time. Blocks."""
    with suppress(OSError):
        descriptor = os.open(hidden, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if not _is_read(descriptor):
                shutil.rmtree(hidden, ignore_errors=True)
        finally:
            os.close(descriptor)


def _exchanged(staged: Path, final: Path) -> bool:
    """Let two directories change names in one step; False where there is no `final`, or no such call."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    if call(_AT_FDCWD, os.fsencode(staged), _AT_FDCWD, os.fsencode(final), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    # Without it: kernels, file systems, and sandboxes that do not know it.
    if number in (errno.ENOENT, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
        return False
    raise OSError(number, os.strerror(number), str(final))


def _published(versions: Path) -> Collection[tuple[int, int]]:
    """Return when each version was published, and which; less what cannot be looked at."""
    found = []
    try:
        numbered = [path for path in versions.iterdir() if path.name.isdecimal()]
    except OSError as error:
        # The new version is published all the same.
        _log.warning(log.SNAPSHOT_NOT_REMOVED, path=str(versions), reason=str(error))
        return ()
    for path in numbered:
        with suppress(OSError):
            status = path.stat()
            if stat.S_ISDIR(status.st_mode):
                found.append((status.st_mtime_ns, int(path.name)))
    return found


def _remove(path: Path) -> bool:
    descriptor = -1
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if _is_read(descriptor):
            return False
        hidden = _hidden(path, _REMOVED_PREFIX)
        path.rename(hidden)
        shutil.rmtree(hidden)
    except OSError as error:
        # The new version is published all the same.
        _log.warning(log.SNAPSHOT_NOT_REMOVED, path=str(path), reason=str(error))
        return False
    else:
        return True
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _is_read(descriptor: int) -> bool:
    """Take the directory for ourselves; whether a reader was first."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # no locks on directories here; open files survive their removal anyway
    return False


def _hidden(path: Path, prefix: str) -> Path:
    return path.with_name(f"{prefix}{path.name}-{secrets.token_hex(4)}")
