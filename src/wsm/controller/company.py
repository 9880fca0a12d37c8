"""Whom an open command waits for: who died, who hangs, and when waiting has become pointless.

Looks at processes and times; what the command does about it is the transaction's matter.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from wsm import log
from wsm.clock import Clock
from wsm.controller.activity import Hang, Overdue
from wsm.controller.group_view import GroupView
from wsm.states import decide
from wsm.states import journal as kinds
from wsm.states.view import View
from wsm.states.words import CommandWord, StatusCode, StatusWord

#: Longest time between two looks at processes and actions, in seconds; most deaths are told at once.
LOOK_S = 0.02

#: Seconds that the living may take to stop once another rank is dead or hangs, until the caller is told.
LOST_S = 1.0

_SHORTEST_WAIT_S = 0.0005
_STOPPED = frozenset((StatusCode.STOPPED_UNTOUCHED, StatusCode.STOPPED_TOUCHED))


class Company:
    """The ranks of one open command.

    Parameters
    ----------
    group : GroupView
        The group; its deaths are watched from now on.
    command : CommandWord
        Which.
    clock : Clock
        What actions are timed by.

    Attributes
    ----------
    lost : list of int
        Whose processes are gone.
    hangs : list of Hang
        Whom the others wait for because of an action that is past its deadline.
    """

    def __init__(self, group: GroupView, command: CommandWord, clock: Clock) -> None:
        self.lost: list[int] = []
        self.hangs: list[Hang] = []
        self._group = group
        self._command = command
        self._overdue = Overdue(group, command.epoch, clock)
        self._log = log.logger("controller", epoch=command.epoch, sequence=command.sequence)
        group.watch_deaths()

    def look(self, view: View) -> None:
        """Look at all of them; who is newly lost or overdue is logged now, whatever comes of the command."""
        before, self.lost = self.lost, self._group.lost()
        for rank in self.lost:
            if rank not in before:
                self._log.error(log.RANK_LOST, rank=rank, pid=self._group.pid(rank))
                self._group.journal.note(kinds.RANK_LOST, self._command, lost=rank)
        known = {(hang.rank, hang.action) for hang in self.hangs}
        self.hangs = self._overdue.look(view)
        for hang in self.hangs:
            if (hang.rank, hang.action) not in known:
                self._log.error(log.ACTION_OVERDUE, rank=hang.rank, action=hang.action, seconds=hang.seconds)

    def wait_s(self, left_s: float) -> float:
        """Seconds until the next look is due, where the command itself has `left_s` seconds left."""
        overdue_s = self._overdue.left_s()
        return max(min(LOOK_S, left_s, LOOK_S if overdue_s is None else overdue_s), _SHORTEST_WAIT_S)

    def is_hopeless(self, view: View, *, waited_s: float, settle_s: float, patient: bool) -> bool:
        """Whether those who are not done with a decided command will not be, as far as can be seen.

        Parameters
        ----------
        view : View
            What was read.
        waited_s : float
            Seconds since the decision.
        settle_s : float
            Seconds after which nobody is waited for.
        patient : bool
            Whether a stopped process is waited for like any other: somebody may continue it.
        """
        waiting = decide.waiting_on(view)
        lost = [rank for rank in self.lost if rank in waiting]
        # After an abort the living stand stopped until the dead have stopped too, which they never will.
        if lost and _only(lost, waiting):
            return True
        if view.command.operation.is_abort and not patient:
            frozen = [rank for rank in waiting if self._group.stopped(rank)]
            if frozen and _only({*lost, *frozen}, waiting):
                return True
        # Nor do those come back at once who wait for them inside a step or a collective.
        troubled = lost or self.hangs
        return waited_s > (min(LOST_S, settle_s) if troubled else settle_s)


def _only(culprits: Collection[int], waiting: Mapping[int, StatusWord | None]) -> bool:
    """Whether all others of those who are waited for have stopped."""
    return all(
        rank in culprits or (status is not None and status.code in _STOPPED)
        for rank, status in waiting.items()
    )
