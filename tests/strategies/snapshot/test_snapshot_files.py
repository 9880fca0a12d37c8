"""FastDeploy's four places and all about the names in them, and the versions of such flat files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.incident import incident
from tests.raising import raising
from wsm.strategies import (
    ManifestScope,
    MemoryTarget,
    SnapshotSource,
    TensorSpec,
    errors,
    inspect,
    load,
    write_version,
)
from wsm.strategies.files.shard_source import device_id_from_environment

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
    (model / "config.json").write_text("{}")
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


@pytest.mark.parametrize("first", [0, 1])
def test_parts_are_numbered_from_naught_or_one(plain, model, source, caplog, first):
    for index in (first, first + 1):
        plain(f"model_state.tp3.5.part{index}.pdparams", one(f"x{index}", b"11"), directory=model)
    specs = [TensorSpec(f"x{index}", "U8", (2,)) for index in (first, first + 1)]
    assert len(load(source, MemoryTarget(specs)).files) == 2
    assert "snapshot.parts_missing" not in caplog.text


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


# -- what is known about the version of files that no publisher of ours arranged -------------------------


@pytest.fixture
def flat(snapshot, plain):
    """One whole file of rank 0, written by somebody else."""
    plain("model_state.tp0.0.pdparams", one("a", b"11"), directory=snapshot.root)
    return snapshot.root


@pytest.fixture
def flat_parts(snapshot):
    """Version 7 as parts with manifests, straight in the directory."""
    path = snapshot.publish(7)
    for file in path.iterdir():
        shutil.move(file, snapshot.root / file.name)
    shutil.rmtree(snapshot.root / "versions")
    return snapshot.root


def test_without_any_evidence_a_load_of_no_particular_version_reports_none(snapshot, flat):
    report = load(snapshot.source(), MemoryTarget([A]))
    assert report.version is None
    assert report.manifest_scope is ManifestScope.LOADED
    assert report.manifest_digest == report.digest
    assert report.verified == 0
    assert inspect(snapshot.source()).manifest_digest is None


def test_without_any_evidence_a_particular_version_is_refused(snapshot, flat):
    with raising("version-unknown", match="version 3 was asked for"):
        load(snapshot.source(), MemoryTarget([A]), version=3)


def test_a_version_file_beside_the_files_is_evidence(snapshot, flat):
    write_version(flat, 3)
    assert load(snapshot.source(), MemoryTarget([A])).version == "3"
    assert load(snapshot.source(), MemoryTarget([A]), version=3).version == "3"
    with raising(errors.VersionMismatchError, match="holds version 3"):
        load(snapshot.source(), MemoryTarget([A]), version=4)


@pytest.mark.parametrize("text", ["step: soon or late", "other: 1", "- 1", "", "step: [", "step: null"])
def test_a_broken_version_file_is_no_evidence_and_no_way_to_a_version(snapshot, flat, text, caplog):
    """FastDeploy does not read it beside such files."""
    (flat / "version.yaml").write_text(text)
    assert load(snapshot.source(), MemoryTarget([A])).version is None
    assert "version_file.ignored" in caplog.text
    with raising(errors.bad_version_file):
        load(snapshot.source(), MemoryTarget([A]), version=3)


def test_a_broken_version_file_above_published_versions_is_an_error(snapshot):
    """Which of them it means is its own to say."""
    snapshot.publish(7)
    (snapshot.root / "version.yaml").write_text("step: soon or late")
    with raising(errors.bad_version_file):
        load(snapshot.source(), snapshot.target())


def test_manifests_beside_flat_files_count_as_in_a_version_directory(snapshot, flat_parts):
    report = load(snapshot.source(), snapshot.target(), version=7)
    assert (report.version, report.manifest_scope, report.verified) == ("7", ManifestScope.GROUP, 7)


def test_parts_of_ours_that_lost_the_manifest_of_all_ranks_load_only_where_that_is_asked_for(
    snapshot, flat_parts
):
    (flat_parts / "model_state.manifest.json").unlink()
    with raising("manifest-missing", match=r"/model_state.manifest.json is missing.*version 7"):
        load(snapshot.source(), snapshot.target(), version=7)
    report = load(snapshot.source(verify="if_present"), snapshot.target(), version=7)
    assert (report.manifest_scope, report.verified) == (ManifestScope.RANK, 7)


def test_a_version_file_that_ran_ahead_of_flat_files_is_refused(snapshot, flat_parts):
    write_version(flat_parts, 8)
    with raising(errors.VersionMismatchError, match="version 8 was asked for"):
        load(snapshot.source(), snapshot.target())


def test_parts_tell_their_version_without_manifest_and_version_file(snapshot, flat_parts):
    for name in ("model_state.manifest.json", "model_state.tp0.0.manifest.json", "version.yaml"):
        (flat_parts / name).unlink()
    report = load(snapshot.source(verify="if_present"), snapshot.target())
    assert (report.version, report.manifest_scope, report.verified) == ("7", ManifestScope.LOADED, 0)
    with raising(errors.VersionMismatchError):
        load(snapshot.source(verify="if_present"), snapshot.target(), version=6)


def test_damage_is_not_hidden_by_copying_parts_without_their_manifests(snapshot, flat_parts):
    """A flipped byte loaded, and the receipt said verified 0."""
    part = next(flat_parts.glob("model_state.tp0.0.part0.*"))
    data = bytearray(part.read_bytes())
    data[-1] ^= 1
    part.write_bytes(data)
    for manifest in flat_parts.glob("*.json"):
        manifest.unlink()
    target = snapshot.served_target()
    with raising("manifest-missing", match="copy the manifests") as caught:
        load(snapshot.source(), target)
    assert caught.value.manifest.endswith("model_state.tp0.0.manifest.json")
    assert caught.value.version == "7"
    assert all(bytes(target.readable(name)).strip(b"\x5a") == b"" for name in target.specs())


def test_files_of_other_writers_are_refused_where_everything_must_be_verified(snapshot, flat):
    with raising("manifest-missing", match="verify: required"):
        load(snapshot.source(verify="required"), MemoryTarget([A]))


def test_the_version_file_of_the_model_directory_does_not_bind_the_shared_directory(
    snapshot, plain, tmp_path
):
    snapshot.root.mkdir()
    write_version(snapshot.root, 3)
    plain("model_state.tp0.0.pdparams", one("a", b"11"), directory=tmp_path / "shared")
    source = snapshot.source(shared_directory=tmp_path / "shared")
    assert load(source, MemoryTarget([A])).version is None
    with raising("version-unknown"):
        load(source, MemoryTarget([A]), version=3)


def test_a_published_version_wins_over_flat_files_beside_it(snapshot, flat_parts):
    snapshot.publish(8, seed=8)
    assert snapshot.brings(seed=8).version == "8"
    assert snapshot.brings(version=7).version == "7"


def test_a_reader_follows_the_version_file_when_what_it_announced_is_gone(snapshot, monkeypatch):
    """A publisher announced version 2 and retired version 1 after we had read version.yaml."""
    snapshot.publish(2, seed=2)
    announced = iter(["1", "2"])
    monkeypatch.setattr(
        "wsm.strategies.trainer.publications.announced_version", lambda _directory: next(announced)
    )
    assert load(snapshot.source(), snapshot.target()).version == "2"


# -- the device in the name of a file --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, 3),
        ({"CUDA_VISIBLE_DEVICES": ""}, 3),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, 3),
        ({"CUDA_VISIBLE_DEVICES": "6,7"}, 6),
        ({"CUDA_VISIBLE_DEVICES": "4,5,6", "FLAGS_selected_gpus": "1"}, 5),
        ({"CUDA_VISIBLE_DEVICES": " 4 , 5 ", "FLAGS_selected_gpus": "1"}, 5),
        ({"FLAGS_selected_gpus": "2"}, 2),
        ({"FLAGS_selected_gpus": "0"}, 0),
    ],
)
def test_the_device_is_the_selected_entry_of_the_visible_ones_or_the_rank(environment, expected):
    assert device_id_from_environment(3, environment) == expected


@incident("FastDeploy C2-17")
@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        ({"CUDA_VISIBLE_DEVICES": "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"}, "UUID"),
        ({"CUDA_VISIBLE_DEVICES": "MIG-GPU-8932f937/1/2"}, "MIG"),
        ({"CUDA_VISIBLE_DEVICES": "4,5", "FLAGS_selected_gpus": "2"}, "beyond the 2 entries"),
        ({"CUDA_VISIBLE_DEVICES": "", "FLAGS_selected_gpus": "0"}, "hides all"),
        ({"CUDA_VISIBLE_DEVICES": "-1", "FLAGS_selected_gpus": "0"}, "hides all"),
        ({"CUDA_VISIBLE_DEVICES": "4,5", "FLAGS_selected_gpus": "0,1"}, "not one index"),
        ({"FLAGS_selected_gpus": "first"}, "not one index"),
        ({"CUDA_VISIBLE_DEVICES": "4,,5", "FLAGS_selected_gpus": "1"}, "no number"),
    ],
)
def test_an_environment_without_a_number_is_refused_and_says_what_to_set(environment, problem):
    with raising(errors.bad_device_id, match=problem) as caught:
        device_id_from_environment(3, environment)
    assert "set device_id" in str(caught.value)
