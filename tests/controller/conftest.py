"""What the tests of the controller share: living groups that are ended afterwards."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# The rank program is both run as a process and read by tests, and pytest finds neither by itself.
sys.path.insert(0, str(Path(__file__).parent.parent / "worker"))
from living_group import LivingGroup


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
