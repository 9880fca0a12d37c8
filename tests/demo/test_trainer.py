"""The trainer on the copy task: it learns, and it is the model that the group serves."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import paddle
import pytest

from examples.demo.settings import CopyTask
from examples.demo.trainer import Trainer
from examples.rollout.model.sampling import choose
from examples.rollout.model.shape import ModelShape
from examples.rollout.model.sharding import full_specs, initial_state
from examples.rollout.model.transformer import full_logits

pytestmark = pytest.mark.paddle

SHAPE = ModelShape(vocabulary=8)
TASK = CopyTask(symbols=8)


def answer(
    state: dict[str, npt.NDArray[np.float32]], prompts: npt.NDArray[np.int64], seed: int
) -> npt.NDArray[np.int64]:
    """Continue the prompts with the group's own forward pass and its own way of choosing."""
    weights = {name: paddle.to_tensor(array) for name, array in state.items()}
    sequence, rows = prompts, len(prompts)
    seeds = np.arange(seed, seed + rows, dtype=np.uint64)
    with paddle.no_grad():
        for position in range(TASK.length):
            last = full_logits(SHAPE, weights, paddle.to_tensor(sequence))[:, -1].numpy()
            chosen = choose(last, np.ones(rows), seeds, np.full(rows, position, np.uint64))
            sequence = np.concatenate([sequence, chosen.tokens[:, None]], axis=1)
    return sequence[:, TASK.length :]


@pytest.mark.slow
def test_the_reward_rises_from_chance_to_most_of_the_points() -> None:
    trainer = Trainer(SHAPE, seed=0)
    rewards = []
    for step in range(14):
        prompts = TASK.prompts(128, seed=step)
        answers = answer(trainer.state(), prompts, seed=1000 * step)
        points = TASK.rewards(prompts, answers)
        rewards.append(float(points.mean()))
        trainer.improve(prompts, answers, points)
    assert rewards[0] < 2 * TASK.chance
    assert rewards[-1] > 4 * TASK.chance


def test_the_state_has_exactly_the_names_and_extents_of_the_model() -> None:
    state = Trainer(SHAPE, seed=3).state()
    assert {name: array.shape for name, array in state.items()} == {
        name: spec.shape for name, spec in full_specs(SHAPE).items()
    }
    assert {array.dtype for array in state.values()} == {np.dtype(np.float32)}


def test_an_untrained_trainer_holds_the_initial_state_of_its_seed() -> None:
    state, expected = Trainer(SHAPE, seed=5).state(), initial_state(SHAPE, 5)
    assert all((state[name] == expected[name]).all() for name in expected)


def test_a_mixture_of_experts_can_be_trained_too() -> None:
    shape = ModelShape(vocabulary=8, width=16, heads=2, hidden=32, layers=1, activation="swiglu", experts=4)
    trainer = Trainer(shape, seed=0)
    before = trainer.state()
    prompts, answers = TASK.prompts(16, seed=0), TASK.prompts(16, seed=1)
    improvement = trainer.improve(prompts, answers, TASK.rewards(prompts, answers))
    assert np.isfinite(improvement.loss)
    assert improvement.log_probability.shape == (16, 4)
    moved = {name for name, array in trainer.state().items() if (array != before[name]).any()}
    assert any("experts" in name for name in moved)
