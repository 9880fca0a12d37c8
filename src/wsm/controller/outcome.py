"""From what the ranks reported to a receipt or to an error that names the culprit. Writes nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from wsm.command import PartNotRestorableError, VersionHeldError
from wsm.controller.activity import Hang, doing, waits_in_step
from wsm.controller.errors import (
    ActionOverdueError,
    CommandRefusedError,
    CommandTimeoutError,
    ManifestMismatchError,
    RankFailedError,
    RankLostError,
)
from wsm.controller.group_view import GroupView
from wsm.errors import WsmError
from wsm.report import STEP, WITHOUT_WEIGHTS, FailureReport, RankReport, ReportFormatError
from wsm.states.decide import waiting_on
from wsm.states.park import any_broken
from wsm.states.view import View
from wsm.states.words import CommandWord, StatusCode, StatusWord
from wsm.status.facts import who

#: Errors that only repeat that another rank failed.
_ECHOES = ("peer-never-ready", "command-aborted")

#: Errors of a rank that waited for another one: told only where that one has nothing to tell.
_WAITS = ("action-interrupted", "wait-expired")


def reports(group: GroupView, command: CommandWord, code: StatusCode) -> list[RankReport] | None:
    """Read every participant's report for `code`; None if one is missing still."""
    found = [group.report(rank, command, code) for rank in range(group.participants)]
    return None if None in found else [report for report in found if report is not None]


def found_held(error: WsmError) -> bool:
    """Whether a command was refused only because it names no version, and the announced one is held."""
    return isinstance(error, CommandRefusedError) and error.context["error"] == VersionHeldError.code


def cannot_be_restored(error: WsmError) -> bool:
    """Whether a restore failed because nobody keeps what it would have to load: it would fail again."""
    lost = PartNotRestorableError.code
    return isinstance(error, CommandRefusedError) and error.context["error"] == lost


def restorable(found: Sequence[RankReport]) -> bool:
    """Whether every rank could load again what it reports to hold."""
    return all(report.facts.get("restorable") is not False for report in found)


def loaded_versions(found: Sequence[RankReport]) -> dict[int, str]:
    """Say per rank what it loaded, in words that are equal iff the ranks may be committed together.

    A manifest that speaks for the whole group must be the same on all ranks; one that speaks for a rank
    alone cannot be compared, and the versions must do. A digest that a rank says is the group's and does not
    name is equal to nothing.
    """
    return {
        report.rank: f"version {report.version}, {_manifest_in_words(report)}"
        for report in found
        if not report.facts.get(WITHOUT_WEIGHTS)
    }


def _manifest_in_words(report: RankReport) -> str:
    if report.facts.get("manifest_scope") != "group":
        return "no group manifest"
    if not report.manifest_digest:
        return f"a group manifest that rank {report.rank} does not name"
    return f"manifest {report.manifest_digest}"


def agree(found: Sequence[RankReport]) -> bool:
    """Whether all ranks prepared the same version of the same publication."""
    return len(set(loaded_versions(found).values())) <= 1


@dataclass(frozen=True)
class Situation:
    """What a controller saw of the ranks when it decided, or gave waiting up.

    Parameters
    ----------
    late : mapping of int to str
        What those were doing whom the others waited for.
    doing : mapping of int to str
        What everybody was doing.
    lost : tuple of int
        Whose processes were gone.
    broken : tuple of int
        Of these, whose last step had raised: mostly because another rank left it alone in a collective.
    hangs : tuple of Hang
        Who had been in an action for longer than it may take.
    deadline_s : float
        Of the command, in seconds.
    gave_up : bool
        Whether the caller gave up.
    expired : bool
        Whether the deadline had passed.
    failed : tuple of int
        Who had reported a failure of its own.
    """

    late: Mapping[int, str] = field(default_factory=dict)
    doing: Mapping[int, str] = field(default_factory=dict)
    lost: tuple[int, ...] = ()
    broken: tuple[int, ...] = ()
    hangs: tuple[Hang, ...] = ()
    deadline_s: float = 0.0
    gave_up: bool = False
    expired: bool = False
    failed: tuple[int, ...] = ()


def failed(group: GroupView, command: CommandWord) -> tuple[int, ...]:
    """Return the participants that have reported a failure in `command`; a report is read when it is told."""
    found = []
    for rank in range(group.participants):
        with contextlib.suppress(ReportFormatError):
            if group.failure(rank, command) is not None:
                found.append(rank)
    return tuple(found)


def late(group: GroupView, view: View) -> dict[int, str]:
    """Say what those are doing whom the others wait for: of all who are not done, the least advanced."""
    waiting = waiting_on(view)
    least = min((_progress(status) for status in waiting.values()), default=None)
    found = {
        group.named(rank): doing(group, rank, status, view.command.operation)
        for rank, status in waiting.items()
        if _progress(status) == least
    }
    for rank in range(group.participants):
        reason = None if group.named(rank) in found else _holding_up(group, view, rank, found)
        if reason is not None:
            found[group.named(rank)] = reason
    return found


def _holding_up(group: GroupView, view: View, rank: int, late: Mapping[int, str]) -> str | None:
    """Say how a rank that is not late itself keeps late ones from going on; None if it does not.

    A step is a rendezvous, so one rank that stands still outside of it holds the others inside, where they
    cannot go on with the command either.
    """
    if group.stopped(rank):
        return doing(group, rank, view.of_command(rank), view.command.operation)
    if rank >= len(view.steps):
        return None
    for other, inside in enumerate(view.steps):
        if group.named(other) in late and waits_in_step(view, other, rank):
            return f"has not entered step {inside.step}, in which {who(group.named(other))} is"
    return None


def broken(view: View, ranks: Sequence[int]) -> tuple[int, ...]:
    """Return those of the ranks whose last step raised."""
    return tuple(rank for rank in ranks if any_broken(view.steps[rank : rank + 1], epoch=view.command.epoch))


def doings(group: GroupView, view: View) -> dict[int, str]:
    """Say what every rank that is not done with the command is doing."""
    return {
        group.named(rank): doing(group, rank, status, view.command.operation)
        for rank, status in waiting_on(view).items()
    }


def _progress(status: StatusWord | None) -> tuple[int, ...]:
    return (-1,) if status is None else (status.code, status.action, status.ready)


def aborted(
    group: GroupView,
    command: CommandWord,
    *,
    request_id: str,
    operation: str,
    then: Situation,
) -> WsmError:
    """Return the error for a command that was aborted, naming the first cause that is no echo of another."""
    now = group.status().sentence()
    causes = [(rank, group.failure(rank, command)) for rank in range(group.participants)]
    found: list[tuple[FailureReport, bool]] = [
        cause for rank, cause in causes if cause is not None and not _broke_later(cause[0], rank, then)
    ]
    found.sort(key=lambda cause: (cause[0].error in _ECHOES, cause[0].error in _WAITS))
    if found and found[0][0].error in _ECHOES:
        found = []  # no rank failed of itself: the controller had decided before
    if set(then.lost) - set(then.broken) or (then.lost and not found):
        return RankLostError(operation=operation, ranks=then.lost, group=now)
    if then.hangs:
        reported = {failure.rank: failure for failure, _ in (cause for _, cause in causes if cause)}
        return _overdue(then, reported, request_id=request_id, operation=operation, now=now)
    if found:
        failure, refused = found[0]
        if refused:
            return CommandRefusedError(
                request_id=request_id,
                operation=operation,
                rank=failure.rank,
                error=failure.error,
                cause=failure.message,
                no_room=failure.no_room,
                group=now,
            )
        return RankFailedError(
            request_id=request_id,
            operation=operation,
            rank=failure.rank,
            action=failure.action,
            error=failure.error,
            cause=failure.message + _held_up(failure, then),
            no_room=failure.no_room,
            remote_traceback=failure.traceback,
            others={
                **{other.rank: other.message for other, _ in found[1:]},
                **dict.fromkeys((*then.lost, *then.broken), "its process is gone"),
            },
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
        deadline_s=then.deadline_s,
        gave_up=then.gave_up,
        waiting=then.late,
        group=now,
    )


def _broke_later(failure: FailureReport, rank: int, then: Situation) -> bool:
    """Whether a step raised only after the deadline: because of who was late in it then, or of its end."""
    return then.expired and rank not in then.failed and failure.action == STEP


def _held_up(failure: FailureReport, then: Situation) -> str:
    """Say who was late when a rank failed that had only waited for others."""
    late = ", ".join(f"{who(rank)} {what}" for rank, what in then.late.items() if rank != failure.rank)
    return f"; late then: {late}" if late and failure.error in _WAITS else ""


def _overdue(
    then: Situation, reported: Mapping[int, FailureReport], *, request_id: str, operation: str, now: str
) -> ActionOverdueError:
    """Name the rank that was in an action for longest, and those that waited for it."""
    hang = max(then.hangs, key=lambda one: (one.stopped, one.seconds))
    own = reported.get(hang.rank)
    late_too = {one.rank: f"is in {one.action}, too" for one in then.hangs if one is not hang}
    waiting = {rank: what for rank, what in then.doing.items() if rank not in (hang.rank, *late_too)}
    return ActionOverdueError(
        request_id=request_id,
        operation=operation,
        rank=hang.rank,
        action=hang.action,
        seconds=hang.seconds,
        deadline_s=hang.deadline_s,
        stopped=hang.stopped,
        waiting=waiting,
        remote_traceback="" if own is None else own.traceback,
        others=late_too,
        group=now,
    )
