"""One rank in a process of its own, with an engine in plain memory: ``python commanded_rank.py CONFIG RANK``.

Says ``attached`` and runs a real worker's loop until standard input ends.
"""

from __future__ import annotations

import select
import sys

from small_model import SPECS

from wsm import HOLD, Worker, load_config
from wsm.testing import InMemoryRunner


def main(config_file: str, rank: int) -> None:
    runner = InMemoryRunner(SPECS)
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
            worker.wait(0.0005)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
