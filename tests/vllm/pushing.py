"""An engine of vLLM's for weights that are pushed, which stands in for those of CUDA's: no GPU is here.

It has their whole protocol and their layerwise reload. What a trainer would send over NCCL lies in a file.
"""

from __future__ import annotations

from dataclasses import dataclass

from safetensors.torch import load_file
from vllm.distributed import get_tp_group
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import WeightTransferEngine
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from tests.vllm.faulty import faulted


@dataclass
class Peer:
    port: int


@dataclass
class Sent:
    path: str
    names: list[str]


class StandInEngine(WeightTransferEngine):
    """Fails with the ``kind`` ``push`` where a test asks for it: ``at`` a verb, or a tensor's name."""

    init_info_cls = Peer
    update_info_cls = Sent

    def init_transfer_engine(self, init_info):
        self._may_fail("init")

    def start_weight_update(self):
        initialize_layerwise_reload(self.model)
        self._may_fail("start")

    def receive_weights(self, update_info):
        tensors = load_file(update_info.path)
        for name in update_info.names:
            self._may_fail(name)
            self.model.load_weights([(name, tensors[name])])

    def finish_weight_update(self):
        self._may_fail("finish")
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self):
        self._may_fail("shutdown")

    def _may_fail(self, at):
        if faulted(get_tp_group().rank_in_group, "push", at=at):
            raise RuntimeError(f"{at}: the link is lost")


def register():
    WeightTransferEngineFactory.register_engine("stand_in", StandInEngine)
