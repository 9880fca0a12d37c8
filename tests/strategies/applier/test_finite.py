"""NaN and infinity where a publication promised neither: not published, and refused by a load."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from tests.raising import raising
from wsm.strategies import MemoryTarget, SnapshotSource, TensorSpec, errors, load, publish_snapshot
from wsm.strategies.applier.finite import first_not_finite
from wsm.strategies.byte_copy import CHUNK_BYTES
from wsm.strategies.promise import seal
from wsm.strategies.snapshot.manifest import ShardManifest

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


def values(count, bad=None):
    array = np.linspace(-1, 1, count, dtype="f4")
    if bad is not None:
        array[bad] = np.nan
    return array


def shard(**arrays):
    return {
        name: (TensorSpec(name, "F32", array.shape), memoryview(array).cast("B"))
        for name, array in arrays.items()
    }


def source(directory):
    return SnapshotSource(directory, 0, device_id=0, shared_directory=None)


def target_of(state):
    return MemoryTarget(spec for spec, _ in state.values())


def promise(path):
    """Let the manifest of a version that was published say finite."""
    (path / "model_state.manifest.json").unlink()
    file = path / "model_state.tp0.0.manifest.json"
    manifest = ShardManifest.decode(file.read_bytes(), file=str(file))
    file.write_bytes(structs.replace(manifest, finite=True).encode())


def test_a_version_that_is_not_finite_is_not_published_where_it_must_be(tmp_path):
    state = shard(a=values(10), b=values(CHUNK_BYTES, bad=CHUNK_BYTES - 3))
    with raising(errors.trainer_tensor, match=f"'b' .* element {CHUNK_BYTES - 3} is not finite"):
        publish_snapshot(tmp_path, 1, {0: state}, durable=False, finite=True)
    assert not (tmp_path / "version.yaml").exists()
    publish_snapshot(tmp_path, 1, {0: state}, durable=False)
    assert load(source(tmp_path), target_of(state), version=1).tensors == 2


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("size", "bad"), [(10, 7), (CHUNK_BYTES, CHUNK_BYTES - 3)])
def test_a_load_refuses_what_is_not_finite_and_names_tensor_and_element(tmp_path, threads, size, bad):
    state = shard(a=values(size), b=values(size, bad=bad), c=values(size))
    publish_snapshot(tmp_path, 1, {0: state}, durable=False)
    promise(tmp_path / "versions" / "1")
    tainted = []
    with raising("not-finite", match=f"'b' .* element {bad} ") as caught:
        load(
            source(tmp_path),
            target_of(state),
            version=1,
            threads=threads,
            taint=lambda: tainted.append(True),
        )
    assert (caught.value.tensor, caught.value.index, caught.value.touched) == ("b", bad, True)
    assert tainted == [True]
    good = shard(a=values(size), b=values(size), c=values(size))
    publish_snapshot(tmp_path, 2, {0: good}, durable=False, finite=True)
    assert load(source(tmp_path), target_of(good), version=2, threads=threads).verified == 3


def test_damage_is_told_as_damage_even_if_it_looks_like_nan(tmp_path):
    state = shard(a=values(10))
    publish_snapshot(tmp_path, 1, {0: state}, durable=False, finite=True)
    (part,) = (tmp_path / "versions" / "1").glob("*.pdparams")
    part.write_bytes(part.read_bytes()[:-4] + np.array([np.nan], "f4").tobytes())
    with pytest.raises(errors.DigestMismatchError, match="'a'"):
        load(source(tmp_path), target_of(state), version=1)


@pytest.mark.parametrize("said", [None, 1, "yes", False])
def test_a_manifest_that_says_anything_else_than_that_it_is_finite_is_refused(tmp_path, said):
    state = shard(a=values(10))
    publish_snapshot(tmp_path, 1, {0: state}, durable=False, finite=True)
    path = tmp_path / "versions" / "1" / "model_state.tp0.0.manifest.json"
    manifest = ShardManifest.decode(path.read_bytes(), file="f")
    with pytest.raises(errors.ManifestError):
        ShardManifest.decode(seal({**manifest._fields(), "finite": said}), file="f")
