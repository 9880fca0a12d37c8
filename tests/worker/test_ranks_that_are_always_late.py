"""A rank that finds its peers a step ahead whenever it looks does its part of a hot update all the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from lone_rank import SPECS

import wsm
from wsm import HOLD
from wsm.testing import InMemoryRunner, LocalGroup


@pytest.fixture
def joined() -> list[int]:
    """The ranks that had to join a step, in their order."""
    return []


@pytest.fixture
def pair(tmp_path: Path, joined: list[int]) -> Iterator[LocalGroup]:
    """Two ranks; the second one looks only once the first is in another step."""

    def go_on(_seconds: float) -> None:
        for rank, worker in enumerate(made.workers):
            turn = worker.poll()
            if turn is not HOLD:
                joined.extend([rank] * (turn is wsm.JOIN))
                with worker.step():
                    pass

    with LocalGroup(lambda _: InMemoryRunner(SPECS), tmp_path, meanwhile=go_on) as made:
        yield made


def test_a_hot_update_is_begun_and_staged_between_steps_that_are_all_joined(
    pair: LocalGroup, joined: list[int]
) -> None:
    pair.update(1)
    for version in range(2, 6):
        joined.clear()
        assert pair.update(version, hot=True).hot
        assert joined
        assert [rank.version for rank in pair.workers] == [str(version)] * 2


def test_so_is_an_update_in_place(pair: LocalGroup) -> None:
    for version in range(1, 4):
        assert pair.update(version).version == str(version)
