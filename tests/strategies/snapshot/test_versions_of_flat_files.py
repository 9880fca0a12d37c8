"""FastDeploy's flat layout: what is known about the version of files that no publisher of ours arranged."""

from __future__ import annotations

import shutil

import pytest

from tests.raising import raising
from wsm.strategies import ManifestScope, MemoryTarget, TensorSpec, errors, inspect, load, write_version

WHOLE = {"a": ("U8", (2,), b"11")}
A = TensorSpec("a", "U8", (2,))


@pytest.fixture
def flat(snapshot, plain):
    """One whole file of rank 0, written by somebody else."""
    plain("model_state.tp0.0.pdparams", WHOLE, directory=snapshot.root)
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
    plain("model_state.tp0.0.pdparams", WHOLE, directory=tmp_path / "shared")
    source = snapshot.source(shared_directory=tmp_path / "shared")
    assert load(source, MemoryTarget([A])).version is None
    with raising("version-unknown"):
        load(source, MemoryTarget([A]), version=3)


def test_a_published_version_wins_over_flat_files_beside_it(snapshot, flat_parts, held, bytes_of):
    snapshot.publish(8, seed=8)
    target = snapshot.target()
    assert load(snapshot.source(), target).version == "8"
    assert held(target) == bytes_of(seed=8)
    assert load(snapshot.source(), target, version=7).version == "7"
    assert held(target) == bytes_of()


def test_a_reader_follows_the_version_file_when_what_it_announced_is_gone(snapshot, monkeypatch):
    """A publisher announced version 2 and retired version 1 after we had read version.yaml."""
    snapshot.publish(2, seed=2)
    announced = iter(["1", "2"])
    monkeypatch.setattr(
        "wsm.strategies.trainer.publications.announced_version", lambda _directory: next(announced)
    )
    assert load(snapshot.source(), snapshot.target()).version == "2"
