"""What only a GPU has: graphs that hold addresses, and memory that others take once it is released."""

from __future__ import annotations

import gc

import pytest
import torch
from small_model import small_model
from test_every_action_fails import CapturedForwardPass, TorchRunner
from torch import nn

from tests.gpu import machine
from wsm import Loaded
from wsm.strategies import publish_snapshot
from wsm.strategies.load import load
from wsm.strategies.snapshot.source import SnapshotSource
from wsm.testing import LocalGroup
from wsm.torch import TorchWeights, memory_on

pytestmark = pytest.mark.gpu(framework="torch")
SIZE = 256 << 20
SLACK = SIZE // 4  # what allocator and driver keep for themselves, and other processes take meanwhile


def publish(directory, version, model):
    publish_snapshot(directory, version, {0: dict(model.state_dict())}, durable=False)


@pytest.mark.parametrize("hot", [False, True], ids=["in place", "hot"])
def test_a_graph_computes_with_every_version_as_an_engine_without_graphs_does(tmp_path, hot):
    runner = TorchRunner(device="cuda")
    runner.graphs = CapturedForwardPass(runner.model)
    source = SnapshotSource(tmp_path / "snapshots", rank=0)

    def from_the_trainer(context, target):
        report = load(source, target, version=context.version)
        return Loaded(
            report.version, report.digest, report.manifest_digest, report.bytes, report.tensors, "group"
        )

    with LocalGroup(lambda _: runner, tmp_path, ranks=1, load=from_the_trainer) as group:
        for version in (1, 2, 3):
            trained = small_model(seed=version).to("cuda")
            publish(tmp_path / "snapshots", version, trained)
            group.update(str(version), hot=hot and version > 1)
            assert torch.equal(runner.graphs.replay(), trained(torch.arange(16, device="cuda")))


def test_a_hot_update_captures_no_graph_anew(tmp_path):
    runner = TorchRunner(device="cuda")
    runner.graphs = CapturedForwardPass(runner.model)
    with LocalGroup(lambda _: runner, tmp_path, ranks=1) as group:
        group.update("1")
        captured, addresses = runner.graphs.graph, runner.weights.addresses()
        group.update("2", hot=True)
        assert runner.graphs.graph is captured
        assert runner.weights.addresses() == addresses


def test_memory_is_free_for_other_processes_once_it_is_released_and_given_back(tmp_path):
    model = nn.Linear(SIZE >> 12, 1 << 11, bias=False, dtype=torch.bfloat16, device="cuda")
    weights, memory = TorchWeights(model), memory_on("cuda:0")
    publish(tmp_path, 1, model)
    source = SnapshotSource(tmp_path, rank=0)
    gc.collect()
    memory.empty_cache()

    occupied, available = machine.occupied_bytes(0), memory.available_bytes()
    staged = weights.stage()
    load(source, staged, version=1)
    assert machine.occupied_bytes(0) - occupied > SIZE - SLACK
    assert available - memory.available_bytes() > SIZE - SLACK
    assert memory.figures()["allocated"] > 2 * SIZE - SLACK
    staged.make_ready(frozenset())
    staged.flip()
    assert staged.give_back() == SIZE
    memory.empty_cache()
    assert abs(machine.occupied_bytes(0) - occupied) < SLACK

    assert weights.release() == SIZE
    assert available - memory.available_bytes() < 0, "what is cached may be taken again"
    memory.empty_cache()
    assert occupied - machine.occupied_bytes(0) > SIZE - SLACK
    load(source, weights, version=1)
    assert abs(machine.occupied_bytes(0) - occupied) < SLACK
