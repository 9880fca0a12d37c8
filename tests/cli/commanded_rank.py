"""One rank in a process of its own, with an engine in plain memory.

``python commanded_rank.py CONFIG RANK [FINISH]``

Says ``attached`` and runs a real worker's loop until standard input ends. With FINISH there is no room for a
second version, and a request always runs but for the time that this file is there.
"""

from __future__ import annotations

import select
import sys
from pathlib import Path

from small_model import SPECS

from wsm import HOLD, Worker, load_config
from wsm.testing import InMemoryRunner
from wsm.testing._in_memory import InMemoryMemory


class ScantMemory(InMemoryMemory):
    """A device of its own with a megabyte that is free."""

    shared_by_ranks = False

    def available_bytes(self) -> int:
        return 1_000_000


def main(config_file: str, rank: int, finish: str | None = None) -> None:
    runner = InMemoryRunner(SPECS)
    if finish is not None:
        runner.memory = ScantMemory(runner)
    runner.requests.submit(10**9)
    waiting = select.poll()
    waiting.register(sys.stdin, select.POLLIN | select.POLLHUP)
    with Worker(load_config(config_file), runner, rank=rank) as worker:
        sys.stdout.write("attached\n")
        sys.stdout.flush()
        while not waiting.poll(0):
            if worker.poll() is HOLD:
                continue
            with worker.step():
                runner.requests.advance()
            if finish is not None and Path(finish).exists():
                runner.requests.running = [1 for _ in runner.requests.running]
            elif not runner.requests.has_work():
                runner.requests.submit(10**9)
            worker.wait(0.01)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
