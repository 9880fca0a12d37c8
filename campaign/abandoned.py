"""Plays a case in which a controller is killed, or stopped for good, some milliseconds into its command.

What must hold: no process commands the group any more, and it ends the command by itself as soon as its
controller is gone. One that is only stopped has its deadline: before all have prepared the group aborts at
it; after that it is named, and its end is enough.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

from campaign.case import Case
from campaign.controller_faults import judge_end, other_controller, others_are_refused
from campaign.environment import victims_environment
from campaign.group import GroupUnderFault
from campaign.operations import COMMANDS, HALVES, operation_of
from campaign.rank_faults import prepare
from campaign.result import Result

#: What the names of these cases say they are.
WHAT = "abandoned"

#: Milliseconds from the command word to the signal; most commands of these groups take less than the last.
_KILLED_AT_MS = (0, 1, 2, 3, 5, 8, 12, 20, 30, 45, 70, 110, 170, 250)
_STOPPED_AT_MS = (0, 2, 5, 12, 30, 70)

#: Deadline of a command whose controller is stopped, in seconds.
_DEADLINE_S = 1.0
_PATIENCE_S = 30.0


def cases(kind: str, ranks: int) -> list[Case]:
    """Name the cases: kills in commands about everything and about halves, stops in the former."""
    killed = [(operation, "kill", at) for operation in (*COMMANDS, *HALVES) for at in _KILLED_AT_MS]
    stopped = [(operation, "stop", at) for operation in COMMANDS for at in _STOPPED_AT_MS]
    return [Case(kind, ranks, name, f"{WHAT}:{act}:{at}") for name, act, at in (*killed, *stopped)]


def play(case: Case, group: GroupUnderFault, result: Result) -> None:
    """Play one case."""
    _, act, at_ms = case.what.split(":")
    before = prepare(case.operation, group, result)
    version = group.publish() if operation_of(case.operation).brings_weights else None
    last = group.status().sequence
    with other_controller(group, case.operation, version, str(_DEADLINE_S)) as process:

        def begins_or_is_refused() -> bool:
            return group.status().sequence != last or process.poll() is not None

        group.until(begins_or_is_refused, "the command begins")
        time.sleep(int(at_ms) / 1e3)
        if act == "stop" and process.poll() is None:
            process.send_signal(signal.SIGSTOP)
            group.await_standing(process.pid)
            _stands(group, process, result)
        process.kill()
        result.said = process.communicate(timeout=_PATIENCE_S)[0].strip()[:300]
    judge_end(case, group, result, before=before, version=version)


def _stands(group: GroupUnderFault, process: subprocess.Popen[str], result: Result) -> None:
    """See what the group does beside a stopped controller: it ends the command, or names whom to end."""

    def ended_or_prepared() -> bool:
        status = group.status()
        return status.over or all(rank.code == "PREPARED" for rank in status.ranks)

    group.until(ended_or_prepared, "the deadline counts beside a stopped controller")
    status = group.status()
    if status.controller_pid is None:
        return  # it was through before it was stopped
    others_are_refused(group, result)
    if not status.over:
        fix = f"kill -9 {process.pid}"
        advice = " ".join(status.advice)
        result.require(fix in advice, f"status does not name the controller: {status.headline}, {advice}")
        said = explained(group)
        result.require(fix in said, f"explain does not name the controller: {said}")


def explained(group: GroupUnderFault) -> str:
    """Return what ``wsm explain`` says in a process of its own, as an operator asks."""
    asked = subprocess.run(  # noqa: S603 - our own program under our own interpreter
        [sys.executable, "-m", "wsm.cli.main", "explain", group.config.group.name, "--json"],
        capture_output=True,
        text=True,
        check=False,
        env=victims_environment(group.directory),
    )
    said = json.loads(asked.stdout)
    return " ".join((said["headline"], *said["advice"]))
