"""The first value that is not finite, in every type. What loads make of it, the contract says."""

from __future__ import annotations

import numpy as np
import pytest
from stamped import apply_tensors

from tests.raising import raising
from wsm.strategies import MemoryTarget, SnapshotSource, TensorSpec, errors, load, publish_snapshot
from wsm.strategies.byte_copy import CHUNK_BYTES
from wsm.strategies.finite import first_not_finite
from wsm.strategies.observer import LoadObserver
from wsm.strategies.offer import OfferedTensor

BAD = {
    "F16": np.array([1, -2, np.inf], "f2").tobytes(),
    "BF16": np.array([0x3F80, 0x7F7F, 0xFFC0], "u2").tobytes(),
    "F32": np.array([3e38, -0.0, np.nan], "f4").tobytes(),
    "F64": np.array([1e308, 0, -np.inf], "f8").tobytes(),
    "F8_E4M3": bytes([0x7E, 0x80, 0xFF]),
    "F8_E5M2": bytes([0x7B, 0xFB, 0x7C]),
    "F8_E8M0": bytes([0x7F, 0xFE, 0xFF]),
}


@pytest.mark.parametrize("dtype", BAD)
def test_the_first_value_that_is_not_finite_is_found_in_every_floating_point_type(dtype):
    data = memoryview(BAD[dtype])
    assert first_not_finite(dtype, data) == 2
    assert first_not_finite(dtype, data[: len(data) * 2 // 3]) is None


@pytest.mark.parametrize("dtype", ["I8", "U8", "BOOL", "I32", "I64"])
def test_whole_numbers_are_finite_and_so_is_nothing(dtype):
    assert first_not_finite(dtype, memoryview(b"\xff" * 16)) is None
    assert first_not_finite("F32", memoryview(b"")) is None


@pytest.mark.parametrize("places", [(7,), (CHUNK_BYTES // 4 + 7,), (7, CHUNK_BYTES // 4 + 7)])
def test_the_first_value_that_is_not_finite_is_named_whatever_is_read_behind_it(places):
    data = np.zeros(3 * CHUNK_BYTES // 4, "f4")
    data[list(places)] = np.nan
    spec = TensorSpec("a", "F32", data.shape)
    tensor = OfferedTensor.of_bytes(spec, "here", memoryview(data.tobytes()))
    tensor.finite = True
    with raising("not-finite") as caught:
        apply_tensors([tensor], MemoryTarget([spec]), LoadObserver())
    assert caught.value.index == places[0]


def test_damage_is_told_as_damage_even_if_it_looks_like_nan(tmp_path):
    spec = TensorSpec("a", "F32", (10,))
    publish_snapshot(tmp_path, 1, {0: {"a": (spec, bytes(40))}}, durable=False, finite=True)
    (part,) = (tmp_path / "versions" / "1").glob("*.pdparams")
    part.write_bytes(part.read_bytes()[:-4] + np.array([np.nan], "f4").tobytes())
    source = SnapshotSource(tmp_path, 0, device_id=0, shared_directory=None)
    with pytest.raises(errors.DigestMismatchError, match="'a'"):
        load(source, MemoryTarget([spec]), version=1)
