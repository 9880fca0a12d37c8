"""What one rank reported of a commit that stands, found where it wrote it, or where it died before it did."""

from __future__ import annotations

from wsm.report import RankReport
from wsm.signals.segment import Segment
from wsm.states.words import StatusCode


def commit_report(segment: Segment, participant: int, sequence: int) -> RankReport | None:
    """Return what `participant` reported of the commit with this sequence, in whatever epoch.

    Sequences go on over epochs, so each names one commit. Before a commit is decided every rank has reported
    what it prepared; so one of the two reports is there until the next commit.

    Returns
    -------
    RankReport or None
        None if there was no such commit, or for the moment in which the rank writes it down.

    Raises
    ------
    wsm.report.ReportFormatError
        If another build of wsm wrote it.
    """
    for slot, code in (
        (segment.last_commit(participant), StatusCode.DONE_COMMITTED),
        (segment.report(participant), StatusCode.PREPARED),
    ):
        last = slot.last()
        if last is not None and last[0][1:] == (sequence, code):
            return RankReport.from_bytes(participant, last[1])
    return None


def keep_commit(segment: Segment, participant: int, sequence: int) -> None:
    """Before `participant` takes up new work: keep what its predecessor prepared for the commit that stands.

    That process died before it could report the commit, and the next command would write over what it had
    prepared.
    """
    kept = segment.last_commit(participant)
    prepared, last = segment.report(participant).last(), kept.last()
    is_kept = last is not None and last[0][1] == sequence
    if prepared is not None and prepared[0][1:] == (sequence, StatusCode.PREPARED) and not is_kept:
        kept.write_over(prepared[0][0], sequence, StatusCode.DONE_COMMITTED, prepared[1])
