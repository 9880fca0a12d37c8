"""A process that holds a decision: python holder_process.py GROUP DIRECTORY HOW LEASE POINT.

HOW is `hot`, `in place`, or `lease` for a decision that no process holds. At POINT the process kills itself,
as `controller_process.py` does; POINT `obeys` says `prepared`, reads one line, `commit` or `abort`, and says
how that ended. HOW as NAME@DIRECTORY is a second group: the process prepares both, commits the first one, and
kills itself.
"""

from __future__ import annotations

import json
import os
import signal
import sys

import controller_process

import wsm
from wsm.errors import WsmError


def say(event: str, **facts: object) -> None:
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()


def main() -> None:
    name, directory, how, lease, point = sys.argv[1:]
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
