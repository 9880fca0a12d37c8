"""FastDeploy's own modules out of a checkout, beside stand-ins for those that want paddle, CUDA or sockets.

Run as a program, it is FastDeploy's own `CacheTransferManager` of one rank:
python upstream_modules.py SETTINGS_JSON RANK. What it says of its mappings is written down; KV cache is not
there, and nothing is transferred.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import logging
import os
import sys
import threading
import time
from importlib.abc import Loader, MetaPathFinder
from multiprocessing import resource_tracker
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

#: What runs as it is; every other module of FastDeploy is stood in for.
OWN = {
    f"fastdeploy.{name}"
    for name in (
        "cache_manager.cache_data",
        "cache_manager.cache_transfer_manager",
        "cache_manager.prefix_cache_manager",
        "entrypoints.engine_client",
        "envs",
        "inter_communicator.ipc_signal",
        "inter_communicator.ipc_signal_const",
    )
}


class StandIn(ModuleType):
    """A module that has whatever is asked of it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        value = importlib.import_module(full) if full in OWN else MagicMock(name=full)
        setattr(self, name, value)
        return value


class Checkout(MetaPathFinder, Loader):
    """Finds FastDeploy's modules in a checkout; `stood_in` are those that are not FastDeploy's own."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.stood_in: list[str] = []
        self.contents: dict[str, dict[str, Any]] = {
            "fastdeploy.utils": {
                "EngineError": RuntimeError,
                "ParameterError": ValueError,
                "StatefulSemaphore": threading.Semaphore,
                "get_logger": lambda *_: logging.getLogger("fastdeploy"),
            },
            "fastdeploy.platforms": {"current_platform": SimpleNamespace(is_iluvatar=lambda: False)},
        }

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> Any:
        if name.partition(".")[0] != "fastdeploy" and name not in self.contents:
            return None
        path = self._root / name.replace(".", "/")
        if name in OWN:
            return importlib.util.spec_from_file_location(name, path.with_suffix(".py"))
        return importlib.util.spec_from_loader(name, self, is_package=path.is_dir())

    def create_module(self, spec: Any) -> ModuleType:
        module = StandIn(spec.name)
        vars(module).update(self.contents.get(spec.name, {}))
        self.stood_in.append(spec.name)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing of it runs."""


def installed(root: Path, **contents: dict[str, Any]) -> Checkout:
    """Have FastDeploy imported from a checkout, with its words and what stand-ins have."""
    checkout = Checkout(root)
    checkout.contents |= contents
    sys.meta_path.insert(0, checkout)
    package = importlib.import_module("fastdeploy.inter_communicator")
    words = importlib.import_module("fastdeploy.inter_communicator.ipc_signal")
    constants = importlib.import_module("fastdeploy.inter_communicator.ipc_signal_const")
    vars(package).update({name: each for name, each in vars(constants).items() if name.endswith("Status")})
    vars(package)["IPCSignal"] = words.IPCSignal
    return checkout


def says(event: str, **more: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **more}) + "\n")
    sys.stdout.flush()


class Tensor:
    def numel(self) -> int:
        return 1

    def element_size(self) -> int:
        return 2


def transfers(settings: dict[str, Any], rank: int) -> None:
    """Be FastDeploy's own process of one rank, until the test ends it."""
    port = str(settings["port"])

    def mapped(tensor: Tensor, name: str, *_: Any) -> Tensor:
        says("mapped", name=name)
        return tensor

    cuda = SimpleNamespace(
        empty_cache=lambda: None,
        **{f"{most}memory_{kind}": lambda: 0 for most in ("", "max_") for kind in ("allocated", "reserved")},
    )
    paddle = {
        "empty": lambda **_: Tensor(),
        "full": lambda **_: Tensor(),
        "device": SimpleNamespace(cuda=cuda),
    }
    operators = {
        "share_external_data_": mapped,
        "set_data_ipc": lambda _tensor, name: says("made", name=name),
        "unset_data_ipc": lambda _tensor, name, *_: says("unmapped", name=name),
        "memory_allocated": lambda: 0,
    }
    # Its barrier waits for the other ranks, and by then this one is made: a pause before that is lost.
    made = threading.Event()
    queue = MagicMock(name="EngineCacheQueue")
    queue.return_value.pause_barrier.wait = queue.return_value.resume_barrier.wait = made.wait
    speculative = SimpleNamespace(num_extra_cache_layer=0, num_gpu_block_expand_ratio=1)
    more = {
        "paddle": paddle,
        "fastdeploy.cache_manager.ops": operators,
        "fastdeploy.config": {
            "SpeculativeConfig": lambda _: speculative,
            "CacheConfig": SimpleNamespace(get_cache_bytes=lambda _: 2),
        },
    }
    resource_tracker.register = lambda *_: None  # its tracker would remove the words at its death
    checkout = installed(Path(settings["source"]), **more)
    vars(importlib.import_module("fastdeploy.inter_communicator"))["EngineCacheQueue"] = queue
    module = importlib.import_module("fastdeploy.cache_manager.cache_transfer_manager")
    module.logger = logging.getLogger("fastdeploy")
    shape = "4,1,2,2"
    sys.argv = ["cache_transfer_manager", "--rank", str(rank), "--device_id", str(rank)]
    sys.argv += ["--mp_num", str(settings["ranks"]), "--key_cache_shape", shape]
    sys.argv += ["--value_cache_shape", shape, "--engine_worker_queue_port", port]
    known = inspect.getsource(module.parse_args)
    for option, value in {"--engine_pid": port, "--model_path": "model"}.items():  # of 2025, of 2026
        sys.argv += [option, value] if option in known else []
    sys.argv += ["--create_cache_tensor"] * settings["makes"]
    manager = module.CacheTransferManager(module.parse_args())
    made.set()
    says("transfers", stood_in=checkout.stood_in)
    in_flight = getattr(manager, "cache_task_inflight_signal", None)  # of 2026, by its transfers
    parent = os.getppid()
    while os.getppid() == parent:
        if in_flight is not None:
            in_flight.value[rank] = not manager.is_paused
        time.sleep(0.05)


if __name__ == "__main__":
    transfers(json.loads(sys.argv[1]), int(sys.argv[2]))
