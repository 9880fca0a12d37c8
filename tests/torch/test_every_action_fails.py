"""The contract of an engine, over the weights of a torch module."""

from __future__ import annotations

from small_model import small_model

from wsm.testing import InMemoryKVCache, InMemoryRequests, RunnerContract
from wsm.torch import TorchWeights, memory_on


class TorchRunner:
    """A module's weights, and a scheduler and a cache that are nothing but memory."""

    def __init__(self, prefixed=False):
        model = small_model()
        self.weights = TorchWeights({"": model, "draft.": small_model()} if prefixed else model)
        self.weights.release()
        self.memory = memory_on("cpu")
        self.requests = InMemoryRequests()
        self.kv_cache = InMemoryKVCache()


class TestAnEngineOfTorch(RunnerContract):
    def make_runner(self, rank):
        return TorchRunner()


class CapturedEverything:
    """Stands for CUDA graphs, which no CPU has: all addresses are captured once it has captured."""

    def __init__(self):
        self._captured = False

    def drop(self):
        self._captured = False

    def capture(self):
        self._captured = True

    def captured(self):
        return self._captured


class TestAnEngineOfTorchWhoseGraphsHoldAddresses(RunnerContract):
    plans = ("update", "update_in_place", "hot")
    ways = ("raises", "is not done")

    def make_runner(self, rank):
        runner = TorchRunner(prefixed=True)
        runner.graphs = CapturedEverything()
        return runner
