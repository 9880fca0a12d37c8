"""FastDeploy's own metas files: refused unless allowed; paddle opens the memory, on a CPU for real."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import paddle
import pytest
from fake_gpu import FakeGpu

from tests.incident import incident
from tests.raising import raising
from wsm.strategies import MemoryTarget, TensorSpec, errors, load
from wsm.strategies.ipc import _pickled_metas as module
from wsm.strategies.ipc.metas import TensorMeta
from wsm.strategies.ipc.source import IpcSource
from wsm.strategies.offer import ManifestScope

pytestmark = pytest.mark.paddle

VALUES = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.arange(4, dtype=np.int64)}
HANDLE = b"\x80\xff" * 32
SPECS = [TensorSpec("w", "F32", (2, 3)), TensorSpec("b", "I64", (4,))]


@pytest.fixture
def shared(tmp_path):
    """A metas file of host memory as a trainer with paddle writes it; the trainer's tensors live on."""
    tensors = {name: paddle.to_tensor(value) for name, value in VALUES.items()}
    holders = {name: tensor.value().get_tensor() for name, tensor in tensors.items()}
    paddle.save(
        {name: holder._share_filename(False) for name, holder in holders.items()}, str(file(tmp_path))
    )
    yield tmp_path
    del holders, tensors


def file(directory: Path) -> Path:
    return directory / "ipc_metas_0"


def source(directory, **options):
    return IpcSource(directory, 0, device_id=0, **options)


def test_a_pickle_is_refused_unless_it_was_allowed_by_name(shared):
    with raising("pickled-metas-refused", match="allow_pickle: true") as caught:
        load(source(shared), MemoryTarget(SPECS), name="ipc")
    assert caught.value.file == str(file(shared))


def test_an_allowed_pickle_is_loaded_through_paddles_own_calls(shared):
    target = MemoryTarget(SPECS, adopting=True)
    report = load(source(shared, allow_pickle=True), target, name="ipc")
    assert bytes(target.readable("w")) == VALUES["w"].tobytes()
    assert bytes(target.readable("b")) == VALUES["b"].tobytes()
    assert (report.version, report.verified, report.adopted_bytes) == (None, 0, 0)
    assert report.manifest_scope is ManifestScope.LOADED


def test_its_version_is_what_version_yaml_beside_it_says(shared):
    with raising("version-unknown"):
        load(source(shared, allow_pickle=True), MemoryTarget(SPECS), name="ipc", version=4)
    (shared / "version.yaml").write_text("step: 4\n")
    assert load(source(shared, allow_pickle=True), MemoryTarget(SPECS), name="ipc", version=4).version == "4"
    with raising(errors.VersionMismatchError):
        load(source(shared, allow_pickle=True), MemoryTarget(SPECS), name="ipc", version=5)


@incident("tokenspeed#1373")
@pytest.mark.parametrize(
    ("content", "error"),
    [
        ({}, errors.empty_snapshot),
        ([1, 2], errors.bad_pickle),
        ({1: ()}, errors.bad_pickle),
        ({"w": None}, errors.ManifestError),
        ({"w": ("handle", 0, 24, 10, [2, 4], [], 0)}, errors.ManifestError),
    ],
    ids=["nothing", "a list", "a number for a name", "no meta", "dims that do not fit"],
)
def test_a_pickle_of_something_else_is_refused(tmp_path, content, error):
    file(tmp_path).write_bytes(pickle.dumps(content, protocol=4))
    with raising(error):
        load(source(tmp_path, allow_pickle=True), MemoryTarget(SPECS), name="ipc")


def test_cuda_handles_are_refused_where_there_is_no_gpu(tmp_path):
    """By a CPU build because it has no CUDA, by a GPU build because CUDA finds no driver."""
    paddle.save({"w": ("h" * 64, 0, 24, 10, [2, 3], [], 0)}, str(file(tmp_path)))
    with raising("bad-device-meta", match="CUDA"):
        load(source(tmp_path, allow_pickle=True), MemoryTarget(SPECS[:1]), name="ipc")


@pytest.fixture
def gpu(monkeypatch) -> FakeGpu:
    """The package as a build for it is, with one tensor in its memory under `HANDLE`."""
    made = FakeGpu()
    made.load = paddle.load
    made.memory[HANDLE] = VALUES["w"]
    monkeypatch.setattr(module, "imported_paddle", lambda _: made)
    return made


def test_a_cuda_handle_reaches_paddle_as_bytes_with_this_process_own_device(tmp_path, monkeypatch, gpu):
    monkeypatch.setenv("FLAGS_selected_gpus", "3")
    # paddle saves no bytes, so FastDeploy's trainers save the handle as text
    paddle.save({"w": (HANDLE.decode("latin-1"), 512, 24, 10, [2, 3], [], 0)}, str(file(tmp_path)))
    target = MemoryTarget(SPECS[:1])
    load(source(tmp_path, allow_pickle=True), target, name="ipc")
    assert gpu.opened == [(HANDLE, 512, 24, 10, [2, 3], [], 3)]
    assert bytes(target.readable("w")) == VALUES["w"].tobytes()
    load(source(tmp_path, allow_pickle=True, device_index=1), target, name="ipc")
    assert gpu.opened[1][6] == 1


def test_device_memory_is_refused_before_anything_is_touched_where_paddle_sees_no_gpu(gpu):
    gpu.devices = 0
    meta = TensorMeta(SPECS[0], HANDLE.decode("latin-1"), 0, device=2)
    with raising("bad-device-meta", match="sees no GPU"):
        module.device_tensor(meta, "digest", "metas", device_index=0)
    assert not gpu.opened


def test_a_sealed_meta_of_device_memory_is_opened_the_same_way(gpu):
    meta = TensorMeta(SPECS[0], HANDLE.decode("latin-1"), 0, device=2)
    tensor = module.device_tensor(meta, "digest", "metas", device_index=0)
    destination = bytearray(24)
    tensor.read_into(0, memoryview(destination)[:8])
    tensor.read_into(8, memoryview(destination)[8:])
    assert bytes(destination) == VALUES["w"].tobytes()
    assert len(gpu.opened) == 1
