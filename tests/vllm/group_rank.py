"""The one rank of a group that holds in plain memory what vLLM loads: ``python group_rank.py CONFIG MODEL``.

Says ``attached`` and runs a real worker's loop until standard input ends.
"""

from __future__ import annotations

import select
import sys
from pathlib import Path

from wsm import HOLD, Worker, load_config
from wsm.strategies.adopt.checkpoint import open_checkpoint
from wsm.testing import InMemoryRunner


def main(config_file: str, model: str) -> None:
    with open_checkpoint(model, [Path(model).parent]) as checkpoint:
        specs = [spec for part in checkpoint.parts for spec in part.content.specs()]
    waiting = select.poll()
    waiting.register(sys.stdin, select.POLLIN | select.POLLHUP)
    with Worker(load_config(config_file), InMemoryRunner(specs), rank=0) as worker:
        sys.stdout.write("attached\n")
        sys.stdout.flush()
        while not waiting.poll(0):
            if worker.poll() is HOLD:
                continue
            with worker.step():
                pass
            worker.wait(0.01)


if __name__ == "__main__":
    main(*sys.argv[1:])
