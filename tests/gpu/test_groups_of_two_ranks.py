"""Communicators that go down and come back: NCCL between two GPUs, Gloo between two processes."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.gpu import machine
from tests.gpu.conftest import Start
from tests.gpu.devices import Device
from tests.gpu.group_process import ROUNDS, SIZE

# A process's first use of a GPU may compile every kernel anew.
pytestmark = [pytest.mark.paddle, pytest.mark.processes, pytest.mark.timeout(600)]


def meeting_place() -> dict[str, str]:
    """Where the ranks of an NCCL group find each other, as paddle's launcher would say it."""
    with ExitStack() as stack:
        ports = []
        for _ in range(SIZE):
            taken = stack.enter_context(socket.socket())
            taken.bind(("127.0.0.1", 0))
            ports.append(taken.getsockname()[1])
    endpoints = [f"127.0.0.1:{port}" for port in ports]
    return {
        "PADDLE_TRAINERS_NUM": str(SIZE),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
        "PADDLE_MASTER": endpoints[0],
    }


@pytest.mark.slow
def test_a_group_is_shut_down_refuses_meanwhile_and_computes_again(
    device: Device, start: Start, tmp_path: Path
) -> None:
    if device.name == "gpu" and machine.gpus() < SIZE:
        pytest.fail(f"an NCCL group of {SIZE} ranks needs {SIZE} GPUs, and this machine has {machine.gpus()}")
    place = meeting_place() if device.name == "gpu" else {}
    ranks = []
    for rank in range(SIZE):
        own = {"PADDLE_TRAINER_ID": str(rank), "FLAGS_selected_gpus": str(rank)} if place else {}
        if place:
            own["PADDLE_CURRENT_ENDPOINT"] = place["PADDLE_TRAINER_ENDPOINTS"].split(",")[rank]
        ranks.append(start("group_process.py", device.name, rank, tmp_path, **place, **own))
    for process in ranks:
        output, complaint = process.communicate()
        assert process.returncode == 0, complaint
        found = json.loads(output)
        assert found["totals"] == [SIZE * (SIZE + 1) / 2] * ROUNDS
        assert found["refused"] == ROUNDS
        if device.name == "gpu":
            assert all(down < up for up, down in found["occupied"]), "the communicator kept its memory"
