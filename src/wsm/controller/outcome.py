"""From what the ranks reported to a receipt or to an error that names the culprit. Writes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from wsm.controller.errors import (
    CommandRefusedError,
    CommandTimeoutError,
    ManifestMismatchError,
    RankFailedError,
    RankLostError,
)
from wsm.controller.group_view import GroupView
from wsm.controller.status import read_status
from wsm.errors import WsmError
from wsm.protocol.decide import waiting_on
from wsm.protocol.view import View
from wsm.report import FailureReport, RankReport
from wsm.signals.word import CommandWord, StatusCode, StatusWord

#: Errors that only repeat that another rank failed.
_ECHOES = ("PeerNeverReadyError", "CommandAbortedError")


def reports(group: GroupView, command: CommandWord, code: StatusCode) -> list[RankReport] | None:
    """Read every participant's report for `code`; None if one is missing still."""
    found = [group.report(rank, command, code) for rank in range(group.participants)]
    return None if None in found else [report for report in found if report is not None]


def loaded_versions(found: Sequence[RankReport]) -> dict[int, str]:
    """Say per rank what it loaded, in words that are equal iff the ranks may be committed together.

    A manifest that speaks for the whole group must be the same on all ranks; one that speaks for a rank
    alone cannot be compared, and the versions must do.
    """
    return {
        report.rank: f"version {report.version}"
        + (
            f", manifest {report.manifest_digest}"
            if report.facts.get("manifest_scope") == "group"
            else ", no group manifest"
        )
        for report in found
    }


def agree(found: Sequence[RankReport]) -> bool:
    """Whether all ranks prepared the same version of the same publication."""
    return len(set(loaded_versions(found).values())) == 1


def version(group: GroupView, command: CommandWord) -> int | None:
    """Return the version that all ranks have agreed on, from whichever report of theirs can be read.

    A rank that has committed already has written its last report over the one that it prepared with.
    """
    for rank in range(group.participants):
        for code in (StatusCode.PREPARED, StatusCode.DONE_COMMITTED):
            report = group.report(rank, command, code)
            if report is not None and report.version is not None:
                return report.version
    return None


def late(view: View) -> dict[int, str]:
    """Say what those are doing whom the others wait for: of all who are not done, the least advanced."""
    waiting = waiting_on(view)
    least = min((_progress(status) for status in waiting.values()), default=None)
    return {rank: _doing(status) for rank, status in waiting.items() if _progress(status) == least}


def _progress(status: StatusWord | None) -> tuple[int, ...]:
    return (-1,) if status is None else (status.code, status.action, status.ready)


def _doing(status: StatusWord | None) -> str:
    if status is None:
        return "has not answered"
    where = f" (action {status.action} of its plan)" if status.code is StatusCode.RUNNING else ""
    return f"is {status.code.name.lower()}{where}"


def aborted(
    group: GroupView,
    command: CommandWord,
    *,
    request_id: str,
    operation: str,
    late_then: dict[int, str],
    lost: Sequence[int],
    deadline_s: float,
    gave_up: bool,
) -> WsmError:
    """Return the error for a command that was aborted, naming the first cause that is no echo of another."""
    now = read_status(group).sentence()
    causes = [(rank, group.failure(rank, command)) for rank in range(group.participants)]
    found: list[tuple[FailureReport, bool]] = [cause for _, cause in causes if cause is not None]
    found.sort(key=lambda cause: cause[0].error in _ECHOES)
    if found and found[0][0].error in _ECHOES:
        found = []  # no rank failed of itself: the controller had decided before
    if lost:
        return RankLostError(operation=operation, ranks=lost, group=now)
    if found:
        failure, refused = found[0]
        if refused:
            return CommandRefusedError(
                request_id=request_id,
                operation=operation,
                rank=failure.rank,
                error=failure.error,
                cause=failure.message,
                group=now,
            )
        return RankFailedError(
            request_id=request_id,
            operation=operation,
            rank=failure.rank,
            action=failure.action,
            error=failure.error,
            cause=failure.message,
            remote_traceback=failure.traceback,
            others={other.rank: other.message for other, _ in found[1:]},
            group=now,
        )
    prepared = reports(group, command, StatusCode.PREPARED)
    if prepared and not agree(prepared):
        return ManifestMismatchError(
            request_id=request_id, operation=operation, found=loaded_versions(prepared), group=now
        )
    return CommandTimeoutError(
        request_id=request_id,
        operation=operation,
        deadline_s=deadline_s,
        gave_up=gave_up,
        waiting=late_then,
        group=now,
    )
