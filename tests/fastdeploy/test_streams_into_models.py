"""FastDeploy's models take a stream by their own loaders: its command line, MTP chunks, ranks, processing.

The situations are those of FastDeploy's own tests of such a stream, in a version of our own.
CheckpointTransfer is a stand-in over real sockets, and no device is asked for; models, files and the worker
are real. FastDeploy's functions are stand-ins of the same form.
"""

from __future__ import annotations

import json
import re
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import paddle
import pytest
from checkpoint_transfer.sender import FakeSender
from checkpoint_transfer.stream import FakeCheckpointTransfer
from checkpoint_transfer.transfer import FakeUnifiedTransfer
from one_rank_worker import OneRank

from tests.raising import raising
from wsm.errors import WsmError
from wsm.fastdeploy import _install, _models
from wsm.strategies import write_version
from wsm.strategies.transports import by_version

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
    monkeypatch.setattr(by_version, "_lacking_device", lambda: None)
    monkeypatch.setattr(FakeUnifiedTransfer, "made", [])
    sender, worker = FakeSender(), OneRank(tmp_path, monkeypatch)

    def send(step: str, value: float, *, rank: int = 0, **how) -> dict[str, np.ndarray]:
        state = {
            "model.weight": np.arange(12, dtype=np.float32).reshape(3, 4) * value,
            "model.norm": np.full(4, value, dtype=np.float32),
            "mtp_norm": np.full(2, value, dtype=np.float32),
            "layers.7.norm": np.full(2, -value, dtype=np.float32),
            "layers.70.norm": np.full(2, 70.0, dtype=np.float32),
            **how.pop("more", {}),
        }
        state = {name: tensor for name, tensor in state.items() if name not in how.get("without", ())}
        sender.send(state, step_id=step, rank=rank, wrong=how.get("wrong", ""))
        return state

    def start(models, *, strategy="rsync", part=(0, 1), local_rank=None, **transfer):
        said = json.loads(re.fullmatch(r"--rsync_config '(.*)'", COMMAND_LINE, re.DOTALL)[1])
        where = {"redis_host": "127.0.0.1", "redis_port": sender.port}
        config = worker.config(
            strategy=strategy,
            rsync={**said, **where, **transfer},
            data_parallel_rank=part[0],
            data_parallel_size=part[1],
        )
        return worker.make(config, models, local_rank)

    yield SimpleNamespace(start=start, send=send, directory=worker.model_directory)
    worker.close()
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
    assert [said[key] for key in keys] == ["step_101", 0, "gdr", 5, 2, 1]
    assert manager.state_dict["weight"].shape == [4, 3]
    assert manager.state_dict["norm"] is model.norm
    manager._verify_parameters("update")


class Plain(paddle.nn.Layer):
    """A main model that takes what comes, and writes down its names."""

    def __init__(self):
        super().__init__()
        self.norm = self.create_parameter([4])
        self.seen = []

    def load_weights(self, weights):
        for name, tensor in weights:
            self.seen.append(name)
            if name == "model.norm":
                self.norm.set_value(tensor)


def test_a_stream_that_breaks_or_has_nothing_for_the_mtp_model_fails_and_the_next_one_is_received_anew(job):
    """FastDeploy raises ValueError or what the package raised; here it is the error of the command."""
    write_version(job.directory, "1")
    job.send("1", 1.0)
    manager = job.start([Plain(), Draft()])
    for step in ("2", "3"):
        job.send(step, float(step))
        assert manager.update_weights_by_gdr(step)["version"] == step
    (only,) = FakeUnifiedTransfer.made  # made once for all that went well
    assert not only.cleaned
    cases = (
        ({"wrong": "cut"}, "checkpoint_transfer", "3"),  # nothing had come
        ({"without": ("mtp_norm", "layers.7.norm")}, "mtp", None),  # known at the end alone
    )
    for how, why, left in cases:
        job.send("4", 4.0, **how)
        with pytest.raises(WsmError, match=why) as failed:
            manager.update_weights_by_gdr("4")
        assert (failed.value.code, manager.version) == ("rank-failed", left)
        assert FakeUnifiedTransfer.made[-1].cleaned
        if left is None:
            with pytest.raises(RuntimeError, match="update verification failed"):
                manager.finalize_update()
        job.send("3", 3.0)
        assert manager.update_weights_by_gdr("3")["version"] == "3"
        assert not FakeUnifiedTransfer.made[-1].cleaned
        assert float(manager.state_dict["norm"].mean()) == 3.0


@pytest.mark.parametrize(
    ("more", "rank", "size"),
    [({}, 5, 8), ({"index": 1}, 13, 8), ({"index": 1, "group_size": 16, "device_name": "mlx5_0"}, 13, 16)],
)
def test_a_rank_is_received_for_by_its_place_in_the_whole_job(job, more, rank, size):
    """Each data-parallel part is a group of its own, and the trainer counts all of their ranks."""
    write_version(job.directory, "1")
    job.send("1", 1.0, rank=rank)
    manager = job.start(
        Plain(), part=(5, 8), local_rank=5, etcd_server="127.0.0.1:9", backend="mooncake", **more
    )
    (transfer,) = FakeUnifiedTransfer.made
    config = transfer.config
    assert (config.global_rank, config.group_size, config.device) == (rank, size, more.get("device_name"))
    assert (config.role.name, config.phase1_backend.name) == ("INFERENCE", "GPU_DIRECT")
    assert transfer.frameworks == ["paddle"]
    told = manager.load_config.rsync_config
    assert {key: told[key] for key in more} == more
    job.send("2", 2.0, rank=rank)
    assert manager.update_weights_by_gdr("2")["rank"] == 5


def test_over_rdma_a_ranks_own_tensors_come_by_name_and_all_of_them_must(job):
    """FastDeploy's builds differ in whether one that is missing is noticed; here no such version serves."""
    own = {"model.weight", "model.norm"}
    write_version(job.directory, "step_1")
    job.send("step_1", 1.0)
    model = paddle.nn.Layer()
    model.model = paddle.nn.Layer()
    model.model.weight = model.create_parameter([3, 4])
    model.model.norm = model.create_parameter([4])
    manager = job.start(model, transfer_mode="rdma", gpu_direct=False, local_rank=3)
    assert (manager.version, set(manager.state_dict), len(FakeUnifiedTransfer.made)) == ("step_1", own, 0)
    held = model.model.norm.data_ptr()
    for version, checks in (("step_2", True), (None, False)):  # the same again, as version.yaml names it
        write_version(job.directory, "step_2")
        sent = job.send("step_2", 2.0)  # with names that the model does not have
        said = manager.update_weights_by_rdma(version, verify_checksum=checks)
        assert FakeCheckpointTransfer.made[-1].checks[-1] is checks  # the package does
        assert set(said) == {"sync_cost", "update_cost", "total_cost", "version", "rank"}
        assert (said["version"], said["rank"]) == ("step_2", 3)
        assert {name: manager.state_dict[name].numpy().tolist() for name in own} == {
            name: sent[name].tolist() for name in own
        }
    assert model.model.norm.data_ptr() == held  # in place
    for wrong in ({"without": ("model.norm",)}, {"more": {"model.norm": np.ones(3, np.float32)}}):
        job.send("step_3", 3.0, **wrong)  # which costs nothing: all of it is looked at before the first byte
        with pytest.raises(WsmError, match=r"model\.norm"):
            manager.update_weights_by_rdma("step_3")
        assert manager.version == "step_2"
        assert model.model.weight.numpy().tolist() == sent["model.weight"].tolist()
    (job.directory / "version.yaml").unlink()
    with raising("no-version", match="rsync model version not set"):
        manager.update_weights_by_rdma()


@pytest.mark.parametrize("variable", ["FD_USE_CHECKPOINT_TRANSFER", "FD_USE_GDR_CHECKPOINT_TRANSFER"])
def test_over_ipc_a_version_that_is_not_named_is_called_0_and_the_rank_is_that_of_the_device(
    job, variable, monkeypatch
):
    monkeypatch.setenv(variable, "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    monkeypatch.setenv("FLAGS_selected_gpus", "3")
    write_version(job.directory, "of_no_account")
    job.send("0", 1.0, rank=3)
    manager = job.start(Plain(), strategy="ipc")
    (transfer,) = FakeUnifiedTransfer.made
    config = transfer.config
    assert (config.phase1_backend.name, config.global_rank, config.qsize) == ("IPC", 3, 2)
    job.send("0", 2.0, rank=3)
    said = manager.update_weights_by_gdr()
    assert (said["version"], said["transfer_mode"]) == ("0", "ipc")
    assert float(manager.state_dict["norm"].mean()) == 2.0
    job.send("7", 7.0, rank=3)
    assert manager.update_weights_by_gdr("7")["version"] == manager.version == "7"
    assert FakeUnifiedTransfer.made == [transfer]


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


def test_a_parameter_that_is_turned_round_keeps_how_it_is_loaded_in_every_mode(utilities):
    """FastDeploy does so for streams into models alone; here whatever brings the weights."""
    model = Model(utilities, fd_config())
    loader = model.weight.weight_loader
    utilities.process_weight_transpose(model, "weight")
    assert (model.weight.weight_loader, model.weight.weight_need_transpose) == (loader, True)


def test_what_was_loaded_for_good_is_turned_round_as_fastdeploy_does_it(utilities):
    model = Model(utilities, fd_config(dynamic=False))
    utilities.process_weight_transpose(model, "weight")
    assert not hasattr(model.weight, "weight_loader")
