"""Hot updates under load, one KV policy each: every token is what its version says, or is marked as mixed."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import paddle
import pytest

from examples.rollout.config import RolloutConfig, rollout_config_from_mapping
from examples.rollout.model.moe import local_mixture
from examples.rollout.model.sharding import initial_state, shard
from examples.rollout.model.transformer import full_logits
from examples.rollout.request import Generation
from examples.rollout.supervisor import RolloutSupervisor
from tests.leftovers import group_name
from wsm.receipt import Outcome
from wsm.states.vocabulary import InFlightPolicy, KVPolicy
from wsm.strategies import Retention, publish_snapshot

pytestmark = [pytest.mark.paddle, pytest.mark.processes, pytest.mark.slow]

MODEL = {"vocabulary": 11, "width": 16, "heads": 4, "hidden": 32, "context": 64}
#: All begin alike, so that each finds what the one before has left in the cache.
PROMPTS = [[1, 2, 3, 4, 5, 6, 7, 8, 9, last] for last in range(6)]
TOKENS = 40
VERSIONS = (1, 2, 3)


class Asking(threading.Thread):
    """A client that asks the same prompts again and again, until it is told to stop."""

    def __init__(self, group: RolloutSupervisor) -> None:
        super().__init__(daemon=True)
        self._group = group
        self._stop_asking = threading.Event()
        self.answers: list[tuple[list[int], Generation]] = []

    def run(self) -> None:
        with self._group.client() as client:
            while not self._stop_asking.is_set():
                answers = client.generate(PROMPTS, TOKENS, temperature=0)
                self.answers += zip(PROMPTS, answers, strict=True)

    def stop(self) -> list[tuple[list[int], Generation]]:
        self._stop_asking.set()
        self.join(60)
        return self.answers


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RolloutSupervisor]:
    directory = str(tmp_path_factory.mktemp("snapshots"))
    config = rollout_config_from_mapping(
        {"group": {"name": group_name("kv"), "snapshot": {"directory": directory}}, "model": MODEL}
    )
    shape, ranks = config.engine.shape, config.group.ranks
    for version in VERSIONS:
        full = initial_state(shape, version)
        shards = {rank: shard(full, shape, rank, ranks) for rank in range(ranks)}
        publish_snapshot(directory, version, shards, retain=Retention(len(VERSIONS)), durable=False)
    with RolloutSupervisor(config) as running:
        yield running


def said_by(config: RolloutConfig, version: str, sequence: list[int]) -> list[int]:
    """The token that the weights of `version` choose after each position, in one pass without any cache."""
    shape = config.engine.shape
    weights = {name: paddle.to_tensor(array) for name, array in initial_state(shape, int(version)).items()}
    with paddle.no_grad():
        odds = full_logits(shape, weights, paddle.to_tensor([sequence]), local_mixture(shape))
    return np.asarray(odds[0].argmax(axis=-1)).tolist()


def asked_through_updates(group, policy: KVPolicy) -> list[tuple[list[int], Generation]]:
    """Update the group six times while a client asks it, with answers in between; return what it got."""
    group.controller.update(1, force=True, kv_policy=KVPolicy.DROP)  # blocks of the test before it
    asking = Asking(group)
    asking.start()
    try:
        for version in (2, 3, 1, 3, 2, 1):
            before = len(asking.answers)
            receipt = group.controller.update(
                version, hot=True, in_flight=InFlightPolicy.KEEP, kv_policy=policy, force=True
            )
            assert receipt.ranks[0].facts["kv_policy"] == policy.value
            while len(asking.answers) == before and asking.is_alive():
                asking.join(0.01)
    finally:
        answers = asking.stop()
    return answers


def held_once(group: RolloutSupervisor, version: int, *, hot: bool, policy: KVPolicy) -> None:
    """Hold the group, update it, and release it; no step begins in between, and so no token is made."""

    def steps() -> list[int]:
        return [rank.step for rank in group.controller.status().ranks]

    group.controller.hold(in_flight=InFlightPolicy.KEEP, kv_policy=policy, owner="trainer")
    stands = steps()
    receipt = group.controller.update(version, hot=hot, owner="trainer")
    assert (receipt.version, receipt.serving) == (str(version), False)
    assert group.controller.hold(owner="trainer").outcome is Outcome.HOLD_RENEWED
    assert steps() == stands
    assert group.controller.release(owner="trainer").serving


@pytest.mark.parametrize("policy", [KVPolicy.KEEP, KVPolicy.DROP], ids=["keep", "drop"])
def test_under_load_no_token_falls_between_a_hold_and_its_release_and_no_request_is_lost(group, policy):
    asking = Asking(group)
    asking.start()
    try:
        for hot, version in ((False, 2), (True, 3), (False, 1), (True, 2)):
            before = len(asking.answers)
            while len(asking.answers) == before and asking.is_alive():
                asking.join(0.01)
            held_once(group, version, hot=hot, policy=policy)
    finally:
        answers = asking.stop()
    assert {len(answer.tokens) for _, answer in answers} == {TOKENS}
    for prompt, answer in answers:
        sequence = [*prompt, *answer.tokens]
        for version in set(answer.versions):
            said = said_by(group.config, version, sequence)
            mine = [index for index, made_by in enumerate(answer.versions) if made_by == version]
            of_one = [index for index in mine if index not in answer.mixed]
            assert [answer.tokens[index] for index in of_one] == [
                said[len(prompt) - 1 + index] for index in of_one
            ]
    assert any(len(set(answer.versions)) > 1 for _, answer in answers), "no hold met a running request"


@pytest.mark.parametrize("policy", list(KVPolicy), ids=[policy.value for policy in KVPolicy])
def test_every_token_is_what_its_version_says_or_says_that_it_is_not(group, policy):
    answers = asked_through_updates(group, policy)
    said: dict[tuple[str | int, ...], list[int]] = {}
    for prompt, answer in answers:
        sequence = [*prompt, *answer.tokens]
        for version in set(answer.versions):
            key = (version, *sequence)
            said[key] = said.get(key) or said_by(group.config, version, sequence)
        for index, (token, version) in enumerate(zip(answer.tokens, answer.versions, strict=True)):
            if index not in answer.mixed:
                assert token == said[(version, *sequence)][len(prompt) - 1 + index], (index, answer)
    mixed = sum(len(answer.mixed) for _, answer in answers)
    crossed = sum(answer.crossed_tokens for _, answer in answers)
    across = [answer for _, answer in answers if len(set(answer.versions)) > 1]
    assert across, "no update met a running request"
    assert (crossed > 0) == (policy is KVPolicy.KEEP)
    assert (mixed > 0) == (policy is not KVPolicy.DROP)
    with group.client() as client:
        counted = client.stats()["kv_reuse"]
    assert counted["mixed_tokens"] >= mixed
    assert counted["crossed_tokens"] >= crossed
