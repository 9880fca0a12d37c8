"""Plays cases in which the owner of a group dies or stands still, while a command or a recovery is under way.

What must hold: every caller has an answer; the ranks die with their owner, and the next owner of that name
takes the segment over and serves; an owner that only stood still recovers the group when it goes on. Nothing
is left behind by the last one's end.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import psutil

from campaign.asking import HangError, ask
from campaign.case import Case
from campaign.deaths_midway import send
from campaign.environment import victims_environment
from campaign.group import GroupUnderFault
from campaign.operations import COMMANDS, operation_of
from campaign.rank_faults import account
from campaign.result import Result
from wsm import Controller
from wsm.signals.layout import segment_path

SEEDS = 4
_KINDS = ("kill", "kill-after-rank", "stop", "stop-and-kill-rank")
_START_S = 120.0


def cases(kind: str, ranks: int) -> list[Case]:
    """Name the cases."""
    return [Case(kind, ranks, "supervisor", f"{what}:{seed}") for what in _KINDS for seed in range(SEEDS)]


def play(case: Case, group: GroupUnderFault, result: Result) -> None:
    """Play one case; `group` is its own, and nobody has started it."""
    what, _, _ = case.what.partition(":")
    chance = random.Random(str(case))  # noqa: S311 - a case must be the same every time
    group.publish()
    with contextlib.ExitStack() as ending:
        ending.callback(group.__exit__, None, None, None)
        owner, pids = ending.enter_context(owned_group(group))
        operation = chance.choice([name for name in COMMANDS if name != "update"])
        version = group.publish() if operation_of(operation).brings_weights else None
        with Controller(group.config.group.name) as controller:
            striker = threading.Timer(chance.uniform(0.0, 0.1), _strike, (what, owner.pid, pids[1]))
            striker.start()
            answer = ask(controller, operation, version, deadline_s=5.0)
            result.said, result.error = answer.said[:300], type(answer.error).__name__
            striker.join()
            if what.startswith("stop"):
                send([owner.pid], signal.SIGCONT)
                result.outcome = "recovered" if serves_again(controller, group) else "hang"
        if what.startswith("kill"):
            owner = ending.enter_context(next_owner(group, owner, pids, result))
        require_good_end(group, owner, result)
        result.require(result.outcome != "hang", "the group did not come back")
        result.require(not segment_path(group.config.group.name).exists(), "the segment was left behind")
        result.leftovers += group.stop()


def _strike(what: str, owner: int, rank: int) -> None:
    if what in ("kill-after-rank", "stop-and-kill-rank"):
        if what == "stop-and-kill-rank":
            send([owner], signal.SIGSTOP)
        send([rank], signal.SIGKILL)
        time.sleep(0.05)  # a moment into the recovery
    send([owner], signal.SIGKILL if what.startswith("kill") else signal.SIGSTOP)


def serves_again(controller: Controller, group: GroupUnderFault) -> bool:
    """Ask for updates until one is done; a recovery refuses some of them before."""
    version, deadline = group.publish(), time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if controller.status().state not in ("NORMAL", "CLEARED"):
            ask(controller, "clear")
        answer = ask(controller, "update", version)
        if controller.status().hold is not None:
            ask(controller, "release")
        if answer.receipt is not None and controller.status().serving:
            return True
        time.sleep(0.05)  # until a process has taken the role, or given it back
    return False


@contextlib.contextmanager
def owned_group(group: GroupUnderFault) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Start an owner in a process of its own; return it and the processes of its ranks."""
    process = subprocess.Popen(  # noqa: S603 - our own module under our own interpreter
        [
            *(sys.executable, "-m", "campaign.supervisor_process"),
            *(json.dumps(group.config.as_mapping()), group.rank_module),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=victims_environment(group.directory),
    )
    assert process.stdout is not None  # noqa: S101 - it was asked for
    try:
        line = process.stdout.readline()
        if not line.startswith("ready "):
            raise HangError(f"the owner did not start: {process.communicate()[1][-800:]}")
        yield process, json.loads(line.removeprefix("ready "))
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def next_owner(
    group: GroupUnderFault, killed: subprocess.Popen[str], pids: list[int], result: Result
) -> Iterator[subprocess.Popen[str]]:
    """Judge what a killed owner and its ranks left, and start the next one, whose group takes an update."""
    killed.wait()
    _await_ends(pids)
    account(result, *group.audit())
    group.begin_audit()  # the next owner numbers its epochs anew
    with owned_group(group) as (owner, _):
        result.outcome = "started again"
        with Controller(group.config.group.name) as controller:
            result.require(serves_again(controller, group), "the next owner's group takes no update")
        yield owner


def require_good_end(group: GroupUnderFault, owner: subprocess.Popen[str], result: Result) -> None:
    """End the owner, and judge how it ended and every step of its group."""
    _, said = owner.communicate()
    result.require(owner.returncode == 0, f"the owner ended with {owner.returncode}: {said[-500:]}")
    account(result, *group.audit())


def _runs(pid: int) -> bool:
    """An orphan that has ended stays a zombie where a container's first process reaps none."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _await_ends(pids: list[int]) -> None:
    """Wait until processes that are not our own have ended, as their owner did."""
    deadline = time.monotonic() + _START_S
    while any(_runs(pid) for pid in pids):
        if time.monotonic() > deadline:
            raise HangError(f"of {pids}, some outlived their owner")
        time.sleep(0.01)  # the kernel ends them; nothing tells of processes that are not our own
