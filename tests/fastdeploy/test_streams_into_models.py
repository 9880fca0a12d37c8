"""FastDeploy's models take a stream by their own loaders: seed 003's command line, MTP chunks, processing.

CheckpointTransfer is a stand-in over real sockets, and no device is asked for; models, files and the worker
are real. FastDeploy's functions are stand-ins of the same form.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import paddle
import pytest
from checkpoint_transfer.sender import FakeSender

from wsm.actions.backends.paddle_memory import HostMemory
from wsm.fastdeploy import DynamicWeightManager, _install, _models
from wsm.fastdeploy._membership import Membership
from wsm.strategies import write_version
from wsm.strategies.transports import _transfer_modes

pytestmark = [pytest.mark.paddle, pytest.mark.needs("libatomic")]

#: As FastDeploy#7951 gives it, line break and all.
COMMAND_LINE = """--rsync_config '{"transfer_mode": "gdr", "gpu_direct": true,
"gdr_mtp_chunk_size": 1, "gdr_prefetch_queue_size": 2}'"""


def process_weight_transpose(layer, weight_name):
    """As FastDeploy's under dynamic load: an empty parameter of the exchanged shape takes the place."""
    old = getattr(layer, weight_name)
    new = layer.create_parameter(list(old.shape)[::-1])
    old.value().get_tensor()._clear()
    setattr(layer, weight_name, new)


def process_final_after_loading(model, fd_config):
    model.process()


class Model(paddle.nn.Layer):
    """Its weight comes as [3, 4] and is held as [4, 3]; what a build does at start, and behind a load."""

    def __init__(self, utilities, fd_config):
        super().__init__()
        self.fd_config = fd_config
        self.weight = self.create_parameter([3, 4])
        self.weight.weight_loader = lambda parameter, tensor: parameter.set_value(
            tensor.transpose([1, 0]) if parameter.weight_need_transpose else tensor
        )
        self.weight.weight_need_transpose = False
        self.norm = self.create_parameter([4])
        self._utilities = utilities
        self.processed = 0

    def process(self):
        self.processed += 1
        if self.weight.shape == [3, 4]:
            self._utilities.process_weight_transpose(self, "weight")
        else:
            self.norm.set_value(paddle.sign(self.norm))

    def load_weights(self, weights):
        for name, tensor in weights:
            if not name.startswith("model."):
                continue
            if name == "model.norm":
                self.norm = self.create_parameter([4])  # some loaders replace a parameter by another
            own = getattr(self, name.removeprefix("model."))
            getattr(own, "weight_loader", lambda parameter, value: parameter.set_value(value))(own, tensor)


class Draft(paddle.nn.Layer):
    mtp_start_layer_idx, num_mtp_layers = 7, 1

    def __init__(self):
        super().__init__()
        self.mtp = self.create_parameter([2])
        self.last = self.create_parameter([2])
        self.chunks = []

    def load_weights(self, weights):
        chunk = dict(weights)
        self.chunks.append(list(chunk))
        for name, tensor in chunk.items():
            (self.mtp if name.startswith("mtp_") else self.last).set_value(tensor)


@pytest.fixture
def utilities(monkeypatch):
    """FastDeploy's module as install() leaves it."""
    module = ModuleType(_models.UTILITIES)
    module.process_weight_transpose = process_weight_transpose
    module.process_final_after_loading = process_final_after_loading
    monkeypatch.setitem(sys.modules, module.__name__, module)
    _install._replace(module)
    _install._replace(module)
    return module


@pytest.fixture
def job(tmp_path, monkeypatch):
    """``job(models)``: the manager of a worker that was started with the command line of #7951."""
    monkeypatch.setattr(_transfer_modes, "_lacking_device", lambda: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.delenv("FLAGS_selected_gpus", raising=False)
    sender, made = FakeSender(), []

    def send(step: str, value: float) -> dict[str, np.ndarray]:
        state = {
            "model.weight": np.arange(12, dtype=np.float32).reshape(3, 4) * value,
            "model.norm": np.full(4, value, dtype=np.float32),
            "mtp_norm": np.full(2, value, dtype=np.float32),
            "layers.7.norm": np.full(2, -value, dtype=np.float32),
        }
        sender.send(state, step_id=step)
        return state

    def start(models):
        said = json.loads(re.fullmatch(r"--rsync_config '(.*)'", COMMAND_LINE, re.DOTALL)[1])
        where = {"redis_host": "127.0.0.1", "redis_port": sender.port}
        parallel = SimpleNamespace(
            tensor_parallel_rank=0,
            tensor_parallel_size=1,
            enable_expert_parallel=False,
            tp_group=None,
            engine_worker_queue_port=sender.port,
            shutdown_comm_group_if_worker_idle=False,
        )
        config = SimpleNamespace(
            parallel_config=parallel,
            load_config=SimpleNamespace(load_strategy="rsync", rsync_config={**said, **where}),
            model_config=SimpleNamespace(model=str(tmp_path)),
        )
        manager = DynamicWeightManager(
            config,
            models,
            directory=tmp_path,
            memory=HostMemory(),
            member=Membership(0, [0], lambda told: told),
        )
        made.append(manager)
        return manager

    yield SimpleNamespace(start=start, send=send, directory=Path(tmp_path))
    for manager in made:
        manager.close()
    sender.close()


def fd_config(*, dynamic: bool = True):
    return SimpleNamespace(load_config=SimpleNamespace(dynamic_load_weight=dynamic))


def test_a_worker_started_as_fastdeploy_7951_says_streams_into_models_that_were_turned_round(job, utilities):
    model, draft = Model(utilities, fd_config()), Draft()
    utilities.process_final_after_loading(model, model.fd_config)  # FastDeploy's loader, before any weights
    draft.fd_config = SimpleNamespace(speculative_config=SimpleNamespace(model_type="mtp"))
    write_version(job.directory, "step_100")
    job.send("step_100", 1.0)
    manager = job.start([model, draft])
    assert (manager.version, model.processed) == ("step_100", 1)
    state = job.send("step_101", 2.0)
    said = manager.update_weights_by_gdr("step_101", verify_checksum=True)
    assert np.array_equal(model.weight.numpy(), state["model.weight"].T)
    assert np.array_equal(model.norm.numpy(), state["model.norm"])
    assert (list(draft.mtp.numpy()), list(draft.last.numpy())) == ([2.0, 2.0], [-2.0, -2.0])
    assert draft.chunks[-2:] == [["mtp_norm"], ["layers.7.norm"]]
    assert model.processed == 1
    keys = ("version", "rank", "transfer_mode", "update_count", "mtp_cache_count", "gdr_mtp_chunk_size")
    assert [said[key] for key in keys] == ["step_101", 0, "gdr", 4, 2, 1]
    assert manager.state_dict["weight"].shape == [4, 3]
    assert manager.state_dict["norm"] is model.norm
    manager._verify_parameters("update")


def test_what_fastdeploys_loader_has_not_processed_is_processed_behind_each_load(job, utilities):
    model = Model(utilities, fd_config())
    utilities.process_weight_transpose(model, "weight")
    write_version(job.directory, "step_100")
    job.send("step_100", -3.0)
    manager = job.start(model)
    assert model.processed == 1
    assert list(model.norm.numpy()) == [-1.0] * 4
    job.send("step_101", 5.0)
    manager.update_weights_by_gdr("step_101")
    assert (model.processed, list(model.norm.numpy())) == (2, [1.0] * 4)


def test_what_was_loaded_for_good_is_turned_round_as_fastdeploy_does_it(utilities):
    model = Model(utilities, fd_config(dynamic=False))
    utilities.process_weight_transpose(model, "weight")
    assert not hasattr(model.weight, "weight_loader")
