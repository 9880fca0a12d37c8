"""A weight transfer engine for vLLM: each update names one file of tensors, which every worker loads.

It stands for what a trainer of many gigabytes does over NCCL: tensors arrive in parts, and each part is in
place as it has come. vLLM has no engine of its own that runs without a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from safetensors.torch import load_file
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import WeightTransferEngine


@dataclass
class NoInit:
    """What has to be set up: nothing."""


@dataclass
class OneFile:
    """One part of an update."""

    path: str


class FileEngine(WeightTransferEngine[Any, Any]):  # type: ignore[misc] # vLLM is not here for a type checker
    """Loads the tensors of a file into the model, as vLLM's engine for sparse updates does."""

    init_info_cls = NoInit
    update_info_cls = OneFile

    def init_transfer_engine(self, init_info: Any) -> None:
        """Need nothing."""

    def start_weight_update(self) -> None:
        """Begin."""

    def receive_weights(self, update_info: Any) -> None:
        """Load one file."""
        self.model.load_weights(load_file(update_info.path).items())

    def finish_weight_update(self) -> None:
        """End."""

    def shutdown(self) -> None:
        """Hold nothing."""


def register() -> None:
    """Let vLLM know the engine as ``files``: its general plugin in the demo's server."""
    WeightTransferEngineFactory.register_engine("files", FileEngine)
