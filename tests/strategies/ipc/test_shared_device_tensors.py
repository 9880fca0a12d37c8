"""Device tensors of a trainer, by CUDA IPC handles: all is real but the GPU, which a Fake stands for."""

from __future__ import annotations

import numpy as np
import pytest
from fake_gpu import FakeCpuTensor, FakeGpu

from tests.raising import raising
from wsm.strategies import MemoryTarget, TensorSpec, errors, load
from wsm.strategies.ipc import _pickled_metas as reading
from wsm.strategies.ipc.metas import IpcMetas
from wsm.strategies.ipc.shared_device_tensors import SharedDeviceTensors
from wsm.strategies.ipc.source import IpcSource

W = np.arange(6, dtype=np.float32).reshape(2, 3)
SPECS = [TensorSpec("w", "F32", (2, 3)), TensorSpec("b", "I64", (4,))]


@pytest.fixture
def gpu(monkeypatch) -> FakeGpu:
    made = FakeGpu()
    monkeypatch.setattr(reading, "imported_paddle", lambda _: made)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,6")
    monkeypatch.setenv("FLAGS_selected_gpus", "1")
    return made


@pytest.fixture
def state(gpu):
    return {"w": gpu.tensor(W), "b": gpu.tensor(np.arange(4, dtype=np.int64))}


def receive(directory, target=None, **options):
    target = target or MemoryTarget(SPECS, adopting=True)
    return load(IpcSource(directory, 0, **options), target, name="ipc"), target


def test_what_a_trainer_exports_a_rank_loads_and_verifies(gpu, state, tmp_path):
    with SharedDeviceTensors(tmp_path) as shared:
        published = shared.publish(7, state)
        report, target = receive(tmp_path)
        assert (tmp_path / "ipc_metas_6").exists()  # the physical device of FastDeploy's name
        assert (report.version, report.verified, report.manifest_digest) == ("7", 2, published)
        assert report.adopted_bytes == 0
        assert bytes(target.readable("w")) == W.tobytes()
    assert gpu.opened_on == [1, 1]
    assert not (tmp_path / "ipc_metas_6").exists()


def test_tensors_without_elements_need_no_device_memory(gpu, state, tmp_path):
    state["nothing"] = gpu.tensor(np.empty((0, 4), np.float32))
    with SharedDeviceTensors(tmp_path) as shared:
        published = shared.publish(7, state)
        target = MemoryTarget([*SPECS, TensorSpec("nothing", "F32", (0, 4))])
        report, _ = receive(tmp_path, target)
        assert (report.verified, report.manifest_digest) == (3, published)
    assert gpu.opened_on == [1, 1]


def test_two_trainers_do_not_write_one_metas_file_in_turn(gpu, state, tmp_path):
    with SharedDeviceTensors(tmp_path) as shared:
        shared.publish(1, state)
        with raising(errors.PublisherBusyError, match=str(tmp_path)):
            SharedDeviceTensors(tmp_path)
        with SharedDeviceTensors(tmp_path, device_id=3):  # another rank's
            pass
        assert receive(tmp_path)[0].version == "1"
    with SharedDeviceTensors(tmp_path):
        pass


def test_the_device_index_of_either_side_can_be_given(gpu, state, tmp_path):
    with SharedDeviceTensors(tmp_path, device_id=3, device_index=4) as shared:
        shared.publish(1, state)
        receive(tmp_path, device_id=3, device_index=0)
        metas = IpcMetas.decode((tmp_path / "ipc_metas_3").read_bytes(), file="metas")
        assert {place.device for place in metas.places} == {4}
    assert set(gpu.opened_on) == {0}


def test_weights_that_were_trained_on_while_published_are_found_by_their_digest(gpu, state, tmp_path):
    with SharedDeviceTensors(tmp_path) as shared:
        shared.publish(1, state)
        state["w"].array += 1
        with raising(errors.DigestMismatchError, match="'w'"):
            receive(tmp_path)
        shared.publish(2, state)
        report, target = receive(tmp_path)
        assert report.version == "2"
        assert bytes(target.readable("w")) == (W + 1).tobytes()


def test_memory_is_not_let_go_under_a_reader(gpu, state, tmp_path):
    shared = SharedDeviceTensors(tmp_path)
    shared.publish(1, state)
    seen = []

    class Slow(MemoryTarget):
        def writable(self, name):
            if not seen:
                shared.withdraw()
                seen.append(shared.leased())
                with raising("device-memory-leased"):
                    shared.close(wait_s=0)
            return super().writable(name)

    receive(tmp_path, Slow(SPECS))
    assert seen == [True]
    assert not shared.leased()
    shared.close()
    with raising("metas-not-found"):
        receive(tmp_path)


def test_device_memory_of_a_dead_trainer_is_refused_whatever_the_source_says(gpu, state, tmp_path):
    """Host memory outlives its owner and may be copied; device memory is gone with the process."""
    shared = SharedDeviceTensors(tmp_path)
    shared.publish(1, state)
    metas = (tmp_path / "ipc_metas_6").read_bytes()
    lease, _ = shared._held[0]
    orphan = tmp_path / "memory"
    orphan.mkdir()
    (orphan / lease.name).write_bytes(bytes(lease.nbytes))
    (orphan / lease.name).chmod(0o600)
    shared.close()
    (tmp_path / "ipc_metas_6").write_bytes(metas)
    with raising("owner-died", match="device memory"):
        receive(tmp_path, orphans="copy", memory_directory=str(orphan))
    assert gpu.opened_on == []


def test_ranks_of_a_group_publish_under_one_name_with_each_others_digests(gpu, state, tmp_path):
    ranks = [SharedDeviceTensors(tmp_path, rank=rank, world_size=2, device_id=rank) for rank in (0, 1)]
    group = [shared.digest(state) for shared in ranks]
    for problem in ({}, {"publication": "p"}, {"publication": "p", "group": ["0" * 32] * 2}):
        with raising(errors.incomplete_publication):
            ranks[0].publish(3, state, **problem)
    digests = {shared.publish(3, state, publication="p", group=group) for shared in ranks}
    report, _ = receive(tmp_path, device_id=0, world_size=2)
    assert digests == {report.manifest_digest}
    for shared in ranks:
        shared.close()


def test_a_build_without_cuda_is_said_to_be_one(gpu, tmp_path):
    with (
        SharedDeviceTensors(tmp_path) as shared,
        raising("bad-device-meta", match="no CUDA"),
    ):
        shared.publish(1, {"w": FakeCpuTensor(gpu, W)})
    assert not list(tmp_path.iterdir())
