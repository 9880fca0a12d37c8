"""One idle rank that stays inside its load as long as a file says so: to be killed or stopped there."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.rank_process import run_idle, tiny_load, tiny_runner
from wsm import Deadlines, Worker, WsmConfig
from wsm.actions.base import ActionContext
from wsm.actions.names import LOAD_WEIGHTS
from wsm.strategies.tensor import WeightTarget

_LOOK_S = 0.001


def hold_file(directory: Path, rank: int) -> Path:
    """Return the file that holds a rank in its load while it exists."""
    return directory / f"hold{rank}"


def reached_file(directory: Path, rank: int) -> Path:
    """Return the file that a rank makes when it is held."""
    return directory / f"held{rank}"


def main() -> None:
    """Run one rank: NAME RANK RANKS DEADLINE DIRECTORY FOLLOW; DEADLINE of its load, in seconds."""
    name, rank_text, ranks_text, deadline, directory, follow = sys.argv[1:7]
    rank, folder = int(rank_text), Path(directory)
    config = WsmConfig(
        name=name,
        ranks=int(ranks_text),
        journal_directory=directory,
        follow=follow == "follow",
        deadlines=Deadlines(action_s={LOAD_WEIGHTS: float(deadline)}),
    )

    def load(context: ActionContext, target: WeightTarget) -> Mapping[str, Any]:
        if hold_file(folder, rank).exists():
            reached_file(folder, rank).touch()
        while hold_file(folder, rank).exists():
            time.sleep(_LOOK_S)
        return tiny_load(context, target)

    run_idle(Worker(config, tiny_runner(), rank=rank, load=load))


if __name__ == "__main__":
    main()
