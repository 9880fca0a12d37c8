"""One member of real Gloo groups: ``gloo_member.py SCENARIO RANK SIZE DIRECTORY``; prints JSON.

A program of its own, because a process can be one rank only and a hung rank must be one that a test
can kill.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
from pathlib import Path
from typing import Any

import paddle
from paddle import distributed

from wsm.actions._groups import RESTART_ORDER, SHUT_DOWN_ORDER, RestartGroup, ShutDownGroup
from wsm.actions.backends.paddle_groups import PaddleGlooGroups
from wsm.actions.backends.rendezvous import FileRendezvous
from wsm.actions.base import ActionContext
from wsm.actions.surfaces import GroupKind
from wsm.errors import GroupError, RefusedError, WsmError


def total(groups: PaddleGlooGroups, kind: GroupKind, rank: int) -> float:
    """All-reduce ``rank + 1`` over one group."""
    value = paddle.to_tensor([rank + 1.0])
    distributed.all_reduce(value, group=groups.group(kind))
    return value.item()


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class _Runner:
    """Only what the actions on process groups look at."""

    def __init__(self, groups: PaddleGlooGroups) -> None:
        self.groups = groups


def rounds(groups: PaddleGlooGroups, rank: int) -> dict[str, Any]:
    """Restart and shut down all kinds through the actions, again and again."""
    totals = []
    descriptors = []
    for sequence in range(1, 6):
        context = ActionContext(runner=_Runner(groups), rank=rank, world_size=0, epoch=1, sequence=sequence)
        for kind in RESTART_ORDER:
            action = RestartGroup(kind)
            action.run(context)
            action.probe(context)
        totals.append([total(groups, kind, rank) for kind in RESTART_ORDER])
        for kind in SHUT_DOWN_ORDER:
            action = ShutDownGroup(kind)
            action.run(context)
            action.probe(context)
        descriptors.append(open_descriptors())
    growth = [after - before for before, after in itertools.pairwise(descriptors[1:])]
    return {"totals": totals, "descriptors_per_round": max(growth)}


def subset(groups: PaddleGlooGroups, rank: int) -> dict[str, Any]:
    """Shut one kind down while the others go on, and bring it back under them."""
    for kind in RESTART_ORDER:
        groups.restart(kind, incarnation=f"{kind.value}-first")
    found = []
    for index in range(3):
        groups.barrier(GroupKind.TP)
        groups.shut_down(GroupKind.TP)
        found.append([groups.alive(kind) for kind in RESTART_ORDER])
        found.append([total(groups, kind, rank) for kind in (GroupKind.WORLD, GroupKind.EP)])
        groups.restart(GroupKind.TP, incarnation=f"tp-again{index}")
        found.append([total(groups, kind, rank) for kind in RESTART_ORDER])
    return {"found": found}


def held(groups: PaddleGlooGroups, rank: int) -> dict[str, Any]:
    """Keep a group over its shutdown, and use one that is down."""
    groups.restart(GroupKind.TP, incarnation="tp-first")
    kept = [groups.group(GroupKind.TP)]
    groups.barrier(GroupKind.TP)
    errors = []
    try:
        groups.shut_down(GroupKind.TP)
    except GroupError as error:
        errors.append(list(error.holders))
    alive = groups.alive(GroupKind.TP)
    try:
        groups.barrier(GroupKind.TP)
    except RefusedError as error:
        errors.append(error.kind)
    kept.clear()
    groups.shut_down(GroupKind.TP)
    groups.restart(GroupKind.TP, incarnation="tp-second")
    return {"errors": errors, "alive": alive, "total": total(groups, GroupKind.TP, rank)}


def alone(groups: PaddleGlooGroups, rank: int) -> dict[str, Any]:
    """Try to create a group whose other member never comes."""
    try:
        groups.restart(GroupKind.TP, incarnation="tp-alone")
    except WsmError as error:
        return {"error": type(error).__name__, "message": str(error), "alive": groups.alive(GroupKind.TP)}
    return {"error": None}


def interrupted(groups: PaddleGlooGroups, rank: int) -> dict[str, Any]:
    """Wait in a collective for a member that never enters it, be called out of it, and meet again after."""
    groups.restart(GroupKind.TP, incarnation="tp-first")
    groups.restart(GroupKind.EP, incarnation="ep-first")
    found: dict[str, Any] = {"first": total(groups, GroupKind.TP, rank), "error": None}
    if rank == 0:
        out = threading.Event()

        def call_out() -> None:
            while not out.wait(0.01):
                found["interrupted"] = groups.interrupt() or found.get("interrupted", False)

        caller = threading.Thread(target=call_out)
        caller.start()
        try:
            while True:
                total(groups, GroupKind.TP, rank)
        except RuntimeError as error:
            found["error"] = type(error).__name__
        out.set()
        caller.join()
    else:
        # The connections to the member that was called out are gone: this one gets out of everything, too.
        try:
            total(groups, GroupKind.EP, rank)
        except RuntimeError as error:
            found["error"] = type(error).__name__
        found["interrupted"] = groups.interrupt()
    found["alive"] = [groups.alive(kind) for kind in (GroupKind.TP, GroupKind.EP)]
    groups.restart(GroupKind.TP, incarnation="tp-second")
    groups.restart(GroupKind.EP, incarnation="ep-second")
    found["again"] = [total(groups, kind, rank) for kind in (GroupKind.TP, GroupKind.EP)]
    return found


def creation(groups: PaddleGlooGroups, rank: int) -> dict[str, Any]:
    """Be called out of the creation of a group whose other member never comes."""
    done = threading.Event()

    def call_out() -> None:
        while not done.wait(0.01):
            groups.interrupt()

    caller = threading.Thread(target=call_out)
    caller.start()
    try:
        return alone(groups, rank)
    finally:
        done.set()
        caller.join()


def main() -> None:
    scenario, rank, size, directory = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    everyone = range(size)
    pair = range(rank // 2 * 2, min(rank // 2 * 2 + 2, size))
    groups = PaddleGlooGroups(
        rank,
        {GroupKind.WORLD: everyone, GroupKind.TP: pair, GroupKind.EP: everyone},
        FileRendezvous(directory),
        timeout_s=0.5 if scenario == "alone" else 60.0,
    )
    scenarios = {"rounds": rounds, "subset": subset, "held": held, "alone": alone}
    run = {**scenarios, "interrupted": interrupted, "creation": creation}[scenario]
    print(json.dumps(run(groups, rank)))  # noqa: T201 - the answer to the test that started this program


if __name__ == "__main__":
    main()
