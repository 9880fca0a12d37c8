"""A fleet of real groups, each behind a ``wsm serve`` of its own, over one store."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.served_replica import ServedReplica

# Modules beside the tests, which pytest does not find by itself.
sys.path.insert(0, str(Path(__file__).parent))
from small_model import publish


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Versions 1 and 2."""
    place = tmp_path / "store"
    for version in (1, 2):
        publish(place, version)
    return place


@pytest.fixture
def make_fleet(tmp_path: Path, store: Path) -> Iterator[Callable[..., list[ServedReplica]]]:
    """`make_fleet(2, option, ...)`: replicas that hold nothing yet."""
    made: list[ServedReplica] = []

    def make(count: int = 2, *options: Any, **group: Any) -> list[ServedReplica]:
        for _ in range(count):
            made.append(ServedReplica(tmp_path / f"replica{len(made)}", store, *options, **group))
        return made[-count:]

    yield make
    for each in made:
        each.close()
