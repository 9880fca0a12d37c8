"""What the tests of actions share: an engine that serves, and commands for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.strict_engine import SPECS, StrictEngine
from wsm.actions.base import ActionContext, Plan
from wsm.actions.measuring import resident_digest
from wsm.actions.options import PlanOptions


def _load(context: ActionContext, target: Any) -> dict[str, Any]:
    for name, spec in target.specs().items():
        target.writable(name)[:] = bytes([int(context.version)]) * spec.nbytes
    return {
        "version": context.version,
        "manifest_digest": "of the manifest",
        "digest": resident_digest(target, lambda: None),
        "bytes": sum(spec.nbytes for spec in SPECS.values()),
        "tensors": len(SPECS),
    }


@pytest.fixture
def runner() -> StrictEngine:
    """Serving version 1 with everything an engine can have."""
    runner = StrictEngine()
    runner.serve()
    return runner


@pytest.fixture
def make_context(runner: StrictEngine) -> Callable[..., ActionContext]:
    """``make_context(**fields)``: a command for `runner`, loading version 2."""
    sequences = iter(range(1, 1000))

    def make(**fields: Any) -> ActionContext:
        defaults = {
            "runner": runner,
            "rank": 0,
            "world_size": 2,
            "epoch": 1,
            "sequence": next(sequences),
            "version": "2",
            "load": _load,
        }
        said = defaults | fields
        return ActionContext(**{**said, "version": None if said["version"] is None else str(said["version"])})

    return make


@pytest.fixture
def load() -> Callable[[ActionContext, Any], dict[str, Any]]:
    """Fill a target with bytes of the value of the command's version."""
    return _load


@pytest.fixture
def options(runner: StrictEngine) -> Callable[..., PlanOptions]:
    """``options(**fields)``: the plan options of `runner`."""
    return lambda **fields: PlanOptions.from_runner(runner, **fields)


@pytest.fixture
def walk() -> Callable[[Plan, ActionContext], None]:
    """``walk(plan, context)``: what a worker does with a plan that every rank votes for."""

    def walk(plan: Plan, context: ActionContext) -> None:
        plan.admit(context)
        for action in plan.before_parking:
            action.run(context)
        assert all(action.settled(context) for action in plan.before_parking)
        for action in plan.actions:
            action.precondition(context)
            action.run(context)
            action.probe(context)

    return walk


@pytest.fixture
def tiny_drop() -> Any:
    """A measure fine enough for an engine of a few hundred KiB."""
    from wsm.actions.measuring import MemoryDrop  # noqa: PLC0415 - beside its only use

    return MemoryDrop(share=1.0, noise_bytes=0)
