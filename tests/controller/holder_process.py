"""A process that holds a decision: python holder_process.py GROUP DIRECTORY HOW LEASE POINT.

HOW is `hot`, `in place`, `lease` for a decision that no process holds, or `outside` for a relay of one that
is made outside, which keeps the role until it hears of it. At POINT the process kills itself,
as `controller_process.py` does; POINT `obeys` says `prepared`, reads one line, `commit` or `abort`, and says
how that ended. HOW as NAME@DIRECTORY is a second group: the process prepares both, commits the first one, and
kills itself.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import closing

import controller_process

import wsm
from wsm.command import CommandArguments
from wsm.controller.group_view import GroupView
from wsm.errors import WsmError
from wsm.signals.segment import Segment
from wsm.states.decide import all_prepared, next_command
from wsm.states.vocabulary import WeightState
from wsm.states.words import Decider, Operation


def say(event: str, **facts: object) -> None:
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()


def relay(name: str, directory: str) -> None:
    """Open a command that is decided outside, and keep the role until the decision is there: for ever."""
    with (
        closing(Segment.attach(name, directory=directory)) as segment,
        closing(GroupView(segment)) as group,
        group.role.acquire(5),
    ):
        view = group.view()
        command = next_command(view, Operation.HOT_UPDATE, Decider.OUTSIDE)
        asked = CommandArguments("two groups", "2", before=WeightState.NORMAL, deadline_s=0.1)
        group.open(view, command, asked)
        while not all_prepared(group.view()):
            time.sleep(0.001)
        say("prepared")
        sys.stdin.readline()


def main() -> None:
    name, directory, how, lease, point = sys.argv[1:]
    if how == "outside":
        relay(name, directory)
        return
    if "@" in how:
        groups = [(name, directory), how.split("@")]
        decisions = [
            wsm.Controller(each, directory=place).prepare(2, lease_s=float(lease)) for each, place in groups
        ]
        decisions[0].commit()
        os.kill(os.getpid(), signal.SIGKILL)
    controller_process.die_at(point)
    with wsm.Controller(name, directory=directory) as controller:
        if how == "lease":
            receipt = controller.begin_lease(2, lease_s=float(lease), request_id="held").result()
            say("prepared", outcome=receipt.outcome.value)
            return
        prepared = controller.prepare(2, hot=how == "hot", lease_s=float(lease), request_id="held")
        say("prepared", bytes=prepared.receipt.staged_bytes)
        try:
            order = "commit" if point != "obeys" else sys.stdin.readline().strip()
            receipt = prepared.commit() if order == "commit" else prepared.abort()
        except WsmError as error:
            say("failed", code=error.code)
        else:
            say("ended", outcome=receipt.outcome.value, version=receipt.version)


if __name__ == "__main__":
    main()
