"""Fixtures of living groups and lone ranks, for tests of the worker and of all who command or explain it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from living_group import LivingGroup
from lone_rank import LoneRank


@pytest.fixture
def make_group(tmp_path: Path) -> Iterator[Callable[..., LivingGroup]]:
    """`make_group(ranks, config={...}, load=...)`: a group that is not started yet."""
    with contextlib.ExitStack() as undo:

        def make(ranks: int = 2, **options) -> LivingGroup:
            directory = tmp_path / f"group{len(list(tmp_path.glob('group*')))}"
            directory.mkdir(0o700)
            group = LivingGroup(directory, ranks, **options)
            undo.callback(group.close)
            return group

        yield make


@pytest.fixture
def group(make_group: Callable[..., LivingGroup]) -> LivingGroup:
    """Two ranks, not started."""
    return make_group()


@pytest.fixture
def make_lone(tmp_path: Path) -> Iterator[Callable[..., LoneRank]]:
    """`make_lone(...)`: real worker and controller of one rank in this process, not loaded."""
    with contextlib.ExitStack() as undo:

        def make(**options) -> LoneRank:
            lone = LoneRank(tmp_path, **options)
            undo.callback(lone.close)
            return lone

        yield make
