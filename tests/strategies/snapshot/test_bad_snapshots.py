"""What only a snapshot can have wrong: a typed error, the weights as before, a good load after it.

What may stand in the place of a file is in ``files/test_snapshot_directory.py``: each is opened so.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace

import pytest
from msgspec import structs

from tests.incident import incident
from tests.raising import raising
from wsm.labels import bad_version
from wsm.strategies import ShardManifest, errors, inspect, load
from wsm.strategies.promise import seal, table_of
from wsm.typed import bad_keyword

PART0 = "model_state.tp0.0.part0.pdparams"
PART1 = "model_state.tp0.0.part1.pdparams"
MANIFEST = "model_state.tp0.0.manifest.json"
WHOLE_MANIFEST = "model_state.manifest.json"


def reseal(path, **changes):
    fields = json.loads(path.read_bytes())
    del fields["digest"]
    path.write_bytes(seal({**fields, **changes}))


def append(path):
    with path.open("ab") as file:
        file.write(b"x")


def replace_by(path, make):
    path.unlink()
    make(path)


def swap_in_rank_1(path):
    """The files of rank 1 under the names of rank 0, its manifest included."""
    for file in path.glob("model_state.tp1.1.*"):
        shutil.copy(file, path / file.name.replace("tp1.1.", "tp0.0."))


def put_into(part, before, after):
    part.write_bytes(part.read_bytes().replace(before, after))


def of_another_version(path):
    put_into(path / PART0, b'"wsm.version":"1"', b'"wsm.version":"2"')


def of_another_publication(path):
    publication = json.loads((path / MANIFEST).read_bytes())["publication"].encode()
    put_into(path / PART1, publication, b"0" * len(publication))


def without_manifests(spoil):
    """So that nothing but the parts can tell."""

    def spoiled(path):
        spoil(path)
        for name in (MANIFEST, WHOLE_MANIFEST):
            (path / name).unlink()

    return spoiled


DAMAGES = {
    "part of another version": (of_another_version, errors.mixed_parts, "version"),
    "part of another version, no manifest": (
        without_manifests(of_another_version),
        errors.mixed_parts,
        "version",
    ),
    "part of another publication": (of_another_publication, errors.mixed_parts, "publication"),
    "part of another publication, no manifest": (
        without_manifests(of_another_publication),
        errors.mixed_parts,
        "publication",
    ),
    "files of another rank, no manifest": (
        without_manifests(swap_in_rank_1),
        errors.shard_identity,
        "written for rank 1",
    ),
    "sparse manifest of a terabyte": (
        lambda path: os.truncate(path / MANIFEST, 1 << 40),
        errors.ManifestError,
        "is larger than",
    ),
    "pipe for the version's manifest": (
        lambda path: replace_by(path / WHOLE_MANIFEST, os.mkfifo),
        errors.not_a_regular_file,
        "special file",
    ),
    "part missing": (lambda path: (path / PART1).unlink(), errors.differs_from_manifest, "parts missing"),
    "first part missing": (lambda path: (path / PART0).unlink(), errors.differs_from_manifest, PART0),
    "all parts missing": (
        lambda path: [part.unlink() for part in path.glob("*tp0.0.part*")],
        errors.SnapshotNotFoundError,
        "no snapshot found for rank 0",
    ),
    "extra part": (
        lambda path: shutil.copy(path / PART0, path / "model_state.tp0.0.part3.pdparams"),
        errors.differs_from_manifest,
        "part3",
    ),
    "part of another rank": (
        lambda path: shutil.copy(path / "model_state.tp1.1.part0.pdparams", path / PART0),
        errors.mixed_parts,
        "rank",
    ),
    "dangling link": (
        lambda path: replace_by(path / PART0, lambda part: part.symlink_to("gone")),
        errors.UnreadableFileError,
        "link to nothing",
    ),
    "manifest missing": (
        lambda path: (path / MANIFEST).unlink(),
        errors.differs_from_manifest,
        f"{MANIFEST} is missing",
    ),
    "manifest of another publication": (
        lambda path: reseal(path / MANIFEST, publication="00"),
        errors.differs_from_manifest,
        "another publication",
    ),
    "version manifest of another publication": (
        lambda path: reseal(path / WHOLE_MANIFEST, publication="00"),
        errors.differs_from_manifest,
        "another publication",
    ),
    "version manifest for fewer ranks": (
        lambda path: reseal(
            path / WHOLE_MANIFEST, shards=json.loads((path / WHOLE_MANIFEST).read_bytes())["shards"][:1]
        ),
        errors.differs_from_manifest,
        "another publication",
    ),
}


@incident("FastDeploy C2-12", "FastDeploy#6815")
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_bad_snapshot_is_refused_and_the_weights_stay_as_they_were(snapshot, held, bytes_of, damage):
    spoil, error, text = DAMAGES[damage]
    target = snapshot.served_target()
    before = held(target)
    spoil(snapshot.publish(1))
    tainted = []
    with raising(error) as caught:
        load(snapshot.source(world_size=2), target, version=1, taint=lambda: tainted.append(1))
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
    assert held(target) == before
    assert tainted == []
    with raising(error):
        inspect(snapshot.source(world_size=2), 1)

    snapshot.publish(2, seed=2)
    assert load(snapshot.source(world_size=2), target).version == "2"
    assert held(target) == bytes_of(seed=2)


def test_a_sealed_manifest_that_tells_of_other_tensors_than_the_parts_is_refused(snapshot, held):
    path = snapshot.publish(1)
    (path / WHOLE_MANIFEST).unlink()
    manifest = ShardManifest.decode((path / MANIFEST).read_bytes(), file=MANIFEST)
    first, *rest = manifest.tensors
    for spec in (
        replace(first.spec, name="renamed"),
        replace(first.spec, dtype="I64" if first.spec.dtype != "I64" else "F64"),
        replace(first.spec, shape=(*first.spec.shape, 1)),
    ):
        edited = structs.replace(manifest, **table_of([first._replace(spec=spec), *rest]))
        (path / MANIFEST).write_bytes(edited.encode())
        target = snapshot.served_target()
        before = held(target)
        with raising(errors.differs_from_manifest, match="has other tensors, names, dtypes or shapes"):
            load(snapshot.source(), target)
        assert held(target) == before


def test_a_file_that_grows_while_it_is_read_gives_what_was_published(snapshot, held, bytes_of):
    path = snapshot.publish(1)
    target = snapshot.target()
    load(snapshot.source(), target, progress=lambda *_: append(path / PART1))
    assert held(target) == bytes_of()
    with raising(errors.bad_file_size, match="longer than announced"):
        load(snapshot.source(), target)


def test_a_version_that_is_retired_while_it_is_read_gives_what_was_published(snapshot):
    path = snapshot.publish(1)
    snapshot.brings(progress=lambda *_: shutil.rmtree(path, ignore_errors=True))
    assert not path.exists()


ANNOUNCEMENTS = {
    "pipe": (os.mkfifo, errors.not_a_regular_file, "special file"),
    "link out": (
        lambda path: path.symlink_to("/etc/hostname"),
        "outside-directory",
        "/etc/hostname",
    ),
    "terabyte": (
        lambda path: path.touch() or os.truncate(path, 1 << 40),
        errors.bad_version_file,
        "is larger than",
    ),
}


@pytest.mark.parametrize("what", ANNOUNCEMENTS)
def test_what_stands_where_the_announcement_should_be_is_refused_and_never_waited_for(snapshot, held, what):
    make, error, text = ANNOUNCEMENTS[what]
    snapshot.publish(1)
    announcement = snapshot.root / "version.yaml"
    replace_by(announcement, make)
    target = snapshot.served_target()
    before = held(target)
    with raising(error, match=text):
        load(snapshot.source(), target)
    assert held(target) == before
    assert load(snapshot.source(), target, version=1).version == "1"


def test_a_part_of_a_foreign_writer_is_not_mixed_with_ours(snapshot, plain):
    path = snapshot.publish(1)
    without_manifests(lambda path: (path / PART1).unlink())(path)
    plain(PART1, {"x": ("U8", (1,), b"x")}, directory=path)
    with raising(errors.mixed_parts, match="not written by wsm"):
        load(snapshot.source(), snapshot.target())


def test_damaged_metadata_of_ours_is_refused(snapshot, plain):
    plain(
        "model_state.tp0.0.pdparams",
        {"x": ("U8", (1,), b"x")},
        directory=snapshot.root,
        metadata={"wsm.version": "1", "wsm.rank": "zero", "wsm.world_size": "1", "wsm.publication": "p"},
    )
    with raising(errors.bad_safetensors, match="metadata is damaged"):
        inspect(snapshot.source())


def test_a_file_for_a_directory_and_a_directory_that_may_not_be_read(snapshot, tmp_path):
    (tmp_path / "file").write_text("x")
    with raising(errors.not_a_regular_file, match="expected a directory"):
        inspect(snapshot.source(directory=tmp_path / "file"))
    with raising(bad_keyword, match="directory"):
        inspect(snapshot.source(directory=f"{tmp_path}/with\0nul"))


def test_a_version_directory_that_leads_elsewhere_is_refused_and_the_root_may_be_a_link(snapshot, tmp_path):
    path = snapshot.publish(1)
    (tmp_path / "current").symlink_to(snapshot.root)
    assert load(snapshot.source(directory=tmp_path / "current"), snapshot.target()).version == "1"
    shutil.move(path, tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with raising("outside-directory"):
        load(snapshot.source(), snapshot.target())


@pytest.mark.parametrize("version", [-1, True, "latest"])
def test_what_is_no_version_is_refused(snapshot, version):
    with raising((bad_version, bad_keyword)):
        load(snapshot.source(), snapshot.target(), version=version)
