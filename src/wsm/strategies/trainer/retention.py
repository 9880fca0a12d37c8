"""Which published versions stay, and how one goes without disturbing its readers.

A version vanishes by a rename to a hidden name, in one step; its files are removed after that. One that
another process reads, or may have to read again (:mod:`wsm.strategies.files.snapshot_directory`), is left for
the next time; a few of them at most, since every user who may read a version may say so. One that is replaced
changes places with its successor in one step, where the file system can; where it cannot, it is put back if
the publisher died in between. All of it happens under the publisher's lock. Knows nothing about tensors.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from wsm import log
from wsm.labels import recorded_version
from wsm.shared_directory import FileLock, try_lock_file
from wsm.strategies.errors import PublisherBusyError, storing
from wsm.strategies.files.atomic_file import FileLook
from wsm.strategies.files.snapshot_directory import is_leased
from wsm.strategies.trainer.publications import listed_versions
from wsm.strategies.trainer.targets import labels_named
from wsm.typed import Count, CountFrom0, typed

#: Of those who publish whole versions and deltas; those who share memory have another one.
PUBLISHER_LOCK, SHARER_LOCK = ".publisher.lock", ".ipc_metas.lock"


def take_publisher_lock(
    place: Path, name: str = PUBLISHER_LOCK, *, directory: Path | None = None
) -> FileLock:
    """Keep other publishers out until the lock is released. Does not wait.

    Parameters
    ----------
    place : path
        The directory that the lock file lies in; created if it does not exist.
    name : str
        Of the lock file.
    directory : path, optional
        What errors call the directory; `place` if not given.

    Raises
    ------
    PublisherBusyError
        If another process publishes there.
    StorageError
        If the file system refuses.
    wsm.shared_directory.ForeignPathError
        If the lock file is no regular file, or in a directory of all users another user's.
    """
    with storing(place):
        place.mkdir(parents=True, exist_ok=True)
        lock = try_lock_file(place / name)
    if lock is None:
        raise PublisherBusyError(directory=str(directory or place))
    return lock


# What no reader needs any more.
_REMOVED_PREFIX = ".removed-"
# What is whole, and was about to be replaced.
_REPLACED_PREFIX = ".replaced-"
# From <linux/fs.h> and <fcntl.h>.
_RENAME_EXCHANGE = 2
_AT_FDCWD = -100

# Versions that readers can keep: all parts that a group may have put on a whole version, and a few more.
_MOST_HELD = 72
# Replaced and removed ones that they can keep.
_MOST_LEFT = 8

_log = log.logger("strategies")


@typed
@dataclass(frozen=True)
class Retention:
    """Which versions stay when a new one is published.

    Parameters
    ----------
    keep : int
        How many of the last publications, the new one included; at least 1.
    protect : iterable of str or int
        Versions that stay whatever their age. What a group on this host, or on a file system with locks,
        serves or is loading stays anyway: its ranks hold it (:mod:`wsm.strategies.files.snapshot_directory`).
    held : int
        How many versions more stay because readers hold them. A group holds two or three, and up to 64 parts
        after partial updates. Beyond that the oldest go all the same; readers keep what they have open.
    """

    keep: Count = 2
    protect: Iterable[str | int] = ()
    held: CountFrom0 = _MOST_HELD

    def __post_init__(self) -> None:
        """Check the labels, before anything is published that they are to outlive (``bad-version``)."""
        object.__setattr__(self, "protect", tuple(map(recorded_version, self.protect)))


#: The default: the newest and the one before it, which the group may still serve.
KEEP_TWO = Retention()


def retire(versions: Path, current: str, retention: Retention) -> tuple[str, ...]:
    """Remove the versions that need not stay; return which went. Blocks, never raises OSError.

    A directory goes only if its manifest names the very label that it is called by; whatever else lies there
    stays. Versions that are being read stay until the next call, as far as
    :attr:`Retention.held` goes; those that the newest two targets of a fleet name stay, and where targets
    cannot be read, all do.
    """
    try:
        stay = {current, *map(str, retention.protect), *labels_named(versions.parent)}
    except OSError as error:
        _log.warning(log.SNAPSHOT_NOT_REMOVED, path=str(versions), reason=str(error))
        return ()
    published = [each for each in listed_versions(versions) if each.path.name == each.label]
    older = published[retention.keep :]
    doomed = [each.path for each in older if each.label not in stay]
    read = [path for path in doomed if is_leased(path)]
    kept, beyond = read[: retention.held], read[retention.held :]
    for path in beyond:
        _log.warning("snapshot.removed_under_readers", path=str(path), held=len(kept))
    went = (path for path in doomed if path not in kept and _remove(path, read=path in beyond))
    return tuple(sorted(path.name for path in went))


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

    Of what is still read the last few wait for the next time; the rest goes under its readers.

    Raises
    ------
    OSError
        If a version cannot be put back.
    """
    for replaced in versions.glob(f"{_REPLACED_PREFIX}*"):
        final = versions / replaced.name.removeprefix(_REPLACED_PREFIX).rpartition("-")[0]
        replaced.rename(_hidden(final, _REMOVED_PREFIX) if final.exists() else final)
    leftovers = sorted(
        versions.glob(f"{_REMOVED_PREFIX}*"), key=lambda path: -(FileLook.at(str(path)).mtime_ns or 0)
    )
    read = [leftover for leftover in leftovers if not remove_unless_read(leftover)]
    for leftover in read[_MOST_LEFT:]:
        shutil.rmtree(leftover, ignore_errors=True)


def remove_unless_read(hidden: Path) -> bool:
    """Remove a directory that is out of sight, unless it is still read; return whether it is not. Blocks."""
    if is_leased(hidden):
        return False
    shutil.rmtree(hidden, ignore_errors=True)
    return True


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


def _remove(path: Path, *, read: bool) -> bool:
    """Remove a version, under its readers only if `read` is true; whether it went."""
    try:
        hidden = _hidden(path, _REMOVED_PREFIX)
        path.rename(hidden)
        if not read and is_leased(hidden):
            hidden.rename(path)  # a reader came in the moment between our question and our step
            return False
        shutil.rmtree(hidden)
    except OSError as error:
        # The new version is published all the same.
        _log.warning(log.SNAPSHOT_NOT_REMOVED, path=str(path), reason=str(error))
        return False
    return True


def _hidden(path: Path, prefix: str) -> Path:
    return path.with_name(f"{prefix}{path.name}-{secrets.token_hex(4)}")
