"""What the tests of the worker's shell share: living groups that are ended afterwards."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# The rank program is both run as a process and read by tests, and pytest finds neither by itself.
sys.path.insert(0, str(Path(__file__).parent))
from living_fixtures import group, make_group, make_lone
from lone_rank import LoneRank

__all__ = ["group", "make_group", "make_lone"]


@pytest.fixture
def lone(make_lone: Callable[..., LoneRank]) -> LoneRank:
    """A rank that serves version 1."""
    rank = make_lone()
    rank.update(1)
    return rank
