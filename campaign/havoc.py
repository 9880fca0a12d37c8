"""Plays cases of several faults at once, and of faults at any line of wsm, while a command is under way.

No rank is singled out, so no error has to name one. What must hold: callers are answered with a receipt or a
typed error; the group comes back whole by itself, or, where its words or its segment were damaged, after a
start; no step is mixed or made with other bytes than its version's; a good update works.
"""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable

from campaign import damage_midway, deaths_midway, other_user
from campaign.asking import HANG_S, Answer, HangError
from campaign.case import Case
from campaign.controller_faults import POINTS, other_controller
from campaign.deaths_midway import Havoc
from campaign.fault import Act, Fault
from campaign.group import GroupUnderFault
from campaign.operations import COMMANDS, HALVES, POLICIES, operation_of
from campaign.rank_faults import account, finish, prepare
from campaign.result import Result
from wsm.errors import WsmError

SEEDS = 12

#: A rank and the controller die at the same moment.
WITH_CONTROLLER = "with-controller"

#: How long a group may take to come back, damaged or not, and how many updates it may refuse meanwhile.
_SELF_S, _WHOLE_S, _ATTEMPTS = 30.0, 120.0, 3


def _line(act: Act) -> Havoc:
    def begin(group: GroupUnderFault, chance: random.Random) -> Callable[[], object]:
        fault = Fault(chance.choice(group.victims), "line", act, deaths_midway.any_line(chance))
        group.arm(fault)
        return lambda: deaths_midway.let_go(group, fault)

    return begin


KINDS: dict[str, Havoc] = {
    "line-kill": _line(Act.KILL),
    "line-stop": _line(Act.STOP),
    "line-freeze": _line(Act.FREEZE),
    "line-exhaust": _line(Act.EXHAUST),
    WITH_CONTROLLER: lambda _group, _chance: bool,
    **deaths_midway.KINDS,
    **damage_midway.KINDS,
    **other_user.KINDS,
}

_OPERATIONS = (*COMMANDS, *HALVES, *POLICIES)


def cases(kind: str, ranks: int) -> list[Case]:
    """Name the cases."""
    return [Case(kind, ranks, "havoc", f"{what}:{seed}") for what in KINDS for seed in range(SEEDS)]


def play(case: Case, group: GroupUnderFault, result: Result) -> None:
    """Play one case."""
    what, _, _ = case.what.partition(":")
    chance = random.Random(str(case))  # noqa: S311 - a case must be the same every time
    operation = chance.choice(sorted(POINTS) if what == WITH_CONTROLLER else _OPERATIONS)
    prepare(operation, group, result)
    version = group.publish() if operation_of(operation).brings_weights else None
    if what.startswith("yaml"):
        version = None  # so that the ranks ask the file
    afterwards = KINDS[what](group, chance)
    answers: list[Answer | BaseException] = []
    if what == WITH_CONTROLLER:
        _lose_both(group, operation, version, chance)
        answers.append(group.command("clear", deadline_s=3.0))  # the next caller is answered
    else:
        asking = threading.Thread(target=_ask, args=(group, operation, version, answers), daemon=True)
        asking.start()
        asking.join()
    afterwards()
    if not answers or isinstance(answers[0], BaseException):
        raise HangError(f"{operation} had no answer: {answers}")
    answer = answers[0]
    result.said = f"{operation}: {answer.said[:300]}"
    result.error = type(answer.error).__name__ if answer.error is not None else ""
    damaged = group.damaged
    result.outcome = "by itself" if _comes_back(group, result) else "restarted"
    if result.outcome == "restarted":
        result.require(damaged, f"it did not come back: {_why(group)}")
        result.leftovers += group.stop()
        group.start()
    finish(group, result)
    if group.damaged:  # what was flipped may strike the process that attaches next
        result.leftovers += group.stop()


def _lose_both(group: GroupUnderFault, operation: str, version: int | None, chance: random.Random) -> None:
    """Kill a controller at one of its words, and a rank with it."""
    fault = Fault("controller", chance.choice(POINTS[operation]), Act.KILL)
    group.arm(fault)
    with other_controller(group, operation, version):
        group.await_fired(fault, HANG_S)
        deaths_midway.send([chance.choice(group.supervisor.pids())], signal.SIGKILL)


def _ask(
    group: GroupUnderFault, operation: str, version: int | None, answers: list[Answer | BaseException]
) -> None:
    try:
        answers.append(group.command(operation, version, deadline_s=3.0))
    except BaseException as error:  # noqa: BLE001 - a thread has no caller to tell
        answers.append(error)


def _comes_back(group: GroupUnderFault, result: Result) -> bool:
    """Whether the group is whole again by itself, and takes an update; a death may be seen late."""
    try:
        return any(_is_back(group, result) for _ in range(_ATTEMPTS))
    except (HangError, WsmError) as error:
        result.said += f"; {error}"
        return False


def _is_back(group: GroupUnderFault, result: Result) -> bool:
    group.until(group.is_whole, "the group is whole again", _SELF_S if group.damaged else _WHOLE_S)
    if group.status().state not in ("NORMAL", "CLEARED"):
        group.command("clear")
    version = group.publish()
    answer = group.command("update", version)
    if answer.receipt is None:
        result.said += f"; {answer.said[:300]}"
        return False
    account(result, *group.await_service(version))
    return True


def _why(group: GroupUnderFault) -> str:
    try:
        group.is_whole()
        return f"{group.status().sentence()}; told: {[said for _, said in group.told[-4:]]}"
    except WsmError as error:
        return f"{type(error).__name__}: {error}"
