"""Plays cases in which ranks, holders and the keeper of a group die or stand still while a decision is open.

What must hold: what its caller decides is aborted as soon as its caller, or a rank, is gone, and while the
holder only stands still the recovery waits and names it. What is decided outside is decided by no death, and
no epoch begins before it is known; then the group follows it. A supervisor that stands still hinders no
decision, and one that dies leaves no caller without an answer.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial

from campaign.asking import Answer, ask
from campaign.case import Case
from campaign.controller_faults import other_controller
from campaign.deaths_midway import send
from campaign.fault import Act, Fault
from campaign.group import GroupUnderFault
from campaign.operations import outcome_of
from campaign.playing import played
from campaign.prepares import PREPARED
from campaign.rank_faults import account, finish, prepare
from campaign.result import Result
from campaign.supervisor_faults import next_owner, owned_group, require_good_end, serves_again
from wsm import Controller, Outcome
from wsm.command import CommandArguments
from wsm.controller._transaction import due_decision, write_decision
from wsm.controller.group_view import GroupView
from wsm.signals.segment import Segment
from wsm.states.decide import next_command
from wsm.states.vocabulary import WeightState
from wsm.states.words import Decider, Operation
from wsm.status.facts import GroupStatus

#: The operation of these cases.
OPERATION = "prepares"

_LONG_S = "30"
_OPEN_S = 1.0
_PATIENCE_S = 30.0

_OUTSIDE = [f"outside:{whom}:{how}" for whom in ("none", "one", "all", "stop") for how in ("abort", "commit")]
_OWNER = [
    f"owner:{act}:{moment}:{name}"
    for act in ("kill", "stop")
    for moment in ("preparing", PREPARED, "deciding")
    for name in ("prepare-commit", "prepare-in_place-abort", "lease-commit")
]


def cases(kind: str, ranks: int) -> list[Case]:
    """Name the cases."""
    whats = [*_HOLDER, *_OUTSIDE, "outside:early", *_OWNER, "owner:stop-and-kill-holder"]
    return [Case(kind, ranks, OPERATION, what) for what in whats]


def play(case: Case, group: GroupUnderFault) -> Result:
    """Play one case; where the owner is the victim, on a group of its own beside the one that is given."""
    about, _, what = case.what.partition(":")
    if about == "owner":
        return played(case, GroupUnderFault(case.kind, case.ranks), partial(_owner, what))
    return played(case, group, partial(_holder if about == "holder" else _outside, what))


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


def _holder(what: str, case: Case, group: GroupUnderFault, result: Result) -> None:
    name = what.partition(":")[0]
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
        for who in _HOLDER[case.what]:
            if who == "rank":
                os.kill(rank, signal.SIGKILL)
                if "prepare" in name and process.poll() is None:
                    _waits_for(group, f"process {process.pid}, which is stopped", mark.told)
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
    if "go" in _HOLDER[case.what]:
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


# -- a decision that is made outside -------------------------------------------------------------------


def _outside(what: str, case: Case, group: GroupUnderFault, result: Result) -> None:
    del case
    before = prepare("hot", group, result)
    version, mark = group.publish(), group.mark()
    whom, _, how = what.partition(":")
    killed = Fault("rank1", "write", Act.KILL) if whom == "early" else None
    if killed is not None:
        group.arm(killed)
    with contextlib.closing(Segment.attach(group.config.group.name)) as segment:
        view = GroupView(segment)
        _open_outside(group, view, version, killed)
        if killed is not None:  # not all had prepared: it can be no commit anywhere
            group.until(lambda: group.supervisor.recoveries > mark.recoveries, "the rank is replaced")
            how = "abort"
        else:
            _stays_open(group, result, whom=whom, told=mark.told)
            if how == "abort":
                _give_up(group, result)
            else:
                _commit(view)
        view.close()
    group.until(group.is_whole, "every rank is there, and done with the command")
    group.until(lambda: group.status().serving, "the group serves")
    status = group.status()
    result.outcome = outcome_of(status, before, version)
    expected = "new version" if how == "commit" else "old version"
    result.require(result.outcome == expected, f"it must end as {expected}: {status.sentence()}")
    finish(group, result)


def _open_outside(group: GroupUnderFault, view: GroupView, version: int, killed: Fault | None) -> None:
    """Give a command that a system outside decides; its relay goes once all are PREPARED or one is killed."""
    with view.role.acquire(5):
        found = view.view()
        command = next_command(found, Operation.HOT_UPDATE, Decider.OUTSIDE)
        asked = CommandArguments("outside", str(version), before=WeightState.NORMAL, deadline_s=_OPEN_S)
        view.open(found, command, asked)
        if killed is not None:
            group.until(lambda: group.fired(killed), "a rank is killed while it stages")
        else:
            group.until(lambda: _all_are(group.status(), "PREPARED"), "all have prepared")


def _stays_open(group: GroupUnderFault, result: Result, *, whom: str, told: int) -> None:
    """See that neither time nor deaths decide it, that nothing serves beside a dead rank, and who says so."""
    first = group.status()
    pids = group.supervisor.pids()
    victims = {"none": [], "one": pids[1:2], "all": pids, "stop": pids[1:2]}[whom]
    dies = whom in ("one", "all")
    send(victims, signal.SIGKILL if dies else signal.SIGSTOP)
    if dies:
        _waits_for(group, "its decision is made outside", told)
    time.sleep(2 * _OPEN_S)
    status = group.status()
    if not dies:
        send(victims, signal.SIGCONT)
    same = (status.epoch, status.sequence, status.operation) == (first.epoch, first.sequence, first.operation)
    result.require(same, f"the command that is decided outside did not stay open: {status.sentence()}")
    refused = group.command("clear")
    result.require(refused.error, "another command was taken while a decision outside is open")
    if dies:
        account(result, *group.audit())
        time.sleep(0.2)
        steps, problems = group.audit()
        result.require(not steps, f"{steps} steps were made beside a dead rank")
        result.problems += problems


def _all_are(status: GroupStatus, code: str) -> bool:
    return all(rank.code == code for rank in status.ranks)


def _give_up(group: GroupUnderFault, result: Result) -> None:
    """Abort it as an operator; a rank that is gone is named, and the decision counts all the same."""
    error: BaseException | None = None
    try:
        receipt = group.controller.abort("outside", settle_s=5.0, wait_s=5.0)
        result.require(receipt.outcome is Outcome.ABORTED, f"it was not aborted: {receipt.sentence()}")
        result.said = receipt.warning or ""
    except Exception as raised:  # noqa: BLE001 - whatever it is, the end of the case tells what came of it
        error = raised
        result.said, result.error = str(raised)[:300], type(raised).__name__
    result.require(error is not None or "COMMIT" in result.said, "the receipt does not warn of a commit")


def _commit(view: GroupView) -> None:
    """Write what was decided outside, as the process does that hears of it."""
    with view.role.acquire(5):
        found = view.view()
        write_decision(view, found, due_decision(view, found, give_up=False, verdict=True))


# -- the owner of the group -----------------------------------------------------------------------------


def _owner(what: str, case: Case, group: GroupUnderFault, result: Result) -> None:
    del case
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
