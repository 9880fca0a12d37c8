"""The real worker's shell does what the explorer's miniature of it does, on random ways."""

from __future__ import annotations

from pathlib import Path

import pytest
from mirrored_group import LACKS, MirroredGroup

from wsm.exploration.scope import Scope
from wsm.signals.word import StatusCode, StatusWord


@pytest.mark.parametrize(
    "bounds",
    [
        "commands=3 steps=3",
        "commands=3 steps=3 failures=2 give_ups=1",
        "commands=2 steps=2 rank_crashes=2 controller_crashes=1",
        "commands=3 steps=3 broken_steps=1 failures=1 rank_crashes=1",
        "ranks=3 commands=3 steps=3 failures=2 give_ups=1 rank_crashes=1",
        "commands=4 steps=6 failures=1 give_ups=1 rank_crashes=1",
    ],
)
def test_a_worker_that_is_led_along_an_explored_way_remembers_and_writes_the_same(
    bounds: str, tmp_path: Path
) -> None:
    scope = Scope.from_text(f"{bounds} operations=clear,update,hot_update starts=empty symmetric=False")
    for seed in range(40):
        group = MirroredGroup(tmp_path, scope, seed)
        try:
            group.wander(250)
        finally:
            group.close()


def test_workers_that_update_hot_go_the_explored_ways_to_the_flip(tmp_path: Path) -> None:
    scope = Scope.from_text(
        "operations=update,hot_update commands=4 steps=8 failures=1 give_ups=1 starts=empty symmetric=False"
    )
    flips = 0
    for seed in range(60):
        group = MirroredGroup(tmp_path, scope, seed)
        try:
            group.boot()
            group.wander(150)
            flips += sum(move.endswith("decides HOT_COMMIT") for move in group.trail)
        finally:
            group.close()
    assert flips > 20


def test_a_rank_that_lacks_what_a_collective_action_needs_does_not_vote_for_it(tmp_path: Path) -> None:
    """Whoever has voted must enter: what fails after the vote leaves the others alone inside."""
    scope = Scope.from_text("operations=update starts=empty symmetric=False failures=1")
    group = MirroredGroup(tmp_path, scope, seed=0)
    try:
        for who, what in (
            (0, "is started anew"),
            (1, "is started anew"),
            (-1, "opens UPDATE"),
            (0, "begins"),
            (1, "begins"),
            (0, "has drained"),
            (1, "has drained"),
            (0, LACKS),
        ):
            group.lead(who, what)
        words, layout = group.segment.words, group.segment.layout
        status = StatusWord.unpack(words[layout.status[0]])
        assert status.code is StatusCode.FAILED
        assert status.ready == 0
    finally:
        group.close()
