"""Ways to bring a live life cycle to any joint state that it can be in."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from wsm.states.check import explore
from wsm.states.joint import START, JointState
from wsm.states.machine import LifeCycle, TransitionRecord
from wsm.states.table import Event, Guard

Move = tuple[Event, bool, bool]  # event, kept, kv_kept
Fire = Callable[..., TransitionRecord]


@pytest.fixture(scope="session")
def ways() -> Mapping[JointState, tuple[Move, ...]]:
    """The shortest way to every joint state that can be reached."""
    found: dict[JointState, tuple[Move, ...]] = {START: ()}
    for edge in explore():
        move = (edge.row.event, edge.row.guard is Guard.KEPT, edge.kv_kept)
        found.setdefault(edge.dest, (*found[edge.source], move))
    return found


@pytest.fixture(scope="session")
def brought_to(ways: Mapping[JointState, tuple[Move, ...]]) -> Callable[[JointState], LifeCycle]:
    def bring(joint: JointState) -> LifeCycle:
        life = LifeCycle()
        for event, kept, kv_kept in ways[joint]:
            life.fire(event, at_ns=1, epoch=1, sequence=1, kept=kept, kv_kept=kv_kept)
        assert life.joint == joint
        return life

    return bring


@pytest.fixture
def life() -> LifeCycle:
    return LifeCycle()


@pytest.fixture
def fire(life: LifeCycle) -> Fire:
    """Fire into `life`, as a command of epoch 1, sequence 1."""

    def fire(event: Event, **flags: bool) -> TransitionRecord:
        return life.fire(event, at_ns=1, epoch=1, sequence=1, **flags)

    return fire
