"""Shared tensors under a real paddle model: kept without a copy, computed with, let go of, written over."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from wsm.actions.backends.paddle_weights import PaddleWeights
from wsm.strategies import IpcSource, SharedTensors, TensorSpec, load

pytestmark = pytest.mark.paddle


@pytest.fixture
def trainer(tmp_path):
    with SharedTensors(tmp_path) as shared:
        yield shared


@pytest.fixture
def layer():
    return paddle.nn.Linear(32, 16)


def state(layer, seed):
    generator = np.random.default_rng(seed)
    return {
        name: (
            TensorSpec(name, "F32", tuple(tensor.shape)),
            generator.standard_normal(tuple(tensor.shape), dtype=np.float32),
        )
        for name, tensor in layer.state_dict().items()
    }


def compute(layer):
    return layer(paddle.ones([3, 32])).numpy().tobytes()


def expected(values):
    layer = paddle.nn.Linear(32, 16)
    layer.set_state_dict({name: array for name, (_, array) in values.items()})
    return compute(layer)


def test_a_cleared_model_lives_in_the_trainers_memory_and_computes_the_same(tmp_path, trainer, layer):
    weights, parameters = PaddleWeights(layer), dict(layer.state_dict())
    for version in (1, 2, 3):
        values = state(layer, seed=version % 2)
        trainer.publish(version, {0: values})
        weights.release()
        report = load(IpcSource(tmp_path, 0, device_id=0), weights, name="ipc", version=version)
        assert report.adopted_bytes == report.bytes
        assert compute(layer) == expected(values)
        assert trainer.leased()
    assert all(layer.state_dict()[name] is tensor for name, tensor in parameters.items())
    weights.release()
    assert not trainer.leased()


def test_an_update_in_place_keeps_the_addresses_and_leaves_the_trainer_its_bytes(tmp_path, trainer, layer):
    weights = PaddleWeights(layer)
    weights.release()
    first, second = state(layer, seed=1), state(layer, seed=2)
    trainer.publish(1, {0: first})
    load(IpcSource(tmp_path, 0, device_id=0), weights, name="ipc", version=1)
    addresses = dict(weights.addresses())
    trainer.publish(2, {0: second})
    report = load(IpcSource(tmp_path, 0, device_id=0), weights, name="ipc", version=2)
    assert report.adopted_bytes == 0
    assert dict(weights.addresses()) == addresses
    assert compute(layer) == expected(second)
    trainer.publish(3, {0: first})
    other = paddle.nn.Linear(32, 16)
    load(IpcSource(tmp_path, 0, device_id=0), PaddleWeights(other), name="ipc", version=3)
    assert compute(other) == expected(first)
    assert compute(layer) == expected(second)
