"""From what the ranks reported to a receipt or to an error that names the culprit. Writes nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from wsm.command import PART_NOT_RESTORABLE, SOURCE_OVERWRITTEN, VERSION_HELD
from wsm.controller import errors
from wsm.controller.errors import (
    ActionOverdueError,
    CommandRefusedError,
    CommandTimeoutError,
    RankFailedError,
    RankLostError,
)
from wsm.controller.group_view import GroupView
from wsm.errors import WsmError
from wsm.report import WITHOUT_WEIGHTS, FailureReport, RankReport, ReportFormatError
from wsm.states.view import View, any_broken
from wsm.states.words import CommandWord, StatusCode
from wsm.status.blame import Late, Situation, blame, doings, late_then


def reports(group: GroupView, command: CommandWord, code: StatusCode) -> list[RankReport] | None:
    """Read every participant's report for `code`; None if one is missing still."""
    found = []
    for rank in range(group.participants):
        report = group.report(rank, command, code)
        if report is None:
            return None
        found.append(report)
    return found


def found_held(error: WsmError) -> bool:
    """Whether a command was refused only because it names no version, and the announced one is held."""
    return isinstance(error, CommandRefusedError) and error.context["error"] == VERSION_HELD


def cannot_be_restored(error: WsmError) -> bool:
    """Whether a restore failed because what it has to load is nowhere any more: it would fail again."""
    told = isinstance(error, (CommandRefusedError, RankFailedError)) and error.context["error"]
    return told in (PART_NOT_RESTORABLE, SOURCE_OVERWRITTEN)


def restorable(found: Sequence[RankReport]) -> bool:
    """Whether every rank could load again what it reports to hold."""
    return all(report.facts.get("restorable") is not False for report in found)


def verified(found: Sequence[RankReport]) -> bool | None:
    """Whether digests were promised for all that ranks loaded; None if that is nothing, or not known."""
    every: bool | None = None
    for report in found:
        if report.tensors:
            count = report.facts.get("verified_tensors")
            if count is None:
                return None
            every = every is not False and report.tensors == count
    return every


def loaded_versions(found: Sequence[RankReport]) -> dict[int, str]:
    """Say per rank what it loaded, in words that are equal iff the ranks may be committed together.

    A manifest that speaks for the whole group must be the same on all ranks; one that speaks for a rank
    alone cannot be compared, and the versions must do. A digest that a rank says is the group's and does not
    name is equal to nothing.
    """
    loaded: dict[int, str] = {}
    for report in found:
        if report.facts.get(WITHOUT_WEIGHTS):
            continue
        manifest = f"manifest {report.manifest_digest}"
        if report.facts.get("manifest_scope") != "group":
            manifest = "no group manifest"
        elif not report.manifest_digest:
            manifest = f"a group manifest that rank {report.rank} does not name"
        loaded[report.rank] = f"version {report.version}, {manifest}"
    return loaded


def agree(found: Sequence[RankReport]) -> bool:
    """Whether all ranks prepared the same version of the same publication."""
    return len(set(loaded_versions(found).values())) <= 1


def failures(group: GroupView, command: CommandWord) -> dict[int, tuple[FailureReport, bool]]:
    """Return what participants have reported of a failure in `command`, and whether they refused it.

    Raises
    ------
    ReportFormatError
        If a report is none of this build.
    """
    found = {rank: group.failure(rank, command) for rank in range(group.participants)}
    return {rank: failure for rank, failure in found.items() if failure is not None}


def failed(group: GroupView, command: CommandWord) -> tuple[int, ...]:
    """Return the participants that have reported a failure in `command`; a report is read when it is told."""
    found = []
    for rank in range(group.participants):
        with contextlib.suppress(ReportFormatError):
            if group.failure(rank, command) is not None:
                found.append(rank)
    return tuple(found)


def seen(group: GroupView) -> tuple[Late, dict[int, str]]:
    """Return the ranks that the open command waits for, and what each rank is doing that is not done."""
    facts = group.facts()
    return Late.of(facts), doings(facts)


def broken(view: View, ranks: Sequence[int]) -> tuple[int, ...]:
    """Return those of the ranks whose last step raised."""
    return tuple(rank for rank in ranks if any_broken(view.steps[rank : rank + 1], epoch=view.command.epoch))


def aborted(
    group: GroupView,
    command: CommandWord,
    *,
    request_id: str,
    operation: str,
    then: Situation,
) -> WsmError:
    """Return the error for a command that was aborted, naming the first cause that is no echo of another."""
    status = group.status()
    now, advice = status.sentence(), " ".join(status.advice)
    reported = failures(group, command)
    found = blame(then, reported)
    common = {"request_id": request_id, "operation": operation, "group": now}
    if found.lost:
        return RankLostError(operation=operation, ranks=found.lost, group=now, advice=advice)
    if found.hang is not None:
        hang, own = found.hang, reported.get(found.hang.rank)
        return ActionOverdueError(
            **common,
            rank=hang.rank,
            action=hang.action,
            seconds=hang.seconds,
            deadline_s=hang.deadline_s,
            stopped=hang.stopped,
            waiting={
                rank: what
                for rank, what in then.doing.items()
                if rank != hang.rank and rank not in found.others
            },
            remote_traceback="" if own is None else own[0].traceback,
            others=found.others,
            advice=advice,
        )
    failure = found.failure
    if failure is not None and found.refused:
        return CommandRefusedError(
            **common,
            rank=failure.rank,
            error=failure.error,
            cause=failure.message,
            no_room=failure.no_room,
            unfit=failure.unfit,
        )
    if failure is not None:
        return RankFailedError(
            **common,
            rank=failure.rank,
            action=failure.action,
            error=failure.error,
            cause=failure.message + late_then(failure, then),
            no_room=failure.no_room,
            unfit=failure.unfit,
            remote_traceback=failure.traceback,
            others=found.others,
        )
    prepared = reports(group, command, StatusCode.PREPARED)
    if prepared and not agree(prepared):
        return errors.manifest_mismatch(**common, found=loaded_versions(prepared))
    return CommandTimeoutError(
        **common, deadline_s=then.deadline_s, gave_up=then.gave_up, late=then.late, advice=advice
    )
