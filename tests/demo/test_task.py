from __future__ import annotations

import numpy as np
import pytest

from examples.demo.settings import CopyTask


def test_the_same_seed_draws_the_same_prompts_and_another_seed_others() -> None:
    task = CopyTask()
    assert (task.prompts(16, seed=1) == task.prompts(16, seed=1)).all()
    assert (task.prompts(16, seed=1) != task.prompts(16, seed=2)).any()


def test_each_correct_token_is_worth_one_point() -> None:
    task = CopyTask()
    prompts = np.array([[1, 2, 3, 4], [5, 6, 7, 0]])
    assert task.rewards(prompts, [[1, 2, 3, 4], [5, 0, 7, 1]]).tolist() == [[1, 1, 1, 1], [1, 0, 1, 0]]


def test_an_answer_that_ended_early_has_no_points_for_what_it_lacks() -> None:
    rewards = CopyTask().rewards(np.array([[0, 0, 0, 0], [1, 1, 1, 1]]), [[0, 0], []])
    assert rewards.tolist() == [[1, 1, 0, 0], [0, 0, 0, 0]]


def test_one_answer_per_prompt_is_asked_for() -> None:
    with pytest.raises(ValueError, match="1 answers to 2 prompts"):
        CopyTask().rewards(np.zeros((2, 4), np.int64), [[0, 0, 0, 0]])
