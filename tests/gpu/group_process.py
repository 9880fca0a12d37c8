"""One of two ranks whose group goes down and comes back: ``group_process.py DEVICE RANK DIRECTORY``.

On GPUs it is an NCCL group behind :class:`DeviceGroups`, each rank on a GPU of its own; on the CPU a Gloo
group behind :class:`PaddleGlooGroups`. Where the ranks of an NCCL group meet is in the environment, as paddle
reads it. Prints what it found as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import paddle
from paddle import distributed

from tests.gpu.devices import Cpu, Device, Gpu
from wsm.actions.backends.paddle_groups import DeviceGroups, PaddleGlooGroups
from wsm.actions.backends.rendezvous import FileRendezvous
from wsm.actions.surfaces import GroupKind
from wsm.errors import RefusedError

SIZE = 2
ROUNDS = 2


def rounds(groups: DeviceGroups | PaddleGlooGroups, device: Device, rank: int) -> dict[str, Any]:
    """Let the group go and come again and again, and compute over it each time."""
    totals, refused, occupied = [], 0, []
    for count in range(ROUNDS):
        groups.restart(GroupKind.TP, incarnation=f"tp-{count}")
        value = paddle.to_tensor([rank + 1.0])
        distributed.all_reduce(value, group=groups.group(GroupKind.TP))
        totals.append(value.item())
        groups.barrier(GroupKind.TP)
        up = device.occupied_bytes()
        groups.shut_down(GroupKind.TP)
        occupied.append((up, device.occupied_bytes()))
        try:
            groups.barrier(GroupKind.TP)
        except RefusedError:
            refused += 1
    return {"totals": totals, "refused": refused, "occupied": occupied}


def main() -> None:
    """Be the rank that the command line says."""
    on_gpu, rank, directory = sys.argv[1] == "gpu", int(sys.argv[2]), sys.argv[3]
    device: Device = Gpu(rank) if on_gpu else Cpu()
    device.use()
    groups: DeviceGroups | PaddleGlooGroups
    if on_gpu:
        distributed.init_parallel_env()
        groups = DeviceGroups({GroupKind.TP: distributed.new_group(list(range(SIZE)), backend="nccl")})
    else:
        groups = PaddleGlooGroups(rank, {GroupKind.TP: range(SIZE)}, FileRendezvous(directory))
    sys.stdout.write(json.dumps(rounds(groups, device, rank)))


if __name__ == "__main__":
    main()
