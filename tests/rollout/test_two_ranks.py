"""Two real processes on a real Gloo group compute what one process computes."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import paddle
import pytest
import rank_program

from examples.rollout.config import Limits
from examples.rollout.model.moe import local_mixture
from examples.rollout.model.shape import ModelShape
from examples.rollout.model.sharding import initial_state
from examples.rollout.model.transformer import full_logits
from tests.forkserver import WITH_PADDLE

pytestmark = [pytest.mark.paddle, pytest.mark.processes, pytest.mark.slow]

PROGRAM = Path(__file__).with_name("rank_program.py")
SMALL = {"vocabulary": 11, "width": 16, "layers": 2, "heads": 4, "hidden": 32, "context": 24}
SHAPES = {
    "dense": ModelShape(**SMALL, activation="swiglu", draft_layers=1),
    "experts": ModelShape(**SMALL, experts=4),
}


class Ended(NamedTuple):
    """How a rank ended."""

    returncode: int
    stdout: str
    stderr: str


def run_two_ranks(directory: Path, shape: ModelShape, scenario: str) -> list[Ended]:
    arguments = (directory / "rendezvous", json.dumps(asdict(shape)), scenario)
    processes = [WITH_PADDLE.start(PROGRAM, rank, *arguments, stderr=subprocess.PIPE) for rank in range(2)]
    try:
        outputs = [(process.stdout.read().decode(), process.stderr.read().decode()) for process in processes]
        return [Ended(process.wait(60), *output) for process, output in zip(processes, outputs, strict=True)]
    finally:
        for process in processes:
            process.close()


@pytest.fixture(scope="module", params=["dense", "experts"])
def served(request, tmp_path_factory):
    shape = SHAPES[request.param]
    leader, follower = run_two_ranks(tmp_path_factory.mktemp("ranks"), shape, "serve")
    assert leader.returncode == 0, leader.stderr[-2000:]
    assert follower.returncode == 0, follower.stderr[-2000:]
    return shape, json.loads(leader.stdout)


def test_the_logits_of_two_ranks_are_those_of_one_process(served):
    shape, found = served
    weights = {name: paddle.to_tensor(array) for name, array in initial_state(shape, 1).items()}
    tokens = paddle.to_tensor(np.arange(8).reshape(2, 4))
    alone = full_logits(shape, weights, tokens, local_mixture(shape)).numpy()
    np.testing.assert_allclose(np.array(found["logits"]), alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("version", [1, 2])
def test_two_ranks_sample_the_tokens_of_one_process_before_and_after_all_groups_were_rebuilt(
    served, engine, run_all, version
):
    shape, found = served
    runner = engine(
        shape,
        seed=version,
        limits=Limits(max_batch=4, max_step_tokens=32),
        routing_replay=shape.experts > 0,
    )
    for request in rank_program.requests():
        runner.requests.submit(request)
    alone = run_all(runner, version)
    together = found[str(version)]
    assert together.keys() == alone.keys()
    for name, answer in alone.items():
        assert together[name]["tokens"] == list(answer.tokens)
        assert together[name]["versions"] == [str(version)] * 6
        assert together[name]["routing"] == answer.routing
        np.testing.assert_allclose(together[name]["logprobs"], answer.logprobs, atol=1e-4)


def test_a_step_with_two_versions_is_refused_by_the_rank_that_notices(tmp_path):
    _, follower = run_two_ranks(tmp_path, SHAPES["dense"], "mixed")
    assert follower.returncode != 0
    assert "GroupError: rank 1 holds version 2 in step 1, rank 0 holds 1" in follower.stderr
