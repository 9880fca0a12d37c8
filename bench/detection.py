"""From the death of a rank, or its deadline, to the controller's error that names it; a command is under way.

Each sample is a group of its own, of which one rank is held inside its load. A killed one counts from the
signal; a stopped one from the deadline of the load, whose beginning the rank's journal tells: all processes
of a host share the monotonic clock.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from bench.group import measured_group
from bench.held_rank import hold_file, reached_file
from bench.measure import Distribution
from wsm import Controller, WsmError
from wsm.actions.names import LOAD_WEIGHTS
from wsm.journal.entry import ACTION_STARTED, read_ndjson

RANKS = 3

#: The rank that is killed or stopped.
VICTIM = 1

#: Deadline of the load that a stopped rank is in, in seconds.
DEADLINE_S = 0.3

_NEVER_S = 600.0
_PATIENCE_S = 30.0
_LOOK_S = 0.0005


def measure_deaths(samples: int) -> Distribution:
    """Return milliseconds from SIGKILL to the error that names the rank. Blocks."""
    return Distribution.of([_sample(signal.SIGKILL, _NEVER_S) for _ in range(samples)])


def measure_stops(samples: int) -> Distribution:
    """Return milliseconds from the deadline of a stopped rank's load to the error that names it. Blocks."""
    return Distribution.of([_sample(signal.SIGSTOP, DEADLINE_S) for _ in range(samples)])


def _sample(number: signal.Signals, deadline_s: float) -> float:
    name = f"bench-{os.getpid()}-{number.name.lower()}"
    with measured_group(name, RANKS, f"{deadline_s:g}", module="bench.held_rank") as (controller, directory):
        hold_file(directory, VICTIM).touch()
        pending = controller.begin_update(2, deadline_s=_NEVER_S, settle_s=_NEVER_S)
        _await(reached_file(directory, VICTIM))
        began_ns = time.monotonic_ns()
        os.kill(_pid(controller), number)
        try:
            pending.result(_PATIENCE_S)
        except WsmError as error:
            ended_ns = time.monotonic_ns()
            named = error.context.get("ranks", (error.context.get("rank"),))
            if named != (VICTIM,):
                raise
        else:
            raise AssertionError(f"rank {VICTIM} got {number.name}, and the update was committed")
        if number is signal.SIGSTOP:
            began_ns = _load_began_ns(directory) + round(deadline_s * 1e9)
        return (ended_ns - began_ns) / 1e6


def _pid(controller: Controller) -> int:
    pid = controller.status().ranks[VICTIM].pid
    if pid is None:
        raise AssertionError(f"rank {VICTIM} has no process")
    return pid


def _await(path: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path.name} did not come within {_PATIENCE_S:g} s")
        time.sleep(_LOOK_S)


def _load_began_ns(directory: Path) -> int:
    with (directory / f"rank{VICTIM}.ndjson").open(encoding="utf-8") as lines:
        began = [
            one.at_ns
            for one in read_ndjson(lines)
            if one.kind == ACTION_STARTED and one.facts["name"] == LOAD_WEIGHTS
        ]
    return began[-1]
