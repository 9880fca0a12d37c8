"""Whose process a group's keeper ends and replaces, and when it tries again what failed.

Pure: functions of a view, of what is known of the processes, and of seconds that the keeper has counted.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from wsm.states import epochs
from wsm.states.decide import waiting_on
from wsm.states.view import View
from wsm.states.words import StatusCode

_STOPPED = (StatusCode.STOPPED_UNTOUCHED, StatusCode.STOPPED_TOUCHED)


class Cause(enum.Enum):
    """Why a participant is replaced."""

    ENDED = "its process has ended"
    STOPPED = "it was stopped while the others waited for it in a step"
    BROKEN = "its step raised"
    HUNG = "it did not end a decided command in time"
    LEFT = "it left its place in the group"


@dataclass(frozen=True)
class Backoff:
    """How long to wait before what failed is tried again.

    Parameters
    ----------
    first_s, longest_s : float
        Seconds after the first failure; doubled with each further one, up to the longest.
    """

    first_s: float
    longest_s: float

    def after(self, failures: int) -> float:
        """Seconds to wait after that many failures; 0 after none."""
        return min(self.first_s * 2.0 ** (failures - 1), self.longest_s) if failures else 0.0


def whom_to_replace(
    view: View, *, ended: Collection[int], stopped: Collection[int], leaving: bool
) -> dict[int, Cause]:
    """Return the participants that no epoch goes on with, and why; most often none.

    Parameters
    ----------
    view : View
        What was read before `ended` was found out: a step that broke because of a death is seen after it.
    ended : collection of int
        Whose processes have ended.
    stopped : collection of int
        Whose processes are stopped (SIGSTOP, a debugger).
    leaving : bool
        Whether a participant has left its place and its process is about to end: the steps of others break
        then, and only its own end is the cause.
    """
    if ended:
        return dict.fromkeys(sorted(ended), Cause.ENDED)
    broken = () if leaving else epochs.ended_by(view, ())
    if not broken:
        return {}
    # A stopped rank breaks the steps of those who wait for it in a collective.
    culprits, why = (stopped, Cause.STOPPED) if stopped else (broken, Cause.BROKEN)
    return dict.fromkeys(sorted(culprits), why)


def late(view: View) -> list[int]:
    """Return the participants that keep a decided command from its end.

    One that has stopped after an abort waits for others itself.
    """
    if not view.command.operation.is_decision:
        return []
    waiting = waiting_on(view)
    return [rank for rank, status in waiting.items() if status is None or status.code not in _STOPPED]


def hung(
    view: View, stopped: Collection[int], *, waited_s: float, limit_s: float, drain_s: float
) -> dict[int, Cause]:
    """Return the participants that have kept a decided command from its end for too long.

    Parameters
    ----------
    view : View
        What was read.
    stopped : collection of int
        Whose processes are stopped.
    waited_s : float
        Seconds since the decision was seen.
    limit_s : float
        Seconds that a rank may take.
    drain_s : float
        Seconds more that ranks may take after the decision of a hot command, which they drain for.
    """
    if waited_s < limit_s:
        return {}
    found = late(view)
    if view.command.operation.is_hot and waited_s < limit_s + drain_s:
        found = [rank for rank in found if rank in stopped]
    return dict.fromkeys(found, Cause.HUNG)


def restart_delay_s(
    began_s: Sequence[float], now_s: float, *, restarts: int, within_s: float, backoff: Backoff
) -> float | None:
    """Return how long a recovery waits before the dead are replaced; None: there were too many.

    Parameters
    ----------
    began_s : sequence of float
        When the recoveries before this one began.
    now_s : float
        When this one begins.
    restarts : int
        How many may begin within `within_s` seconds.
    within_s : float
        The window, in seconds.
    backoff : Backoff
        From the second recovery within the window on.
    """
    before = sum(now_s - each <= within_s for each in began_s)
    return backoff.after(before) if before < restarts else None
