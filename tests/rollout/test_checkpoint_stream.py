"""Two ranks receive a whole checkpoint each, and their loaders cut their shards out of it while it comes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from checkpoint_transfer.sender import FakeSender

from examples.rollout.config import rollout_config_from_mapping
from examples.rollout.model.parameters import loaders_for
from examples.rollout.model.shape import ModelShape
from examples.rollout.model.sharding import initial_state, shard, shard_specs
from examples.rollout.supervisor import RolloutSupervisor
from tests.leftovers import group_name
from wsm import Outcome, Tag
from wsm.errors import WsmError
from wsm.strategies import MemoryTarget, with_manifest, write_version
from wsm.strategies.applier.feeding import feed
from wsm.strategies.digest import digest_of, shard_digest
from wsm.strategies.observer import UNOBSERVED
from wsm.strategies.offer import ManifestScope, Offer, OfferedTensor
from wsm.strategies.tensor import TensorSpec

pytestmark = [pytest.mark.paddle, pytest.mark.processes]

MODEL = {
    "vocabulary": 11,
    "width": 16,
    "heads": 4,
    "hidden": 32,
    "context": 64,
    "experts": 4,
    "draft_layers": 1,
}
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8]]


def digest_of_shard(shape: ModelShape, seed: int, rank: int) -> str:
    local = shard(initial_state(shape, seed), shape, rank, 2)
    specs = shard_specs(shape, rank, 2)
    return shard_digest((specs[name], digest_of(array.tobytes())) for name, array in local.items())


def done(receipt) -> list[str]:
    """Return what the ranks of a receipt did, in order."""
    assert receipt.outcome is Outcome.UPDATED
    return [action.name for action in receipt.ranks[0].actions]


@pytest.mark.slow
def test_a_group_serves_what_its_loaders_made_of_a_checkpoint(tmp_path, monkeypatch):
    standins = str(Path(__file__).parents[1] / "standins")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([standins, *filter(None, sys.path)]))
    sender = FakeSender(bucket_bytes=1 << 12)
    transfer = {"redis_host": "127.0.0.1", "redis_port": sender.port, "gdr_mtp_chunk_size": 2}
    rsync = {"directory": str(tmp_path), "rsync_config": {**transfer, "gdr_release_cache": True}}
    group = {"name": group_name("checkpoint"), "strategy": "gdr", "rsync": rsync}
    config = rollout_config_from_mapping({"group": group, "model": MODEL})
    shape = config.engine.shape

    def send(version: int, seed: int) -> None:
        checkpoint = with_manifest(initial_state(shape, seed), version=version)
        for rank in range(2):
            sender.send(checkpoint, step_id=str(version), rank=rank)
        write_version(tmp_path, version)

    try:
        send(1, seed=3)
        with RolloutSupervisor(config) as supervisor, supervisor.client() as client:
            said = {}
            for version, seed in ((1, 3), (2, 4), (3, 3)):
                if version > 1:
                    send(version, seed)
                    receipt = supervisor.controller.update(version, hot=version == 3)
                    assert [each.digest for each in receipt.ranks] == [
                        digest_of_shard(shape, seed, rank) for rank in range(2)
                    ]
                said[version] = [
                    (answer.tokens, answer.logprobs)
                    for answer in client.generate(PROMPTS, 12, temperature=1.0, seed=5)
                ]
            assert said[1] == said[3] != said[2]
            with pytest.raises(WsmError, match="'gpu_direct' cannot be used: paddle"):
                supervisor.controller.update(3, force=True, transfer_mode="gpu_direct")
            with pytest.raises(WsmError, match="half of a fused parameter"):
                supervisor.controller.update(3, force=True, partial=True)
            supervisor.controller.clear(tags=[Tag.KV_CACHE])
            send(4, seed=4)
            assert "free_caches_for_load" not in done(supervisor.controller.update(4, transfer_mode="host"))
            send(5, seed=3)
            in_place = done(supervisor.controller.update(5))
            freed, loaded, again = map(
                in_place.index, ("free_caches_for_load", "load_weights", "rebuild_caches_after_load")
            )
            assert freed < loaded < again
            with pytest.raises(WsmError, match="step 9 is not ready"):
                supervisor.controller.update(9)
            assert client.generate(PROMPTS, 2)
    finally:
        sender.close()


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_loaders_of_all_ranks_make_the_shards_that_a_trainer_would_cut(ranks):
    shape = ModelShape(**{**MODEL, "layers": 2})
    full = initial_state(shape, 7)
    for rank in range(ranks):
        tensors = tuple(
            OfferedTensor.of_bytes(TensorSpec(name, "F32", array.shape), "the test", array.data.cast("B"))
            for name, array in full.items()
        )
        offer = Offer(1, tensors, ("the test",), None, ManifestScope.LOADED, chunk_tensors=3)
        target = MemoryTarget(shard_specs(shape, rank, ranks).values())
        feed(offer, loaders_for(shape, rank, ranks), target, UNOBSERVED)
        for name, array in shard(full, shape, rank, ranks).items():
            assert np.array_equal(np.frombuffer(target.readable(name), np.float32), array.reshape(-1))
