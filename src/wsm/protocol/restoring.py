"""What a new epoch owes its group, and when whoever restores it tries again or gives up.

A restore is an ordinary update, and may fail like one. Most causes pass, so it is tried again; between two
attempts the group is free for other commands, and any of them ends the debt. Knows no time: how long to wait
between two attempts is whoever makes them's.
"""

from __future__ import annotations

import enum

from wsm.protocol import epochs
from wsm.protocol.view import View


class Attempt(enum.Enum):
    """What follows for a group whose restore is not done yet."""

    MAKE = "make"  # the first one, or one after others that failed
    OVERTAKEN = "overtaken"  # somebody gave another command: the group is what that made of it
    GIVE_UP = "give up"  # tried often enough: it stays CLEARED until somebody commands it


def next_attempt(view: View, *, restores: bool, failed: int, limit: int) -> Attempt:
    """Say what follows after `failed` attempts to restore the group in this epoch.

    Parameters
    ----------
    view : View
        What was read; its command is over.
    restores : bool
        Whether the last command was such an attempt.
    failed : int
        How many of them have failed.
    limit : int
        How many may fail.
    """
    if failed and epochs.unrestored(view, restores=restores) is None:
        return Attempt.OVERTAKEN
    return Attempt.GIVE_UP if failed >= limit else Attempt.MAKE


def goal(view: View, *, asked: int | None, served: bool | None, restores: bool) -> int | None:
    """Return the version that the group must serve once the epoch of `view` has ended; None: none.

    That is what it was owed already, if it was not restored; else what :func:`epochs.restored_version` finds.

    Parameters
    ----------
    view, asked, served
        As for :func:`epochs.restored_version`.
    restores : bool
        Whether the last command was an attempt to restore the group.
    """
    owed = epochs.unrestored(view, restores=restores)
    return owed if owed is not None else epochs.restored_version(view, asked=asked, served=served)
