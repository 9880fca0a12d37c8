"""Plays cases in which who holds a decision dies or stands still, at each word and between them.

What must hold: the end is the one that is written here for each case. What its caller had not decided is
aborted, and nothing else may come of it; what was decided is what serves. While a holder stands still, others
are told who has the decision, and status and ``wsm explain`` name the process to end.
"""

from __future__ import annotations

import signal
import subprocess
import time

from campaign.abandoned import explained
from campaign.case import Case
from campaign.controller_faults import DECIDED_S, other_controller
from campaign.fault import Act, Fault
from campaign.group import GroupUnderFault
from campaign.operations import PREPARES, Begin, operation_of, outcome_of
from campaign.rank_faults import finish, prepare
from campaign.result import Result
from wsm.controller.errors import DecisionHeldError
from wsm.signals.errors import RoleBusyError

#: What the names of cases begin with in which the lease passes while the holder does not decide.
LATE = "late"

#: Between the receipt of what is prepared and the caller's decision.
PREPARED = "prepared"

_LONG_S, _SHORT_S, _LATE_S = 30.0, 1.5, 0.3
_DEADLINE_S = "20"
_PATIENCE_S = 30.0


def cases(kind: str, ranks: int) -> list[Case]:
    """Name the cases: every moment of every operation, and leases that pass."""
    found = [
        Case(kind, ranks, name, str(Fault("controller", point, act)))
        for name in PREPARES
        for point in _points(name)
        for act in (Act.KILL, Act.STOP, Act.FREEZE)
    ]
    late = [name for name, asked in PREPARES.items() if asked.decision == "commit"]
    return found + [
        Case(kind, ranks, name, f"{LATE}:{act.value}") for name in late for act in (Act.STOP, Act.FREEZE)
    ]


def _points(name: str) -> tuple[str, ...]:
    """Return what a holder passes, in order."""
    asked = PREPARES[name]
    hot = "hot_" if asked.command == "hot" else ""
    stored = ("before:committed", "after:committed") if asked.decision == "commit" else ()
    words = f"{hot}update", f"{hot}{asked.decision}"
    begin, decide = ((f"before:{word}", f"after:{word}") for word in words)
    return (*begin, PREPARED, *decide, *stored)


def play(case: Case, group: GroupUnderFault, result: Result) -> None:
    """Play one case."""
    late, asked = case.what.startswith(LATE), operation_of(case.operation)
    fault = Fault("controller", PREPARED, Act(case.what.partition(":")[2])) if late else case.fault
    before = prepare(case.operation, group, result)
    version = group.publish()
    group.arm(fault)
    dies = fault.act is not Act.STOP
    lease_s = _LATE_S if late else _SHORT_S if dies and asked.leased else _LONG_S
    with other_controller(group, case.operation, version, _DEADLINE_S, str(lease_s)) as process:
        if group.await_fired(fault, _PATIENCE_S) is None:
            result.problems.append("the point was never reached")
            return
        if fault.act is not Act.KILL:
            group.await_standing(process.pid)
            _stands(case, fault, group, process, result)
            process.send_signal(signal.SIGKILL if dies else signal.SIGCONT)
        try:
            result.said = process.communicate(timeout=_PATIENCE_S)[0].strip()[:300]
        except subprocess.TimeoutExpired:
            result.problems.append("the holder did not end")
    began = time.monotonic()
    group.until(lambda: group.status().over, "the group ends the command")
    result.detected_ms = (time.monotonic() - began) * 1e3
    most_s = DECIDED_S + (lease_s if asked.leased else 0.0)
    result.require(result.detected_ms < most_s * 1e3, f"ended after {result.detected_ms:.0f} ms only")
    _judge(case, fault, group, result, before=before, version=version)
    finish(group, result)


def _stands(
    case: Case, fault: Fault, group: GroupUnderFault, process: subprocess.Popen[str], result: Result
) -> None:
    """See what others are told while the holder stands still, and what the group does beside it."""
    asked = operation_of(case.operation)
    kept = not asked.leased or fault.point != PREPARED  # whether the process has the role
    if case.what.startswith(LATE):
        time.sleep(2 * _LATE_S)
        if not kept:
            group.until(lambda: group.status().over, "the group ends what a lease held")
            return
    answer = group.command("clear")
    result.error = type(answer.error).__name__
    expected = RoleBusyError if kept else DecisionHeldError
    result.require(isinstance(answer.error, expected), f"another command was not refused: {answer.said}")
    status = group.status()
    if kept and fault.point == PREPARED:
        result.require(not status.over, "the command was decided beside a holder that may go on")
        fix = f"kill -9 {process.pid}"
        result.require(fix in " ".join(status.advice), f"status does not name the holder: {status.advice}")
        said = explained(group)
        result.require(fix in said, f"explain does not name the holder: {said}")


def _judge(
    case: Case,
    fault: Fault,
    group: GroupUnderFault,
    result: Result,
    *,
    before: int | None,
    version: int | None,
) -> None:
    """Hold the end against the one that belongs to the case."""
    asked, status = operation_of(case.operation), group.status()
    goes_on = fault.act is Act.STOP and not case.what.startswith(LATE)
    stored = fault.point.startswith("after:") or fault.point.endswith("committed")
    decided = stored and not fault.point.endswith("update")
    commits = asked.decision == "commit" and (goes_on or decided)
    result.outcome = outcome_of(status, before, version)
    allowed = _ends(case.operation, fault, commits=commits, goes_on=goes_on)
    told = f"{status.sentence()}; the holder: {result.said}"
    result.require(result.outcome in allowed, f"it must end as {' or '.join(allowed)}: {told}")
    result.require((status.version == str(version)) is commits, f"another version than decided: {told}")


def _ends(name: str, fault: Fault, *, commits: bool, goes_on: bool) -> tuple[str, ...]:
    """Return where the group must be: what its caller decided, or else what it was before."""
    asked = PREPARES[name]
    after = (asked.options or {}).get("after")
    if commits:
        held = after == "held" or (asked.begin is Begin.HELD and after != "serve")
        return ("held",) if held else ("new version",)
    if asked.begin is Begin.HELD:
        return ("held",)
    if asked.command == "hot" or (fault.point == "before:update" and not goes_on):
        return ("old version",)
    whole = goes_on or fault.point != "after:update"  # all ranks had prepared: the old weights are gone
    return ("CLEARED",) if whole else ("CLEARED", "old version")
