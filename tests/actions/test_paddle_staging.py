"""Two versions of real paddle parameters in memory, and the flip from one to the other."""

from __future__ import annotations

import paddle
import pytest

from wsm.actions.backends.memory import HostMemory, available_bytes
from wsm.actions.backends.paddle_weights import DeviceWeights, PaddleWeights
from wsm.actions.measuring import resident_digest
from wsm.actions.surfaces import AvailableMemory, StageableWeights
from wsm.errors import GroupError
from wsm.strategies.applier.memory_target import MemoryTarget
from wsm.strategies.load import load
from wsm.strategies.snapshot.publish import publish_snapshot
from wsm.strategies.snapshot.source import SnapshotSource
from wsm.strategies.tensor import StagedTarget, TensorReleasedError

pytestmark = pytest.mark.paddle

MIB = 1024 * 1024


def model():
    layers = paddle.nn.Sequential(paddle.nn.Linear(8, 4), paddle.nn.Linear(4, 2))
    layers[1].to(dtype="bfloat16")
    return layers


def on_host(layers):
    return PaddleWeights(layers)


def on_device(layers):
    return DeviceWeights(layers, paddle.CPUPlace())


EVERYWHERE = pytest.mark.parametrize("surface", [on_host, on_device], ids=["host", "device"])


def contents(weights):
    return {name: bytes(weights.readable(name)) for name in weights.specs()}


def fill(staged, byte):
    for name, spec in staged.specs().items():
        staged.writable(name)[:] = byte * spec.nbytes
        if isinstance(staged, StagedTarget):
            staged.written(name)


def publish(directory, version, weights):
    shard = MemoryTarget(weights.specs().values())
    for name, spec in weights.specs().items():
        shard.writable(name)[:] = bytes([0x30 + version]) * spec.nbytes
    state = {name: (spec, shard.readable(name)) for name, spec in weights.specs().items()}
    publish_snapshot(directory, version, {0: state})
    return SnapshotSource(directory, rank=0)


@EVERYWHERE
def test_there_and_back_is_bit_equal_in_the_same_parameters(surface, tmp_path):
    layers = model()
    tensors = dict(layers.state_dict())
    weights = surface(layers)
    assert isinstance(weights, StageableWeights)
    for version in (1, 2, 1):
        before = contents(weights)
        staged = weights.stage()
        report = load(publish(tmp_path / str(id(staged)), version, weights), staged, version=version)
        assert contents(weights) == before, "staging wrote to what serves"
        assert resident_digest(staged, lambda: None) == report.digest
        staged.make_ready(frozenset())
        assert contents(weights) == before
        staged.flip()
        assert resident_digest(weights, lambda: None) == report.digest
        staged.give_back()
        expected = {name: bytes([0x30 + version]) * spec.nbytes for name, spec in weights.specs().items()}
        assert contents(weights) == expected
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
