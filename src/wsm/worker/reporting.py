"""What a rank writes into its payload slots, each time before the word that announces it.

Knows slots and reports; which word follows is :mod:`.driver`'s matter.
"""

from __future__ import annotations

from wsm.actions.sequence import Plans
from wsm.protocol.rank_state import RankState
from wsm.report import MAX_REPORT_BYTES, FailureReport, RankReport
from wsm.signals.segment import Segment
from wsm.signals.word import StatusCode


class Reporter:
    """The report slot and the error slot of one rank.

    Parameters
    ----------
    segment : Segment
        The group's segment.
    rank : int
        Whose slots.
    plans : Plans
        That this rank derived.
    """

    def __init__(self, segment: Segment, rank: int, plans: Plans) -> None:
        self._segment = segment
        self._rank = rank
        self._plans = plans

    def attached(self, epoch: int) -> None:
        """Write this rank's plans: ranks with other plans would wait for each other in other collectives.

        Before this rank's first word of the epoch, so nobody has read what another process may have left
        there that died just here.
        """
        text = "\n".join(
            f"{plan.name}: {' '.join(action.name + '*' * action.collective for action in plan.actions)}"
            for plan in self._plans
        )
        self._segment.report(self._rank).write_over(
            epoch, 0, StatusCode.ATTACHED, text.encode()[:MAX_REPORT_BYTES]
        )

    def reached(self, state: RankState, code: StatusCode, report: RankReport) -> None:
        """Write what was done for the command of `state`."""
        self._segment.report(self._rank).write(state.epoch, state.sequence, code, report.to_bytes())

    def failed(self, state: RankState, code: StatusCode, failure: FailureReport) -> None:
        """Write why the command of `state` failed or was refused."""
        self._segment.error(self._rank).write(state.epoch, state.sequence, code, failure.to_bytes())
