"""Weights on a device, released, rebuilt, loaded in place, flipped: what becomes free, and what stays put."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest

from tests.gpu.devices import Device
from wsm.actions.backends.paddle_bytes import second_owner
from wsm.actions.backends.paddle_weights import DeviceWeights
from wsm.actions.measuring import AddressContract, resident_digest
from wsm.errors import GroupError
from wsm.strategies import MemoryTarget, SnapshotSource, load, publish_snapshot
from wsm.strategies.digest import digest_of, shard_digest

pytestmark = pytest.mark.paddle

MIB = 1 << 20
#: Bytes that an allocator may keep for itself of 64 MiB.
SLACK = 8 * MIB


def small_model() -> Any:
    model = paddle.nn.Sequential(paddle.nn.Linear(64, 32), paddle.nn.Linear(32, 16))
    model[1].to(dtype="bfloat16")
    return model


def value_of(version: int) -> np.ndarray[Any, Any]:
    """What each element of a float32 tensor is in a version: its bytes are all alike."""
    return np.frombuffer(bytes([0x3C + version]) * 4, np.float32)


def publish(directory: Path, version: int, weights: DeviceWeights) -> SnapshotSource:
    shard = MemoryTarget(weights.specs().values())
    for name, spec in weights.specs().items():
        shard.writable(name)[:] = bytes([0x3C + version]) * spec.nbytes
    state = {name: (spec, shard.readable(name)) for name, spec in weights.specs().items()}
    publish_snapshot(directory, version, {0: state})
    return SnapshotSource(directory, rank=0)


def contents(weights: DeviceWeights) -> dict[str, bytes]:
    return {name: bytes(weights.readable(name)) for name in weights.specs()}


@pytest.mark.slow
def test_released_memory_is_free_for_others_and_comes_back_with_the_same_bytes(
    device: Device, tmp_path: Path
) -> None:
    weights, memory = device.weights(paddle.nn.Linear(4096, 4096)), device.memory()
    size = sum(spec.nbytes for spec in weights.specs().values())
    source = publish(tmp_path, 1, weights)
    first = load(source, weights, version=1)
    gc.collect()  # what earlier tests left is not to be given back while this one measures
    for _ in range(2):
        memory.empty_cache()
        counted, occupied = memory.resident_bytes(), device.occupied_bytes()
        assert weights.release() == size
        memory.empty_cache()
        assert counted - memory.resident_bytes() > size - SLACK
        assert occupied - device.occupied_bytes() > size - SLACK
        assert list(weights.held()) == []

        freed = device.occupied_bytes()
        again = load(source, weights, version=1)
        assert device.occupied_bytes() - freed > size - SLACK
        assert again.digest == first.digest == resident_digest(weights, lambda: None)


def test_the_digest_of_what_lies_on_the_device_is_that_of_the_bytes_and_finds_any_change(
    device: Device, tmp_path: Path
) -> None:
    model = small_model()
    weights = device.weights(model)
    report = load(publish(tmp_path, 1, weights), weights, version=1)
    by_hand = shard_digest(
        (spec, digest_of(bytes([0x3D]) * spec.nbytes)) for spec in weights.specs().values()
    )
    assert resident_digest(weights, lambda: None) == report.digest == by_hand
    with paddle.no_grad():
        model[0].bias.copy_(model[0].bias + model[0].bias, True)
    assert resident_digest(weights, lambda: None) != report.digest


@pytest.mark.parametrize(
    "dtype", ["float32", "float16", "bfloat16", "int8", "int64", "bool", "float8_e4m3fn"]
)
def test_every_dtype_goes_to_the_device_and_back_bit_by_bit(
    device: Device, tmp_path: Path, dtype: str
) -> None:
    layer = paddle.nn.Layer()
    layer.register_buffer("matrix", paddle.zeros([5, 7]).astype(dtype))
    layer.register_buffer("scalar", paddle.zeros([]).astype(dtype))
    weights = device.weights(layer)
    bits = np.random.default_rng(0)
    state = {
        name: (spec, bits.integers(0, 2 if dtype == "bool" else 256, spec.nbytes, np.uint8).data)
        for name, spec in weights.specs().items()
    }
    publish_snapshot(tmp_path, 1, {0: state})
    for _ in ("in place", "into released tensors"):
        load(SnapshotSource(tmp_path, rank=0), weights, version=1)
        assert contents(weights) == {name: bytes(data) for name, (_, data) in state.items()}
        weights.release()


def test_a_captured_graph_computes_with_what_was_loaded_in_place(device: Device, tmp_path: Path) -> None:
    weights, contract = device.weights(small_model()), AddressContract()
    load(publish(tmp_path, 1, weights), weights, version=1)
    contract.record(weights)
    graph = device.capture_double(weights.tensor("0.weight"))
    assert (graph.replay() == 2 * value_of(1)).all()
    load(publish(tmp_path, 2, weights), weights, version=2)
    contract.check(weights)
    assert (graph.replay() == 2 * value_of(2)).all()


def test_a_captured_graph_computes_with_what_was_flipped_in_if_the_tensor_was_named(
    device: Device, tmp_path: Path
) -> None:
    weights, contract = device.weights(small_model()), AddressContract()
    load(publish(tmp_path, 1, weights), weights, version=1)
    contract.record(weights, ["0.weight"])
    before = weights.addresses()
    graph = device.capture_double(weights.tensor("0.weight"))
    staged = weights.stage()
    load(publish(tmp_path, 2, weights), staged, version=2)
    assert (graph.replay() == 2 * value_of(1)).all(), "staging wrote to what serves"
    staged.make_ready(contract.captured)
    staged.flip()
    assert staged.unflipped() is None
    staged.give_back()
    contract.check(weights)
    assert (graph.replay() == 2 * value_of(2)).all()
    moved = {name for name, address in weights.addresses().items() if address != before[name]}
    assert moved == set(weights.specs()) - {"0.weight"}


def test_weights_that_were_rebuilt_elsewhere_break_the_contract_and_leave_the_graph_behind(
    device: Device, tmp_path: Path
) -> None:
    """What the contract is for. Old memory is kept, so that no allocator hands out its addresses again."""
    weights, contract = device.weights(small_model()), AddressContract()
    load(publish(tmp_path, 1, weights), weights, version=1)
    contract.record(weights)
    graph = device.capture_double(weights.tensor("0.weight"))
    kept = [second_owner(weights.tensor(name)) for name in weights.specs()]
    weights.release()
    load(publish(tmp_path, 2, weights), weights, version=2)
    with pytest.raises(GroupError, match=r"0\.weight"):
        contract.check(weights)
    assert (graph.replay() == 2 * value_of(1)).all()
    kept.clear()


@pytest.mark.slow
def test_a_flip_changes_what_the_model_computes_and_gives_the_old_memory_back(
    device: Device, tmp_path: Path
) -> None:
    model = paddle.nn.Linear(4096, 4096)
    weights, memory = device.weights(model), device.memory()
    size = sum(spec.nbytes for spec in weights.specs().values())
    parameters = dict(model.state_dict())
    one = paddle.zeros([1, 4096])
    one[0, 0] = 1.0
    load(publish(tmp_path, 1, weights), weights, version=1)
    assert (model(one).numpy() == value_of(1) + value_of(1)).all()
    staged = weights.stage()
    report = load(publish(tmp_path, 2, weights), staged, version=2)
    assert (model(one).numpy() == value_of(1) + value_of(1)).all()
    staged.make_ready(frozenset())
    memory.empty_cache()
    both = device.occupied_bytes()
    staged.flip()
    assert (model(one).numpy() == value_of(2) + value_of(2)).all()
    assert staged.give_back() == size
    memory.empty_cache()
    assert both - device.occupied_bytes() > size - SLACK
    assert resident_digest(weights, lambda: None) == report.digest
    assert all(model.state_dict()[name] is parameter for name, parameter in parameters.items())
