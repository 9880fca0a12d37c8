"""The device's way of moving weights, on the place that exists everywhere: the calls are the same."""

from __future__ import annotations

import paddle
import pytest

from wsm.actions.backends.paddle_weights import DeviceWeights
from wsm.errors import GroupError
from wsm.strategies import MemoryTarget, SnapshotSource, load, publish_snapshot
from wsm.strategies.tensor import StagedTarget, TensorReleasedError

pytestmark = pytest.mark.paddle


def two_layers():
    model = paddle.nn.Sequential(paddle.nn.Linear(8, 4), paddle.nn.Linear(4, 2))
    model[1].to(dtype="bfloat16")
    return model


@pytest.fixture
def weights():
    return DeviceWeights(two_layers(), paddle.CPUPlace())


def contents(weights):
    return {name: bytes(weights.readable(name)) for name in weights.specs()}


def publish(directory, version, weights, fill):
    shard = MemoryTarget(weights.specs().values())
    for name, spec in weights.specs().items():
        shard.writable(name)[:] = bytes([fill]) * spec.nbytes
    state = {name: (spec, shard.readable(name)) for name, spec in weights.specs().items()}
    publish_snapshot(directory, version, {0: state})


@pytest.mark.parametrize("released", [True, False], ids=["into released tensors", "in place"])
def test_a_version_is_moved_tensor_by_tensor_and_read_back_bit_by_bit(weights, tmp_path, released):
    publish(tmp_path, 1, weights, fill=0x3C)
    addresses = weights.addresses()
    if released:
        weights.release()
        assert list(weights.held()) == []
    report = load(SnapshotSource(tmp_path, rank=0), weights, version=1)
    assert set(weights.held()) == set(weights.specs())
    assert contents(weights) == {name: b"\x3c" * spec.nbytes for name, spec in weights.specs().items()}
    assert report.tensors == len(weights.specs())
    if not released:
        assert weights.addresses() == addresses, "a captured address moved"


def test_bytes_that_do_not_match_their_digest_never_reach_the_device(weights, tmp_path):
    publish(tmp_path, 1, weights, fill=1)
    before = contents(weights)
    for part in (tmp_path / "versions" / "1").glob("*.pdparams"):
        damaged = bytearray(part.read_bytes())
        damaged[-weights.specs()["1.bias"].nbytes :] = b"\xff" * weights.specs()["1.bias"].nbytes
        part.write_bytes(damaged)
    with pytest.raises(Exception, match="digest"):
        load(SnapshotSource(tmp_path, rank=0), weights, version=1)
    unmoved = [name for name, content in contents(weights).items() if content == before[name]]
    assert unmoved, "the damaged tensor was moved"


def test_released_tensors_have_no_bytes_to_read(weights):
    weights.release()
    with pytest.raises(TensorReleasedError):
        weights.readable("0.weight")


def test_only_the_tensor_that_was_written_last_is_moved(weights):
    assert isinstance(weights, StagedTarget)
    weights.writable("0.weight")
    with pytest.raises(GroupError, match="staged"):
        weights.written("0.bias")
