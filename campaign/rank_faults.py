"""Plays a case in which a rank dies, stands still, fails or lies, and judges what came of it.

What must hold afterwards, whatever happened: the caller had an answer; a fault is answered by an error that
names its rank, unless the command was over for the group already; the group is in one of the states that the
tables name, the same on all ranks, or it was ended and started again; a good update works; every step was
made by one version, with that version's bytes; and the end leaves nothing.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import threading
import time

from campaign.asking import Answer, HangError
from campaign.case import Case
from campaign.fault import Act, Fault, Fired
from campaign.group import GroupUnderFault, Mark
from campaign.operations import Begin, holds_half, operation_of, outcome_of
from campaign.result import Result, named_ranks
from wsm.controller.errors import CommandRefusedError, RankLostError, UnsettledError
from wsm.errors import GroupError, WsmError
from wsm.receipt import Outcome

#: A caller's patience with a group one rank of which stands still, and how long it may be late with the news.
STOPPED_DEADLINE_S = {"memory": 0.5, "cache": 0.5, "gloo": 1.0}

_STANDING = (Act.STOP, Act.FREEZE, Act.HANG)
_DEADLY = (Act.KILL, Act.FREEZE, Act.HANG)
_MAX_MESSAGE = 300
_REPAIRED = ("NORMAL", "CLEARED")

#: What is asked of a group, which serves or holds nothing, to make it what an operation begins with.
_WAYS = {
    Begin.CLEARED: "clear",
    Begin.WEIGHTS_ALONE: "clear-kv",
    Begin.KV_ALONE: "clear-weights",
    Begin.HELD: "hold",
}

_NOTHING_DONE = (Outcome.ALREADY_CLEARED, Outcome.ALREADY_HELD, Outcome.ALREADY_SERVED)


def play(case: Case, group: GroupUnderFault, result: Result) -> None:
    """Play one case on a group that is in any state; the group serves a good version afterwards."""
    fault, may_commit = case.fault, True
    patience_s = STOPPED_DEADLINE_S[group.kind]
    answer: Answer | None = None
    for attempt in range(3):
        before = prepare(case.operation, group, result)
        version = group.publish() if operation_of(case.operation).brings_weights else None
        mark = group.mark()
        group.arm(fault)
        if case.operation == "serving":
            group.await_fired(fault)
            if fault.act in (Act.KILL, Act.RAISE):
                break
        stands = fault.act in _STANDING
        deadline_s = patience_s * 4**attempt if stands else 20.0
        asked_ns = time.monotonic_ns()
        answer = group.command(case.operation, version, deadline_s=deadline_s)
        may_commit = answer.may_commit
        fired = group.await_fired(fault, 5.0 if answer.receipt is not None else 0.1)
        after_deadline = fired is not None and not stands and fired.at_ns - asked_ns > deadline_s * 1e9
        if after_deadline and answer.receipt is None:
            aftermath(fault, group, mark, result)  # the deadline was what ended it, and was named
        elif fired is not None:
            since_ns = max(fired.at_ns, asked_ns + int(deadline_s * 1e9) if stands else 0)
            if answer.error is not None:
                result.detected_ms = (answer.at_ns - since_ns) / 1e6
            judge_answer(fault, answer, result, group)
            break
        # On a busy machine the deadline may come before the point does: ask again, with more patience.
        group.orders.withdraw(fault.victim)
    else:
        said = "" if answer is None else answer.said[:_MAX_MESSAGE]
        result.problems.append(f"the point was never reached; the command said: {said}")
        return
    aftermath(fault, group, mark, result)
    judge_group(case.operation, group, result, before=before, version=version, may_commit=may_commit)
    if answer is not None and answer.error is None:
        said = f"a command that left the group {result.outcome} raised nothing: {answer.said}"
        result.require(result.outcome not in ("MIXED", "FAULTED"), said)
    if operation_of(case.operation).is_half:
        _repeat(case.operation, group, result)
    finish(group, result)


def play_boot(case: Case, group: GroupUnderFault, result: Result) -> None:
    """Play one case while the group boots; it serves a good version afterwards."""
    fault = case.fault
    result.leftovers += group.stop()
    version = group.publish()
    group.arm(fault)
    waker = threading.Thread(target=_wake, args=(group, fault), daemon=True)
    if fault.act in (Act.STOP, Act.FREEZE):
        waker.start()
    try:
        group.start()
    except WsmError as error:
        judge_answer(fault, Answer(None, error, time.monotonic_ns()), result, group)
        result.outcome = "not started"
        result.leftovers += group.stop()
        result.require(fault.act not in _DEADLY, "the group did not survive a death at boot")
    else:
        result.require(group.await_fired(fault, 5.0), "the point was never reached")
        if fault.act in _DEADLY:
            aftermath(fault, group, Mark(0, 1, 0), result)
        judge_group("boot", group, result, before=None, version=version)
    if waker.is_alive():
        waker.join()
    finish(group, result)


def prepare(operation: str, group: GroupUnderFault, result: Result) -> int | None:
    """Bring the group to where the operation begins; return the version that it holds, if it does."""
    group.ensure_running()
    begin = operation_of(operation).begin
    if begin is not Begin.CLEARED and not group.status().serving:
        good_update(group, result)
        if not group.running:
            raise HangError(f"the group could not be made to serve before the case: {result.problems[-1]}")
    if begin in _WAYS:
        answer = group.command(_WAYS[begin])
        if answer.receipt is None:
            raise HangError(f"the group could not be {_WAYS[begin]} before the case: {answer.said}")
    has_weights = (Begin.SERVING, Begin.WEIGHTS_ALONE, Begin.HELD)
    held = group.status().version if begin in has_weights else None
    return None if held is None else int(held)


def judge_answer(fault: Fault, answer: Answer, result: Result, group: GroupUnderFault) -> None:
    """See that an error names the rank that is to blame, and the action where it failed in one."""
    result.said = answer.said[:_MAX_MESSAGE]
    if answer.error is None:
        return
    result.error = type(answer.error).__name__
    result.named = named_ranks(answer.error)
    number = group.number(fault.victim)
    result.require(number in result.named, f"the error names {result.named or 'no rank'}, not {fault.victim}")
    if isinstance(answer.error, CommandRefusedError | RankLostError | UnsettledError):
        return  # nothing was begun, or what was raised went to the loop and ended the process
    if isinstance(answer.error, GroupError) and answer.error.code == "not-given-back":
        return  # no rank failed in the command: the way back did, and the journal names where
    if fault.act in (Act.RAISE, Act.DENY) and ":" in fault.point:  # a lie may come out later in the plan
        action = fault.point.partition(":")[2]
        result.require(action in str(answer.error), f"the error does not name the action {action}")


def aftermath(
    fault: Fault, group: GroupUnderFault, mark: Mark, result: Result, pid: int | None = None
) -> None:
    """Let a victim that stands still go on, or die; feed a starved one; wait until a lost rank is replaced.

    Parameters
    ----------
    mark : Mark
        What :meth:`GroupUnderFault.mark` has said before the fault.
    pid : int or None
        The victim; None: the rank that has obeyed the order.
    """
    fired = group.fired(fault) or Fired(time.monotonic_ns(), pid or 0)
    if fault.act in (Act.STOP, Act.FREEZE) and group.await_standing(fired.pid):
        os.kill(fired.pid, signal.SIGCONT if fault.act is Act.STOP else signal.SIGKILL)
    if fault.act is Act.STARVE:
        feed(fired.pid)
    deadly = fault.act in _DEADLY or (fault.act is Act.RAISE and fault.point == "step")
    if deadly:
        group.until(lambda: group.supervisor.recoveries > mark.recoveries, "the supervisor replaces the rank")
    group.until(group.is_whole, "every rank is there, and done with the command")
    told_ns = group.told_ns(fault.victim, mark)
    if group.supervisor.recoveries > mark.recoveries:
        result.recovered_s = (time.monotonic_ns() - fired.at_ns) / 1e9
        # Who fails in an action lives on; whom it left alone in a collective may be the one that ends.
        result.require(
            told_ns or not deadly, f"the supervisor did not tell of the death of {fault.victim}: {group.told}"
        )
        if fault.act is Act.KILL and result.detected_ms is None and told_ns is not None:
            result.detected_ms = (told_ns - fired.at_ns) / 1e6


def feed(pid: int) -> None:
    """Let a starved process open files again."""
    with contextlib.suppress(ProcessLookupError):  # it has ended over it, and another one has its place
        most = resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, most))


def judge_group(
    operation: str,
    group: GroupUnderFault,
    result: Result,
    *,
    before: int | None,
    version: int | None,
    may_commit: bool = True,
) -> None:
    """Name where the group has ended, and see that it does what it says, and nothing that was not decided."""
    status, asked = group.settled(), operation_of(operation)
    result.outcome = outcome_of(status, before, version)
    recovered = result.recovered_s is not None
    allowed = asked.recovered if recovered else asked.endings
    if recovered and operation == "boot":
        allowed = (*allowed, "another version")
    told = [said for _, said in group.told[-4:]]
    result.require(result.outcome in allowed, f"no outcome of the tables: {status.sentence()}; told: {told}")
    undecided = may_commit or version is None or status.version != str(version)
    result.require(undecided, f"what its caller had not committed was committed: {status.sentence()}")
    if status.serving and status.version is not None:
        account(result, *group.await_service(int(status.version)))  # it says so: it must do so, too


def finish(group: GroupUnderFault, result: Result) -> None:
    """See that a good update works, and hold everything that was served against its version."""
    group.ensure_running()
    good_update(group, result)


def good_update(group: GroupUnderFault, result: Result) -> None:
    """Publish and load another version; what serves then must be it."""
    version = group.publish()
    if any(rank.weights == "FAULTED" for rank in group.status().ranks):
        group.until(
            lambda: group.status().state in _REPAIRED, "a rank whose teardown failed is cleared again"
        )
    elif group.status().state not in _REPAIRED:
        group.command("clear")
    answer = group.command("update", version, wait_s=5.0)  # a supervisor's own clear may just be ending
    if answer.receipt is None or answer.receipt.version != str(version):
        result.problems.append(f"a good update afterwards failed: {answer.said[:_MAX_MESSAGE]}")
        result.leftovers += group.stop()
        return
    if answer.receipt.hold is not None:
        released = group.command("release")
        result.require(released.receipt is not None, f"a release afterwards failed: {released.said}")
    account(result, *group.await_service(version))


def account(result: Result, checked: int, problems: list[str]) -> None:
    """Take in what an audit said."""
    result.checked += checked
    result.problems += problems


def _wake(group: GroupUnderFault, fault: Fault) -> None:
    """Let a victim of a boot stand for a moment, then let it go on or die."""
    fired = group.await_fired(fault, 30.0)
    if fired is None:
        return
    with contextlib.suppress(ProcessLookupError):
        if group.await_standing(fired.pid):
            os.kill(fired.pid, signal.SIGCONT if fault.act is Act.STOP else signal.SIGKILL)


def _repeat(name: str, group: GroupUnderFault, result: Result) -> None:
    """See that a command about halves is idempotent, and that weights that are alone serve.

    Whatever the fault left, the same command asked for again does what it says, and once more does nothing;
    weights that were left alone are those of the version that the group names.
    """
    if "tags" in (operation_of(name).options or {}):
        _ask_twice(name, group, result)
    status = group.status()
    if result.problems or not holds_half(status) or status.state != "NORMAL":
        return
    held = status.version
    answer = group.command("wake-kv")
    if answer.receipt is None or not group.status().serving or held is None:
        result.problems.append(f"weights of version {held} alone did not serve again: {answer.said}")
        return
    checked, problems = group.await_service(int(held))
    result.checked += checked
    result.problems += problems


def _ask_twice(name: str, group: GroupUnderFault, result: Result) -> None:
    if group.status().state == "FAULTED" and operation_of(name).command != "clear":
        group.command("clear")
    version = group.published if operation_of(name).brings_weights else None
    again = group.command(name, version)
    if again.receipt is None:
        result.problems.append(f"{name}, asked for again, failed: {again.said}")
        return
    held = _held(group)
    once_more = group.command(name, version)
    outcome = once_more.receipt.outcome if once_more.receipt is not None else None
    result.require(outcome in _NOTHING_DONE, f"{name} is not idempotent: {once_more.said}")
    result.require(held == _held(group), f"{name}, repeated, changed {held} to {_held(group)}")


def _held(group: GroupUnderFault) -> list[tuple[str, str]]:
    return [(rank.weights, rank.kv) for rank in group.status().ranks]
