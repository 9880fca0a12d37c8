"""A rank of a ``gloo`` group: the reference rollout rank, with traps in its journal, actions and steps."""

from __future__ import annotations

import sys
from functools import wraps
from typing import Any

from campaign.points import Trap, trap_rank, trap_writes
from wsm.actions.backends._paddle_staging import PaddleStaging
from wsm.rollout import worker_process
from wsm.rollout.model.parallel import Communicator


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
