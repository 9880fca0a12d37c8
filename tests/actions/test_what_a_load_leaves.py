"""What the loaders of FastDeploy's models hang on parameters stays there, whatever is done with the bytes."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from wsm.actions.backends.paddle_weights import DeviceWeights, PaddleWeights
from wsm.actions.measuring import resident_digest
from wsm.errors import BadInputError
from wsm.strategies import MemoryTarget, SnapshotSource, TensorSpec, load, publish_snapshot
from wsm.strategies.tensor import TensorReleasedError

pytestmark = pytest.mark.paddle


def on_device(layers, **options):
    return DeviceWeights(layers, paddle.CPUPlace(), **options)


EVERYWHERE = pytest.mark.parametrize(
    "surface",
    [PaddleWeights, on_device],
    ids=["host", "device"],
)


class Buffered(paddle.nn.Layer):
    """A linear layer with a buffer that belongs to its state, and one that does not."""

    def __init__(self):
        super().__init__()
        self.linear = paddle.nn.Linear(4, 3)
        self.register_buffer("scale", paddle.full([3], 2.0))
        self.register_buffer("scratch", paddle.zeros([5]), persistable=False)

    def forward(self, x):
        return self.linear(x) * self.scale


def state(weights, value):
    shard = MemoryTarget(weights.specs().values())
    for name, spec in weights.specs().items():
        shard.writable(name)[:] = np.full(spec.shape, value, np.float32).tobytes()
    return {name: (spec, shard.readable(name)) for name, spec in weights.specs().items()}


def marked(layer):
    """Give the weight what the loaders of FastDeploy's models read, and anything else; return all of it."""

    def weight_loader(parameter, loaded):
        raise AssertionError("nobody calls it here")

    given = {
        "output_dim": True,
        "split_axis": 1,
        "weight_need_transpose": True,
        "tensor_track": object(),
        "weight_loader": weight_loader,
        "is_distributed": True,
        "of_our_own": {"a": 1},
    }
    for name, value in given.items():
        setattr(layer.linear.weight, name, value)
    return given


def still_there(layer, parameter, given):
    return layer.linear.weight is parameter and all(
        getattr(parameter, name) is value for name, value in given.items()
    )


@EVERYWHERE
def test_a_parameter_keeps_its_loader_attributes_over_load_release_load_and_flip(surface, tmp_path):
    layer = Buffered()
    given, parameter = marked(layer), layer.linear.weight
    trained = (parameter.stop_gradient, parameter.trainable, parameter.name)
    weights = surface(layer)

    def published(version):
        publish_snapshot(tmp_path, version, {0: state(weights, float(version))}, durable=False)
        return SnapshotSource(tmp_path, rank=0)

    addresses = dict(weights.addresses())
    load(published(1), weights, version=1)
    assert still_there(layer, parameter, given)
    assert dict(weights.addresses()) == addresses, "a captured address moved"
    weights.release()
    with pytest.raises(TensorReleasedError):
        weights.readable("scale")
    assert still_there(layer, parameter, given)
    load(published(2), weights, version=2)
    assert still_there(layer, parameter, given)
    staged = weights.stage()
    load(published(3), staged, version=3)
    staged.make_ready(frozenset())
    staged.flip()
    staged.give_back()
    assert still_there(layer, parameter, given)
    assert (parameter.stop_gradient, parameter.trainable, parameter.name) == trained
    assert layer(paddle.ones([1, 4])).tolist() == [[45.0] * 3]


@EVERYWHERE
def test_a_checkpoint_in_the_other_layout_is_turned_round_in_place_after_a_clear_and_hot(surface, tmp_path):
    layer = Buffered()
    given, parameter = marked(layer), layer.linear.weight
    weights = surface(layer, transposed=["linear.weight"])
    assert weights.specs()["linear.weight"].shape == (3, 4)

    def published(version):
        values = np.arange(12, dtype=np.float32).reshape(3, 4) * version
        content = state(weights, 0.0)
        content["linear.weight"] = (weights.specs()["linear.weight"], values)
        content["scale"] = (weights.specs()["scale"], np.ones(3, np.float32))
        publish_snapshot(tmp_path, version, {0: content}, durable=False)
        return SnapshotSource(tmp_path, rank=0), values

    for version, way in ((1, "in place"), (2, "after a clear"), (3, "hot")):
        source, values = published(version)
        if way == "after a clear":
            weights.release()
        target = weights.stage() if way == "hot" else weights
        report = load(source, target, version=version)
        assert resident_digest(target, lambda: None) == report.digest
        if way == "hot":
            target.make_ready(frozenset())
            target.flip()
            target.give_back()
        assert resident_digest(weights, lambda: None) == report.digest
        assert layer.linear.weight.tolist() == values.T.tolist()
        assert weights.readable("linear.weight") == values.tobytes()
        assert layer(paddle.ones([1, 4])).tolist() == [values.sum(1).tolist()]
    assert still_there(layer, parameter, given)


@EVERYWHERE
@pytest.mark.parametrize("name", ["linear.bias", "linear.weigth"])
def test_only_parameters_of_two_axes_can_have_them_exchanged(surface, name):
    with pytest.raises(BadInputError, match=name):
        surface(Buffered(), transposed=[name])


@EVERYWHERE
def test_a_load_brings_persistable_buffers_and_leaves_the_others(surface, tmp_path):
    layer = Buffered()
    scale, scratch = layer.scale, layer.scratch
    weights = surface(layer)
    assert set(weights.specs()) == {"linear.weight", "linear.bias", "scale"}
    publish_snapshot(tmp_path, 1, {0: state(weights, 3.0)}, durable=False)
    weights.release()
    load(SnapshotSource(tmp_path, rank=0), weights, version=1)
    assert layer.scale is scale
    assert scale.tolist() == [3.0] * 3
    assert layer.scratch is scratch
    assert scratch.tolist() == [0.0] * 5


@EVERYWHERE
def test_a_strided_parameter_is_copied_once_with_a_warning_and_loads_as_any_other(surface, tmp_path, caplog):
    whole = paddle.arange(16, dtype="float32").reshape([4, 4])
    layer = Buffered()
    layer.register_buffer("strided", whole[:, :2])
    strided, held = layer.strided, layer.strided.tolist()
    with caplog.at_level("WARNING", "wsm"):
        weights = surface(layer)
        surface(layer)
    assert len([line for line in caplog.records if "parameter.copied" in line.getMessage()]) == 1
    assert (layer.strided is strided, strided.tolist()) == (True, held)
    for version in (1, 2):
        publish_snapshot(tmp_path, version, {0: state(weights, float(version))}, durable=False)
        load(SnapshotSource(tmp_path, rank=0), weights, version=version)
        assert strided.tolist() == [[float(version)] * 2] * 4
        weights.release()
    assert whole.tolist()[0] == [0.0, 1.0, 2.0, 3.0]


@EVERYWHERE
def test_tied_parameters_are_loaded_once_under_either_name_in_place_and_hot(surface, tmp_path):
    layers = paddle.nn.Sequential(paddle.nn.Linear(3, 3), paddle.nn.Linear(3, 3))
    layers[1].weight = layers[0].weight
    weights = surface(layers)
    assert list(weights.specs()) == ["0.weight", "0.bias", "1.bias"]
    assert weights.tied == {"1.weight": "0.weight"}
    for version, kept in ((1, ["0.weight", "1.weight"]), (2, ["1.weight"])):
        content = state(weights, float(version))
        spec, data = content.pop("0.weight")
        content |= {name: (TensorSpec(name, spec.dtype, spec.shape), data) for name in kept}
        publish_snapshot(tmp_path, version, {0: content}, durable=False)
        target = weights.stage() if version == 2 else weights
        report = load(SnapshotSource(tmp_path, rank=0), target, version=version)
        if version == 2:
            target.make_ready(frozenset())
            target.flip()
            target.give_back()
        assert resident_digest(weights, lambda: None) == report.digest
        assert layers[1].weight is layers[0].weight
        assert layers[1].weight.tolist() == [[float(version)] * 3] * 3
