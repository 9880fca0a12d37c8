"""One rank with paddle's own groups and models: python paddle_rank.py SETTINGS_JSON RANK.

Gloo on loopback instead of NCCL, a CPU instead of GPUs; groups, broadcast, parameters and files are real.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
from model_runners import worker_config


def main(settings, rank: int) -> None:
    ports = settings["endpoints"]
    os.environ |= {
        "PADDLE_TRAINER_ID": str(rank),
        "PADDLE_TRAINERS_NUM": str(len(ports)),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(ports),
        "PADDLE_CURRENT_ENDPOINT": ports[rank],
        "PADDLE_MASTER": settings["master"],
        "FLAGS_selected_gpus": str(rank),
        "CUDA_VISIBLE_DEVICES": "0,1,2,3",
        "PADDLE_DISTRI_BACKEND": "gloo",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    import paddle  # noqa: PLC0415 - behind what it reads

    from wsm.fastdeploy import DynamicWeightManager  # noqa: PLC0415 - the same

    paddle.disable_signal_handler()
    paddle.set_device("cpu")
    paddle.distributed.init_parallel_env()
    part, place = divmod(rank, 2)
    paddle.distributed.barrier()
    parts = []
    for first in (0, 2):
        parts.append(paddle.distributed.new_group([first, first + 1]))
        paddle.distributed.barrier()  # a group that others make meanwhile may never come to be
    sys.stdout.write(json.dumps({"event": "joined"}) + "\n")
    sys.stdout.flush()
    group, port = parts[part], settings["ports"][part]
    with paddle.LazyGuard():
        model = paddle.nn.Linear(16, 8)
    config = worker_config(
        settings["model"],
        settings["ports"],
        tensor_parallel_rank=place,
        tensor_parallel_size=2,
        tp_group=group,
        data_parallel_size=2,
        data_parallel_rank=part,
        local_data_parallel_id=part,
    )
    manager = DynamicWeightManager(config, model, place, directory=Path(settings["directory"]))

    def says(event: str) -> None:
        held = {
            name: float(tensor.sum())
            for name, tensor in model.state_dict().items()
            if tensor._is_initialized()
        }
        line = {"event": event, "held": held, "version": manager.version, "ranks": manager.nranks}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()

    says("ready")
    manager._verify_parameters("update")
    manager.clear_parameters(port)
    manager._verify_parameters("clearance")
    says("cleared")
    manager.update_parameters(port)
    manager.finalize_update(port)
    says("updated")
    y = model(paddle.to_tensor(np.ones((1, 16), dtype=np.float32)))
    says(f"computed {float(y.sum()):.1f}")
    paddle.distributed.barrier()  # rank 0 serves the store that makes every part's groups
    manager.close()
    sys.stdout.flush()
    os._exit(0)  # paddle's store may abort a process that ends after the store's own


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), int(sys.argv[2]))
