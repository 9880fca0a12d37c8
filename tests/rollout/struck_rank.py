"""A rank of a rollout group that a test can make fail: ``python -m struck_rank`` instead of its own module.

``STRUCK_RANKS`` names a directory; a file ``rankR.raise`` in it makes the next step of rank R raise,
``rankR.exit`` makes each new process of rank R end before it joins, and while there is ``rankR.keep`` it
gives no weights back.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from examples.rollout import worker_process
from examples.rollout.runner import RolloutRunner
from wsm.actions.backends.paddle_weights import PaddleWeights


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

    release = PaddleWeights.release

    def kept(weights: PaddleWeights) -> int:
        if (orders / f"rank{rank}.keep").exists():
            raise StruckError(f"the test wants rank {rank} to keep its weights")
        return release(weights)

    RolloutRunner.execute = struck
    PaddleWeights.release = kept
    worker_process.main(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
