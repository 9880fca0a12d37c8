"""Plays a case of faults at moments that chance chose: from outside, at random times, from a seed.

For kill points that no journal has a line for. The moments depend on the machine, so a seed repeats the
commands, the victims and the delays, and what they hit only roughly.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time

from campaign.case import Case
from campaign.fault import Act, Fault
from campaign.group import GroupUnderFault
from campaign.operations import operation_of
from campaign.rank_faults import STOPPED_DEADLINE_S, aftermath, finish, judge_answer, judge_group, prepare
from campaign.result import Result

SEEDS = 60
_ROUNDS = 3

#: A command takes about this long; faults strike within it, or a little later.
_LONGEST_DELAY_S = {"memory": 0.02, "cache": 0.02, "gloo": 0.12}


def cases(kind: str, ranks: int) -> list[Case]:
    """Name the cases."""
    return [Case(kind, ranks, "random", f"seed:{seed}") for seed in range(SEEDS)]


def play(case: Case, group: GroupUnderFault, result: Result) -> None:
    """Play one case."""
    chance = random.Random(str(case))  # noqa: S311 - a case must be the same every time
    for _ in range(_ROUNDS):
        _round(group, result, chance)
    finish(group, result)


def _round(group: GroupUnderFault, result: Result, chance: random.Random) -> None:
    operation = chance.choice(("clear", "update", "in_place", "hot"))
    number = chance.randrange(len(group.victims))
    act = chance.choice((Act.KILL, Act.KILL, Act.STOP, Act.FREEZE))
    delay_s = chance.uniform(0.0, _LONGEST_DELAY_S[group.kind])
    before = prepare(operation, group, result)
    version = group.publish() if operation_of(operation).brings_weights else None
    fault = Fault(group.victims[number], "random", act)
    group.orders.withdraw(fault.victim)  # who obeyed an earlier case's is another process
    mark = group.mark()
    pid = group.supervisor.pids()[number]
    striker = _Striker(pid, act, delay_s)
    striker.start()
    stands = act in (Act.STOP, Act.FREEZE)
    deadline_s = 4 * STOPPED_DEADLINE_S[group.kind] if stands else 20.0
    answer = group.command(operation, version, deadline_s=deadline_s)
    striker.join()
    if answer.error is not None and act is Act.KILL:
        result.detected_ms = (answer.at_ns - striker.at_ns) / 1e6
    where = f"{operation}, {act.value} of {fault.victim} after {delay_s * 1e3:.1f} ms"
    sound = len(result.problems)
    judge_answer(fault, answer, result, group)
    aftermath(fault, group, mark, result, pid)
    judge_group(operation, group, result, before=before, version=version)
    result.recovered_s = None
    result.problems[sound:] = [f"{where}: {problem}" for problem in result.problems[sound:]]


class _Striker(threading.Thread):
    """Sends the signal after a while, wherever its victim is then."""

    def __init__(self, pid: int, act: Act, delay_s: float) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self._signal = signal.SIGKILL if act is Act.KILL else signal.SIGSTOP
        self._delay_s = delay_s
        self.at_ns = 0

    def run(self) -> None:
        """Wait, note the time, strike."""
        time.sleep(self._delay_s)
        self.at_ns = time.monotonic_ns()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, self._signal)
