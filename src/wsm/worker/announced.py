"""Which version a command means that names none: the one that rank 0 finds, on every rank.

If each rank looked for itself, a publication between two looks would make them load different versions,
and the update would end in a cleared group. Rank 0 looks once, when it begins the command, and says so in
its report slot; the others begin when they have read that. Knows slots, no states and no strategies.
"""

from __future__ import annotations

from collections.abc import Callable

from wsm.report import RankReport
from wsm.signals.segment import Segment
from wsm.states.rank_state import RankState
from wsm.states.words import StatusCode

#: Returns the version that the source announces now.
Find = Callable[[], int]

#: Whose look counts.
FINDER = 0

#: Under which codes rank 0's report may stand while another rank still begins: a hot update does not wait.
_CODES = (StatusCode.DRAINING, StatusCode.PREPARED)


class AnnouncedVersion:
    """The agreement of one rank with the others about an unnamed version.

    Parameters
    ----------
    segment : Segment
        The group's segment.
    rank : int
        This rank.
    find : callable or None
        How this rank finds the announced version; None where only the load itself can tell, and then
        nothing is agreed on beforehand.
    """

    def __init__(self, segment: Segment, rank: int, find: Find | None) -> None:
        self._segment = segment
        self._rank = rank
        self._find = find

    def is_known(self, state: RankState) -> bool:
        """Whether this rank can say now which version the command at hand means."""
        return self._find is None or self._rank == FINDER or self._told(state) is not None

    def version(self, state: RankState, check: Callable[[int], None]) -> int | None:
        """Return the version, to be asked for once it is known; rank 0 tells the others.

        Parameters
        ----------
        state : RankState
            Where this rank is in the command.
        check : callable
            Called on rank 0 before it tells; what it raises, no other rank begins.

        Raises
        ------
        wsm.errors.WsmError
            On rank 0, if the source announces nothing that can be named, or `check` does.
        """
        if self._find is None:
            return None
        if self._rank != FINDER:
            return self._told(state)
        version = self._find()
        check(version)
        found = RankReport(rank=self._rank, version=version)
        slot = self._segment.report(self._rank)
        slot.write(state.epoch, state.sequence, StatusCode.DRAINING, found.to_bytes())
        return version

    def _told(self, state: RankState) -> int | None:
        slot = self._segment.report(FINDER)
        for code in _CODES:
            data = slot.read(state.epoch, state.sequence, code)
            if data is not None:
                return RankReport.from_bytes(FINDER, data).version
        return None
