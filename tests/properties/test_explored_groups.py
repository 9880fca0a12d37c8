"""Groups of any size within bounds, led at random: what breaks shrinks to a dialogue for `tests/scenarios`.

The explorer tries every order of few events; here many events happen, in orders that Hypothesis chooses and
shrinks. What somebody has done is a signal in a bundle, so that the same comes again, too late or in another
epoch; words are read as they were; ranks and controllers die.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    multiple,
    rule,
)

from explorer import dialogue
from explorer.invariants import objection
from explorer.moves import Moves, WorldMove
from explorer.scope import Scope
from explorer.search import Violation
from explorer.world import first_worlds

sys.path.insert(0, str(Path(__file__).parent.parent / "exploration"))
from seeded_faults import FAULTS, seeded

#: What may happen in one run.
PLENTY = (
    "commands=5 steps=8 failures=2 give_ups=2 rank_crashes=2 controller_crashes=2 broken_steps=1 "
    "stale_reads=4"
)

SIZES = ("ranks=2", "ranks=3", "ranks=2 helpers=1", "ranks=2 fine=True", "ranks=4 long_plans=True")

#: More than any group needs to come to rest.
ENOUGH = 2_000


class RuleBrokenByChanceError(AssertionError):
    """A way breaks a rule; the message is a file for `tests/scenarios`."""


class Group(RuleBasedStateMachine):
    """One explored group, and everything that was done in it."""

    deeds = Bundle("deeds")

    def __init__(self) -> None:
        super().__init__()
        self.way: list[WorldMove] = []

    @initialize(size=st.sampled_from(SIZES), start=st.sampled_from(("serving", "cleared", "empty")))
    def begin(self, size: str, start: str) -> None:
        self.scope = Scope.from_text(f"{PLENTY} {size} starts={start}")
        self.moves = Moves(self.scope)
        (self.first,) = first_worlds(self.scope)
        self.world = self.first

    @rule(target=deeds, data=st.data())
    def somebody_moves(self, data: st.DataObject) -> object:
        possible = list(self.moves.of(self.world))
        if not possible:
            return multiple()
        move = data.draw(st.sampled_from(possible), "move")
        self.make(move)
        return move.actor, move.label

    @rule(deed=deeds)
    def somebody_does_the_same_again(self, deed: tuple[int, str]) -> None:
        for move in self.moves.of(self.world):
            if (move.actor, move.label) == deed:
                self.make(move)
                return

    @rule(turns=st.integers(1, 12))
    def nothing_comes_from_outside(self, turns: int) -> None:
        for _ in range(turns):
            move = next((move for move in self.moves.of(self.world) if move.by_itself), None)
            if move is not None:
                self.make(move)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        for _ in range(ENOUGH):
            move = next((move for move in self.moves.of(self.world) if move.by_itself), None)
            if move is None:
                break
            self.make(move)
        else:
            self.fail("the group does not come to rest")
        wrong = objection(self.world, self.scope.ranks)
        if wrong:
            self.fail(wrong)

    def make(self, move: WorldMove) -> None:
        self.way.append(move)
        if move.world is None:
            self.fail(move.broken)
        else:
            self.world = move.world

    def fail(self, rule_broken: str) -> None:
        way = Violation(rule_broken, self.first, tuple(self.way))
        remarks = ["Found by chance; say what it is about."]
        raise RuleBrokenByChanceError(dialogue.as_text(way, self.scope, remarks))


TestGroups = pytest.mark.slow(Group.TestCase)
TestGroups.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_what_fails_is_a_dialogue_that_can_be_kept_and_held_again() -> None:
    fault = next(fault for fault in FAULTS if fault.name == "no_dummy")
    with seeded(fault):
        group = Group()
        group.begin(size="ranks=2", start="serving")
        for label in ("opens CLEAR 1", "begins", "begins", "has drained", "has work left"):
            group.make(next(move for move in group.moves.of(group.world) if move.label == label))
        with pytest.raises(RuleBrokenByChanceError) as found:
            group.teardown()
        told = dialogue.read(str(found.value))
        assert dialogue.replay(told).broken == told.broken == "rank 0 waits while parking for ever"
    assert not dialogue.replay(told).broken
