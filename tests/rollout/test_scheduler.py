from __future__ import annotations

import numpy as np
import pytest

from examples.rollout import errors
from examples.rollout.block_pool import BlockPool
from examples.rollout.config import Limits
from examples.rollout.model.sampling import Choices
from examples.rollout.model.shape import ModelShape
from examples.rollout.request import FinishReason, GenerationRequest
from examples.rollout.scheduler import Scheduler
from tests.incident import incident
from tests.raising import raising

SHAPE = ModelShape(vocabulary=50, context=40)


def scheduler(*, blocks: int = 64, **limits) -> Scheduler:
    bounds = {"max_batch": 4, "max_step_tokens": 16, "max_waiting": 8, **limits}
    return Scheduler(SHAPE, BlockPool(blocks, 4), Limits(**bounds))


def ask(name: str, *, prompt=(1, 2, 3), tokens: int = 4, **fields) -> GenerationRequest:
    return GenerationRequest(name, tuple(prompt), tokens, **fields)


def one_step(requests: Scheduler, version: int = 1, token: int = 9):
    """Run a step in which the model says `token` to everybody."""
    plan = requests.next(version)
    rows = plan.rows
    requests.complete(plan, Choices(np.full(rows, token), np.full(rows, -0.5)), version)
    return plan


def answers(requests: Scheduler):
    return {answer.request_id: answer for answer in requests.take_finished()}


def test_a_request_is_prefilled_then_decoded_until_its_length():
    requests = scheduler()
    requests.submit(ask("a", tokens=3))
    plans = [one_step(requests) for _ in range(3)]
    assert [(plan.rows, plan.length) for plan in plans] == [(1, 3), (1, 1), (1, 1)]
    answer = answers(requests)["a"]
    assert answer.tokens == (9, 9, 9)
    assert answer.finish_reason is FinishReason.LENGTH
    assert not requests.has_work()


def test_a_stop_token_ends_a_request_early_and_is_part_of_the_answer():
    requests = scheduler()
    requests.submit(ask("a", stop_tokens=frozenset({7, 9})))
    one_step(requests)
    assert answers(requests)["a"].tokens == (9,)


def test_a_long_prompt_is_prefilled_in_chunks_and_takes_turns_with_decoding():
    requests = scheduler(max_step_tokens=8)
    requests.submit(ask("short", tokens=8))
    one_step(requests)
    requests.submit(ask("long", prompt=range(20), tokens=2))
    plans = [one_step(requests) for _ in range(6)]
    assert [(plan.length, int(plan.counts.sum())) for plan in plans] == [
        (1, 1), (8, 8), (1, 1), (8, 8), (1, 1), (4, 4),
    ]  # fmt: skip


def test_at_most_max_batch_requests_run_at_once():
    requests = scheduler(max_batch=2)
    for name in "abc":
        requests.submit(ask(name, tokens=1))
    assert one_step(requests).rows == 2
    assert one_step(requests).rows == 1
    assert set(answers(requests)) == {"a", "b", "c"}


def test_a_request_waits_until_there_are_blocks_for_its_longest_sequence():
    requests = scheduler(blocks=4)  # 3 usable blocks of 4 tokens
    requests.submit(ask("a", tokens=5))
    requests.submit(ask("b", tokens=5))
    assert one_step(requests).rows == 1
    while not answers(requests):
        one_step(requests)
    assert one_step(requests).rows == 1


def test_a_full_queue_refuses_and_keeps_what_it_has():
    requests = scheduler(max_waiting=2)
    requests.submit(ask("a"))
    requests.submit(ask("b"))
    with raising(errors.queue_full):
        requests.submit(ask("c"))
    assert requests.waiting() == 2


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"prompt": ()}, "prompt"),
        ({"prompt": (50,)}, "prompt"),
        ({"prompt": (-1,)}, "prompt"),
        ({"tokens": 0}, "max_tokens"),
        ({"tokens": 38}, "max_tokens"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"seed": -1}, "seed"),
    ],
)
def test_a_request_that_the_model_cannot_take_is_refused_by_field(fields, named):
    requests = scheduler()
    with raising(errors.bad_request) as caught:
        requests.submit(ask("a", **fields))
    assert caught.value.field == named
    assert not requests.has_work()


def test_a_request_that_never_fits_the_cache_is_refused_at_once():
    with raising(errors.bad_request, match="3 KV blocks"):
        scheduler(blocks=4).submit(ask("a", tokens=10))


def test_drain_steps_running_requests_to_their_end_and_admits_no_other():
    requests = scheduler(max_batch=1)
    requests.submit(ask("running"))
    one_step(requests)
    requests.stop_admitting()
    requests.submit(ask("late"))
    while requests.in_flight():
        one_step(requests)
    assert set(answers(requests)) == {"running"}
    assert not requests.has_work()
    assert one_step(requests).rows == 0
    requests.resume_admitting()
    assert requests.has_work()


@incident("FastDeploy#7753")
def test_a_request_is_cancelled_while_the_others_drain():
    requests = scheduler(max_batch=2)
    for name in ("stays", "goes"):
        requests.submit(ask(name))
    one_step(requests)
    requests.stop_admitting()
    requests.cancel({"goes"})
    while requests.in_flight():
        one_step(requests)
    assert set(answers(requests)) == {"stays"}


def test_frozen_requests_keep_their_tokens_and_are_prefilled_anew_in_order():
    requests = scheduler()
    for name in "ab":
        requests.submit(ask(name))
    one_step(requests)
    one_step(requests)
    requests.submit(ask("c"))
    assert requests.freeze() == 2
    assert requests.in_flight() == 0
    plan = one_step(requests, version=2)
    assert plan.starts.tolist() == [0, 0, 0]
    assert plan.counts.tolist() == [5, 5, 3]
    while requests.has_work():
        one_step(requests, version=2)
    done = answers(requests)
    assert done["a"].versions == (1, 1, 2, 2)
    assert done["c"].versions == (2, 2, 2, 2)


def test_a_forgotten_cache_sends_running_requests_through_the_model_again():
    pool = BlockPool(64, 4)
    requests = Scheduler(SHAPE, pool, Limits(max_batch=4, max_step_tokens=64))
    requests.submit(ask("a"))
    one_step(requests)
    pool.forget()
    assert one_step(requests).counts.tolist() == [4]


def kept_through(requests: Scheduler, pool: BlockPool, policy: str) -> None:
    """What an update's plan does with requests and blocks under a KV policy, in-flight requests kept."""
    if policy == "drop":
        requests.freeze()
        pool.forget()
    else:
        requests.hold()
        assert requests.in_flight() == 0
        if policy == "keep":
            pool.keep_all()
        else:
            pool.forget_idle()
    requests.reset_inputs()
    requests.resume_admitting()


def with_pool(**limits) -> tuple[Scheduler, BlockPool]:
    pool = BlockPool(64, 4)
    return Scheduler(SHAPE, pool, Limits(**{"max_batch": 4, "max_step_tokens": 64, **limits})), pool


@pytest.mark.parametrize("policy", ["keep", "keep-in-flight"])
def test_held_requests_go_on_without_being_computed_anew_and_say_which_tokens_are_of_no_one_version(policy):
    requests, pool = with_pool()
    requests.submit(ask("a", tokens=4))
    one_step(requests, version=1)
    one_step(requests, version=1)
    kept_through(requests, pool, policy)
    assert one_step(requests, version=2).counts.tolist() == [1]
    one_step(requests, version=2)
    answer = answers(requests)["a"]
    assert (answer.versions, answer.mixed) == ((1, 1, 2, 2), (2, 3))
    assert requests.kv_statistics()["mixed_tokens"] == 2


def test_dropped_requests_are_computed_anew_and_every_token_is_of_one_version():
    requests, pool = with_pool()
    requests.submit(ask("a", tokens=4))
    one_step(requests, version=1)
    one_step(requests, version=1)
    kept_through(requests, pool, "drop")
    assert one_step(requests, version=2).counts.tolist() == [5]
    one_step(requests, version=2)
    answer = answers(requests)["a"]
    assert (answer.versions, answer.mixed) == ((1, 1, 2, 2), ())


@pytest.mark.parametrize(
    ("policy", "cached", "crossed"), [("keep", 8, 8), ("keep-in-flight", 0, 0), ("drop", 0, 0)]
)
def test_a_prompt_of_before_is_found_after_the_update_only_if_everything_is_kept(policy, cached, crossed):
    requests, pool = with_pool()
    requests.submit(ask("before", prompt=range(9), tokens=1))
    one_step(requests, version=1)
    kept_through(requests, pool, policy)
    requests.submit(ask("after", prompt=range(9), tokens=2))
    while requests.has_work():
        one_step(requests, version=2)
    answer = answers(requests)["after"]
    assert (answer.cached_tokens, answer.crossed_tokens) == (cached, crossed)
    assert answer.mixed == ((0, 1) if crossed else ())
    counted = requests.kv_statistics()
    assert (counted["reused_tokens"], counted["crossed_tokens"]) == (cached, crossed)


def test_a_new_request_never_reads_what_a_held_one_has_from_before():
    requests, pool = with_pool()
    requests.submit(ask("held", prompt=range(9), tokens=6))
    one_step(requests, version=1)
    kept_through(requests, pool, "keep-in-flight")
    requests.submit(ask("new", prompt=range(9), tokens=1))
    while requests.has_work():
        one_step(requests, version=2)
    done = answers(requests)
    assert (done["new"].cached_tokens, done["new"].mixed) == (0, ())
    assert done["held"].mixed == (1, 2, 3, 4, 5)


def test_held_requests_whose_blocks_were_lost_are_computed_anew():
    requests, pool = with_pool()
    requests.submit(ask("a", tokens=3))
    one_step(requests, version=1)
    requests.hold()
    pool.forget()
    requests.resume_admitting()
    assert one_step(requests, version=2).counts.tolist() == [4]
    one_step(requests, version=2)
    assert answers(requests)["a"].mixed == ()


def test_held_requests_can_be_cancelled_and_give_their_blocks_back():
    requests, pool = with_pool()
    requests.submit(ask("a"))
    one_step(requests)
    requests.hold()
    requests.cancel({"a"})
    requests.resume_admitting()
    assert not requests.has_work()
    assert pool.available() == 63


def test_blocks_that_two_versions_have_computed_together_are_never_shared():
    requests = scheduler()
    requests.submit(ask("mixed", prompt=range(5), tokens=8))
    one_step(requests, version=1)
    while requests.has_work():
        one_step(requests, version=2)
    for version in (1, 2):
        requests.submit(ask(f"v{version}", prompt=[*range(5), *[9] * 7], tokens=1))
        while requests.has_work():
            one_step(requests, version=version)
    done = answers(requests)
    assert done["v1"].cached_tokens == 4  # the block that version 1 computed alone
    assert done["v2"].cached_tokens == 0


def test_cancelled_requests_are_answered_to_nobody_and_their_blocks_come_back():
    pool = BlockPool(64, 4)
    requests = Scheduler(SHAPE, pool, Limits(max_batch=1, max_step_tokens=16))
    requests.submit(ask("running"))
    requests.submit(ask("queued"))
    one_step(requests)
    requests.cancel({"running", "queued"})
    assert not requests.has_work()
    assert not requests.take_finished()
    assert pool.available() == 63


def test_reset_inputs_reaches_every_hook():
    told = []
    requests = Scheduler(SHAPE, BlockPool(8, 4), Limits(), reset_hooks=[lambda: told.append(1)] * 2)
    requests.reset_inputs()
    assert told == [1, 1]
