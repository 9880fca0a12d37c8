"""A rank of a rollout group that a test can make fail: ``python -m struck_rank`` instead of its own module.

``STRUCK_RANKS`` names a directory; a file ``rankR.raise`` in it makes the next step of rank R raise, and
``rankR.exit`` makes each new process of rank R end before it joins.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from wsm.rollout import worker_process
from wsm.rollout.runner import RolloutRunner


class StruckError(Exception):
    """The test wants it."""


def main(arguments: list[str]) -> None:
    orders, rank = Path(os.environ["STRUCK_RANKS"]), arguments[1]
    if (orders / f"rank{rank}.exit").exists():
        sys.exit(f"the test wants rank {rank} to end")
    execute = RolloutRunner.execute

    def struck(runner: RolloutRunner, permit) -> int:
        order = orders / f"rank{rank}.raise"
        if order.exists():
            order.unlink()
            raise StruckError(f"the test wants a step of rank {rank} to raise")
        return execute(runner, permit)

    RolloutRunner.execute = struck
    worker_process.main(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
