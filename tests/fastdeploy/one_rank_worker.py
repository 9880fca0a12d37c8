"""A worker of one rank in the test's own process: its word, its model directory, its weight manager."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from model_runners import worker_config

from wsm.actions.backends.memory import HostMemory
from wsm.fastdeploy import DynamicWeightManager
from wsm.fastdeploy._membership import Membership
from wsm.signals.fastdeploy import EngineWord, EngineWordKind

NORMAL, UPDATING, CLEARING, CLEARED = 0, 1, -1, -2


class OneRankRunner:
    """What FastDeploy's loop and its methods need of a model runner; its calls are written down."""

    def __init__(self, manager: DynamicWeightManager | None = None) -> None:
        self.calls: list[str] = []
        self.share_inputs = {"stop_flags": paddle.ones([2, 1], dtype="bool"), "caches": []}
        self.dynamic_weight_manager = manager

    def clear_requests(self) -> None:
        self.calls.append("clear_requests")

    def clear_cache(self) -> None:
        self.calls.append("clear_cache")

    def initialize_kv_cache(self) -> None:
        self.calls.append("initialize_kv_cache")


class WordView:
    """FastDeploy's IPCSignal of a word, as far as its loop goes: a numpy view."""

    def __init__(self, word: EngineWord) -> None:
        self.value = np.memmap(word.path, dtype=np.int32, mode="r+", shape=(1,))


class OneRank:
    """What FastDeploy's worker has when it makes its weight manager, and those that it has made."""

    def __init__(self, directory: Path, monkeypatch: Any, *, visible: str = "0") -> None:
        self.directory, self.model_directory = directory, directory / "model"
        self.model_directory.mkdir()
        self.port = secrets.randbelow(1 << 30) + 10_000
        self.word = EngineWord.create(EngineWordKind.WEIGHTS, self.port, NORMAL, directory=directory)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        for name in ("PADDLE_TRAINER_ID", "FLAGS_selected_gpus", "FD_USE_CHECKPOINT_TRANSFER"):
            monkeypatch.delenv(name, raising=False)
        self.managers: list[DynamicWeightManager] = []

    def config(self, *, strategy: str = "ipc_snapshot", rsync: Any = None, **parallel: Any) -> Any:
        return worker_config(self.model_directory, self.port, strategy=strategy, rsync=rsync, **parallel)

    def make(self, config: Any, models: Any, local_rank: int | None = None) -> DynamicWeightManager:
        made = DynamicWeightManager(
            config,
            models,
            local_rank,
            directory=self.directory,
            memory=HostMemory(),
            member=Membership(0, [0], lambda told: told),
        )
        self.managers.append(made)
        return made

    def enter(self, manager: DynamicWeightManager, wish: int, runner: Any, *, block: bool = False) -> int:
        """One entry of FastDeploy's loop; what its word says then."""
        self.word.store(wish)
        manager.check_model_weights_status(WordView(self.word), None, runner, self.port, block)
        return self.word.read()

    def close(self) -> None:
        for manager in self.managers:
            manager.close()
        self.word.unlink()
        self.word.close()
