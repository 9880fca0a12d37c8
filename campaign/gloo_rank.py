"""A rank of a ``gloo`` group: the reference rollout rank, with traps in its journal, actions and steps."""

from __future__ import annotations

import sys
from functools import wraps
from typing import Any

from campaign.points import Trap, trap_rank, trap_writes
from examples.rollout import worker_process
from examples.rollout.model.parallel import Communicator
from wsm.actions.backends.paddle_weights import PaddleStaging


def main(arguments: list[str]) -> None:
    """Run one rank: RUN_DIRECTORY RANK SUPERVISOR_PID."""
    trap = trap_rank(int(arguments[1]))
    trap_writes(PaddleStaging, trap)
    for name in ("broadcast", "all_reduce"):
        setattr(Communicator, name, _trapped(getattr(Communicator, name), trap))
    worker_process.main(arguments)


def _trapped(collective: Any, trap: Trap) -> Any:
    """Pass the point ``step`` before a collective of a step, which the others are in, or will be."""

    @wraps(collective)
    def trapped(*arguments: Any, **options: Any) -> Any:
        trap.passes("step")
        return collective(*arguments, **options)

    return trapped


if __name__ == "__main__":
    main(sys.argv[1:])
