from __future__ import annotations

import numpy as np

from examples.rollout.model.sampling import choose


def draw(logits, *, temperature=1.0, seeds=None, indices=None):
    rows = len(logits)
    return choose(
        np.asarray(logits, np.float32),
        np.full(rows, temperature),
        np.asarray(range(rows) if seeds is None else seeds, np.uint64),
        np.asarray([0] * rows if indices is None else indices, np.uint64),
    )


def test_temperature_zero_takes_the_most_likely_token():
    logits = np.random.default_rng(0).standard_normal((50, 7))
    assert (draw(logits, temperature=0).tokens == logits.argmax(axis=1)).all()


def test_a_choice_depends_on_seed_and_position_and_not_on_the_batch():
    logits = np.random.default_rng(0).standard_normal((20, 7))
    together = draw(logits, seeds=range(20), indices=range(20))
    alone = [draw(logits[i : i + 1], seeds=[i], indices=[i]).tokens[0] for i in range(20)]
    assert together.tokens.tolist() == alone


def test_tokens_are_drawn_as_often_as_the_model_says():
    odds = np.array([0.5, 0.3, 0.15, 0.05])
    chosen = draw(np.tile(np.log(odds), (20_000, 1)), indices=range(20_000)).tokens
    np.testing.assert_allclose(np.bincount(chosen, minlength=4) / 20_000, odds, atol=0.015)


def test_the_log_probability_is_the_one_that_was_sampled_with():
    logits = np.log(np.tile([0.5, 0.25, 0.25], (30, 1)))
    choices = draw(logits, temperature=0.5)
    hot = np.array([0.25, 0.0625, 0.0625]) / 0.375
    np.testing.assert_allclose(np.exp(choices.logprobs), hot[choices.tokens], rtol=1e-5)


def test_an_impossible_token_is_never_chosen():
    logits = np.tile(np.array([0.0, -np.inf, 0.0], np.float32), (5000, 1))
    assert not (draw(logits).tokens == 1).any()


def test_huge_logits_do_not_overflow():
    choices = draw([[1e30, -1e30, 0.0]])
    assert choices.tokens.tolist() == [0]
    assert np.isfinite(choices.logprobs).all()
