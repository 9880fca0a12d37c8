"""The real worker's shell does what the explorer's miniature of it does, on random ways."""

from __future__ import annotations

from pathlib import Path

import pytest
from mirrored_group import LACKS, MirroredGroup

from explorer.scope import Scope
from wsm.states.words import StatusCode, StatusWord, StepKind, StepWord

#: How many random ways are gone within each bounds.
WAYS = 12


@pytest.mark.parametrize(
    "bounds",
    [
        "commands=3 steps=3",
        "commands=3 steps=3 failures=2 give_ups=1",
        "commands=2 steps=2 rank_crashes=2 controller_crashes=1",
        "commands=3 steps=3 broken_steps=1 failures=1 rank_crashes=1",
        "commands=3 steps=3 broken_steps=1 failures=1 give_ups=1",
        "ranks=3 commands=3 steps=3 failures=2 give_ups=1 rank_crashes=1",
    ],
)
def test_a_worker_that_is_led_along_an_explored_way_remembers_and_writes_the_same(
    bounds: str, tmp_path: Path
) -> None:
    scope = Scope.from_text(f"{bounds} operations=clear,update,hot_update starts=empty symmetric=False")
    for seed in range(WAYS):
        group = MirroredGroup(tmp_path, scope, seed)
        try:
            group.wander(250)
        finally:
            group.close()


@pytest.mark.parametrize(
    "bounds",
    [
        "commands=3 steps=5 failures=2 give_ups=1",
        "commands=3 steps=5 broken_steps=2 rank_crashes=1",
        "commands=4 steps=5 failures=1 rank_crashes=1 controller_crashes=1",
    ],
)
def test_so_does_a_worker_that_serves_and_is_updated_hot(bounds: str, tmp_path: Path) -> None:
    scope = Scope.from_text(f"{bounds} operations=hot_update,update starts=empty symmetric=False")
    flips = 0
    for seed in range(WAYS):
        group = MirroredGroup(tmp_path, scope, seed)
        try:
            group.boot()
            group.wander(250)
            flips += sum(move.endswith("decides HOT_COMMIT") for move in group.trail)
        finally:
            group.close()
    assert flips > 1


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


def test_a_rank_whose_flip_broke_holds_its_promise_and_serves_nothing(tmp_path: Path) -> None:
    """PREPARED stands, since the group has decided; BROKEN says that only a new epoch leads out."""
    bounds = "operations=hot_update,update commands=2 broken_steps=1 starts=empty symmetric=False"
    group = MirroredGroup(tmp_path, Scope.from_text(bounds), 0)
    try:
        group.boot()
        for who, what in (
            (-1, "opens HOT_UPDATE"),
            (0, "begins"),
            (1, "begins"),
            (0, "stages the new weights"),
            (1, "stages the new weights"),
            (-1, "decides HOT_COMMIT"),
            (0, "is draining"),
            (1, "is draining"),
            (0, "breaks in the flip"),
        ):
            group.lead(who, what)
        words, layout = group.segment.words, group.segment.layout
        assert StatusWord.unpack(words[layout.status[0]]).code is StatusCode.PREPARED
        assert StepWord.unpack(words[layout.step[0]]).kind is StepKind.BROKEN
    finally:
        group.close()
