"""One rank of a measured group: a real worker around an engine with next to nothing to do.

``idle`` ranks wait for a command as a loop without work does. ``serving`` ranks step without pause, in
lock-step with each other, as the collectives of a model would hold them; a step is a wait of fixed length,
as for a device. A ``timed`` rank 0 times its own turns instead, for :mod:`bench.serving`.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.environment import parent_lives
from wsm import HOLD, JOIN, Worker, WsmConfig
from wsm.actions.base import ActionContext
from wsm.actions.measuring import resident_digest
from wsm.strategies.tensor import TensorSpec, WeightTarget
from wsm.testing import InMemoryRunner

#: Length of a serving rank's step.
STEP_S = 0.001
_IDLE_WAIT_S = 0.1
_LINE = 8  # words of 8 bytes: one cache line per rank

#: Where a timed rank 0 leaves its samples, in the group's directory.
RESULT_FILE = "turns.json"
_BATCHES = 41
_ITERATIONS = 20_000


class LockStep:
    """Holds ranks in the same step, as a collective in it would; a file of counters that they share.

    Parameters
    ----------
    path : Path
        The file.
    rank, ranks : int
        Whose end this is, and of how many.
    look_s : float
        Seconds between two looks at the others, which leave other threads of this process their turn, as a
        collective does; 0 keeps the interpreter's lock, for ranks of one thread.
    """

    def __init__(self, path: Path, rank: int, ranks: int, *, look_s: float = 0.0) -> None:
        self._look_s = look_s
        with path.open("r+b") as file:
            self._counters = memoryview(mmap.mmap(file.fileno(), ranks * _LINE * 8)).cast("Q")
        self._own = rank * _LINE
        self._all = range(0, ranks * _LINE, _LINE)

    @staticmethod
    def create(path: Path, ranks: int) -> None:
        """Write counters of zero."""
        path.write_bytes(bytes(ranks * _LINE * 8))

    def meet(self) -> None:
        """Wait until every rank has come as often as this one."""
        self._counters[self._own] += 1
        mine = self._counters[self._own]
        while any(self._counters[index] < mine for index in self._all):
            time.sleep(self._look_s) if self._look_s else os.sched_yield()


def tiny_runner() -> InMemoryRunner:
    """Return an engine of one tensor of 64 bytes: every action runs, and none has work worth measuring."""
    return InMemoryRunner([TensorSpec("weight", "U8", (64,))])


def tiny_load(context: ActionContext, target: WeightTarget) -> Mapping[str, Any]:
    """Fill the tensor with the version's lowest byte."""
    version = int(context.version or 0)
    target.writable("weight")[:] = bytes([version & 0xFF]) * 64
    return {
        "version": version,
        "manifest_digest": f"{version:032x}",
        "manifest_scope": "group",
        "digest": resident_digest(target, lambda: None),
        "bytes": 64,
        "tensors": 1,
    }


def run_idle(worker: Worker) -> None:
    """Wait for commands, for ever: the process is killed when the measurement is over."""
    while parent_lives():
        turn = worker.poll()
        if turn is JOIN:
            with worker.step():
                pass
        elif turn is not HOLD:
            worker.wait(_IDLE_WAIT_S)


def run_serving(worker: Worker, lock_step: LockStep) -> None:
    """Step without pause, for ever."""
    while parent_lives():
        if worker.poll() is HOLD:
            continue
        with worker.step():
            lock_step.meet()
            time.sleep(STEP_S)


def run_timed(worker: Worker, rank: int, result: Path) -> None:
    """Come up with the group; then rank 0 times its turns, and the others stand still."""
    while worker.poll() is HOLD or worker.version is None:
        pass
    if rank == 0:
        samples = {"empty": time_batches(_empty_loop), "turn": time_batches(_turns_of(worker))}
        partial = result.with_suffix(".partial")
        partial.write_text(json.dumps(samples), encoding="utf-8")
        partial.replace(result)
    signal.pause()


def time_batches(loop: Callable[[int], None]) -> list[float]:
    """Return nanoseconds per iteration, one sample per batch."""
    samples = []
    for _ in range(_BATCHES):
        began = time.perf_counter_ns()
        loop(_ITERATIONS)
        samples.append((time.perf_counter_ns() - began) / _ITERATIONS)
    return samples


def _empty_loop(iterations: int) -> None:
    for _ in range(iterations):
        pass


def _turns_of(worker: Worker) -> Callable[[int], None]:
    """Return the loop of the design, without work in its step."""
    poll, step = worker.poll, worker.step

    def turns(iterations: int) -> None:
        for _ in range(iterations):
            if poll() is HOLD:
                raise SystemExit("a command arrived while turns were timed")
            with step():
                pass

    return turns


def main() -> None:
    """Run one rank: NAME RANK RANKS MODE DIRECTORY FOLLOW."""
    name, rank_text, ranks_text, mode, directory, follow = sys.argv[1:7]
    rank, ranks = int(rank_text), int(ranks_text)
    config = WsmConfig(name=name, ranks=ranks, journal_directory=directory, follow=follow == "follow")
    worker = Worker(config, tiny_runner(), rank=rank, load=tiny_load)
    if mode == "idle":
        run_idle(worker)
    elif mode == "serving":
        run_serving(worker, LockStep(Path(directory) / "lock_step", rank, ranks))
    else:
        run_timed(worker, rank, Path(directory) / RESULT_FILE)


if __name__ == "__main__":
    main()
