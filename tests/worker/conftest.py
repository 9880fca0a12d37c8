"""What the tests of the worker's shell share: living groups that are ended afterwards."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# The rank program is both run as a process and read by tests, and pytest finds neither by itself.
sys.path.insert(0, str(Path(__file__).parent))
from living_group import LivingGroup
from lone_rank import LoneRank


@pytest.fixture
def make_group(tmp_path: Path) -> Iterator[Callable[..., LivingGroup]]:
    """`make_group(ranks, config={...}, load=...)`: a group that is not started yet."""
    groups: list[LivingGroup] = []

    def make(ranks: int = 2, **options) -> LivingGroup:
        directory = tmp_path / f"group{len(groups)}"
        directory.mkdir()
        groups.append(LivingGroup(directory, ranks, **options))
        return groups[-1]

    yield make
    for group in groups:
        group.close()


@pytest.fixture
def group(make_group: Callable[..., LivingGroup]) -> LivingGroup:
    """Two ranks, not started."""
    return make_group()


@pytest.fixture
def make_lone(tmp_path: Path) -> Iterator[Callable[..., LoneRank]]:
    """`make_lone(...)`: a group of one rank in this process."""
    made: list[LoneRank] = []

    def make(**options) -> LoneRank:
        made.append(LoneRank(tmp_path, **options))
        return made[-1]

    yield make
    for lone in made:
        lone.close()


@pytest.fixture
def lone(make_lone: Callable[..., LoneRank]) -> LoneRank:
    """A rank that serves version 1."""
    rank = make_lone()
    rank.update(1)
    return rank
