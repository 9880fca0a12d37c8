"""Plays cases in which ranks, holders and the keeper of a group die or stand still while a decision is open.

What must hold: what its caller decides is aborted as soon as its caller, or a rank, is gone, and while the
holder only stands still the recovery waits and names it. A supervisor that stands still hinders no decision,
and one that dies leaves no caller without an answer.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from functools import partial

from campaign.asking import Answer, ask
from campaign.case import Case
from campaign.controller_faults import other_controller
from campaign.deaths_midway import send
from campaign.fault import Act, Fault
from campaign.group import GroupUnderFault
from campaign.operations import outcome_of
from campaign.prepares import PREPARED
from campaign.rank_faults import finish, prepare
from campaign.result import Result
from campaign.supervisor_faults import next_owner, owned_group, require_good_end, serves_again
from wsm import Controller

#: The operation of these cases.
OPERATION = "prepares"

_LONG_S = "30"
_PATIENCE_S = 30.0

_OWNER = [
    f"owner:{act}:{moment}:{name}"
    for act in ("kill", "stop")
    for moment in ("preparing", PREPARED, "deciding")
    for name in ("prepare-commit", "prepare-in_place-abort", "lease-commit")
]


def cases(kind: str, ranks: int) -> list[Case]:
    """Name the cases."""
    whats = [*_HOLDER, *_OWNER, "owner:stop-and-kill-holder"]
    return [Case(kind, ranks, OPERATION, what) for what in whats]


def play(case: Case, group: GroupUnderFault, result: Result) -> None:
    """Play one case; where the owner is the victim, `group` is the case's own, and nobody has started it."""
    about, _, what = case.what.partition(":")
    if about == "owner":
        _owner(what, group, result)
    else:
        _holder(case.what, group, result)


# -- a holder, and a rank -----------------------------------------------------------------------------

#: A holder that stands still once all have prepared, and who dies beside it, in order.
_HOLDER = {
    "holder:prepare-commit:rank,holder": ("rank", "holder"),
    "holder:prepare-in_place:rank,holder": ("rank", "holder"),
    "holder:prepare-commit:holder,rank": ("holder", "rank"),
    "holder:prepare-in_place:holder,rank": ("holder", "rank"),
    "holder:prepare-held:rank,holder": ("rank", "holder"),
    "holder:lease-commit:rank,go": ("rank", "go"),
    "holder:lease-in_place:rank,go": ("rank", "go"),
    "holder:lease-commit:holder,rank": ("holder", "rank"),
}


def _holder(what: str, group: GroupUnderFault, result: Result) -> None:
    name = what.split(":")[1]
    fault = Fault("controller", PREPARED, Act.FREEZE)
    before = prepare(name, group, result)
    version, mark = group.publish(), group.mark()
    rank = group.supervisor.pids()[1]
    group.arm(fault)
    with other_controller(group, name, version, _LONG_S, _LONG_S) as process:
        if group.await_fired(fault, _PATIENCE_S) is None:
            result.problems.append("it was never prepared")
            return
        group.await_standing(process.pid)
        for who in _HOLDER[what]:
            if who == "rank":
                os.kill(rank, signal.SIGKILL)
                if "prepare" in name and process.poll() is None:
                    _waits_for(group, f"it is stopped: let it go on (kill -CONT {process.pid})", mark.told)
            else:
                process.send_signal(signal.SIGCONT if who == "go" else signal.SIGKILL)
                if who == "holder":
                    process.wait()
        group.until(lambda: group.supervisor.recoveries > mark.recoveries, "the rank is replaced")
        result.said = process.communicate(timeout=_PATIENCE_S)[0].strip()[:300]
    group.until(group.is_whole, "every rank is there, and done with the command")
    status = group.status()
    result.outcome = outcome_of(status, before, version)
    allowed = ["held" if name == "prepare-held" else "old version"]
    if name.endswith("in_place"):
        allowed.append("CLEARED")  # where it was aborted before the rank was seen to be gone
    if "go" in _HOLDER[what]:
        allowed.append(
            "new version"
        )  # all had prepared: if its caller is quicker than the recovery, it counts
    result.require(result.outcome in allowed, f"it must end as {' or '.join(allowed)}: {status.sentence()}")
    if result.outcome != "new version":
        told = f"what its caller had not committed: {status.sentence()}"
        result.require(status.version != str(version), told)
    finish(group, result)


def _waits_for(group: GroupUnderFault, words: str, since: int) -> None:
    """Wait until the supervisor has told what the recovery waits for."""
    group.until(
        lambda: any(words in said for _, said in group.told[since:]), f"the supervisor tells of {words!r}"
    )


# -- the owner of the group -----------------------------------------------------------------------------


def _owner(what: str, group: GroupUnderFault, result: Result) -> None:
    with contextlib.ExitStack() as ending:
        ending.callback(group.__exit__, None, None, None)
        before = group.publish()
        owner, pids = ending.enter_context(owned_group(group))
        version = group.publish()
        with Controller(group.config.group.name) as controller:
            if what == "stop-and-kill-holder":
                _beside_a_stopped_owner(group, controller, owner.pid, version, result)
                dies = False
            else:
                act, moment, name = what.split(":")
                dies = act == "kill"
                answer = _struck(controller, name, version, owner.pid, moment, dies=dies)
                result.said, result.error = answer.said[:300], type(answer.error).__name__
                if not dies:
                    result.require(answer.receipt, f"a stopped owner hindered the command: {answer.said}")
                    commits = name.endswith("commit")
                    served = controller.status().version == str(version)
                    result.require(served is commits, f"not as decided: {controller.status().sentence()}")
            if not dies:
                result.outcome = outcome_of(controller.status(), before, version)
                send([owner.pid], signal.SIGCONT)
                result.require(serves_again(controller, group), "the group takes no update")
        if dies:
            owner = ending.enter_context(next_owner(group, owner, pids, result))
        require_good_end(group, owner, result)
        result.leftovers += group.stop()


def _struck(
    controller: Controller, name: str, version: int, owner: int, moment: str, *, dies: bool
) -> Answer:
    """Ask, and strike the owner at the moment: 20 ms into it, once all are PREPARED, or in the decision."""
    strike = partial(send, [owner], signal.SIGKILL if dies else signal.SIGSTOP)
    later = threading.Timer(0.02 if moment == "preparing" else 0.001, strike)
    if moment == "preparing":
        later.start()
    once_prepared: dict[str, Callable[[], object]] = {PREPARED: strike, "deciding": later.start}
    answer = ask(controller, name, version, prepared=once_prepared.get(moment, bool))
    if later.ident is not None:
        later.join()
    return answer


def _beside_a_stopped_owner(
    group: GroupUnderFault, controller: Controller, owner: int, version: int, result: Result
) -> None:
    """Let the holder die while the owner stands still: a rank ends what it leaves."""
    group.arm(Fault("controller", PREPARED, Act.KILL))
    send([owner], signal.SIGSTOP)
    with other_controller(group, "prepare-commit", version) as process:
        process.wait()
    group.until(lambda: controller.status().over, "a rank ends the command")
    status = controller.status()
    result.require(
        status.serving and status.version != str(version),
        f"what its caller had not committed: {status.sentence()}",
    )
