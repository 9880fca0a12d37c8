"""FastDeploy's four places and all about the names in them (its test_update_ipc_snapshot, in our form)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.incident import incident
from tests.raising import raising
from wsm.strategies import MemoryTarget, SnapshotSource, TensorSpec, errors, inspect, load

A, B, C = (TensorSpec(name, "U8", (2,)) for name in "abc")
WHOLE = {"a": ("U8", (2,), b"11"), "b": ("U8", (2,), b"22"), "c": ("U8", (2,), b"33")}


def one(name, value):
    return {name: ("U8", (2,), value)}


@pytest.fixture
def model(tmp_path):
    return tmp_path / "model"


@pytest.fixture
def shared(tmp_path):
    return tmp_path / "shared"


@pytest.fixture
def source(model, shared):
    return SnapshotSource(model, rank=3, device_id=5, shared_directory=shared)


def names(files):
    return [Path(file).name for file in files]


@incident("FastDeploy#6909")
def test_parts_win_over_everything_else_and_load_in_numeric_order(plain, model, shared, source):
    for index in (10, 9, 11):
        plain(f"model_state.tp3.5.part{index}.pdparams", one("abc"[index - 9], b"11"), directory=model)
    # ten parts before them, so that the numbers begin at 0 and 10 sorts after 9
    for index in range(9):
        plain(f"model_state.tp3.5.part{index}.pdparams", one(f"x{index}", b"11"), directory=model)
    plain("model_state.tp3.5.pdparams", WHOLE, directory=model)
    plain("model_state.tp05.pdparams", WHOLE, directory=model)
    plain("model_state.tp3.5.pdparams", WHOLE, directory=shared)
    files = names(inspect(source).files)
    assert files == [f"model_state.tp3.5.part{index}.pdparams" for index in range(12)]


@pytest.mark.parametrize(
    ("taken", "there"),
    [
        ("model/model_state.tp3.5.pdparams", ["model/model_state.tp05.pdparams"]),
        (
            "model/model_state.tp3.5.pdparams",
            ["model/model_state.tp3.5.partabc.pdparams", "model/model_state.tp3.5.nopart.pdparams"],
        ),
        ("model/model_state.tp05.pdparams", ["shared/model_state.tp3.5.pdparams"]),
        ("shared/model_state.tp3.5.pdparams", ["model/config.json"]),
        ("shared/model_state.tp3.5.pdparams", []),
    ],
    ids=["the whole file", "no number of a part", "the legacy name", "the shared directory", "no directory"],
)
def test_without_parts_the_first_file_of_the_other_places_is_taken(plain, tmp_path, source, taken, there):
    for path in (taken, *there):
        plain(path, WHOLE)
    assert inspect(source).bytes == 6
    assert load(source, MemoryTarget([A, B, C])).files == (str(tmp_path / taken),)


def test_nothing_found_lists_every_place_in_order_and_what_is_there_instead(plain, model, shared, source):
    plain("model_state.tp0.0.part0.pdparams", WHOLE, directory=model)
    with raising(errors.SnapshotNotFoundError, match="no snapshot found for rank 3 on device 5") as caught:
        load(source, MemoryTarget([A]))
    assert caught.value.looked_at == (
        f"{model}/version.yaml",
        f"{model}/model_state.tp3.5.part*.pdparams",
        f"{model}/model_state.tp3.5.pdparams",
        f"{model}/model_state.tp05.pdparams",
        f"{shared}/model_state.tp3.5.pdparams",
    )
    assert caught.value.present == (f"{model}/model_state.tp0.0.part0.pdparams",)
    assert caught.value.missing is None
    for place in caught.value.looked_at:
        assert place in str(caught.value)


def test_a_model_directory_that_is_not_there_is_named_as_what_is_missing(model, source):
    with raising(errors.SnapshotNotFoundError, match=f"there is no directory {model};") as caught:
        inspect(source)
    assert caught.value.missing == str(model)


@incident("FastDeploy C2-12")
@pytest.mark.parametrize("bad", ["partabc", "part", "part-1", "part1x", "part1.5", "part\uff11"])
def test_an_invalid_part_name_is_warned_about_and_ignored(plain, model, source, bad, caplog):
    plain(f"model_state.tp3.5.{bad}.pdparams", one("a", b"99"), directory=model)
    plain("model_state.tp3.5.part0.pdparams", WHOLE, directory=model)
    report = load(source, MemoryTarget([A, B, C]))
    path = f"{model}/model_state.tp3.5.{bad}.pdparams"
    warned = [record.wsm_fields for record in caplog.records]
    assert [fields["file"] for fields in warned if fields["event"] == "snapshot.part_ignored"] == [path]
    assert report.ignored == (path,)
    assert names(report.files) == ["model_state.tp3.5.part0.pdparams"]


def test_repetitions_among_the_parts_are_refused(plain, model, source):
    for index in ["0", "1", "01"]:
        plain(f"model_state.tp3.5.part{index}.pdparams", one(f"x{index}", b"11"), directory=model)
    with raising("part-sequence", match="occurs twice"):
        inspect(source)


@pytest.mark.parametrize("indexes", [[0, 2, 7], [2, 3, 4], [5, 10, 100]])
def test_parts_with_gaps_load_in_their_order_and_the_log_says_so(plain, model, source, caplog, indexes):
    for index, name in zip(indexes, "abc", strict=True):
        plain(f"model_state.tp3.5.part{index}.pdparams", one(name, b"11"), directory=model)
    report = load(source, MemoryTarget([A, B, C]))
    assert names(report.files) == [f"model_state.tp3.5.part{index}.pdparams" for index in indexes]
    assert (report.tensors, report.verified) == (3, 0)
    assert "snapshot.parts_missing" in caplog.text


def test_what_a_lost_part_held_is_missed_by_the_model(plain, model, source):
    for index, name in ((0, "a"), (2, "c")):
        plain(f"model_state.tp3.5.part{index}.pdparams", one(name, b"11"), directory=model)
    with raising(errors.not_covered, match="1 missing: 'b'"):
        load(source, MemoryTarget([A, B, C]))


@incident("FastDeploy#6815")
def test_no_rank_falls_back_to_the_file_of_another(plain, model, shared, source):
    for directory in (model, shared):
        plain("model_state.tp0.0.pdparams", WHOLE, directory=directory)
    with raising(errors.SnapshotNotFoundError, match="rank 3"):
        load(source, MemoryTarget([A, B, C]))


@incident("FastDeploy#6826")
def test_rank_1_on_device_234_and_rank_12_on_device_34_have_files_of_their_own(plain, model):
    for value, (rank, device) in {b"11": (1, 234), b"22": (12, 34)}.items():
        plain(f"model_state.tp{rank}.{device}.pdparams", one("a", value), directory=model)
        target = MemoryTarget([A])
        load(SnapshotSource(model, rank=rank, device_id=device, shared_directory=None), target)
        assert bytes(target.readable("a")) == value


def test_the_name_of_a_directory_is_no_part_number(plain, tmp_path):
    directory = tmp_path / "step.part9.d"
    for index, name in enumerate("ab"):
        plain(f"model_state.tp3.5.part{index}.pdparams", one(name, b"11"), directory=directory)
    source = SnapshotSource(directory, rank=3, device_id=5, shared_directory=None)
    assert load(source, MemoryTarget([A, B])).tensors == 2
