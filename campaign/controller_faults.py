"""Plays a case in which a controller dies or stands still, before or after each word that it writes.

What must hold: once the controller is gone the group ends what it left open by itself, and soon, though
no process commands any more; while a stopped controller holds its role every other one is told so.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Container, Iterator

from campaign.case import Case
from campaign.environment import victims_environment
from campaign.fault import Act, Fault
from campaign.group import GroupUnderFault
from campaign.operations import operation_of, outcome_of
from campaign.rank_faults import finish, prepare
from campaign.result import Result
from wsm.signals.errors import RoleBusyError
from wsm.states.words import Operation
from wsm.status.facts import GroupStatus

#: What a controller passes in each operation that is played.
POINTS = {
    "clear": ("before:clear", "after:clear"),
    "update": (
        *("before:update", "after:update", "before:commit", "after:commit"),
        *("before:committed", "after:committed"),
    ),
    "in_place": (
        *("before:update", "after:update", "before:commit", "after:commit"),
        *("before:committed", "after:committed"),
    ),
    **dict.fromkeys(("clear-weights", "clear-kv"), ("after:clear",)),
    **dict.fromkeys(("wake-weights", "wake-kv"), ("after:update", "after:commit", "after:committed")),
    "hold": (*("before:hold", "after:hold", "before:commit", "after:commit"), "before:committed"),
    "release": (*("before:release", "after:release", "before:commit", "after:commit"), "before:committed"),
    "hot": (
        *("before:hot_update", "after:hot_update", "before:hot_commit", "after:hot_commit"),
        *("before:committed", "after:committed"),
    ),
}
_ENDINGS = ("old version", "new version", "CLEARED")
_PATIENCE_S = 30.0

#: Seconds until a command whose controller is gone is decided: a promise of one, and what busy machines add.
DECIDED_S = 3.0


def cases(kind: str, ranks: int, operations: Container[str]) -> list[Case]:
    """Name the cases of those operations."""
    return [
        Case(kind, ranks, operation, str(Fault("controller", point, act)))
        for operation, points in POINTS.items()
        if operation in operations
        for point in points
        for act in (Act.KILL, Act.STOP, Act.FREEZE)
    ]


def play(case: Case, group: GroupUnderFault, result: Result) -> None:
    """Play one case."""
    fault = case.fault
    before = prepare(case.operation, group, result)
    version = group.publish() if operation_of(case.operation).brings_weights else None
    group.arm(fault)
    with other_controller(group, case.operation, version) as process:
        if group.await_fired(fault, _PATIENCE_S) is None:
            result.problems.append("the point was never reached")
            return
        if fault.act is not Act.KILL:
            group.await_standing(process.pid)
            others_are_refused(group, result)
            process.send_signal(signal.SIGCONT if fault.act is Act.STOP else signal.SIGKILL)
        try:
            result.said = process.communicate(timeout=_PATIENCE_S)[0].strip()[:300]
        except subprocess.TimeoutExpired:
            result.problems.append("the controller did not end")
    judge_end(case, group, result, before=before, version=version)


def judge_end(
    case: Case, group: GroupUnderFault, result: Result, *, before: int | None, version: int | None
) -> None:
    """See that the group ends by itself what a controller left open that is gone; no process commands it."""
    began = time.monotonic()
    group.until(lambda: _is_decided(group.status()), "the group decides the open command")
    result.detected_ms = (time.monotonic() - began) * 1e3
    result.require(result.detected_ms < DECIDED_S * 1e3, f"decided after {result.detected_ms:.0f} ms only")
    group.until(lambda: group.status().over, "the group ends the open command")
    status = group.status()
    result.outcome = outcome_of(status, before, version)
    allowed = {*_ENDINGS, *operation_of(case.operation).endings} - {"FAULTED"}
    result.require(result.outcome in allowed, f"no outcome of the tables: {status.sentence()}")
    finish(group, result)


def _is_decided(status: GroupStatus) -> bool:
    return status.over or Operation[status.operation].is_decision


def others_are_refused(group: GroupUnderFault, result: Result) -> None:
    """While the controller stands still with its role, no other may command, and is told who has it."""
    answer = group.command("clear")
    result.error = type(answer.error).__name__
    result.require(
        isinstance(answer.error, RoleBusyError), f"another controller was not refused: {answer.said}"
    )


@contextlib.contextmanager
def other_controller(
    group: GroupUnderFault, command: str, version: int | None, *limits: str
) -> Iterator[subprocess.Popen[str]]:
    """Let a controller in a process of its own ask for an operation; it is ended on leaving.

    `limits` may hold the deadline of the command, in seconds.
    """
    process = subprocess.Popen(  # noqa: S603 - our own module under our own interpreter
        [
            *(sys.executable, "-m", "campaign.controller_process", group.config.group.name),
            *(str(group.directory), command, str(version or ""), *limits),
        ],
        stdout=subprocess.PIPE,
        text=True,
        env=victims_environment(group.directory),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
