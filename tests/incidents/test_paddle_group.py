"""Incidents that need a real engine: Gloo between processes, a paged KV cache, tokens that tell a version.

One group of two tensor-parallel ranks; every clear shuts its Gloo groups down. Each version has weights
of its own, so its greedy tokens are known, computed here without any cache and without any group.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import paddle
import pytest
from living_group import eventually

from examples.rollout.config import RolloutConfig, rollout_config_from_mapping
from examples.rollout.model.sharding import initial_state, shard
from examples.rollout.supervisor import RolloutSupervisor
from tests.leftovers import group_name
from wsm.private_directory import private_directory
from wsm.signals.fastdeploy import EngineWord, EngineWordKind, engine_word_path
from wsm.states.vocabulary import InFlightPolicy, WeightState
from wsm.strategies import publish_snapshot

pytestmark = [pytest.mark.paddle, pytest.mark.processes]

MODEL = {"vocabulary": 11, "width": 16, "heads": 4, "hidden": 32, "context": 512}
LONG_PROMPT = [token % 11 for token in range(100)]


def publish(config: RolloutConfig, version: int) -> None:
    """Publish the weights whose seed is the version."""
    full, shape = initial_state(config.engine.shape, version), config.engine.shape
    shards = {rank: shard(full, shape, rank, 2) for rank in range(2)}
    publish_snapshot(config.group.snapshot.directory, version, shards, durable=False)


def greedy(config: RolloutConfig, version: int, prompt: list[int], count: int) -> tuple[int, ...]:
    """What the weights of `version` say after `prompt`."""
    from examples.rollout.model.moe import local_mixture  # noqa: PLC0415
    from examples.rollout.model.transformer import full_logits  # noqa: PLC0415 - it needs paddle, which may be absent

    shape = config.engine.shape
    weights = {name: paddle.to_tensor(array) for name, array in initial_state(shape, version).items()}
    sequence = list(prompt)
    with paddle.no_grad():
        for _ in range(count):
            odds = full_logits(shape, weights, paddle.to_tensor([sequence]), local_mixture(shape))
            sequence.append(int(odds[0, -1].argmax()))
    return tuple(sequence[len(prompt) :])


class RolloutGroup:
    """The supervisor and what its tests ask of it."""

    def __init__(self, running: RolloutSupervisor) -> None:
        self.running, self.config, self.controller = running, running.config, running.controller
        self._newest = 1

    def publish(self) -> int:
        self._newest += 1
        publish(self.config, self._newest)
        return self._newest

    def answers(self, prompt: list[int], count: int = 6) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Greedy tokens, and the version that made each."""
        with self.running.client() as client:
            [answer] = client.generate([prompt], count, temperature=0)
        return answer.tokens, answer.versions


@pytest.fixture(scope="module")
def rollout() -> Iterator[RolloutGroup]:
    config = rollout_config_from_mapping(
        {
            "group": {
                "name": group_name("incidents"),
                "shut_down_groups": True,
                "engine_words": {"suffixes": [50_000 + os.getpid() % 10_000]},
            },
            "model": MODEL,
        }
    )
    publish(config, 1)
    with RolloutSupervisor(config) as running:
        yield RolloutGroup(running)


@pytest.mark.needs("libatomic")
def test_fastdeploy_7951_gloo_groups_go_down_and_come_back_and_the_right_word_is_answered(rollout):
    version = rollout.publish()
    (suffix,) = rollout.config.group.engine_words.suffixes
    with EngineWord(EngineWordKind.WEIGHTS, suffix) as word:
        eventually(lambda: word.read() == WeightState.NORMAL)
        word.store(int(WeightState.CLEARING))
        eventually(lambda: word.read() == WeightState.CLEARED)
        assert rollout.controller.status().state == "CLEARED"
        word.store(int(WeightState.UPDATING))
        eventually(lambda: word.read() == WeightState.NORMAL)
    assert not engine_word_path(EngineWordKind.WEIGHTS, 0).exists()
    assert rollout.controller.status().version == str(version)
    assert rollout.answers([1, 2, 3]) == (greedy(rollout.config, version, [1, 2, 3], 6), (str(version),) * 6)


@pytest.mark.parametrize("clear_first", [False, True], ids=["in place", "after a clear"])
@pytest.mark.needs("libatomic")
def test_nemo_rl_4018_fastdeploy_4008_and_trl_5312_no_prefix_of_an_older_version_is_reused(
    rollout, clear_first
):
    rollout.answers(LONG_PROMPT)  # now its blocks are cached
    version = rollout.publish()
    if clear_first:
        rollout.controller.clear()
    rollout.controller.update(version)
    tokens, versions = rollout.answers(LONG_PROMPT)
    assert tokens == greedy(rollout.config, version, LONG_PROMPT, 6)
    assert tokens != greedy(rollout.config, version - 1, LONG_PROMPT, 6), "the control: versions differ"
    assert versions == (str(version),) * 6


def test_fastdeploy_3773_and_vllm_54235_requests_that_come_while_cleared_are_answered_by_loaded_weights(
    rollout,
):
    rollout.controller.clear()
    version = rollout.publish()
    with rollout.running.client() as client, rollout.running.client() as onlooker:
        client.submit([[1, 2, 3]], 6, temperature=0)
        eventually(lambda: onlooker.stats()["waiting"] == 1)
        assert (onlooker.stats()["weights"], onlooker.stats()["kv_bytes"]) == ("CLEARED", 0)
        rollout.controller.update(version)
        results: list[dict] = []
        while not results:
            results = client.receive(20).get("results", [])
    assert tuple(results[0]["tokens"]) == greedy(rollout.config, version, [1, 2, 3], 6)


def test_fastdeploy_7753_requests_can_be_cancelled_while_the_group_drains(rollout):
    with rollout.running.client() as client, rollout.running.client() as onlooker:
        before = onlooker.stats()["finished"]
        call = client.submit([[1, 2, 3]], 500)
        eventually(lambda: onlooker.stats()["running"] == 1)
        pending = rollout.controller.begin_clear(in_flight=InFlightPolicy.DRAIN)
        client.cancel(call)
        pending.result()
        assert onlooker.stats()["finished"] == before, "it was not drained to its end"
    rollout.controller.update()


def test_peers_4_5_a_clear_gives_the_memory_of_the_cache_back_and_an_update_takes_no_more(rollout):
    held = []
    for _ in range(3):
        version = rollout.publish()
        receipt = rollout.controller.clear()
        assert all(report.facts["weights_released_bytes"] > 0 for report in receipt.ranks)
        rollout.controller.update(version)
        with rollout.running.client() as client:
            held.append(client.stats()["kv_bytes"])
    assert len(set(held)) == 1
    assert not list(private_directory().glob(f"*{rollout.config.group.name}*.new"))
