"""What a rank writes into its payload slots, each time before the word that announces it.

Knows slots and reports; which word follows is :mod:`.driver`'s matter.
"""

from __future__ import annotations

from wsm.commit_report import keep_commit
from wsm.declared_plans import PLANS_KIND, DeclaredPlans
from wsm.report import FailureReport, RankReport
from wsm.signals.segment import Segment
from wsm.signals.slot import PayloadSlot
from wsm.states.rank_state import RankState
from wsm.states.words import StatusCode


class Reporter:
    """The slots of one rank for reports, errors and plans.

    Parameters
    ----------
    segment : Segment
        The group's segment.
    rank : int
        Whose slots.
    plans : DeclaredPlans
        That this rank derived.
    """

    def __init__(self, segment: Segment, rank: int, plans: DeclaredPlans) -> None:
        self._segment = segment
        self._rank = rank
        self._plans = plans
        self._last: tuple[int, int, StatusCode] | None = None
        self._unsaid: tuple[int, int, StatusCode] | None = None

    def was_cut_short(self) -> None:
        """Let the payload that was written last be written once more: its word may not have been stored."""
        self._unsaid = self._last

    def attached(self, epoch: int, committed: int) -> None:
        """Write this rank's plans: ranks with other plans would wait for each other in other collectives.

        And keep what a predecessor has left of the commit with the sequence `committed`.

        Before this rank's first word of the epoch, so nobody has read what another process may have left
        there that died just here.
        """
        keep_commit(self._segment, self._rank, committed)
        self._segment.plans(self._rank).write_over(epoch, 0, PLANS_KIND, self._plans.to_bytes())

    def reached(self, state: RankState, code: StatusCode, report: RankReport) -> None:
        """Write what was done for the command of `state`.

        A commit has a slot of its own: what it brought is held, and can be asked for, until the next commit,
        whatever is prepared, fails or is given back in between.
        """
        committed = code is StatusCode.DONE_COMMITTED
        segment = self._segment
        slot = segment.last_commit(self._rank) if committed else segment.report(self._rank)
        self._write(slot, state, code, report.to_bytes())

    def failed(self, state: RankState, code: StatusCode, failure: FailureReport) -> None:
        """Write why the command of `state` failed or was refused."""
        self._write(self._segment.error(self._rank), state, code, failure.to_bytes())

    def _write(self, slot: PayloadSlot, state: RankState, code: StatusCode, data: bytes) -> None:
        key = state.epoch, state.sequence, code
        again, self._last, self._unsaid = key == self._unsaid, key, None
        write = slot.write_over if again else slot.write
        write(state.epoch, state.sequence, code, data)
