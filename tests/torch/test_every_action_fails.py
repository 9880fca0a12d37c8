"""The contract of an engine, over the weights of a torch module."""

from __future__ import annotations

import pytest
import torch
from small_model import small_model

from tests.in_memory_work import InMemoryWork
from wsm.testing import InMemoryKVCache, InMemoryRequests, RunnerContract
from wsm.torch import TorchWeights, memory_on


class TorchRunner:
    """A module's weights, and a scheduler and a cache that are nothing but memory."""

    def __init__(self, prefixed=False, device="cpu"):
        self.model = small_model().to(device)
        modules = {"": self.model, "draft.": small_model().to(device)} if prefixed else self.model
        self.weights = TorchWeights(modules)
        self.weights.release()
        self.memory = memory_on(device)
        self.requests = InMemoryRequests()
        self.kv_cache = InMemoryKVCache()


class TestAnEngineOfTorch(InMemoryWork, RunnerContract):
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


class TestAnEngineOfTorchWhoseGraphsHoldAddresses(InMemoryWork, RunnerContract):
    plans = ("update", "update_in_place", "hot")
    ways = ("raises", "is not done")

    def make_runner(self, rank):
        runner = TorchRunner(prefixed=True)
        runner.graphs = CapturedEverything()
        return runner


class CapturedForwardPass:
    """A CUDA graph of the model's forward pass, which computes with whatever lies at its addresses."""

    def __init__(self, model):
        self._model, self.graph = model, None

    def drop(self):
        self.graph = None

    def capture(self):
        with torch.device("cuda"):
            tokens = torch.arange(16)
        self._model(tokens)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._said = self._model(tokens)
        self.graph, self._tokens = graph, tokens  # a graph does not keep what it reads

    def captured(self):
        return self.graph is not None

    def replay(self):
        self.graph.replay()
        torch.cuda.synchronize()
        return self._said


@pytest.mark.gpu(framework="torch")
class TestAnEngineOfTorchOnAGpu(InMemoryWork, RunnerContract):
    def make_runner(self, rank):
        runner = TorchRunner(device="cuda" if torch.cuda.is_available() else "cpu")
        runner.graphs = CapturedForwardPass(runner.model)
        return runner
