"""What the tests of tags share: lone ranks in this process, living groups of real processes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# The rank program is both run as a process and read by tests, and pytest finds neither by itself.
sys.path.insert(0, str(Path(__file__).parent.parent / "worker"))
from living_fixtures import make_group
from lone_rank import LoneRank

__all__ = ["make_group"]


@pytest.fixture
def make_lone(tmp_path: Path) -> Iterator[Callable[..., LoneRank]]:
    """`make_lone(...)`: real worker and controller of one rank in this process, not loaded."""
    with contextlib.ExitStack() as undo:

        def make(**options) -> LoneRank:
            directory = tmp_path / f"lone{len(list(tmp_path.glob('lone*')))}"
            directory.mkdir()
            lone = LoneRank(directory, **options)
            undo.callback(lone.close)
            return lone

        yield make
