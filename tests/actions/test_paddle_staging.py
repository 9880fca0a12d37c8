"""Two versions of real paddle parameters in memory, the flip between them, and what no load changes."""

from __future__ import annotations

import math

import numpy as np
import paddle
import pytest

from wsm.actions.backends.memory import HostMemory, available_bytes
from wsm.actions.backends.paddle_weights import DeviceWeights, PaddleWeights
from wsm.actions.measuring import resident_digest
from wsm.actions.surfaces import AvailableMemory, StageableWeights
from wsm.errors import BadInputError, GroupError
from wsm.strategies import SnapshotSource, TensorSpec, load, publish_snapshot
from wsm.strategies.tensor import StagedTarget, TensorReleasedError

pytestmark = pytest.mark.paddle


MIB = 1024 * 1024


def model():
    layers = paddle.nn.Sequential(paddle.nn.Linear(8, 4), paddle.nn.Linear(4, 2))
    layers[1].to(dtype="bfloat16")
    return layers


def on_device(layers, **options):
    return DeviceWeights(layers, paddle.CPUPlace(), **options)


EVERYWHERE = pytest.mark.parametrize("surface", [PaddleWeights, on_device], ids=["host", "device"])


def contents(weights):
    return {name: bytes(weights.readable(name)) for name in weights.specs()}


def fill(staged, byte):
    for name, spec in staged.specs().items():
        staged.writable(name)[:] = byte * spec.nbytes
        if isinstance(staged, StagedTarget):
            staged.written(name)


def state(weights, value):
    """Tensors that are full of a value."""
    full = {"F32": np.float32(value).tobytes(), "BF16": np.float32(value).tobytes()[2:]}
    specs = weights.specs().values()
    return {spec.name: (spec, full[spec.dtype] * math.prod(spec.shape)) for spec in specs}


def published(directory, version, content):
    publish_snapshot(directory, version, {0: content}, durable=False)
    return SnapshotSource(directory, rank=0)


def flipped(staged):
    staged.make_ready(frozenset())
    staged.flip()
    staged.give_back()


@EVERYWHERE
def test_there_and_back_is_bit_equal_in_the_same_parameters(surface, tmp_path):
    layers = model()
    tensors = dict(layers.state_dict())
    weights = surface(layers)
    assert isinstance(weights, StageableWeights)
    for version in (1, 2, 1):
        before = contents(weights)
        staged = weights.stage()
        content = state(weights, version)
        report = load(published(tmp_path / str(id(staged)), version, content), staged, version=version)
        assert contents(weights) == before, "staging wrote to what serves"
        assert resident_digest(staged, lambda: None) == report.digest
        staged.make_ready(frozenset())
        assert contents(weights) == before
        staged.flip()
        assert resident_digest(weights, lambda: None) == report.digest
        staged.give_back()
        assert contents(weights) == {name: data for name, (_, data) in content.items()}
    assert all(layers.state_dict()[name] is tensor for name, tensor in tensors.items())


@EVERYWHERE
@pytest.mark.parametrize("captured", [frozenset(), frozenset({"0.weight"})])
def test_parameters_that_were_not_flipped_are_named(surface, captured):
    weights = surface(model())
    staged = weights.stage()
    fill(staged, b"\x3f")
    staged.make_ready(captured)
    assert staged.unflipped() == "0.weight"
    staged.flip()
    assert staged.unflipped() is None


@EVERYWHERE
def test_captured_parameters_get_their_bytes_where_they_lie(surface):
    weights = surface(model())
    addresses, staged = weights.addresses(), weights.stage()
    fill(staged, b"\x3f")
    staged.make_ready(frozenset({"0.weight", "1.bias"}))
    staged.flip()
    now = weights.addresses()
    assert {name for name in now if now[name] == addresses[name]} == {"0.weight", "1.bias"}
    assert set(contents(weights).values()) == {b"\x3f" * spec.nbytes for spec in weights.specs().values()}


def test_the_old_memory_goes_when_it_is_given_back_and_not_in_the_flip():
    layers = paddle.nn.Linear(4096, 4096)
    weights, memory = PaddleWeights(layers), HostMemory()
    size = 4096 * 4096 * 4
    staged = weights.stage()
    for name in weights.specs():
        staged.writable(name)[:] = b"\1" * weights.specs()[name].nbytes
    staged.make_ready(frozenset())
    both = memory.resident_bytes()
    staged.flip()
    assert memory.resident_bytes() > both - size // 2
    assert staged.give_back() >= size
    memory.empty_cache()
    assert memory.resident_bytes() < both - size // 2
    assert bytes(weights.readable("weight")[:4]) == b"\1" * 4
    assert staged.give_back() == 0


def test_what_is_given_back_without_a_flip_leaves_the_served_version_alone():
    weights = PaddleWeights(model())
    before, staged = contents(weights), weights.stage()
    fill(staged, b"\1")
    staged.make_ready(frozenset())
    staged.give_back()
    staged.flip()  # nothing is left that it could flip
    assert contents(weights) == before


@EVERYWHERE
def test_a_tensor_that_was_not_staged_or_holds_no_memory_cannot_be_flipped(surface):
    weights = surface(model())
    staged = weights.stage()
    with pytest.raises(TensorReleasedError):
        staged.make_ready(frozenset())
    with pytest.raises(TensorReleasedError):
        staged.readable("0.weight")
    fill(staged, b"\1")
    weights.release()
    with pytest.raises(TensorReleasedError):
        staged.make_ready(frozenset())


def test_a_parameter_that_became_another_one_is_refused_before_the_flip():
    layers = model()
    weights = PaddleWeights(layers)
    staged = weights.stage()
    fill(staged, b"\1")
    paddle.zeros([2], dtype="float64")._share_buffer_to(layers[0].bias)
    with pytest.raises(GroupError, match=r"0\.bias"):
        staged.make_ready(frozenset())


@pytest.mark.parametrize("staged", [False, True])
def test_bytes_for_a_device_are_moved_one_tensor_at_a_time(staged):
    weights = on_device(model())
    target = weights.stage() if staged else weights
    assert isinstance(target, StagedTarget)
    target.writable("0.weight")
    with pytest.raises(GroupError, match="staged"):
        target.written("0.bias")


def test_the_hosts_memory_says_what_may_still_be_taken():
    memory = HostMemory()
    assert isinstance(memory, AvailableMemory)
    assert memory.shared_by_ranks
    assert memory.available_bytes() > MIB


MEMINFO = "MemTotal: 100 kB\nMemAvailable: 90000 kB\n"


def host(root, cgroup, files):
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(MEMINFO)
    (root / "proc/self/cgroup").write_text(cgroup)
    for path, text in files.items():
        place = root / "sys/fs/cgroup" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return root


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        pytest.param("0::/\n", {}, 90000 * 1024, id="no limit"),
        pytest.param(
            "0::/job/rank\n",
            {
                "job/rank/memory.max": "max\n",
                "job/rank/memory.current": "1000\n",
                "job/memory.max": "5000\n",
                "job/memory.current": "1500\n",
                "job/memory.stat": "anon 7\ninactive_file 200\nactive_file 30\n",
            },
            3730,
            id="a limit above",
        ),
        pytest.param(
            "5:cpu:/x\n4:memory:/x\n0::/\n",
            {
                "memory/x/memory.limit_in_bytes": "9000\n",
                "memory/x/memory.usage_in_bytes": "8000\n",
                "memory/x/memory.stat": "total_inactive_file 500\ntotal_active_file 40\n",
            },
            1540,
            id="version 1",
        ),
        pytest.param(
            "0::/../somewhere\n",
            {"memory.max": "100\n", "memory.current": "150\n"},
            0,
            id="a container that sees its own group at the mount, over its limit",
        ),
    ],
)
def test_limits_of_control_groups_count(tmp_path, cgroup, files, expected):
    assert available_bytes(host(tmp_path, cgroup, files)) == expected


# -- what the loaders of models hang on parameters stays there, whatever is done with the bytes ----------


class Buffered(paddle.nn.Layer):
    """A linear layer with a buffer that belongs to its state, and one that does not."""

    def __init__(self):
        super().__init__()
        self.linear = paddle.nn.Linear(4, 3)
        self.register_buffer("scale", paddle.full([3], 2.0))
        self.register_buffer("scratch", paddle.zeros([5]), persistable=False)

    def forward(self, x):
        return self.linear(x) * self.scale


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
    addresses = dict(weights.addresses())
    load(published(tmp_path, 1, state(weights, 1)), weights, version=1)
    assert still_there(layer, parameter, given)
    assert dict(weights.addresses()) == addresses, "a captured address moved"
    weights.release()
    with pytest.raises(TensorReleasedError):
        weights.readable("scale")
    assert still_there(layer, parameter, given)
    load(published(tmp_path, 2, state(weights, 2)), weights, version=2)
    assert still_there(layer, parameter, given)
    staged = weights.stage()
    load(published(tmp_path, 3, state(weights, 3)), staged, version=3)
    flipped(staged)
    assert still_there(layer, parameter, given)
    assert (parameter.stop_gradient, parameter.trainable, parameter.name) == trained
    assert layer(paddle.ones([1, 4])).tolist() == [[45.0] * 3]


@EVERYWHERE
def test_a_checkpoint_in_the_other_layout_is_turned_round_in_place_after_a_clear_and_hot(surface, tmp_path):
    layer = Buffered()
    given, parameter = marked(layer), layer.linear.weight
    weights = surface(layer, transposed=["linear.weight"])
    assert weights.specs()["linear.weight"].shape == (3, 4)

    for version, way in ((1, "in place"), (2, "after a clear"), (3, "hot")):
        values = np.arange(12, dtype=np.float32).reshape(3, 4) * version
        content = state(weights, 0)
        content["linear.weight"] = (weights.specs()["linear.weight"], values)
        content["scale"] = (weights.specs()["scale"], np.ones(3, np.float32))
        source = published(tmp_path, version, content)
        if way == "after a clear":
            weights.release()
        target = weights.stage() if way == "hot" else weights
        report = load(source, target, version=version)
        assert resident_digest(target, lambda: None) == report.digest
        if way == "hot":
            flipped(target)
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
    weights.release()
    load(published(tmp_path, 1, state(weights, 3)), weights, version=1)
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
        load(published(tmp_path, version, state(weights, version)), weights, version=version)
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
        content = state(weights, version)
        spec, data = content.pop("0.weight")
        content |= {name: (TensorSpec(name, spec.dtype, spec.shape), data) for name in kept}
        target = weights.stage() if version == 2 else weights
        report = load(published(tmp_path, version, content), target, version=version)
        if version == 2:
            flipped(target)
        assert resident_digest(weights, lambda: None) == report.digest
        assert layers[1].weight is layers[0].weight
        assert layers[1].weight.tolist() == [[float(version)] * 3] * 3
