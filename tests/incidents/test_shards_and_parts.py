"""Incidents in which a rank loaded another one's shard, a part of it, or a file that was no weights."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import pytest
from snapshots_of_incidents import (
    OTHER,
    SPEC,
    is_untouched,
    publish,
    served_target,
    shard,
    source,
    write_flat,
)

from tests.raising import raising
from wsm.strategies import MemoryTarget, TensorSpec, errors
from wsm.strategies import load as load_snapshot
from wsm.strategies.files.shard_source import device_id_from_environment

# -- whose shard ------------------------------------------------------------------------------------


def test_fastdeploy_6815_no_rank_falls_back_to_the_file_of_rank_0(tmp_path):
    write_flat(tmp_path / "model_state.tp0.0.pdparams", 7)
    target = served_target()
    with raising(errors.SnapshotNotFoundError, match="rank 1"):
        load_snapshot(source(tmp_path, 1), target)
    assert is_untouched(target)


def test_fastdeploy_6815_a_shard_under_the_name_of_another_rank_is_noticed(tmp_path):
    path = publish(tmp_path, {rank: shard(rank + 1) for rank in range(2)})
    for file in path.glob("model_state.tp0.0.*"):
        shutil.copy(file, path / file.name.replace("tp0.0.", "tp1.1."))
    target = served_target()
    with raising(errors.shard_identity, match="rank 0"):
        load_snapshot(source(tmp_path, 1), target, version=1)
    assert is_untouched(target)


def test_fastdeploy_6826_rank_1_on_device_234_and_rank_12_on_device_34_have_files_of_their_own(tmp_path):
    for value, (rank, device) in enumerate([(1, 234), (12, 34)], start=1):
        write_flat(tmp_path / f"model_state.tp{rank}.{device}.pdparams", value)
    for value, (rank, device) in enumerate([(1, 234), (12, 34)], start=1):
        target = MemoryTarget((SPEC, OTHER))
        load_snapshot(source(tmp_path, rank, device_id=device), target)
        assert set(bytes(target.readable("weight"))) == {value}


def test_fastdeploy_c2_17_a_device_without_a_number_is_an_error_that_says_so():
    for visible in ("GPU-8d1f7c10-8a3d", "MIG-3f1c/1/0"):
        with raising(errors.bad_device_id, match="UUID or MIG"):
            device_id_from_environment(0, {"CUDA_VISIBLE_DEVICES": visible})
    with raising(errors.bad_device_id, match="beyond the 2 entries"):
        device_id_from_environment(0, {"CUDA_VISIBLE_DEVICES": "4,5", "FLAGS_selected_gpus": "2"})


# -- parts ------------------------------------------------------------------------------------------


def test_fastdeploy_6909_the_number_of_a_part_comes_from_its_name_and_counts_as_a_number(tmp_path):
    specs = [TensorSpec(f"t{index:02}", "F32", (4,)) for index in range(1, 12)]
    for index, spec in enumerate(specs, start=1):
        write_flat(tmp_path / f"model_state.tp0.0.part{index}.pdparams", index, spec)
    target = MemoryTarget(specs)
    report = load_snapshot(source(tmp_path), target)
    assert [Path(file).name.split(".")[3] for file in report.files] == [f"part{i}" for i in range(1, 12)]


def test_fastdeploy_c2_12_the_name_of_a_directory_is_no_part_number(tmp_path):
    directory = tmp_path / "step.part9.d"
    write_flat(directory / "model_state.tp0.0.part0.pdparams", 3, SPEC)
    write_flat(directory / "model_state.tp0.0.part1.pdparams", 3, OTHER)
    target = MemoryTarget((SPEC, OTHER))
    assert load_snapshot(source(directory), target).tensors == 2


def flip_last_bit(part: Path) -> None:
    content = bytearray(part.read_bytes())
    content[-1] ^= 1
    part.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "error", "touched"),
    [
        (Path.unlink, errors.differs_from_manifest, False),
        (lambda part: part.write_bytes(b""), errors.bad_safetensors, False),
        (flip_last_bit, errors.DigestMismatchError, True),
    ],
    ids=["last part missing", "last part empty", "one bit of the last part"],
)
def test_fastdeploy_c2_12_parts_are_counted_and_digested(tmp_path, damage, error, touched):
    path = publish(tmp_path, {0: shard(3)}, part_bytes=100)
    *_, last = sorted(path.glob("*.part*"))
    damage(last)
    target = served_target()
    with raising(error) as caught:
        load_snapshot(source(tmp_path), target, version=1)
    assert getattr(caught.value, "touched", False) is touched
    assert is_untouched(target) is not touched


def test_fastdeploy_6852_no_more_than_one_part_is_ever_held_beside_the_model(tmp_path):
    publish(tmp_path, {0: shard(3)}, part_bytes=100)
    assert load_snapshot(source(tmp_path), served_target(), version=1).peak_extra_bytes <= SPEC.nbytes


# -- formats ----------------------------------------------------------------------------------------


class Payload:
    """What an attacker's file does to whoever loads it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return (Path.touch, (self.path,))


def test_lmdeploy_4698_sglang_30165_and_fastdeploy_c2_13_a_pickle_is_refused_and_never_run(tmp_path):
    proof = tmp_path / "it was run"
    file = tmp_path / "snapshots" / "model_state.tp0.0.pdparams"
    file.parent.mkdir()
    file.write_bytes(pickle.dumps({"weight": Payload(proof)}))
    target = served_target()
    with raising("pickle-refused", match="allow_pickle"):
        load_snapshot(source(file.parent), target)
    assert not proof.exists()
    assert is_untouched(target)
    pickle.loads(file.read_bytes())  # noqa: S301 - the control: this is what it would have done
    assert proof.exists()
