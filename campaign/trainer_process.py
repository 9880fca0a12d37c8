"""A trainer that obeys orders: ``python -m campaign.trainer_process DIRECTORY VERSION RANKS``.

It passes the point ``call`` before every call that changes the file system, and ``torn`` with half of a write
done. What it publishes are the weights whose seed is the version's number.
"""

from __future__ import annotations

import os
import sys
from functools import wraps
from pathlib import Path
from typing import Any

from campaign.played_config import MODEL
from campaign.points import Trap, victim_trap
from examples.rollout.model.shape import ModelShape
from examples.rollout.model.sharding import initial_state, shard
from wsm.strategies import publish_snapshot

_CALLS = ("open", "write", "fsync", "replace", "rename", "mkdir", "unlink", "rmdir", "link")


def main() -> None:
    """Publish one version."""
    directory, version, ranks = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    shape = ModelShape(**MODEL)
    full = initial_state(shape, version)
    shards = {rank: shard(full, shape, rank, ranks) for rank in range(ranks)}
    _trap_calls(victim_trap("trainer"))
    publish_snapshot(directory, version, shards)


def _trap_calls(trap: Trap) -> None:
    for name in _CALLS:
        setattr(os, name, _trapped(getattr(os, name), trap, torn=name == "write"))


def _trapped(call: Any, trap: Trap, *, torn: bool) -> Any:
    busy = False

    @wraps(call)
    def trapped(*arguments: Any, **options: Any) -> Any:
        nonlocal busy
        if busy:  # the trap's own files
            return call(*arguments, **options)
        busy = True
        try:
            trap.passes("call")
            if torn and trap.is_next("torn"):
                call(arguments[0], memoryview(arguments[1])[: len(arguments[1]) // 2])
                trap.passes("torn")
            elif torn:
                trap.passes("torn")
        finally:
            busy = False
        return call(*arguments, **options)

    return trapped


if __name__ == "__main__":
    main()
