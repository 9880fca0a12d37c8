"""Plays a case in which a rank dies, stands still, fails or lies, and judges what came of it.

What must hold afterwards, whatever happened: the caller had an answer; a fault is answered by an error that
names its rank, unless the command was over for the group already; the group is in one of the states that the
tables name, the same on all ranks, or it was ended and started again; a good update works; every step was
made by one version, with that version's bytes; and the end leaves nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

from campaign.case import Case
from campaign.fault import Act, Fault, Fired
from campaign.group import Answer, GroupUnderFault, HangError
from campaign.result import Result, named_ranks
from wsm.controller.errors import CommandRefusedError, RankLostError
from wsm.errors import WsmError

#: A caller's patience with a group one rank of which stands still, and how long it may be late with the news.
STOPPED_DEADLINE_S = {"memory": 0.5, "gloo": 1.0}

_DEADLY = (Act.KILL, Act.FREEZE)
_STATES = ("old version", "new version", "CLEARED", "FAULTED")
_MAX_MESSAGE = 300


def play(case: Case, group: GroupUnderFault) -> Result:
    """Play one case on a group that is in any state; the group serves a good version afterwards."""
    result = Result(str(case))
    began = time.monotonic()
    try:
        if case.operation == "boot":
            _play_boot(case, group, result)
        else:
            _play_command(case, group, result)
    except HangError as hang:
        result.problems.append(f"hang: {hang}")
        result.outcome = result.outcome or "hang"
        result.leftovers += group.stop()
    result.seconds = time.monotonic() - began
    return result


def _play_command(case: Case, group: GroupUnderFault, result: Result) -> None:
    fault = case.fault
    patience_s = STOPPED_DEADLINE_S[group.kind]
    for attempt in range(3):
        before = prepare(case.operation, group, result)
        version = None if case.operation == "clear" else group.publish()
        group.arm(fault)
        if case.operation == "serving":
            group.await_fired(fault)
        stands = fault.act in (Act.STOP, Act.FREEZE)
        deadline_s = patience_s * 4**attempt if stands else 20.0
        asked_ns = time.monotonic_ns()
        answer = group.command(
            "clear" if case.operation == "clear" else "update", version, deadline_s=deadline_s
        )
        fired = group.await_fired(fault, 5.0 if answer.receipt is not None else 0.1)
        if fired is not None:
            break
        # On a busy machine the deadline may come before the point does: ask again, with more patience.
        group.orders.withdraw(fault.victim)
    else:
        result.problems.append(f"the point was never reached; the command said: {answer.said[:_MAX_MESSAGE]}")
        return
    since_ns = max(fired.at_ns, asked_ns + int(deadline_s * 1e9) if stands else 0)
    if answer.error is not None:
        result.detected_ms = (answer.at_ns - since_ns) / 1e6
    _judge_answer(fault, answer, result)
    _aftermath(fault, fired, group, result)
    judge_group(group, result, before=before, version=version)
    finish(group, result)


def _play_boot(case: Case, group: GroupUnderFault, result: Result) -> None:
    fault = case.fault
    result.leftovers += group.stop()
    group.publish()
    group.arm(fault)
    waker = threading.Thread(target=_wake, args=(group, fault), daemon=True)
    if fault.act in (Act.STOP, Act.FREEZE):
        waker.start()
    try:
        group.start()
    except WsmError as error:
        fired = group.fired(fault)
        answer = Answer(None, error, time.monotonic_ns())
        if fired is not None and fault.act is Act.KILL:
            result.detected_ms = (answer.at_ns - fired.at_ns) / 1e6
        _judge_answer(fault, answer, result)
        result.outcome = "not started"
        result.leftovers += group.stop()
    else:
        result.said = group.status().sentence()
        result.outcome = "new version"
        group.await_fired(fault, 5.0)
    result.require(group.fired(fault), "the point was never reached")
    if waker.is_alive():
        waker.join()
    finish(group, result)


def prepare(operation: str, group: GroupUnderFault, result: Result) -> int | None:
    """Bring the group to where the operation begins; return the version that it serves, if it does."""
    group.ensure_running()
    if operation == "update":
        answer = group.command("clear")
        if answer.receipt is None:
            raise HangError(f"the group could not be cleared before the case: {answer.said}")
        return None
    if not group.status().serving:
        good_update(group, result)
    return group.status().version


def _judge_answer(fault: Fault, answer: Answer, result: Result) -> None:
    result.said = answer.said[:_MAX_MESSAGE]
    if answer.error is None:
        return
    result.error = type(answer.error).__name__
    result.named = named_ranks(answer.error)
    rank = int(fault.victim.removeprefix("rank"))
    result.require(rank in result.named, f"the error names {result.named or 'nobody'}, not rank {rank}")
    if isinstance(answer.error, CommandRefusedError | RankLostError):
        return  # nothing was begun, or what was raised went to the loop and ended the process
    if fault.act in (Act.RAISE, Act.DENY) and ":" in fault.point:  # a lie may come out later in the plan
        action = fault.point.partition(":")[2]
        result.require(action in str(answer.error), f"the error does not name the action {action}")


def _aftermath(fault: Fault, fired: Fired, group: GroupUnderFault, result: Result) -> None:
    """Let a victim that stands still go on, or die; end a group whose rank is gone."""
    if fault.act is Act.STOP:
        os.kill(fired.pid, signal.SIGCONT)
    if fault.act is Act.FREEZE:
        os.kill(fired.pid, signal.SIGKILL)
    if fault.act in _DEADLY:
        group.until(lambda: has_ended(group), "the supervisor sees the death")
    elif fault.act is Act.RAISE:
        # What is raised into the loop ends the process; inside an action it fails the command.
        with contextlib.suppress(HangError):
            group.until(lambda: group.status().over or has_ended(group), "it is over", 20.0)
    if has_ended(group):
        result.leftovers += group.stop()
        result.outcome = "restarted"
        group.start()


def has_ended(group: GroupUnderFault) -> bool:
    """Whether a rank is gone, or the group's words cannot be read any more."""
    try:
        group.supervisor.check()
        return any(rank.life == "dead" for rank in group.status().ranks)
    except WsmError:
        return True


def judge_group(group: GroupUnderFault, result: Result, *, before: int | None, version: int | None) -> None:
    """Name where the group has ended, and see that it does what it says."""
    if result.outcome == "restarted":
        return
    group.until(lambda: group.status().over, "every rank is done with the command")
    status = group.status()
    if status.serving:
        result.outcome = {before: "old version", version: "new version"}.get(
            status.version, "another version"
        )
    else:
        result.outcome = status.state
    result.require(result.outcome in _STATES, f"no outcome of the tables: {status.sentence()}")
    if status.serving and status.version is not None:
        _account(result, *group.await_service(status.version))  # it says so: it must do so, too


def finish(group: GroupUnderFault, result: Result) -> None:
    """See that a good update works, and hold everything that was served against its version."""
    group.ensure_running()
    good_update(group, result)


def good_update(group: GroupUnderFault, result: Result) -> None:
    """Publish and load another version; what serves then must be it."""
    version = group.publish()
    if group.status().state not in ("NORMAL", "CLEARED"):
        group.command("clear")
    answer = group.command("update", version)
    if answer.receipt is None or answer.receipt.version != version:
        result.problems.append(f"a good update afterwards failed: {answer.said[:_MAX_MESSAGE]}")
        result.leftovers += group.stop()
        return
    _account(result, *group.await_service(version))


def _account(result: Result, checked: int, problems: list[str]) -> None:
    result.checked += checked
    result.problems += problems


def _wake(group: GroupUnderFault, fault: Fault) -> None:
    """Let a victim of a boot stand for a moment, then let it go on or die."""
    fired = group.await_fired(fault, 30.0)
    if fired is None:
        return
    time.sleep(0.2)
    with contextlib.suppress(ProcessLookupError):
        os.kill(fired.pid, signal.SIGCONT if fault.act is Act.STOP else signal.SIGKILL)
