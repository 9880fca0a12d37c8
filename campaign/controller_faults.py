"""Plays a case in which a controller dies or stands still, before or after each word that it writes.

What must hold: the ranks neither hang for good nor decide for themselves; a successor finishes what stands
in the words and then works; while a stopped controller holds its role everybody else is told so.
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
from campaign.playing import played
from campaign.rank_faults import finish, prepare
from campaign.result import Result
from wsm.controller.errors import CommandWithdrawnError
from wsm.protocol.errors import CommandOpenError
from wsm.signals.errors import RoleBusyError

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
    "hot": (
        *("before:hot_update", "after:hot_update", "before:hot_commit", "after:hot_commit"),
        *("before:committed", "after:committed"),
    ),
}
_ENDINGS = ("old version", "new version", "CLEARED")
_PATIENCE_S = 30.0


def cases(kind: str, ranks: int, operations: Container[str]) -> list[Case]:
    """Name the cases of those operations."""
    return [
        Case(kind, ranks, operation, str(Fault("controller", point, act)))
        for operation, points in POINTS.items()
        if operation in operations
        for point in points
        for act in (Act.KILL, Act.STOP, Act.FREEZE)
    ]


def play(case: Case, group: GroupUnderFault) -> Result:
    """Play one case."""
    return played(case, group, _play)


def _play(case: Case, group: GroupUnderFault, result: Result) -> None:
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
            _others_are_refused(group, result)
            process.send_signal(signal.SIGCONT if fault.act is Act.STOP else signal.SIGKILL)
        try:
            result.said = process.communicate(timeout=_PATIENCE_S)[0].strip()[:300]
        except subprocess.TimeoutExpired:
            result.problems.append("the controller did not end")
    began_ns = time.monotonic_ns()
    # Whoever comes next finishes what stands in the words, before it looks at what it wants itself.
    group.until(lambda: _successor_is_through(group), "a successor finishes the open command")
    result.detected_ms = (time.monotonic_ns() - began_ns) / 1e6
    status = group.status()
    result.outcome = outcome_of(status, before, version)
    allowed = {*_ENDINGS, *operation_of(case.operation).endings} - {"FAULTED"}
    result.require(result.outcome in allowed, f"no outcome of the tables: {status.sentence()}")
    finish(group, result)


def _successor_is_through(group: GroupUnderFault) -> bool:
    """Let another controller take its turn; whether the words are at rest afterwards."""
    with contextlib.suppress(RoleBusyError, CommandOpenError, CommandWithdrawnError):
        group.controller.begin_update(
            group.status().version, still_wanted=lambda: False, settle_s=_PATIENCE_S, wait_s=1.0
        )
    return group.status().over


def _others_are_refused(group: GroupUnderFault, result: Result) -> None:
    """While the controller stands still with its role, nobody else may command, and is told who has it."""
    answer = group.command("clear")
    result.error = type(answer.error).__name__
    result.require(
        isinstance(answer.error, RoleBusyError), f"another controller was not refused: {answer.said}"
    )


@contextlib.contextmanager
def other_controller(
    group: GroupUnderFault, command: str, version: int | None
) -> Iterator[subprocess.Popen[str]]:
    """Let a controller in a process of its own ask for an operation; it is ended on leaving."""
    process = subprocess.Popen(  # noqa: S603 - our own module under our own interpreter
        [
            *(sys.executable, "-m", "campaign.controller_process", group.config.group.name),
            *(str(group.directory), command, str(version or "")),
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
