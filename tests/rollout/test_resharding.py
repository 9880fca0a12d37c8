"""A group of two ranks serves versions that were published for one, two and four, and says the same words."""

from __future__ import annotations

import pytest

from examples.rollout.config import RolloutConfig, rollout_config_from_mapping
from examples.rollout.model.sharding import initial_state, placements, shard
from examples.rollout.supervisor import RolloutSupervisor
from tests.leftovers import group_name
from wsm.strategies import publish_snapshot

pytestmark = [pytest.mark.paddle, pytest.mark.processes]

MODEL = {"vocabulary": 11, "width": 16, "heads": 4, "hidden": 32, "context": 64, "experts": 4}
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8]]


def publish(config: RolloutConfig, version: int, ranks: int, seed: int):
    shape = config.engine.shape
    full = initial_state(shape, seed)
    shards = {rank: shard(full, shape, rank, ranks) for rank in range(ranks)}
    directory = config.group.snapshot.directory
    return publish_snapshot(directory, version, shards, placements=placements(shape), durable=False)


@pytest.mark.slow
def test_versions_for_one_two_and_four_ranks_give_bit_equal_probabilities(tmp_path):
    group = {"name": group_name("resharding"), "snapshot": {"directory": str(tmp_path)}}
    config = rollout_config_from_mapping({"group": group, "model": MODEL})
    assert config.group.ranks == 2
    publish(config, 1, ranks=2, seed=3)
    said, held = {}, {}
    with RolloutSupervisor(config) as group, group.client() as client:
        for version, ranks in ((1, 2), (2, 1), (3, 4)):
            if version > 1:
                publish(config, version, ranks, seed=3)
                receipt = group.controller.update(version)
                assert receipt.version == str(version)
                held[version] = [rank.digest for rank in receipt.ranks]
            said[version] = [
                (answer.tokens, answer.logprobs)
                for answer in client.generate(PROMPTS, 12, temperature=1.0, seed=5)
            ]
            assert all(answer for answer, _ in said[version])
    assert said[1] == said[2] == said[3]
    assert held[2] == held[3]
