"""The real worker's shell does what the explorer's miniature of it does, on random ways through explored groups."""

from __future__ import annotations

from pathlib import Path

import pytest
from mirrored_group import MirroredGroup

from wsm.exploration.scope import Scope


@pytest.mark.parametrize(
    "bounds",
    [
        "commands=3 steps=3",
        "commands=3 steps=3 failures=2 give_ups=1",
        "commands=2 steps=2 rank_crashes=2 controller_crashes=1",
        "commands=3 steps=3 broken_steps=1 failures=1 rank_crashes=1",
        "ranks=3 commands=3 steps=3 failures=2 give_ups=1 rank_crashes=1",
    ],
)
def test_a_worker_that_is_led_along_an_explored_way_remembers_and_writes_the_same(
    bounds: str, tmp_path: Path
) -> None:
    scope = Scope.from_text(f"{bounds} operations=clear,update starts=empty symmetric=False")
    for seed in range(40):
        group = MirroredGroup(tmp_path, scope, seed)
        try:
            group.wander(250)
        finally:
            group.close()
