"""What the tests of the rollout group share: engines of one rank, and permits to step them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from examples.rollout.config import EngineOptions, Limits
from examples.rollout.model.shape import ModelShape
from examples.rollout.model.sharding import initial_state
from examples.rollout.runner import RolloutRunner

# Processes that tests start import the same helpers; they have no pytest to find them.
sys.path.insert(0, str(Path(__file__).parent))
from engine_parts import Steps, load, ready


@pytest.fixture
def step() -> Steps:
    """`with step(version) as permit:`."""
    return Steps()


@pytest.fixture
def small() -> ModelShape:
    return ModelShape(vocabulary=11, width=16, layers=2, heads=4, hidden=32, context=24)


@pytest.fixture
def engine():
    """`engine(shape, seed=0, ...)`: a rank that holds initial weights and all that a step needs."""

    def make(shape: ModelShape, *, seed: int = 0, **options) -> RolloutRunner:
        settings = {"kv_blocks": 64, "limits": Limits(max_batch=8, max_step_tokens=64), **options}
        runner = RolloutRunner(EngineOptions(shape=shape, **settings), None, rank=0, ranks=1)
        load(runner, initial_state(shape, seed))
        ready(runner)
        return runner

    return make


@pytest.fixture
def run_all(step) -> Callable:
    """`run_all(runner, version)`: step until nothing is left to do, return the answers by request."""

    def run(runner, version: int = 1):
        while runner.requests.has_work():
            with step(version) as permit:
                runner.execute(permit)
        return {answer.request_id: answer for answer in runner.requests.take_finished()}

    return run
