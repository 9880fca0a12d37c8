"""Every half state, command and tags, against a table in this test's own words.

The rows are what a rank holds; the columns what it is asked. A cell names what it holds afterwards, and what
the engine was told to do for that, in order: L load weights, l load them over others, W release weights,
K rebuild the KV cache, k release it, f empty it. `another` is an update to another version. `=` says that
nothing is done and the receipt says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from lone_rank import SPECS, LoneRank
from lone_rank import load as fill

import wsm
from tests.incident import incident
from wsm import Outcome, Tag
from wsm.journal.replay import replay
from wsm.testing import InMemoryRunner

TABLE = """
| held    | clear both | clear W   | clear K   | update both | update W | update K | another    | another W |
| ------- | ---------- | --------- | --------- | ----------- | -------- | -------- | ---------- | --------- |
| both    | nothing Wk | K Wf      | W k       | both =      | both =   | both =   | both lf    | both lf   |
| W       | nothing W  | nothing W | W =       | both K      | W =      | both K   | both lK    | W l       |
| K       | nothing k  | K =       | nothing k | both Lf     | both Lf  | K =      | both Lf    | both Lf   |
| nothing | nothing =  | nothing = | nothing = | both LK     | W L      | K K      | both LK    | W L       |
"""

W, K = frozenset({Tag.WEIGHTS}), frozenset({Tag.KV_CACHE})
TAGS = {"both": wsm.ALL_TAGS, "W": W, "K": K}
HELD = {"both": W | K, "W": W, "K": K, "nothing": frozenset()}


class Case(NamedTuple):
    held: str
    asked: str
    after: str
    done: str


def cases() -> Iterator[Case]:
    heading, _rule, *lines = (
        [cell.strip() for cell in line.strip("| ").split("|")] for line in TABLE.strip().splitlines()
    )
    for held, *row in lines:
        for asked, cell in zip(heading[1:], row, strict=True):
            yield Case(held, asked, *cell.split())


class WatchedRunner(InMemoryRunner):
    """Writes down what it is told."""

    def __init__(self) -> None:
        super().__init__(SPECS)
        self.done = ""
        for surface, name, letter in (
            (self.weights, "release", "W"),
            (self.kv_cache, "release", "k"),
            (self.kv_cache, "rebuild", "K"),
            (self.kv_cache, "forget", "f"),
        ):
            setattr(surface, name, self._watched(getattr(surface, name), letter))

    def _watched(self, work: Callable, letter: str) -> Callable:
        def watched(*arguments):
            self.done += letter
            return work(*arguments)

        return watched


@pytest.fixture
def rank(make_lone: Callable[..., LoneRank]) -> LoneRank:
    runner = WatchedRunner()

    def load(context, target):
        runner.done += "l" if any(runner.weights.held()) else "L"
        return fill(context, target)

    return make_lone(runner=runner, load=load)


def bring_to(rank: LoneRank, held: str) -> None:
    rank.update(1)
    if held != "both":
        rank.clear(tags=wsm.ALL_TAGS - HELD[held])
    rank.runner.done = ""


def ask(rank: LoneRank, asked: str) -> wsm.Receipt:
    what, _, tags = asked.partition(" ")
    if what == "clear":
        return rank.clear(tags=TAGS[tags])
    if what == "another":
        return rank.update(2, tags=TAGS[tags or "both"])
    return rank.update(None if tags == "K" else 1, tags=TAGS[tags])


def held_by(rank: LoneRank) -> frozenset[Tag]:
    return (W if any(rank.runner.weights.held()) else frozenset()) | (
        K if rank.runner.kv_cache.allocated_bytes() else frozenset()
    )


@incident("FastDeploy C2-8")
@pytest.mark.parametrize("case", list(cases()), ids=lambda case: f"{case.held}, {case.asked}")
def test_a_command_moves_what_it_names_and_is_not_there_and_nothing_else(rank: LoneRank, case: Case) -> None:
    bring_to(rank, case.held)
    receipt = ask(rank, case.asked)
    assert held_by(rank) == HELD[case.after]
    assert rank.runner.done == case.done.replace("=", "")
    assert set(receipt.missing) == {tag.value for tag in wsm.ALL_TAGS - HELD[case.after]}
    already = (Outcome.ALREADY_CLEARED, Outcome.ALREADY_SERVED, Outcome.ALREADY_HELD)
    assert (receipt.outcome in already) is (case.done == "=")
    assert receipt.loaded is bool({"l", "L"} & set(case.done))
    assert receipt.version == (None if Tag.WEIGHTS not in HELD[case.after] else rank.worker.version)
    status = rank.controller.status()
    assert status.serving is (case.after == "both")
    assert status.missing == wsm.ALL_TAGS - HELD[case.after]
    assert (rank.worker.poll() is wsm.SERVE) is (case.after == "both")
    assert rank.runner.requests.admitting is (case.after == "both")
    assert replay(rank.worker.journal).impossible is None


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: f"{case.held}, {case.asked}")
def test_a_command_that_is_repeated_finds_nothing_to_do(rank: LoneRank, case: Case) -> None:
    bring_to(rank, case.held)
    ask(rank, case.asked)
    rank.runner.done = ""
    receipt = ask(rank, case.asked)
    assert rank.runner.done == ""
    assert receipt.outcome.value.startswith("already")
    assert held_by(rank) == HELD[case.after]


@incident("vllm#45619")
@pytest.mark.parametrize("held", HELD)
def test_a_whole_update_serves_whatever_was_held(rank: LoneRank, held: str) -> None:
    bring_to(rank, held)
    receipt = rank.update(2)
    assert (receipt.outcome, receipt.missing, rank.worker.version) == (Outcome.UPDATED, (), "2")
    with rank.worker.step() as permit:
        assert permit.version == "2"


@pytest.mark.parametrize("held", HELD)
def test_a_whole_clear_gives_back_whatever_was_held(rank: LoneRank, held: str) -> None:
    """FastDeploy C2-8: with one half asleep already, the other one stayed."""
    bring_to(rank, held)
    receipt = rank.clear()
    assert held_by(rank) == frozenset()
    assert receipt.outcome is (Outcome.ALREADY_CLEARED if held == "nothing" else Outcome.CLEARED)


def test_weights_that_are_held_are_loaded_again_only_if_it_is_forced(rank: LoneRank) -> None:
    bring_to(rank, "W")
    assert rank.update(1, force=True).loaded
    assert rank.runner.done == "lK"


def test_an_update_that_names_no_version_wakes_what_is_missing(rank: LoneRank) -> None:
    bring_to(rank, "W")
    receipt = rank.update(None, tags=K)
    assert (receipt.outcome, receipt.version, receipt.loaded) == (Outcome.UPDATED, "1", False)
    assert "serves version 1" in receipt.sentence()
