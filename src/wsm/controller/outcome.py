"""What becomes of the ranks of a command: watched while it is open, and told of once it is over.

Which died, which hang, and when waiting has become pointless: :class:`CommandWatch` reads words, slots and
processes, and the time by this controller's clock. How long an action takes is counted from when it was first
seen, so no other process' clock is believed. From what the ranks reported comes a receipt, or an error that
names the culprit. Decides nothing, and writes no word.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from wsm import log
from wsm.clock import Clock
from wsm.command import PART_NOT_RESTORABLE, SOURCE_OVERWRITTEN, VERSION_HELD
from wsm.controller import errors
from wsm.controller.errors import (
    ActionOverdueError,
    CommandRefusedError,
    CommandTimeoutError,
    RankFailedError,
    RankLostError,
)
from wsm.controller.group_view import GroupView, Look
from wsm.declared_plans import DeclaredAction, DeclaredPlansError
from wsm.errors import WsmError
from wsm.report import WITHOUT_WEIGHTS, FailureReport, RankReport, ReportFormatError
from wsm.signals.presence import Doing
from wsm.states import decide
from wsm.states import journal as kinds
from wsm.states.view import View, any_broken
from wsm.states.words import CommandWord, StatusCode, StatusWord, StepKind, steps_ahead
from wsm.status.blame import Hang, Late, Situation, blame, doings, late_then

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
    return told in (PART_NOT_RESTORABLE, SOURCE_OVERWRITTEN)


class ReportedTogether(NamedTuple):
    """What the reports of all ranks say together, as a receipt has it.

    Parameters
    ----------
    manifest_digest : str or None
        Of the manifest that those name which name one; None: none does, or they name several.
    tensors, bytes : int
        Loaded, by all.
    pause_s : float
        The longest, in seconds.
    verified : bool or None
        Whether digests were promised for all that ranks loaded; None if that is nothing, or not known.
    restorable : bool
        Whether every rank could load again what it reports to hold.
    """

    manifest_digest: str | None
    tensors: int
    bytes: int
    pause_s: float
    verified: bool | None
    restorable: bool


def told_by(found: Sequence[RankReport]) -> ReportedTogether:
    """Return what reports say together."""
    digests, tensors, loaded_bytes, pause_s, restorable = set[str](), 0, 0, 0.0, True
    verified: bool | None = None
    is_known = True
    for report in found:
        if report.manifest_digest is not None:
            digests.add(report.manifest_digest)
        tensors += report.tensors
        loaded_bytes += report.bytes
        pause_s = max(pause_s, report.pause_s)
        restorable = restorable and report.facts.get("restorable") is not False
        if report.tensors:
            count = report.facts.get("verified_tensors")
            is_known = is_known and count is not None
            verified = verified is not False and report.tensors == count
    digest = digests.pop() if len(digests) == 1 else None
    return ReportedTogether(
        digest, tensors, loaded_bytes, pause_s, verified if is_known else None, restorable
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
    differing = disagreement(prepared) if prepared else {}
    if differing:
        return errors.manifest_mismatch(**common, found=differing)
    return CommandTimeoutError(
        **common, deadline_s=then.deadline_s, gave_up=then.gave_up, late=then.late, advice=advice
    )


def _only(culprits: Collection[int], waiting: Mapping[int, StatusWord | None]) -> bool:
    """Whether all other participants that are waited for have stopped."""
    return all(
        rank in culprits or (status is not None and status.code in _STOPPED)
        for rank, status in waiting.items()
    )


def _waits_in_step(view: View, rank: int, other: int) -> bool:
    """Whether `rank` is inside a step that `other` has not entered: no rank leaves it before all are in."""
    inside = view.steps[rank]
    return (inside.epoch, inside.kind) == (view.steps[other].epoch, StepKind.RUNNING) and (
        steps_ahead(inside.step, view.steps[other].step) > 0
    )


class CommandWatch:
    """The ranks of one open command.

    Parameters
    ----------
    group : GroupView
        The group; its deaths are watched from the first look on, before any wait.
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
        self._clock = clock
        # Who is inside an action, and since when that was seen; what is declared of it, once for an epoch.
        self._since: dict[int, tuple[Doing, int, int]] = {}
        self._actions: dict[tuple[int, Doing], DeclaredAction | None] = {}
        self._looked: tuple[int, int] | None = None
        self._said = {"epoch": command.epoch, "sequence": command.sequence}

    def look(self, seen: Look, *, woken: bool) -> bool:
        """Look at all of them; return whether a rank is newly lost or overdue.

        That is logged now, whatever comes of the command.

        Parameters
        ----------
        seen : Look
            What was read.
        woken : bool
            Whether it was a word that ended the last wait. Ranks write many, so that processes and clocks are
            looked at only if a death has rung, or the last look at them was :data:`LOOK_S` ago.
        """
        now_ns, view = self._clock.monotonic_ns(), seen.view
        if woken and self._looked is not None:
            looked_ns, rings = self._looked
            if rings == seen.rings and now_ns - looked_ns < LOOK_S * 1e9:
                return False
        if self._looked is None:
            self._group.watch_deaths()
        self._looked = now_ns, seen.rings
        found = False
        before, self.lost = self.lost, self._group.lost()
        for rank in self.lost:
            if rank not in before:
                found = True
                _log.error(log.RANK_LOST, **self._said, rank=rank, pid=self._group.pid(rank))
                self._group.journal.note(kinds.RANK_LOST, self._command, lost=rank)
        overdue, self.hangs = self.hangs, self._overdue(view, now_ns)
        for hang in self.hangs:
            if all((hang.rank, hang.action) != (known.rank, known.action) for known in overdue):
                found = True
                told = {"rank": hang.rank, "action": hang.action, "seconds": hang.seconds}
                _log.error(log.ACTION_OVERDUE, **self._said, **told)
        return found

    def wait_s(self, left_s: float) -> float:
        """Seconds until the next look is due, where the command itself has `left_s` seconds left."""
        left_s = min(LOOK_S, left_s)
        for rank in self._since:
            action = self._action_of(rank)
            if action is not None:
                left_s = min(left_s, action.deadline_s - self._elapsed_s(rank))
        return max(left_s, _SHORTEST_WAIT_S)

    def is_hopeless(self, view: View, *, waited_s: float, settle_s: float, patient: bool) -> bool:
        """Whether participants that are not done with a decided command will not be, as far as is seen.

        Parameters
        ----------
        view : View
            What was read.
        waited_s : float
            Seconds since the decision.
        settle_s : float
            Seconds after which no rank is waited for any more.
        patient : bool
            Whether a stopped process is waited for like any other: it may be continued.
        """
        waiting = decide.waiting_on(view)
        lost = [rank for rank in self.lost if rank in waiting]
        # After an abort the living ranks wait until the dead ones have stopped too, which they never will.
        if lost and _only(lost, waiting):
            return True
        if view.command.operation.is_abort and not patient:
            frozen = [rank for rank in waiting if self._group.stopped(rank)]
            if frozen and _only({*lost, *frozen}, waiting):
                return True
        # Nor do the ranks come back at once that wait for them inside a step or a collective.
        troubled = lost or self.hangs
        return waited_s > (min(LOST_S, settle_s) if troubled else settle_s)

    def _overdue(self, view: View, now_ns: int) -> list[Hang]:
        """Return whom the others wait for because of an action that is past its deadline; mostly none."""
        for rank in range(self._group.participants):
            presence = self._group.presence(rank)
            known = self._since.get(rank)
            if presence.doing.action is None:
                self._since.pop(rank, None)
            elif known is None or known[:2] != (presence.doing, presence.since_ns):
                self._since[rank] = (presence.doing, presence.since_ns, now_ns)
        late = []
        for rank in self._since:
            action = self._action_of(rank)
            if action is not None and self._elapsed_s(rank) > action.deadline_s:
                late.append(rank)
        return self._culprits(late, view) if late else []

    def _culprits(self, late: list[int], view: View) -> list[Hang]:
        """Name the ranks that hold a collective action up: none leaves it before all are in."""
        hangs: dict[int, Hang] = {}
        for rank in late:
            action = self._action_of(rank)
            if action is None:
                continue
            who = (
                self._held_up_by(rank, view)
                if action.collective
                else [rank, *self._stopped_before(rank, view)]
            )
            for culprit in who:
                stopped = self._group.stopped(culprit)
                hangs.setdefault(
                    culprit,
                    Hang(
                        self._group.named(culprit),
                        action.name,
                        self._elapsed_s(rank),
                        action.deadline_s,
                        stopped,
                    ),
                )
        return [hangs[rank] for rank in sorted(hangs)]

    def _stopped_before(self, rank: int, view: View) -> list[int]:
        """Return stopped ranks that hold this one inside a step, where it cannot see what it has staged."""
        ranks = range(len(view.steps))  # a KV-cache process is inside no step
        return [
            other
            for other in ranks
            if rank in ranks and _waits_in_step(view, rank, other) and self._group.stopped(other)
        ]

    def _held_up_by(self, rank: int, view: View) -> list[int]:
        index = view.statuses[rank].action
        absent = [
            other
            for other in range(self._group.participants)
            if other not in self._since
            and (status := view.of_command(other)) is not None
            and (status.code, status.action) == (StatusCode.RUNNING, index)
        ]
        inside = [other for other in self._since if view.statuses[other].action == index]
        return absent or [other for other in inside if self._group.stopped(other)] or inside

    def _elapsed_s(self, rank: int) -> float:
        return (self._clock.monotonic_ns() - self._since[rank][2]) / 1e9

    def _action_of(self, rank: int) -> DeclaredAction | None:
        """Return what a rank is inside of; None: it said nothing of its plans that this build reads."""
        what = self._since[rank][0]
        found = self._actions.get((rank, what))
        if found is None:
            try:
                plans = self._group.plans(rank, self._command.epoch)
            except DeclaredPlansError:
                return None
            plan = None if plans is None else plans.at(what.plan)
            found = None if plan is None or what.action is None else plan.at(what.action)
            self._actions[rank, what] = found
        return found
