"""One rank's engine: what it computes, and when it refuses to compute."""

from __future__ import annotations

import dataclasses

import numpy as np
import paddle
import pytest
from engine_parts import load

from examples.rollout import errors
from examples.rollout.config import EngineOptions, Limits
from examples.rollout.model.moe import local_mixture
from examples.rollout.model.shape import ModelShape
from examples.rollout.model.sharding import initial_state
from examples.rollout.model.transformer import full_logits
from examples.rollout.request import FinishReason, GenerationRequest
from examples.rollout.runner import RolloutRunner
from tests.incident import incident
from tests.raising import raising
from wsm.actions import surfaces
from wsm.actions._caches import carry_over
from wsm.errors import RefusedError
from wsm.states.vocabulary import KVPolicy

pytestmark = pytest.mark.paddle

SMALL = ModelShape(vocabulary=11, width=16, layers=2, heads=4, hidden=32, context=24)
KINDS = {
    "dense": SMALL,
    "gated": dataclasses.replace(SMALL, activation="swiglu"),
    "experts": dataclasses.replace(SMALL, experts=4),
    "draft": dataclasses.replace(SMALL, draft_layers=1),
}
PROMPTS = [tuple(int(token) for token in np.random.default_rng(i).integers(0, 11, 3 + i)) for i in range(9)]


def submit(runner, *, tokens: int = 6, prompts=PROMPTS, prefix: str = "r") -> None:
    for index, prompt in enumerate(prompts):
        runner.requests.submit(GenerationRequest(f"{prefix}{index}", prompt, tokens, seed=index))


def recomputed_logprobs(shape, seed: int, prompt, tokens) -> list[float]:
    """Run the whole sequence through the model at once, without any cache."""
    weights = {name: paddle.to_tensor(array) for name, array in initial_state(shape, seed).items()}
    sequence = paddle.to_tensor([[*prompt, *tokens]], dtype="int64")
    with paddle.no_grad():
        predicted = full_logits(shape, weights, sequence, local_mixture(shape))[0]
        odds = paddle.nn.functional.log_softmax(predicted, axis=-1).numpy()
    return [float(odds[len(prompt) - 1 + index, token]) for index, token in enumerate(tokens)]


@pytest.mark.slow_but
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("captured", [True, False], ids=["captured", "eager"])
def test_generating_with_the_paged_cache_equals_recomputing_every_sequence(engine, run_all, kind, captured):
    runner = engine(KINDS[kind], capture_graphs=captured, limits=Limits(max_batch=5, max_step_tokens=16))
    submit(runner)
    answers = run_all(runner)
    assert len(answers) == len(PROMPTS)
    for index, prompt in enumerate(PROMPTS):
        answer = answers[f"r{index}"]
        expected = recomputed_logprobs(KINDS[kind], 0, prompt, answer.tokens)
        np.testing.assert_allclose(answer.logprobs, expected, atol=1e-4)
        assert answer.versions == ("1",) * 6


def test_a_reused_prefix_gives_the_tokens_of_a_computed_one(engine, run_all):
    runner = engine(SMALL)
    submit(runner, prefix="first")
    first = run_all(runner)
    submit(runner, prefix="again")
    again = run_all(runner)
    assert again["again8"].cached_tokens == 8
    assert [again[f"again{i}"].tokens for i in range(9)] == [first[f"first{i}"].tokens for i in range(9)]


@incident("NeMo-RL#4018")
def test_a_prefix_of_other_weights_is_not_reused_even_if_nobody_forgot_the_cache(engine, run_all):
    runner = engine(SMALL, seed=1)
    submit(runner)
    run_all(runner, version=1)
    load(runner, initial_state(SMALL, 2))
    submit(runner)
    answers = run_all(runner, version=2)
    fresh = engine(SMALL, seed=2)
    submit(fresh)
    expected = run_all(fresh, version=2)
    assert {name: answer.tokens for name, answer in answers.items()} == {
        name: answer.tokens for name, answer in expected.items()
    }
    assert all(answer.cached_tokens == 0 for answer in answers.values())


def test_frozen_requests_go_on_with_the_tokens_of_uninterrupted_ones(engine, run_all, step):
    runner = engine(SMALL)
    submit(runner)
    whole = {name: answer.tokens for name, answer in run_all(runner).items()}
    runner = engine(SMALL)
    submit(runner)
    for _ in range(4):
        with step() as permit:
            runner.execute(permit)
    assert runner.requests.freeze() > 0
    runner.kv_cache.forget()
    assert {name: answer.tokens for name, answer in run_all(runner).items()} == whole


@pytest.mark.parametrize("policy", list(KVPolicy))
def test_each_token_is_what_its_version_says_or_is_marked_as_mixed(engine, run_all, step, policy):
    prompts = PROMPTS[:4]
    runner = engine(SMALL, seed=1)
    submit(runner, tokens=8, prompts=prompts)
    for _ in range(4):
        with step(1) as permit:
            runner.execute(permit)
    assert runner.requests.freeze() if policy is KVPolicy.DROP else runner.requests.hold()
    load(runner, initial_state(SMALL, 2))
    carry_over(runner.kv_cache, policy, action="this test")
    runner.requests.resume_admitting()
    answers = run_all(runner, version=2)
    for index, prompt in enumerate(prompts):
        answer = answers[f"r{index}"]
        assert answer.versions == ("1",) * 4 + ("2",) * 4
        assert answer.mixed == (() if policy is KVPolicy.DROP else (4, 5, 6, 7))
        said = {str(seed): recomputed_logprobs(SMALL, seed, prompt, answer.tokens) for seed in (1, 2)}
        for token, (version, logprob) in enumerate(zip(answer.versions, answer.logprobs, strict=True)):
            is_versions = abs(logprob - said[version][token]) < 1e-4
            assert is_versions == (token not in answer.mixed), (index, token)


def test_a_prefix_of_other_weights_is_reused_where_it_was_kept_and_the_answer_says_so(engine, run_all):
    runner = engine(SMALL, seed=1)
    submit(runner, prefix="before")
    run_all(runner, version=1)
    load(runner, initial_state(SMALL, 2))
    assert runner.kv_cache.keep_all() > 0
    submit(runner, prefix="after")
    answers = run_all(runner, version=2)
    assert (answers["after8"].cached_tokens, answers["after8"].crossed_tokens) == (8, 8)
    assert answers["after8"].mixed == tuple(range(6))
    assert (answers["after0"].crossed_tokens, answers["after0"].mixed) == (0, ())
    assert runner.requests.kv_statistics()["crossed_tokens"] >= 8


def test_aborted_requests_are_answered_with_the_tokens_they_have(engine, step):
    runner = engine(SMALL, limits=Limits(max_batch=16, max_step_tokens=256))
    submit(runner)
    for _ in range(3):
        with step() as permit:
            runner.execute(permit)
    runner.requests.abort_all()
    answers = runner.requests.take_finished()
    assert {len(answer.tokens) for answer in answers} == {3}
    assert {answer.finish_reason for answer in answers} == {FinishReason.ABORTED}
    assert runner.pool.available() == 63


def test_a_new_engine_holds_no_memory_and_refuses_to_step(step):
    runner = RolloutRunner(EngineOptions(shape=SMALL), None, rank=0, ranks=1)
    assert list(runner.weights.held()) == []
    assert runner.kv_cache.allocated_bytes() == 0
    assert not runner.graphs.captured()
    submit(runner)
    with step() as permit, raising("parameter-released"):
        runner.execute(permit)


def test_a_step_without_a_permit_is_refused(engine):
    runner = engine(SMALL)
    submit(runner)
    with raising(errors.step_permit_missing):
        runner.execute(None)


def test_a_step_with_an_ended_permit_is_refused(engine, step):
    runner = engine(SMALL)
    submit(runner)
    with step() as permit:
        runner.execute(permit)
    with pytest.raises(RefusedError, match="has ended"):
        runner.execute(permit)


def test_parameters_that_were_kept_from_one_step_are_useless_in_the_next(engine, step):
    runner = engine(SMALL)
    with step() as permit:
        kept = runner._parameters.open(permit)
        assert kept["head.weight"].shape == [16, 11]
    with pytest.raises(RefusedError, match="has ended"):
        kept["head.weight"]
    with step() as permit, raising("step-over"):
        kept["head.weight"]


@pytest.mark.parametrize("captured", [True, False], ids=["captured", "eager"])
def test_no_step_runs_over_released_weights(engine, step, captured):
    runner = engine(SMALL, capture_graphs=captured)
    submit(runner, prompts=[(1,)])  # a decode step from the start
    assert runner.weights.release() > 0
    with (
        step() as permit,
        raising(("parameter-released", errors.stale_graph), match=r"released|no memory"),
    ):
        runner.execute(permit)


@pytest.mark.parametrize("name", ["head.weight", "final_norm.weight", "layers.1.attention.output.weight"])
def test_not_one_single_parameter_may_be_released(engine, step, name):
    runner = engine(SMALL, capture_graphs=False)
    submit(runner)
    runner._parameters.state_dict()[name]._clear_data()
    with step() as permit, raising("parameter-released") as caught:
        runner.execute(permit)
    assert caught.value.name == name


def test_no_step_runs_over_a_released_cache(engine, step):
    runner = engine(KINDS["draft"])
    submit(runner)
    runner.auxiliaries[0].kv_cache.release()
    with step() as permit, raising("cache-released", match="mtp"):
        runner.execute(permit)


def test_a_captured_execution_refuses_parameters_that_have_moved(engine, step):
    runner = engine(SMALL)
    submit(runner, prompts=[(1,)])
    state = initial_state(SMALL, 0)
    moved = paddle.to_tensor(state["head.weight"])
    moved._share_buffer_to(runner._parameters.state_dict()["head.weight"])
    with step() as permit, raising(errors.stale_graph, match=r"head\.weight lies elsewhere"):
        runner.execute(permit)


def test_a_dropped_capture_is_replaced_by_eager_steps(engine, run_all):
    runner = engine(SMALL)
    runner.graphs.drop()
    assert not runner.graphs.captured()
    submit(runner)
    assert len(run_all(runner)) == len(PROMPTS)


def test_nothing_is_captured_over_released_weights(engine):
    runner = engine(SMALL)
    runner.weights.release()
    with raising(errors.stale_graph, match="holds no memory"):
        runner.graphs.capture()
    assert not runner.graphs.captured()


def test_no_step_runs_over_a_cleared_exchange_buffer(engine, step):
    runner = engine(KINDS["experts"])
    submit(runner)
    runner.deepep.clear_buffer()
    assert not runner.deepep.allocated()
    with step() as permit, raising(errors.no_exchange_buffer, match="cleared"):
        runner.execute(permit)


def test_the_draft_model_guesses_in_every_decode_step(engine, run_all):
    runner = engine(KINDS["draft"])
    submit(runner)
    run_all(runner)
    draft = runner.auxiliaries[0]
    assert draft.guessed == len(PROMPTS) * 4  # from the third token on
    assert 0 <= draft.agreed <= draft.guessed


def test_routing_is_recorded_per_position_and_forgotten_on_request(engine, run_all, step):
    shape = KINDS["experts"]
    runner = engine(shape, routing_replay=True)
    submit(runner)
    answers = run_all(runner)
    for index, prompt in enumerate(PROMPTS):
        routing = answers[f"r{index}"].routing
        assert len(routing) == len(prompt) + 5
        assert {len(layer) for position in routing for layer in position} == {2}
    submit(runner, prefix="s")
    with step() as permit:
        runner.execute(permit)
    runner.routing_replay.clear_all_requests()
    runner.requests.abort_all()
    assert {answer.routing for answer in runner.requests.take_finished()} == {None}


def test_the_runner_has_every_surface_that_actions_know(engine):
    runner = engine(dataclasses.replace(SMALL, experts=4, draft_layers=1), routing_replay=True)
    expected = {
        "weights": surfaces.WeightSurface,
        "memory": surfaces.MemorySurface,
        "requests": surfaces.HoldingRequestSurface,
        "kv_cache": surfaces.KeepingKVCacheSurface,
        "graphs": surfaces.GraphSurface,
        "deepep": surfaces.DeepEPSurface,
        "routing_replay": surfaces.RoutingReplaySurface,
    }
    for name, surface in expected.items():
        assert isinstance(getattr(runner, name), surface), name
    assert isinstance(runner.auxiliaries[0], surfaces.AuxiliarySurface)
    assert isinstance(runner.auxiliaries[0].kv_cache, surfaces.KeepingKVCacheSurface)
    assert isinstance(runner.kv_cache, surfaces.CountedKVCacheSurface)


@incident("peers' class 4.5 (sglang#24854")
def test_releasing_everything_gives_back_what_loading_took(engine):
    runner = engine(KINDS["draft"])
    held = sum(spec.nbytes for spec in runner.weights.specs().values())
    assert runner.weights.release() == held
    assert runner.weights.release() == 0
    assert runner.kv_cache.release() == 64 * 4 * 16 * 4 * 2 * 2
    assert runner.kv_cache.release() == 0
