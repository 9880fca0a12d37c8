"""What a new epoch owes its group, and when whoever restores or repairs it tries again or gives up.

A restore is an ordinary update, and may fail like one. Most causes pass, so it is tried again; between two
attempts the group is free for other commands, and any of them ends the debt. Knows no time: how long to wait
between two attempts is whoever makes them's.
"""

from __future__ import annotations

import enum

from wsm.states import decide, epochs
from wsm.states.view import View
from wsm.states.vocabulary import WeightState


class Attempt(enum.Enum):
    """What follows for a group whose restore is not done yet."""

    MAKE = "make"  # the first one, or one after others that failed
    OVERTAKEN = "overtaken"  # somebody gave another command: the group is what that made of it
    GIVE_UP = "give up"  # tried often enough: it stays CLEARED until somebody commands it


class Repair(enum.Enum):
    """What follows for a group with a rank that lives, and whose teardown failed."""

    NONE = "none"  # no rank is FAULTED
    WAIT = "wait"  # a command is open: what comes of it is not known yet
    CLEAR = "clear"  # all ranks are cleared again, which tries the teardown again
    REPLACE = "replace"  # that was tried often enough: its process ends, and another one holds nothing


def faulted(view: View) -> list[int]:
    """Return the participants of this epoch that are FAULTED."""
    epoch = view.command.epoch
    return [
        index
        for index, status in enumerate(view.statuses)
        if status.epoch == epoch and status.weights == WeightState.FAULTED
    ]


def next_repair(view: View, *, failed: int, limit: int) -> Repair:
    """Say what follows for FAULTED ranks after `failed` clears of the group, of which `limit` may fail.

    What the group holds afterwards is nothing, as the outcome of whatever failed demands.
    """
    if not faulted(view):
        return Repair.NONE
    if not decide.is_over(view):
        return Repair.WAIT
    return Repair.CLEAR if failed < limit else Repair.REPLACE


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
