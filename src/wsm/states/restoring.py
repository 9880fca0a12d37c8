"""What a new epoch owes its group, and when a restore or a repair that failed is tried again or given up.

A restore is an ordinary update, and may fail like one. Most causes pass, so it is tried again; between two
attempts the group is free for other commands, and any of them ends the debt. Knows no time: how long to wait
between two attempts is in :mod:`.replacing`.
"""

from __future__ import annotations

import enum

from wsm.states import decide, epochs
from wsm.states.view import View
from wsm.states.vocabulary import WeightState


class Attempt(enum.Enum):
    """What follows for a group to be restored, or with a FAULTED rank, after attempts that failed."""

    NONE = "none"  # no rank is FAULTED
    WAIT = "wait"  # a command is open: what comes of it is not known yet
    MAKE = "make"  # the first attempt, or one after others that failed
    OVERTAKEN = "overtaken"  # another command was given: the group is what that made of it
    GIVE_UP = "give up"  # tried often enough: it stays CLEARED, or the FAULTED rank's process is replaced


def faulted(view: View) -> list[int]:
    """Return the participants of this epoch that are FAULTED."""
    epoch = view.command.epoch
    return [
        index
        for index, status in enumerate(view.statuses)
        if status.epoch == epoch and status.weights == WeightState.FAULTED
    ]


def next_repair(view: View, *, failed: int, limit: int) -> Attempt:
    """Say what follows for FAULTED ranks after `failed` clears of the group, of which `limit` may fail.

    A clear tries the teardown again. What the group holds afterwards is nothing, as the outcome of the
    command that failed demands.
    """
    if not faulted(view):
        return Attempt.NONE
    if not decide.is_over(view):
        return Attempt.WAIT
    return Attempt.MAKE if failed < limit else Attempt.GIVE_UP


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
