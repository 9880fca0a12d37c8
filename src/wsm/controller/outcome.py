"""What becomes of the ranks of a command: watched while it is open, and told of once it is over.

Which died, which hang, and when waiting has become pointless: :class:`CommandWatch` reads words, slots and
processes, and the time by this controller's clock. How long an action takes is counted from when it was first
seen, so no other process' clock is believed. From what the ranks reported comes a receipt, or an error that
names the culprit. Decides nothing, and writes no word.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from wsm import log
from wsm.clock import Clock
from wsm.command import (
    OTHER_CONTENT,
    PART_NOT_RESTORABLE,
    SOURCE_OVERWRITTEN,
    VERSION_GONE,
    VERSION_HELD,
    WITHOUT_WEIGHTS,
    AtHand,
    CommandArguments,
    FailureReport,
    RankReport,
    ReportFormatError,
)
from wsm.controller.errors import (
    ActionOverdueError,
    CommandRefusedError,
    CommandTimeoutError,
    RankFailedError,
    RankLostError,
)
from wsm.controller.group_view import GroupView, Look
from wsm.errors import GroupError, WsmError
from wsm.journal import entry as kinds
from wsm.receipt import Outcome, Receipt, named
from wsm.states import decide, epochs
from wsm.states.view import View, any_broken
from wsm.states.words import CommandWord, StatusCode, StatusWord
from wsm.status.culprits import Culprit, Situation, blame, in_sentence, late_then, overdue
from wsm.status.facts import who, whose_processes

#: Longest time between two looks at processes and actions, in seconds; most deaths are told at once.
LOOK_S = 0.02

#: Seconds that the living may take to stop once another rank is dead or hangs, until the caller is told.
LOST_S = 1.0

_log = log.logger("controller")
_SHORTEST_WAIT_S = 0.0005
_STOPPED = frozenset((StatusCode.STOPPED_UNTOUCHED, StatusCode.STOPPED_TOUCHED))


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
    return told in (PART_NOT_RESTORABLE, SOURCE_OVERWRITTEN, OTHER_CONTENT)


def is_gone(error: WsmError) -> bool:
    """Whether a restore failed because what it has to load is not there now, or is something else."""
    told = isinstance(error, (CommandRefusedError, RankFailedError)) and error.context["error"]
    return told in VERSION_GONE or cannot_be_restored(error)


def receipt(
    group: GroupView,
    view: View,
    arguments: CommandArguments,
    how: Outcome,
    found: Sequence[RankReport] = (),
    *,
    version: str | None,
    previous: str | None,
    sequence: int | None = None,
    seconds: float | None = None,
    **more: Any,
) -> Receipt:
    """Return the receipt of a command; `more`: its fields besides what words and reports say.

    `seconds`: how long the ranks took that were asked; None: none was, and `found` are reports of before.
    """
    digests, tensors, staged, pause_s, restorable = set[str](), 0, 0, 0.0, True
    verified: bool | None = None
    is_known = True
    for report in found:
        if report.manifest_digest is not None:
            digests.add(report.manifest_digest)
        restorable = restorable and report.facts.get("restorable") is not False
        if seconds is None:
            continue
        tensors += report.tensors
        staged += report.bytes
        pause_s = max(pause_s, report.pause_s)
        if report.tensors:
            count = report.facts.get("verified_tensors")
            is_known = is_known and count is not None
            verified = verified is not False and report.tensors == count
    missing = decide.missing_anywhere(view)
    return Receipt(
        request_id=arguments.request_id,
        outcome=how,
        epoch=view.command.epoch,
        sequence=view.command.sequence if sequence is None else sequence,
        version=version,
        previous_version=previous,
        manifest_digest=digests.pop() if len(digests) == 1 else None,
        loaded=how is Outcome.UPDATED and (not found or tensors > 0),
        seconds=seconds or 0.0,
        pause_s=pause_s,
        ranks=tuple(found),
        tags=named(arguments.tags),
        missing=named(missing),
        restorable=restorable,
        serving=not missing and not view.committed.held,
        hold=group.hold(view),
        staged_bytes=staged if how is Outcome.PREPARED else 0,
        verified=verified if is_known else None,
        **more,
    )


def disagreement(found: Sequence[RankReport]) -> dict[int, str]:
    """Say per rank what it loaded, where they did not prepare one version of one publication; else empty.

    The words are equal iff the ranks may be committed together.

    A manifest that speaks for the whole group must be the same on all ranks; one that speaks for a rank
    alone cannot be compared, and the versions must do. A digest that a rank says is the group's and does not
    name is equal to nothing.
    """
    loaded: dict[int, str] = {}
    for report in found:
        if report.facts.get(WITHOUT_WEIGHTS):
            continue
        manifest = f"manifest {report.manifest_digest}"
        if "publication" in report.facts:
            manifest += f" of publication {report.facts['publication']}"
        if report.facts.get("manifest_scope") != "group":
            manifest = "no group manifest"
        elif not report.manifest_digest:
            manifest = f"a group manifest that rank {report.rank} does not name"
        loaded[report.rank] = f"version {report.version}, {manifest}"
    return loaded if len(set(loaded.values())) > 1 else {}


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


def broken(view: View, ranks: Sequence[int]) -> tuple[int, ...]:
    """Return those of the ranks whose last step raised."""
    return tuple(rank for rank in ranks if any_broken(view.steps[rank : rank + 1], epoch=view.command.epoch))


def aborted(
    group: GroupView, command: CommandWord, *, request_id: str, operation: str, then: Situation
) -> WsmError:
    """Return the error for a command that was aborted, naming the first cause that is no echo of another."""
    status = group.status()
    now, advice = status.sentence(), " ".join(status.advice)
    if epochs.is_to_be_restored(group.view()):
        # This process restores the group now, and the error says how that ended.
        now, advice = "the ranks released what the command had touched", ""
    reported = failures(group, command)
    found = blame(then, reported)
    common: dict[str, Any] = {"request_id": request_id, "operation": operation, "group": now}
    if found.lost:
        return ranks_lost(operation, found.lost, now, advice)
    if found.hang is not None:
        own = reported.get(found.hang.rank)
        traceback = "" if own is None else own[0].traceback
        error = _overdue_error(found.hang, found.others, then.doing, traceback, common)
        return error.followed_by(advice) if advice else error
    failure = found.failure
    if failure is not None and found.refused:
        return CommandRefusedError(
            f"{operation} was refused by {who(failure.rank)}: {failure.message} [{now}]",
            **common,
            rank=failure.rank,
            error=failure.error,
            cause=failure.message,
            no_room=failure.no_room,
            unfit=failure.unfit,
        )
    if failure is not None:
        cause = failure.message + late_then(failure, then)
        return RankFailedError(
            f"{operation} failed on {who(failure.rank)} in {failure.action}: {cause} [{now}]",
            **common,
            rank=failure.rank,
            action=failure.action,
            error=failure.error,
            cause=cause,
            no_room=failure.no_room,
            unfit=failure.unfit,
            remote_traceback=failure.traceback,
            others=dict(found.others),
        )
    prepared = reports(group, command, StatusCode.PREPARED)
    differing = disagreement(prepared) if prepared else {}
    if differing:
        ranks = ", ".join(f"rank {rank}: {what}" for rank, what in differing.items())
        return GroupError(
            f"{operation} was aborted because the ranks prepared different weights ({ranks}) [{now}]; "
            "publish the version again, for all ranks at once",
            code="manifest-mismatch",
            unfit=True,
            **common,
            found=differing,
        )
    why = (
        "because its caller gave up" if then.gave_up else f"after {then.deadline_s:.3g} s without a decision"
    )
    fix = f"{advice or 'look at the late rank.'} If it is only slow, give a longer deadline."
    return CommandTimeoutError(
        f"{operation} was aborted {why}, waiting for {in_sentence(then.late)} [{now}]"
        f"{'' if then.gave_up else _then(fix)}",
        **common,
        deadline_s=then.deadline_s,
        gave_up=then.gave_up,
        waiting=dict(then.late),
    )


def _overdue_error(
    hang: Culprit,
    others: Mapping[int, str],
    doing: Mapping[int, str],
    traceback: str,
    common: Mapping[str, Any],
) -> ActionOverdueError:
    waiting = {rank: what for rank, what in doing.items() if rank != hang.rank and rank not in others}
    also = "".join(f"; {who(other)} {what}" for other, what in others.items())
    waits = f"; waiting for it: {in_sentence(waiting)}" if waiting else ""
    operation, now, cause = common["operation"], common["group"], hang.sentence()
    return ActionOverdueError(
        f"{operation} was aborted because {who(hang.rank)} {cause}{also}{waits} [{now}]",
        **common,
        rank=hang.rank,
        action=hang.action,
        error="action-overdue",
        cause=cause,
        no_room=False,
        seconds=hang.seconds,
        deadline_s=hang.deadline_s,
        stopped=hang.stopped,
        waiting=waiting,
        remote_traceback=traceback,
        others=dict(others),
    )


def ranks_lost(operation: str, ranks: Sequence[int], now: str, advice: str) -> RankLostError:
    """Return the error for a command that cannot go on, since processes are gone."""
    again = advice or "ask again once it is replaced; without a supervisor, start the group again"
    verb = "is" if len(ranks) == 1 else "are"
    return RankLostError(
        f"{operation} cannot go on: {whose_processes(ranks)} {verb} gone [{now}]{_then(again)}",
        operation=operation,
        ranks=tuple(ranks),
        group=now,
    )


def _then(advice: str) -> str:
    return f"; {advice}" if advice else ""


def _only(culprits: Collection[int], waiting: Mapping[int, StatusWord | None]) -> bool:
    """Whether all other participants that are waited for have stopped."""
    return all(
        rank in culprits or (status is not None and status.code in _STOPPED)
        for rank, status in waiting.items()
    )


class CommandWatch:
    """The ranks of one open command.

    `group`: the group; its deaths are watched from the first look on, before any wait. `clock`: what actions
    are timed by. `hangs`: whom the others wait for because of an action that is past its deadline.
    """

    def __init__(self, group: GroupView, command: CommandWord, clock: Clock) -> None:
        self.lost: list[int] = []
        self.hangs: list[Culprit] = []
        self._group = group
        self._command = command
        self._clock = clock
        # Who is inside an action, since when, and since when that was seen; which action it is.
        self._inside: dict[int, tuple[int, int, AtHand | None]] = {}
        self._looked: tuple[int, int] | None = None
        self._said = {"epoch": command.epoch, "sequence": command.sequence}

    def look(self, seen: Look, *, woken: bool) -> None:
        """Look at all of them; a rank that is newly lost or overdue is logged, whatever comes of the command.

        `woken`: whether it was a word that ended the last wait. Ranks write many, so that processes and
        clocks are looked at only if a death has rung, or the last look at them was :data:`LOOK_S` ago.
        """
        now_ns = self._clock.monotonic_ns()
        if woken and self._looked is not None:
            looked_ns, rings = self._looked
            if rings == seen.rings and now_ns - looked_ns < LOOK_S * 1e9:
                return
        if self._looked is None:
            self._group.watch_deaths()
        self._looked = now_ns, seen.rings
        before, self.lost = self.lost, self._group.lost()
        for rank in self.lost:
            if rank not in before:
                _log.error(log.RANK_LOST, **self._said, rank=rank, pid=self._group.liveness.pid(rank))
                self._group.journal.note(kinds.RANK_LOST, self._command, lost=rank)
        overdue, self.hangs = self.hangs, self._overdue(now_ns)
        for hang in self.hangs:
            if all((hang.rank, hang.action) != (known.rank, known.action) for known in overdue):
                told = {"rank": hang.rank, "action": hang.action, "seconds": hang.seconds}
                _log.error("action.overdue", **self._said, **told)

    def wait_s(self, left_s: float) -> float:
        """Seconds until the next look is due, where the command itself has `left_s` seconds left."""
        left_s = min(LOOK_S, left_s)
        for rank in self._inside:
            action = self._action_of(rank)
            if action is not None:
                left_s = min(left_s, action.deadline_s - self._elapsed_s(rank))
        return max(left_s, _SHORTEST_WAIT_S)

    def is_hopeless(self, view: View, *, waited_s: float, settle_s: float, patient: bool) -> bool:
        """Whether participants that are not done with a decided command will not be, as far as is seen.

        `patient`: whether a stopped process is waited for like any other: it may be continued.
        """
        waiting = decide.waiting_on(view)
        lost = [rank for rank in self.lost if rank in waiting]
        # After an abort the living ranks wait until the dead ones have stopped too, which they never will.
        if lost and _only(lost, waiting):
            return True
        if view.command.operation.is_abort and not patient:
            frozen = [rank for rank in waiting if self._group.liveness.is_stopped(rank)]
            if frozen and _only({*lost, *frozen}, waiting):
                return True
        # Nor do the ranks come back at once that wait for them inside a step or a collective.
        troubled = lost or self.hangs
        return waited_s > (min(LOST_S, settle_s) if troubled else settle_s)

    def _overdue(self, now_ns: int) -> list[Culprit]:
        """Return whom the others wait for because of an action that is past its deadline; mostly none."""
        for rank in range(self._group.participants):
            since_ns, known = self._group.presence(rank).since_ns, self._inside.get(rank)
            if since_ns == 0:
                self._inside.pop(rank, None)
            elif known is None or known[0] != since_ns:
                self._inside[rank] = since_ns, now_ns, None
        for rank in self._inside:
            action = self._action_of(rank)
            if action is not None and self._elapsed_s(rank) > action.deadline_s:
                return self._culprits()
        return []

    def _culprits(self) -> list[Culprit]:
        """Name the ranks that keep actions from their ends which are past their deadlines by this clock."""
        facts, ranks = self._group.facts(), []
        for rank in facts.ranks:
            here = self._action_of(rank.rank) if rank.rank in self._inside else None
            seconds = self._elapsed_s(rank.rank) if here is not None else None
            if rank.action is not None and (here is None or str(here.action) != rank.action.name):
                seconds = None
            action = None if rank.action is None else replace(rank.action, seconds=seconds)
            ranks.append(replace(rank, action=action))
        return list(overdue(replace(facts, ranks=tuple(ranks))))

    def _elapsed_s(self, rank: int) -> float:
        return (self._clock.monotonic_ns() - self._inside[rank][1]) / 1e9

    def _action_of(self, rank: int) -> AtHand | None:
        """Return what a rank is inside of; None: it said nothing of it that this build reads."""
        since_ns, seen_ns, action = self._inside[rank]
        if action is None:
            said = self._group.at_hand(rank, self._command.epoch)
            action = None if said is None or said.action is None else said
            self._inside[rank] = since_ns, seen_ns, action
        return action
