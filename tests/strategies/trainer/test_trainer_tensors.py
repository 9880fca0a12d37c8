"""Whatever a trainer holds arrives with the dtype, the shape and the bytes that it has."""

from __future__ import annotations

import array
import sys

import numpy as np
import paddle
import pytest

from tests.raising import raising
from wsm.strategies import (
    TensorSpec,
    errors,
)
from wsm.strategies.trainer.tensors import bytes_of, specs_of


def described(value):
    [spec] = specs_of({"t": value})
    return spec.dtype, spec.shape, bytes(bytes_of({"t": value}, spec))


@pytest.mark.parametrize(
    ("numpy_name", "expected"),
    [
        ("float16", "F16"),
        ("float32", "F32"),
        ("float64", "F64"),
        ("int8", "I8"),
        ("int16", "I16"),
        ("int32", "I32"),
        ("int64", "I64"),
        ("uint8", "U8"),
        ("uint16", "U16"),
        ("uint32", "U32"),
        ("uint64", "U64"),
        ("bool", "BOOL"),
    ],
)
def test_numpy_arrays(numpy_name, expected):
    value = np.arange(6).astype(numpy_name).reshape(2, 3)
    assert described(value) == (expected, (2, 3), value.tobytes())


def test_scalars_empty_strided_and_transposed_arrays():
    assert described(np.float32(1.5)) == ("F32", (), np.float32(1.5).tobytes())
    assert described(np.zeros((0, 4), np.float16)) == ("F16", (0, 4), b"")
    whole = np.arange(12, dtype=np.int32).reshape(3, 4)
    assert described(whole.T) == ("I32", (4, 3), whole.T.tobytes())
    assert described(whole[:, ::2]) == ("I32", (3, 2), whole[:, ::2].tobytes())


def test_a_contiguous_array_is_not_copied():
    value = np.zeros(4, np.float32)
    view = bytes_of({"t": value}, specs_of({"t": value})[0])
    value[0] = 1
    assert bytes(view) == value.tobytes()


def test_buffers_of_other_kinds():
    assert described(b"abc") == ("U8", (3,), b"abc")
    assert described(bytearray(b"abc")) == ("U8", (3,), b"abc")
    assert described(array.array("d", [1.0, 2.0])) == ("F64", (2,), array.array("d", [1.0, 2.0]).tobytes())
    assert described(array.array("l", [1])) == ("I64", (1,), (1).to_bytes(8, "little"))
    assert described(memoryview(b"12345678").cast("I")) == ("U32", (2,), b"12345678")


def test_a_pair_says_what_numpy_cannot():
    bits = np.arange(6, dtype=np.uint16).reshape(2, 3)
    spec = TensorSpec("t", "BF16", (3, 2))
    assert described((spec, bits)) == ("BF16", (3, 2), bits.tobytes())
    assert described((spec, bits.tobytes())) == ("BF16", (3, 2), bits.tobytes())


def test_paddles_tensors_are_taken_as_they_are_in_every_layout_and_bfloat16_is_bfloat16():
    whole = paddle.arange(6, dtype="float32").reshape([2, 3])
    assert described(whole) == ("F32", (2, 3), whole.numpy().tobytes())
    assert described(whole.T) == ("F32", (3, 2), whole.numpy().T.tobytes())
    half = whole.astype("bfloat16")
    assert described(half) == ("BF16", (2, 3), half.numpy().tobytes())
    assert described(paddle.zeros([0, 4])) == ("F32", (0, 4), b"")
    assert described(paddle.to_tensor(1.5)) == ("F32", (), np.float32(1.5).tobytes())
    parameter = paddle.nn.Linear(2, 2).weight
    assert described(parameter)[2] == parameter.numpy().tobytes()
    view = bytes_of({"t": whole}, specs_of({"t": whole})[0])
    whole.fill_(7.0)
    assert bytes(view) == whole.numpy().tobytes(), "nothing is copied on the host"
    parameter._clear_data()
    with raising(errors.trainer_tensor, match="holds no memory"):
        specs_of({"t": parameter})
    with raising(errors.trainer_tensor, match="complex64"):
        specs_of({"t": paddle.zeros([1], dtype="complex64")})


class StandInTorch:
    """What stands for torch, which this repository does not install: a tensor's calls, over numpy."""

    uint8 = np.uint8

    class Tensor:
        __module__ = "torch"
        is_meta, layout = False, "torch.strided"

        def __init__(self, array, dtype=None):
            self._array, self._dtype = array, dtype
            self.dtype = f"torch.{dtype or array.dtype}"
            self.shape = array.shape

        def _of(self, array):
            return type(self)(array, self._dtype)

        def detach(self):
            return self

        def cpu(self):
            return self

        def contiguous(self):
            return self._of(np.ascontiguousarray(self._array))

        def reshape(self, extent):
            return self._of(self._array.reshape(extent))

        def view(self, dtype):
            return type(self)(self._array.view(dtype))

        def numpy(self):
            return self._array


def test_torchs_tensors_are_taken_as_they_are_and_parts_of_a_sharded_one_are_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", StandInTorch)
    bits = np.arange(6, dtype=np.uint16).reshape(2, 3)
    assert described(StandInTorch.Tensor(bits, "bfloat16")) == ("BF16", (2, 3), bits.tobytes())
    turned = StandInTorch.Tensor(bits.T, "bfloat16")
    assert described(turned) == ("BF16", (3, 2), bits.T.tobytes())
    assert described(StandInTorch.Tensor(np.zeros((0, 2), np.float32))) == ("F32", (0, 2), b"")
    part = StandInTorch.Tensor(bits, "bfloat16")
    part.full_tensor = lambda: None
    with raising(errors.trainer_tensor, match=r"full_tensor\(\)"):
        specs_of({"t": part})
    sparse = StandInTorch.Tensor(bits, "bfloat16")
    sparse.layout = "torch.sparse_coo"
    with raising(errors.trainer_tensor, match="sparse_coo"):
        specs_of({"t": sparse})
    nowhere = StandInTorch.Tensor(bits, "bfloat16")
    nowhere.is_meta = True
    with raising(errors.trainer_tensor, match="holds no memory"):
        specs_of({"t": nowhere})


@pytest.mark.parametrize(
    "value",
    [
        None,
        [1.0, 2.0],
        "text",
        np.zeros(2, ">f4"),
        np.zeros(2, "complex64"),
        np.array([None]),
        memoryview(b"abcdef")[::2],
        (TensorSpec("t", "F32", (2,)), b"1234567"),
        (TensorSpec("other", "F32", (2,)), b"12345678"),
        (TensorSpec("t", "F32", (2,)), None),
        (b"x", b"y"),
        (b"x",),
    ],
)
def test_anything_else_is_refused_by_name(value):
    with raising(errors.trainer_tensor, match="'t'"):
        described(value)


def test_a_name_that_is_no_string_is_refused():
    with raising(errors.trainer_tensor, match="not a string"):
        specs_of({3: b"x"})


@pytest.mark.parametrize("name", ["__metadata__", "\ud800"])
def test_a_name_that_no_file_can_hold_is_refused(name):
    with raising(errors.trainer_tensor, match="no safetensors file"):
        specs_of({name: b"x"})


@pytest.mark.parametrize(
    "other",
    [
        np.zeros(4, "<f4"),
        np.zeros((2, 3), "<f4"),
        np.zeros((2, 2), "<f8"),
        np.zeros((2, 2), ">f4"),
        [0.0] * 4,
    ],
    ids=["flat", "larger", "wider", "of another byte order", "no tensor"],
)
def test_a_tensor_that_became_another_one_while_it_was_published_is_refused(other):
    tensors = {"w": np.zeros((2, 2), "<f4")}
    (spec,) = specs_of(tensors)
    assert bytes_of(tensors, spec) == bytes(16)
    tensors["w"] = other
    with raising(errors.trainer_tensor, match="'w'"):
        bytes_of(tensors, spec)
