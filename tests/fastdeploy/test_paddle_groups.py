"""The weight manager over paddle's own groups, broadcast and parameters, on Gloo and a CPU."""

from __future__ import annotations

import contextlib
import json
import random
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from living_group import Program, eventually

from tests.forkserver import WITH_PADDLE
from wsm.strategies import publish_snapshot
from wsm.strategies.tensor import TensorSpec

pytestmark = [pytest.mark.processes, pytest.mark.needs("libatomic")]


def endpoints(count: int) -> list[str]:
    """Free ports of loopback, below those that the kernel gives to connections of other processes."""
    ports = random.sample(range(12_000, 32_000), 10 * count)
    sockets = []
    while len(sockets) < count:
        with contextlib.suppress(OSError):
            sockets.append(socket.create_server(("127.0.0.1", ports.pop())))
    found = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return found


def joined(settings: dict[str, Any]) -> list[Program]:
    """Start the ranks, and wait until paddle has made their groups.

    Its `new_group` over Gloo never returns now and then, on busy cores, on two ranks of four.
    """
    program = Path(__file__).with_name("paddle_rank.py")
    for tries_left in (3, 2, 1, 0):
        *ranks_at, master, other = endpoints(6)
        ports = [int(each.rpartition(":")[2]) for each in (master, other)]
        told = json.dumps(settings | {"endpoints": ranks_at, "master": master, "ports": ports})
        ranks = [Program(program, told, str(rank), server=WITH_PADDLE) for rank in range(4)]
        try:
            for process in ranks:
                process.says("joined", 20.0)
        except pytest.fail.Exception:
            for process in ranks:
                process.close()
            if not tries_left:
                raise
        else:
            return ranks
    raise AssertionError


@pytest.mark.slow
def test_two_parts_of_paddles_ranks_boot_clear_and_load_each_as_a_group_by_fastdeploys_calls(tmp_path):
    model = tmp_path / "model"
    shards = {}
    for rank in range(4):
        tensors = {
            "weight": np.full((16, 8), rank + 1, dtype=np.float32),
            "bias": np.full((8,), 0.5, dtype=np.float32),
        }
        shards[rank] = {
            name: (TensorSpec(name, "F32", array.shape), array.tobytes()) for name, array in tensors.items()
        }
    publish_snapshot(model, "global_step_1200", shards, durable=False)
    ranks = joined({"model": str(model), "directory": str(tmp_path)})
    try:
        for rank, process in enumerate(ranks):
            ready = process.says("ready")
            assert ready["held"] == {"weight": 128.0 * (rank + 1), "bias": 4.0}
            assert (ready["version"], ready["ranks"]) == ("global_step_1200", 4)
        for process in ranks:
            assert process.says("cleared")["held"] == {}
        for rank, process in enumerate(ranks):
            assert process.says("updated")["held"]["weight"] == 128.0 * (rank + 1)
            process.says(f"computed {8 * (16.0 * (rank + 1) + 0.5):.1f}")
            process.last_lines()
            eventually(process.has_ended)
            assert process.code == 0
    finally:
        for process in ranks:
            process.close()
