"""Pickle files: refused by default, read by paddle if that was allowed, converted if that was asked for."""

from __future__ import annotations

import errno
import os
import pickle
import sys
from unittest.mock import Mock

import pytest

from tests.descriptors import open_below
from tests.incident import incident
from tests.raising import raising
from wsm.strategies import MemoryTarget, TensorSpec, errors, inspect, load
from wsm.strategies.files.part_file import convert
from wsm.strategies.files.safetensors import lay_out

NAME = "model_state.tp0.0.pdparams"
SPECS = [
    TensorSpec("f32", "F32", (2, 3)),
    TensorSpec("bf16", "BF16", (4,)),
    TensorSpec("scalar", "I64", ()),
    TensorSpec("none", "F16", (0, 2)),
]


@pytest.fixture
def paddle():
    import paddle  # noqa: PLC0415 - a second of import time, for these tests alone

    return paddle


@pytest.fixture
def pickled(paddle, snapshot):
    """A state dict as paddle.save writes it, and its bytes."""
    tensors = {
        "f32": paddle.arange(6, dtype="float32").reshape([2, 3]),
        "bf16": paddle.arange(4, dtype="float32").astype("bfloat16"),
        "scalar": paddle.to_tensor(7, dtype="int64"),
        "none": paddle.zeros([0, 2], dtype="float16"),
    }
    snapshot.root.mkdir()
    paddle.save(tensors, str(snapshot.root / NAME))
    return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}


class Bomb:
    def __init__(self, path):
        self._path = str(path)

    def __reduce__(self):
        return os.mkdir, (self._path,)


@incident("lmdeploy#4698")
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_is_refused_by_its_content_and_nothing_in_it_is_run(snapshot, tmp_path, held, protocol):
    snapshot.root.mkdir()
    (snapshot.root / NAME).write_bytes(pickle.dumps({"a": Bomb(tmp_path / "ran")}, protocol=protocol))
    target = snapshot.served_target()
    before = held(target)
    with raising("pickle-refused", match=r"'wsm convert SOURCE DESTINATION'.*allow_pickle: true"):
        load(snapshot.source(), target)
    assert not (tmp_path / "ran").exists()
    assert held(target) == before


def test_the_shared_directory_takes_no_pickle_either(snapshot, tmp_path):
    """FastDeploy reads that place, and only that, as a pickle."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / NAME).write_bytes(pickle.dumps({}))
    with raising("pickle-refused"):
        inspect(snapshot.source(shared_directory=tmp_path / "shared"))


def test_two_bytes_are_enough_to_refuse_a_pickle_which_stays_open_nowhere(snapshot):
    snapshot.root.mkdir()
    (snapshot.root / NAME).write_bytes(b"\x80\x04")
    with raising("pickle-refused"):
        inspect(snapshot.source())
    assert open_below(snapshot.root) == []


def test_a_disk_that_fails_where_a_file_begins_names_the_file_which_stays_open_nowhere(snapshot, monkeypatch):
    snapshot.root.mkdir()
    (snapshot.root / NAME).write_bytes(b"\x80\x04")
    monkeypatch.setattr(os, "pread", Mock(side_effect=OSError(errno.EIO, "the disk fails")))
    with pytest.raises(errors.UnreadableFileError, match=f"{NAME}.*the disk fails"):
        inspect(snapshot.source())
    assert open_below(snapshot.root) == []


def test_a_safetensors_file_whose_length_looks_like_a_pickle_is_none(snapshot):
    """A header of 1152 bytes begins with the same two bytes as a pickle of protocol 4."""
    spec = TensorSpec("a", "U8", (1,))
    header = lay_out([spec], {"k": "x" * 1024})[0]
    text = header[8:].rstrip().ljust(1152)
    snapshot.root.mkdir()
    (snapshot.root / NAME).write_bytes((1152).to_bytes(8, "little") + text + b"1")
    assert (snapshot.root / NAME).read_bytes()[:2] == b"\x80\x04"
    assert load(snapshot.source(), MemoryTarget([spec])).bytes == 1


@pytest.mark.paddle
def test_an_allowed_pickle_is_loaded_with_every_dtype(pickled, snapshot, held):
    target = MemoryTarget(SPECS)
    report = load(snapshot.source(allow_pickle=True), target)
    assert held(target) == pickled
    assert report.peak_extra_bytes == report.bytes
    assert report.version is None


@pytest.mark.paddle
def test_float8_has_lost_its_dtype_in_a_pickle_and_is_refused(paddle, snapshot):
    """paddle.save writes it as int8, so nobody can tell afterwards."""
    snapshot.root.mkdir()
    paddle.save({"a": paddle.zeros([2]).astype("float8_e4m3fn")}, str(snapshot.root / NAME))
    with raising("dtype-mismatch"):
        load(snapshot.source(allow_pickle=True), MemoryTarget([TensorSpec("a", "F8_E4M3", (2,))]))


@pytest.mark.paddle
@pytest.mark.parametrize("content", [{"a": [1, 2]}, {}, [1], {"a": {"b": 1}}, {3: 4}])
def test_an_allowed_pickle_that_is_no_state_dict_is_refused(paddle, snapshot, content):
    snapshot.root.mkdir()
    (snapshot.root / NAME).write_bytes(pickle.dumps(content, protocol=4))
    with raising(errors.bad_pickle, match="no state dict"):
        load(snapshot.source(allow_pickle=True), MemoryTarget(SPECS))


@pytest.mark.paddle
def test_an_allowed_pickle_that_is_truncated_is_refused(pickled, snapshot):
    data = (snapshot.root / NAME).read_bytes()
    (snapshot.root / NAME).write_bytes(data[: len(data) // 2])
    with raising(errors.bad_pickle, match="paddle cannot read it"):
        load(snapshot.source(allow_pickle=True), MemoryTarget(SPECS))


@pytest.mark.paddle
def test_an_allowed_pickle_of_another_shape_is_refused_like_any_other_file(pickled, snapshot):
    wrong = [TensorSpec("f32", "F32", (3, 2)), *SPECS[1:]]
    with raising("shape-mismatch"):
        load(snapshot.source(allow_pickle=True), MemoryTarget(wrong))


def test_without_paddle_an_allowed_pickle_says_what_to_install(snapshot, monkeypatch):
    snapshot.root.mkdir()
    (snapshot.root / NAME).write_bytes(pickle.dumps({}))
    monkeypatch.setitem(sys.modules, "paddle", None)
    with raising("paddle-missing", match=r"wsm\[cpu\]"):
        load(snapshot.source(allow_pickle=True), MemoryTarget(SPECS))


@pytest.mark.paddle
def test_a_converted_file_loads_without_any_trust(pickled, snapshot, tmp_path, held):
    converted = tmp_path / "converted"
    report = convert(snapshot.root / NAME, converted / NAME)
    assert report.converted == ((str(snapshot.root / NAME), str(converted / NAME)),)
    target = MemoryTarget(SPECS)
    load(snapshot.source(directory=converted), target)
    assert held(target) == pickled
    assert [path.name for path in converted.iterdir()] == [NAME]


@pytest.mark.paddle
def test_paddles_own_reader_reads_a_converted_file(pickled, paddle, snapshot, tmp_path):
    del pickled["none"]  # safetensors' paddle reader fails on tensors of size zero
    source = tmp_path / "source"
    paddle.save({name: paddle.load(str(snapshot.root / NAME))[name] for name in pickled}, str(source))
    convert(source, tmp_path / NAME)
    state = paddle.load(str(tmp_path / NAME), safetensors=True)
    assert {name: tensor.numpy().tobytes() for name, tensor in state.items()} == pickled


@pytest.mark.paddle
def test_a_directory_is_converted_file_by_file_and_others_are_left(pickled, snapshot, tmp_path, plain):
    plain("model_state.tp1.1.pdparams", {"a": ("U8", (1,), b"1")}, directory=snapshot.root)
    (snapshot.root / "config.json").write_text("{}")
    report = convert(snapshot.root, tmp_path / "out")
    assert [target for _, target in report.converted] == [str(tmp_path / "out" / NAME)]
    assert report.skipped == (str(snapshot.root / "model_state.tp1.1.pdparams"),)
    assert [path.name for path in (tmp_path / "out").iterdir()] == [NAME]


@pytest.mark.paddle
def test_a_conversion_overwrites_nothing(pickled, snapshot):
    with raising(errors.destination_exists):
        convert(snapshot.root / NAME, snapshot.root / NAME)
    with raising(errors.destination_exists):
        convert(snapshot.root, snapshot.root)
    assert [path.name for path in snapshot.root.iterdir()] == [NAME]


def test_what_is_no_pickle_is_not_converted(snapshot, plain, tmp_path):
    path = plain(NAME, {"a": ("U8", (1,), b"1")})
    with raising("not-pickle"):
        convert(path, tmp_path / "out")
    with raising("not-pickle"):
        convert(tmp_path, tmp_path / "out")
    with raising(errors.UnreadableFileError):
        convert(tmp_path / "nothing", tmp_path / "out")
    assert not (tmp_path / "out").exists()
