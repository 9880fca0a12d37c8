"""Lets the tests of explanations share their situations, and living groups of the worker's tests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "worker"))
from living_group import LivingGroup


@pytest.fixture
def make_group(tmp_path: Path) -> Iterator[Callable[..., LivingGroup]]:
    """`make_group(ranks, config={...})`: a group that is not started yet."""
    groups: list[LivingGroup] = []

    def make(ranks: int = 2, **options) -> LivingGroup:
        directory = tmp_path / f"group{len(groups)}"
        directory.mkdir()
        groups.append(LivingGroup(directory, ranks, **options))
        return groups[-1]

    yield make
    for group in groups:
        group.close()
