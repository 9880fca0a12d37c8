"""Workers that stand in for vLLM's: what their loaders have taken is what they hold. No engine runs."""

from __future__ import annotations

import itertools
import multiprocessing
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
from safetensors.numpy import save_file

from wsm.vllm.extension import WorkerExtension
from wsm.vllm.fanout import EngineRanks, UpdateEnd
from wsm.vllm.versions import EngineTerms, VersionPlace

_NAMES = itertools.count(1)
SHAPES = {"embed.weight": (8, 4), "layer.0.weight": (4, 4), "layer.1.weight": (4, 4), "norm.weight": (4,)}


def write_checkpoint(directory, fill, shapes=None):
    """A directory as a trainer writes it, of one file; every element is `fill`."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {name: np.full(shape, fill, np.float32) for name, shape in (shapes or SHAPES).items()}
    save_file(tensors, directory / "model.safetensors")
    return directory


def place(directory, version=None, **more):
    return VersionPlace(version or directory.name, str(directory), [str(directory.parent)], **more)


class FakeModel:
    """What a worker's loaders and transfer engine write to."""

    def __init__(self, worker):
        self._worker = worker

    def named_parameters(self):
        here = SimpleNamespace(is_meta=False, numel=lambda: 0 if self._worker.packed else 1)
        empty = SimpleNamespace(is_meta=True)
        return [("embed.weight", here), *((name, empty) for name in self._worker.meta)]

    def parameters(self):
        return [parameter for _, parameter in self.named_parameters()]

    def modules(self):
        return []

    def load_weights(self, weights):
        for name, data in weights:
            if name in self._worker.transfer_fails:
                self._worker.transfer_fails.remove(name)
                raise RuntimeError("link lost")
            self._worker.holds[name] = float(data.flat[0])


class FakeWorker(WorkerExtension):
    """`fails`: after how many tensors each of the next reloads fails; None: it does not.

    `meta`: parameters that a reload leaves without memory. `packed`: whether they are empty. `loads_as`: what
    its loaders make of every tensor; None: what it is.

    Its verbs of pushes stand in for an engine of CUDA's. `transfer_fails`: verbs, and names of tensors, at
    which each fails once. `differs`: what this rank gets more than its trainer has sent.
    """

    def __init__(self, rank):
        self.rank = rank
        self.holds = {}
        self.fails = []
        self.reloads = self.forgot = 0
        self.is_half = False
        self.meta, self.transfer_fails, self.differs = [], [], 0.0
        self.packed, self.loads_as = False, None
        self.peer, self.is_receiving = None, False
        model = FakeModel(self)
        self.model_runner = SimpleNamespace(get_model=lambda: model)
        self.weight_transfer_engine = SimpleNamespace(model=model)
        self.vllm_config = SimpleNamespace(quant_config=None)

    def compute_weight_checksums(self):
        return {f"rank{self.rank}:{name}": str(value) for name, value in self.holds.items()}

    def wsm_tensor(self, spec, data):
        return np.frombuffer(data, np.float32)

    def wsm_forget(self):
        self.forgot, self.is_half, self.is_receiving = self.forgot + 1, False, False

    def init_weight_transfer_engine(self, info):
        self._transfer("init")
        self.peer = info

    def start_weight_update(self):
        assert not self.is_receiving, "vLLM would raise here"
        self._transfer("start")
        self.is_receiving = True

    def update_weights(self, info):
        assert self.is_receiving
        fill = info["fill"] + self.differs
        tensors = ((name, np.full(SHAPES[name], fill, np.float32)) for name in info["names"])
        self.weight_transfer_engine.model.load_weights(tensors)

    def finish_weight_update(self):
        self._transfer("finish")
        self.is_receiving = False

    def _transfer(self, verb):
        if verb in self.transfer_fails:
            self.transfer_fails.remove(verb)
            raise RuntimeError("link lost")

    def reload_weights(self, weights_iterator):
        assert not self.is_half, "what failed before is not gone"
        self.reloads += 1
        self.is_half = True
        fails = self.fails.pop(0) if self.fails else None
        for count, (name, data) in enumerate(weights_iterator):
            if count == fails:
                raise RuntimeError("link lost")
            self.holds[name] = float(data[0]) if self.loads_as is None else self.loads_as
        self.is_half = False

    @property
    def fill(self):
        """What all tensors are filled with; None if they are not of one version."""
        found = set(self.holds.values())
        return found.pop() if len(found) == 1 else None


class FakeEngine:
    """Ranks behind messages; `pauses` counts, and `at_pause` is called then."""

    def __init__(self, first, ranks=2, **memory):
        self.workers = [FakeWorker(rank) for rank in range(ranks)]
        for worker in self.workers:
            worker.holds = dict.fromkeys(SHAPES, 1.0)  # vLLM has loaded it
        self.first, self.memory = first, EngineTerms(**memory)
        self.pauses = 0
        self.at_pause = lambda: None
        self.answers = lambda answers: answers
        self.ranks = EngineRanks(self.call, ranks, f"server{next(_NAMES)}")

    async def call(self, question):
        sent = msgspec.msgpack.encode(question)
        return self.answers([worker.wsm_answer(msgspec.msgpack.decode(sent)) for worker in self.workers])

    async def pause(self):
        self.pauses += 1
        self.at_pause()

    async def may_load(self, end):
        return bool(end.votes)

    async def begin(self):
        await self.ranks.hello(place(self.first), self.memory)
        return self

    async def update(self, where, **more):
        end = UpdateEnd()
        deadline_s = more.pop("deadline_s", 30)
        await self.ranks.update(where, self.may_load, self.pause, end, deadline_s=deadline_s)
        return end

    @property
    def fills(self):
        return [worker.fill for worker in self.workers]


class RankProcess:
    """A rank in a process of its own; `read_bytes` by the kernel's count."""

    def __init__(self, rank):
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_answers, args=[rank, theirs], daemon=True)
        self.process.start()
        theirs.close()

    def wsm_answer(self, question):
        self.connection.send(question)
        return self.connection.recv()

    @property
    def fill(self):
        return self.wsm_answer("fill")

    @property
    def read_bytes(self):
        counts = dict(line.split(": ") for line in self._proc("io").splitlines())
        return int(counts["rchar"])

    def _proc(self, name):
        return Path(f"/proc/{self.process.pid}/{name}").read_text()

    def kill(self):
        self.process.kill()
        self.process.join()


def _answers(rank, connection):
    worker = FakeWorker(rank)
    while True:
        question = connection.recv()
        connection.send(worker.fill if question == "fill" else worker.wsm_answer(question))


class ProcessEngine(FakeEngine):
    """Ranks that are processes."""

    def __init__(self, first, ranks=2, **memory):
        super().__init__(first, ranks, **memory)
        self.workers = [RankProcess(rank) for rank in range(ranks)]

    async def call(self, question):
        sent = msgspec.msgpack.decode(msgspec.msgpack.encode(question))
        for worker in self.workers:
            worker.connection.send(sent)
        return self.answers([worker.connection.recv() for worker in self.workers])

    def close(self):
        for worker in self.workers:
            worker.kill()
