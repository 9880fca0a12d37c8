"""What the tests of incidents share: living groups of real rank processes, engine words, strict engines.

Two groups live for the whole session, because starting processes is what takes time here; whatever a
test breaks for good gets a group of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# Programs that run as processes and the classes that steer them are shared with the tests of the worker.
sys.path.insert(0, str(Path(__file__).parent.parent / "worker"))
sys.path.insert(0, str(Path(__file__).parent))
from living_fixtures import make_group, make_lone
from living_group import LivingGroup
from lone_rank import LoneRank
from served_group import ServedGroup

import wsm
from tests.strict_engine import StrictEngine

__all__ = ["make_group", "make_lone"]


def _served(directory: Path, config: dict) -> Iterator[ServedGroup]:
    group = LivingGroup(directory, 2, config=config, load=0.2)
    try:
        yield ServedGroup(group, group.boot())
    finally:
        group.close()


@pytest.fixture(scope="module")
def _shared_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGroup]:
    yield from _served(tmp_path_factory.mktemp("shared"), {})


@pytest.fixture(scope="module")
def _shared_group_with_communicators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGroup]:
    yield from _served(tmp_path_factory.mktemp("communicators"), {"shut_down_groups": True})


@pytest.fixture
def served(_shared_group: ServedGroup) -> Iterator[ServedGroup]:
    """Two ranks under load that serve a version; afterwards all is undone, and every step was pure."""
    _shared_group.bring_to_serve()
    yield _shared_group
    _shared_group.bring_to_serve()
    _shared_group.group.assert_steps_are_pure()


@pytest.fixture
def served_with_communicators(_shared_group_with_communicators: ServedGroup) -> Iterator[ServedGroup]:
    """As `served`, and a clear shuts the communicators down."""
    _shared_group_with_communicators.bring_to_serve()
    yield _shared_group_with_communicators
    _shared_group_with_communicators.bring_to_serve()
    _shared_group_with_communicators.group.assert_steps_are_pure()


@pytest.fixture
def engine() -> StrictEngine:
    """An engine with every surface, that refuses what would hang a real one."""
    return StrictEngine()


@pytest.fixture
def strict(make_lone: Callable[..., LoneRank], engine: StrictEngine) -> LoneRank:
    """A rank on the strict engine that serves version 1."""
    lone = make_lone(runner=engine, shut_down_groups=True)
    lone.update(1)
    assert lone.worker.poll() is wsm.SERVE
    engine.calls.clear()
    return lone
