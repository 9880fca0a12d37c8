"""Plays cases in which a group's owner, or a rank, is struck in a hold, in its release, or as a lease ends.

What must hold: an owner that stands still hinders no hold and no release; one that dies takes its ranks with
it, every caller has an answer, and the next owner's group serves. A lease ends by the owner's own release: an
owner that stood still in it goes on, and a rank that dies in it is replaced; then the group serves what it
served, unasked.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
from functools import partial

from campaign.case import Case
from campaign.controller_faults import POINTS, other_controller
from campaign.deaths_midway import send
from campaign.fault import Act, Fault
from campaign.group import GroupUnderFault
from campaign.operations import outcome_of
from campaign.result import Result
from campaign.supervisor_faults import next_owner, owned_group, require_good_end, serves_again
from wsm import Controller, Outcome, RoleBusyError

#: The operation of these cases.
OPERATION = "holds"

_LEASE_S = 0.2
_PATIENCE_S = 30.0


def cases(kind: str, ranks: int) -> list[Case]:
    """Name the cases."""
    whats = [
        f"{name}:{act}:{point}"
        for name in ("hold", "release")
        for point in POINTS[name]
        for act in ("kill", "stop")
    ]
    whats += [f"lease:{act}:{point}" for point in POINTS["release"] for act in ("kill", "stop", "rank")]
    return [Case(kind, ranks, OPERATION, what) for what in whats]


def play(case: Case, group: GroupUnderFault, result: Result) -> None:
    """Play one case; `group` is its own, and nobody has started it."""
    name, act, point = case.what.split(":", 2)
    with contextlib.ExitStack() as ending:
        ending.callback(group.__exit__, None, None, None)
        before = group.publish()
        owner, pids = ending.enter_context(owned_group(group))
        with Controller(group.config.group.name) as controller:
            if name == "release":
                controller.hold()
            if name == "lease":
                _strike_in_lease(f"{act}:{point}", controller, group, (owner, pids[1]), result)
            else:
                strike = partial(send, [owner.pid], signal.SIGKILL if act == "kill" else signal.SIGSTOP)
                _strike_beside(name, point, group, strike, dies=act == "kill", result=result)
            if act != "kill":
                result.outcome = outcome_of(controller.status(), before, None)
                allowed = "held" if name == "hold" else "old version"
                result.require(result.outcome == allowed, f"not {allowed}: {controller.status().sentence()}")
                send([owner.pid], signal.SIGCONT)
                result.require(serves_again(controller, group), "the group takes no update")
        if act == "kill":
            owner = ending.enter_context(next_owner(group, owner, pids, result))
        require_good_end(group, owner, result)
        result.leftovers += group.stop()


def _strike_beside(
    name: str, point: str, group: GroupUnderFault, strike: partial[None], *, dies: bool, result: Result
) -> None:
    """Strike the owner while a controller stands still at a point of its command; then let that go on."""
    fault = Fault("controller", point, Act.STOP)
    group.arm(fault)
    with other_controller(group, name, None) as process:
        if group.await_fired(fault, _PATIENCE_S) is None:
            result.problems.append("the point was never reached")
            return
        group.await_standing(process.pid)
        strike()
        process.send_signal(signal.SIGCONT)
        try:
            result.said = process.communicate(timeout=_PATIENCE_S)[0].strip()[:300]
        except subprocess.TimeoutExpired:
            result.problems.append("the controller did not end")
    good = dies or result.said.startswith(("is held", "is released"))
    result.require(good, f"a stopped owner hindered the command: {result.said}")


def _strike_in_lease(
    what: str,
    controller: Controller,
    group: GroupUnderFault,
    victims: tuple[subprocess.Popen[str], int],
    result: Result,
) -> None:
    """Strike the owner, or a rank beside it, while the owner is at a point of the release that ends it."""
    (act, _, point), (owner, rank) = what.partition(":"), victims
    fault = Fault("supervisor", point, Act.KILL if act == "kill" else Act.STOP)
    group.arm(fault)
    held = controller.hold(lease_s=_LEASE_S, on_lease="serve")
    result.require(held.outcome is Outcome.HELD, f"not held: {held.sentence()}")
    if group.await_fired(fault, _PATIENCE_S) is None:
        result.problems.append("the point was never reached")
        return
    if act == "kill":
        return
    group.await_standing(owner.pid)
    with contextlib.suppress(RoleBusyError):
        receipt = controller.hold(wait_s=0, deadline_s=5)
        result.problems.append(f"another controller was not refused: {receipt.sentence()}")
    if act == "rank":
        send([rank], signal.SIGKILL)
    send([owner.pid], signal.SIGCONT)

    def serves() -> bool:
        status = controller.status()
        # A process on a busy machine takes a while to end, and its group serves until then.
        is_replaced = act != "rank" or all(each.pid != rank for each in status.ranks)
        return status.serving and status.over and is_replaced

    group.until(serves, "the group serves again once its lease has ended")
