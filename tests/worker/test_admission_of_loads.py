"""A host with too little memory refuses an update before a byte, and takes it when there is enough."""

from __future__ import annotations

import pytest

from wsm.controller.errors import RankFailedError
from wsm.states.vocabulary import WeightState
from wsm.strategies import publish_snapshot
from wsm.strategies.snapshot.source import SnapshotConfig
from wsm.testing import InMemoryMemory

CONTENT = {"weight": b"\x01" * 256, "bias": b"\x01" * 32}
BYTES = 288


class Host(InMemoryMemory):
    """A host of which so much is left."""

    shared_by_ranks = True
    left = BYTES

    def available_bytes(self):
        return self.left


@pytest.fixture
def lone(make_lone, tmp_path):
    made = make_lone(load=None, snapshot=SnapshotConfig(directory=str(tmp_path / "policy"), device_ids=(0,)))
    made.runner.memory = Host(made.runner)
    specs = made.runner.weights.specs()
    shard = {name: (specs[name], data) for name, data in CONTENT.items()}
    for version in (1, 2):
        publish_snapshot(tmp_path / "policy", version, {0: shard}, durable=False)
    return made


def test_an_update_after_a_clear_waits_for_memory(lone):
    lone.update(1)
    lone.clear()
    lone.runner.memory.left = BYTES - 1
    with pytest.raises(RankFailedError, match=f"'fill' takes {BYTES} bytes") as caught:
        lone.update(1)
    assert caught.value.context["error"] == "load-memory"
    assert list(lone.runner.weights.held()) == []
    assert lone.worker.weights is WeightState.CLEARED
    lone.runner.memory.left = BYTES
    assert lone.update(1).version == "1"


def test_an_update_in_place_needs_no_memory(lone):
    lone.update(1)
    lone.runner.memory.left = 0
    assert lone.update(2).version == "2"
