"""Paddle parameters released and loaded for real, and what paddle itself leaves unchecked."""

from __future__ import annotations

import gc
import mmap

import numpy as np
import paddle
import pytest

from tests.incident import incident
from wsm.actions._verify import VerifyLoaded
from wsm.actions.backends import paddle_weights
from wsm.actions.backends.memory import HostMemory
from wsm.actions.backends.paddle_weights import DeviceWeights, PaddleWeights
from wsm.actions.errors import PostconditionError
from wsm.actions.measuring import AddressContract, MemoryDrop, resident_digest
from wsm.actions.plan import PlanOptions, derive_plans
from wsm.errors import BadInputError, GroupError
from wsm.states.plan_key import CLEAR, DISCARD
from wsm.strategies.tensor import TensorReleasedError

pytestmark = pytest.mark.paddle

MIB = 1024 * 1024
EVERY_DTYPE = [
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "float8_e4m3fn",
    "float8_e5m2",
]


class Buffers(paddle.nn.Layer):
    """A layer whose persistable buffers are the given tensors."""

    def __init__(self, **tensors):
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)


def zeros(shape, dtype):
    """Return zeros, also in dtypes for which paddle has no kernel that fills."""
    carrier = {"bfloat16": "int16", "float8_e4m3fn": "int8", "float8_e5m2": "int8"}.get(dtype, dtype)
    tensor = paddle.zeros(shape, dtype=carrier)
    return tensor if carrier == dtype else tensor.view(dtype)


def contents(weights):
    return {name: bytes(weights.readable(name)) for name in weights.specs()}


@pytest.mark.parametrize("dtype", EVERY_DTYPE)
@pytest.mark.parametrize("shape", [[], [1], [3, 5], [2, 3, 4]])
def test_every_dtype_and_shape_comes_back_bit_equal_in_the_same_tensor(dtype, shape):
    layer = Buffers(x=zeros(shape, dtype))
    tensor = layer.x
    weights = PaddleWeights(layer)
    size = weights.specs()["x"].nbytes
    data = bytes(range(256)) * (size // 256 + 1) if dtype != "bool" else b"\1\0" * size
    for _ in range(2):
        weights.writable("x")[:] = data[:size]
        assert bytes(weights.readable("x")) == data[:size]
        assert weights.release() == size
        assert list(weights.held()) == []
        with pytest.raises(TensorReleasedError, match="'x'"):
            weights.readable("x")
    weights.writable("x")[:] = data[:size]
    assert layer.x is tensor
    assert list(layer.x.shape) == shape
    assert str(layer.x.dtype) == f"paddle.{dtype}"


def test_loading_over_held_weights_moves_nothing():
    weights = PaddleWeights(paddle.nn.Linear(4, 4))
    contract = AddressContract()
    contract.record(weights)
    for name, spec in weights.specs().items():
        weights.writable(name)[:] = b"\0" * spec.nbytes
    contract.check(weights)
    weights.release()
    with pytest.raises(GroupError):
        contract.check(weights)


def test_a_linear_layer_computes_silently_without_a_cleared_bias_and_verification_finds_it(make_context):
    model = paddle.nn.Linear(2, 1)
    weights = PaddleWeights(model)
    weights.writable("weight")[:] = np.zeros([2, 1], np.float32).tobytes()
    weights.writable("bias")[:] = np.full([1], 10, np.float32).tobytes()
    digest = resident_digest(weights, lambda: None)
    assert model(paddle.ones([1, 2])).item() == 10.0
    model.bias._clear_data()
    assert model(paddle.ones([1, 2])).item() == 0.0, "paddle has begun to guard optional inputs"
    context = make_context()
    context.runner.weights = weights
    context.facts["digest"] = digest
    with pytest.raises(TensorReleasedError, match="'bias'"):
        VerifyLoaded(resident_digest).run(context)


def test_several_models_are_one_shard_with_a_prefix_each():
    shared = paddle.nn.Linear(2, 2)
    weights = PaddleWeights({"": paddle.nn.Sequential(shared), "mtp.": shared})
    assert list(weights.specs()) == ["0.weight", "0.bias"]
    assert weights.tied == {"mtp.weight": "0.weight", "mtp.bias": "0.bias"}


def test_tensors_of_size_zero_are_known_and_never_held():
    weights = PaddleWeights(Buffers(nothing=paddle.zeros([0, 4]), some=paddle.zeros([1])))
    assert list(weights.specs()) == ["nothing", "some"]
    assert list(weights.held()) == ["some"]
    assert bytes(weights.readable("nothing")) == b""
    assert weights.writable("nothing").nbytes == 0


def test_a_model_that_was_built_without_memory_is_loaded_like_a_released_one():
    with paddle.LazyGuard():
        model = paddle.nn.Linear(2, 2)
    weights = PaddleWeights(model)
    assert list(weights.held()) == []
    for name, spec in weights.specs().items():
        weights.writable(name)[:] = np.ones(spec.shape, np.float32).tobytes()
    assert model(paddle.ones([1, 2])).tolist() == [[3.0, 3.0]]


def test_readable_bytes_cannot_be_written():
    weights = PaddleWeights(paddle.nn.Linear(2, 2))
    with pytest.raises(TypeError):
        weights.readable("weight")[0] = 1


@pytest.mark.parametrize("foreign", [([4], "float64"), ([2], "float32"), ([2], "float64")])
def test_a_foreign_buffer_under_a_parameter_is_found_before_a_byte_is_read(foreign):
    layer = Buffers(x=paddle.zeros([4]))
    weights = PaddleWeights(layer)
    shape, dtype = foreign
    paddle.ones(shape, dtype=dtype)._share_buffer_to(layer.x)
    with pytest.raises(GroupError, match="'x'"):
        weights.readable("x")
    with pytest.raises(GroupError):
        weights.writable("x")


def test_what_cannot_be_handled_is_refused_when_the_model_is_handed_in():
    with pytest.raises(BadInputError, match="complex64") as caught:
        PaddleWeights(Buffers(x=paddle.zeros([2], dtype="complex64")))
    assert isinstance(caught.value, BadInputError)
    strided = Buffers(x=paddle.zeros([4, 4])[:, :2], y=paddle.zeros([2], dtype="complex64"))
    with pytest.raises(BadInputError, match="complex64"):
        PaddleWeights(strided)
    assert not strided.x.is_contiguous()


# -- memory ---------------------------------------------------------------------------------------


def many(count, floats):
    """Return a layer of `count` buffers with `floats` float32 each."""
    return Buffers(**{f"t{index}": paddle.full([floats], 1.0) for index in range(count)})


@pytest.mark.slow_but
@pytest.mark.parametrize(("count", "floats"), [(16, 2 * MIB), (8000, 4096)], ids=["large", "small"])
def test_released_bytes_leave_the_process(count, floats):
    weights = PaddleWeights(many(count, floats))
    memory = HostMemory()
    memory.empty_cache()
    before = memory.resident_bytes()
    released = weights.release()
    memory.empty_cache()
    assert released == count * floats * 4
    assert before - memory.resident_bytes() > 0.9 * released


@incident("peers' class 4.5 (sglang#24854")
def test_loaded_and_released_memory_does_not_grow_with_rounds():
    weights = PaddleWeights(many(4, MIB))
    memory = HostMemory()

    def one_round():
        for name, spec in weights.specs().items():
            weights.writable(name)[:] = bytes(spec.nbytes)
        weights.release()
        memory.empty_cache()

    one_round()
    before = memory.resident_bytes()
    for _ in range(20):
        one_round()
    assert memory.resident_bytes() - before < 8 * MIB


@pytest.mark.slow
@incident("slime#579")
def test_a_clear_is_not_believed_while_somebody_holds_a_view(runner, make_context, walk):
    weights = PaddleWeights(many(4, 16 * MIB))  # what else the process lets go of meanwhile is less
    runner.weights, runner.memory, runner.graphs, runner.auxiliaries = weights, HostMemory(), None, []
    options = PlanOptions.from_runner(runner, memory_drop=MemoryDrop(share=0.9, noise_bytes=8 * MIB))
    plans = derive_plans(options)
    view = weights.readable("t0")
    with pytest.raises(PostconditionError, match="view or an alias"):
        walk(plans.named(CLEAR), make_context())
    with pytest.raises(PostconditionError, match="view or an alias"):
        walk(plans.named(DISCARD), make_context())
    view.release()
    del view
    gc.collect()
    context = make_context()
    walk(plans.named(DISCARD), context)
    assert context.facts["drop_measurable"] is True


@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_a_released_tensor_lives_in_memory_that_it_is_given_and_lets_go_of_it(dtype):
    weights = PaddleWeights(Buffers(values=zeros([4, 6], dtype)))
    assert not weights.adopts("values")
    weights.release()
    assert weights.adopts("values")
    memory = mmap.mmap(-1, 4096)
    nbytes = weights.specs()["values"].nbytes
    memory[64 : 64 + nbytes] = bytes(1 for _ in range(nbytes))
    weights.adopt("values", memoryview(memory)[64 : 64 + nbytes])
    assert bytes(weights.readable("values")) == b"\x01" * nbytes
    memory[64:65] = b"\x00"
    assert bytes(weights.readable("values")[:1]) == b"\x00"
    with pytest.raises(BufferError):
        memory.close()
    weights.release()
    memory.close()


@pytest.mark.parametrize("memory", [memoryview(bytes(96)), memoryview(bytearray(95))])
def test_memory_that_is_read_only_or_too_short_is_not_adopted(memory):
    weights = PaddleWeights(Buffers(values=zeros([4, 6], "float32")))
    weights.release()
    with pytest.raises(GroupError):
        weights.adopt("values", memory)
    assert list(weights.held()) == []


@pytest.mark.parametrize("dtype", EVERY_DTYPE)
@pytest.mark.parametrize("kind", ["host", "device"])
def test_what_is_left_unwritten_of_a_parameter_is_counted_in_each_dtype_block_by_block(
    dtype, kind, monkeypatch
):
    monkeypatch.setattr(paddle_weights, "BLOCK_BYTES", 16)
    layer = Buffers(b=zeros([5, 4], dtype), scalar=zeros([], dtype))
    weights = PaddleWeights(layer) if kind == "host" else DeviceWeights(layer, paddle.CPUPlace())
    assert weights.restore() == []  # all of them hold what serves
    weights.release()
    assert weights.restore() == ["b", "scalar"]
    counted = weights.specs()["b"].dtype[0] in "FB"  # of integers any bits are content
    many = weights.specs()["b"].nbytes >= 64
    assert weights.recapture(["b"]) == ({"b": 20} if counted or many else {})
    with_one_written = bytearray(weights.readable("b"))
    with_one_written[: weights.specs()["b"].nbytes // 20] = bytes(weights.specs()["b"].nbytes // 20)
    weights.writable("b")[:] = with_one_written
    if kind == "device":
        weights.written("b")
    found = {"b": 19, "scalar": 1} if counted else {}
    assert weights.recapture(["b", "scalar"]) == found
    assert weights.restore(["scalar"], over_all=True) == ["b"]
    weights.release()
    assert weights.restore(["scalar"]) == ["b"]
    assert not any(weights.readable("scalar"))
