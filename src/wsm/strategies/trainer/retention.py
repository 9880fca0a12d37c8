"""Which published versions stay, and how one goes without disturbing anyone who reads it.

A version vanishes by a rename to a hidden name, in one step; its files are removed after that. One that
somebody reads, or may have to read again (:mod:`wsm.strategies.snapshot.version_pins`), is left for the next
time. All of it happens under the publisher's lock. Knows nothing about tensors.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from wsm import log

_REMOVED_PREFIX = ".removed-"

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
    """Rename `staged` to `final`; what was there is taken away in the same moment and removed. Blocks.

    Raises
    ------
    OSError
        If the file system refuses; `final` is then as it was.
    """
    hidden = _hidden(final)
    with suppress(FileNotFoundError):
        final.rename(hidden)
    try:
        staged.rename(final)
    except BaseException:
        with suppress(FileNotFoundError):
            hidden.rename(final)
        raise
    shutil.rmtree(hidden, ignore_errors=True)


def finish_removals(versions: Path) -> None:
    """Remove what a publisher that died had already taken out of sight. Blocks."""
    for leftover in versions.glob(f"{_REMOVED_PREFIX}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _published(versions: Path) -> Collection[tuple[int, int]]:
    return [
        (path.stat().st_mtime_ns, int(path.name))
        for path in versions.iterdir()
        if path.name.isdecimal() and path.is_dir()
    ]


def _remove(path: Path) -> bool:
    descriptor = -1
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if _is_read(descriptor):
            return False
        hidden = _hidden(path)
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


def _hidden(path: Path) -> Path:
    return path.with_name(f"{_REMOVED_PREFIX}{path.name}-{secrets.token_hex(4)}")
