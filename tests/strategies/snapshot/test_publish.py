"""A publication is seen whole or not at all, under the label that it has, and stays as long as it may."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_state import make_state

from tests.descriptors import open_below
from tests.incident import incident
from tests.raising import raising
from wsm.strategies import (
    MemoryTarget,
    Retention,
    SnapshotPublisher,
    SnapshotSource,
    TensorSpec,
    errors,
    load,
    publish_snapshot,
    read_version,
)
from wsm.strategies.files.snapshot_directory import SnapshotDirectory, VersionPins, is_leased
from wsm.strategies.promise import seal
from wsm.strategies.snapshot.manifest import ShardManifest
from wsm.strategies.snapshot.publish import cut_into_parts
from wsm.strategies.tensor import ITEM_BYTES


def versions(root):
    return sorted(path.name for path in (root / "versions").iterdir() if not path.name.startswith("."))


def zeros(snapshot, **options):
    shards = {rank: {"w": np.zeros(9, np.float32)} for rank in range(2)}
    return Path(publish_snapshot(snapshot.root, 1, shards, durable=False, **options).path)


def promised(path):
    files = path.glob("model_state.tp*.manifest.json")
    return all(ShardManifest.decode(file.read_bytes(), file=str(file)).finite for file in files)


def hidden(root):
    names = {path.name for path in (root / "versions").iterdir()}
    return {name for name in names if name.startswith(".")} - {".publisher.lock"}


def test_a_version_that_is_not_there_is_refused_with_those_that_are(snapshot):
    snapshot.publish(1)
    with raising(errors.SnapshotNotFoundError) as caught:
        load(snapshot.source(), snapshot.target(), version=5)
    assert f"{snapshot.root}/versions/5" in caught.value.looked_at
    assert f"{snapshot.root}/versions/1" in caught.value.present
    assert "retired" not in str(caught.value)


def test_a_version_that_was_retired_is_said_to_be_as_far_as_the_others_can_tell(snapshot):
    for version in (1, 2, 3):
        snapshot.publish(version)
    with raising(errors.SnapshotNotFoundError, match="older ones were retired there") as caught:
        load(snapshot.source(), snapshot.target(), version=1)
    assert f"{snapshot.root}/versions/3" in caught.value.present


def test_a_version_directory_without_this_ranks_shard_is_not_made_up_for_by_older_files(snapshot, plain):
    path = snapshot.publish(1)
    for part in path.glob("model_state.tp0.0.*"):
        part.unlink()
    plain("model_state.tp0.0.pdparams", {"a": ("U8", (1,), b"x")}, directory=snapshot.root)
    with raising(errors.SnapshotNotFoundError):
        load(snapshot.source(), snapshot.target())


def test_the_last_versions_stay_and_older_ones_go(snapshot):
    for version in range(5):
        snapshot.publish(version, seed=version, retain=Retention(keep=3))
    assert versions(snapshot.root) == ["2", "3", "4"]
    assert hidden(snapshot.root) == set()


def test_a_protected_version_stays(snapshot):
    for version in range(5):
        snapshot.publish(version, seed=version, retain=Retention(keep=1, protect=[1]))
    assert versions(snapshot.root) == ["1", "4"]


def test_a_version_that_is_being_read_stays_until_nobody_reads_it(snapshot):
    snapshot.publish(1, seed=1)

    def publish_meanwhile(done, total):
        if done == total:
            for version in (2, 3):
                snapshot.publish(version, seed=version, retain=Retention(keep=1))

    snapshot.brings(seed=1, progress=publish_meanwhile)
    assert versions(snapshot.root) == ["1", "3"]
    snapshot.publish(4, seed=4, retain=Retention(keep=1))
    assert versions(snapshot.root) == ["4"]


def test_the_same_content_again_is_announced_as_it_stands(snapshot):
    """What a publisher does that died between the rename and the announcement."""
    path = snapshot.publish(1)
    first = load(snapshot.source(), snapshot.target()).manifest_digest
    (snapshot.root / "version.yaml").unlink()
    before = path.stat().st_ino
    snapshot.publish(1, part_bytes=100)
    assert path.stat().st_ino == before
    assert load(snapshot.source(), snapshot.target()).manifest_digest == first
    assert hidden(snapshot.root) == set()


def test_a_promise_that_what_stands_does_not_make_is_refused_unless_it_is_replaced(snapshot):
    path = zeros(snapshot, finite=False)
    with raising(errors.VersionExistsError, match=r"same tensors, but .* finite") as caught:
        zeros(snapshot, finite=True)
    assert caught.value.lacking == ("that all is finite",)
    assert not promised(path)
    zeros(snapshot, finite=True, replace=True)
    assert promised(path)
    assert hidden(snapshot.root) == set()


def test_a_promise_is_not_taken_back_by_who_does_not_ask_for_it(snapshot):
    path = zeros(snapshot, finite=True)
    before = path.stat().st_ino
    for replace in (False, True):
        zeros(snapshot, finite=False, replace=replace)
        assert path.stat().st_ino == before
        assert promised(path)


def test_the_same_tensors_under_names_for_other_devices_are_another_publication(snapshot):
    snapshot.publish(1)
    with raising(errors.VersionExistsError, match="name for device 5"):
        snapshot.publish(1, device_ids={1: 5})
    snapshot.publish(1, device_ids={1: 5}, replace=True)
    assert load(snapshot.source(1, device_id=5), snapshot.target(1)).verified == 7


@incident("marin#1829")
def test_other_content_under_the_same_version_is_refused_unless_it_is_replaced(snapshot):
    snapshot.publish(1, seed=1)
    with raising(errors.VersionExistsError, match="version 1 is already published"):
        snapshot.publish(1, seed=2)
    snapshot.brings(seed=1)
    snapshot.publish(1, seed=2, replace=True)
    snapshot.brings(seed=2)
    assert hidden(snapshot.root) == set()


def test_a_damaged_version_is_repaired_by_publishing_it_again(snapshot):
    path = snapshot.publish(1)
    part = path / "model_state.tp0.0.part0.pdparams"
    part.write_bytes(part.read_bytes()[:-1])
    with raising(errors.VersionExistsError):
        snapshot.publish(1)
    snapshot.publish(1, replace=True)
    assert load(snapshot.source(), snapshot.target()).verified == 7


def test_a_second_publisher_is_refused_while_the_first_writes(snapshot, tmp_path):
    publisher = SnapshotPublisher(tmp_path)
    with publisher.version(1), raising(errors.PublisherBusyError):
        publisher.version(2)
    publisher.version(2).discard()


def test_a_publication_that_lacks_a_rank_publishes_nothing(tmp_path):
    with SnapshotPublisher(tmp_path, world_size=2).version(4) as staged:
        digest = staged.put(1, make_state(1))
        for heard, named in (({1: digest}, r"ranks \[1\]"), ({0: digest, 1: digest}, "for rank 0")):
            with raising(errors.incomplete_publication, match=named):
                staged.seal(heard)
    assert versions(tmp_path) == []
    assert hidden(tmp_path) == set()
    assert not (tmp_path / "version.yaml").exists()


@pytest.mark.parametrize("shards", [{}, {1: {}}, {0: {}}, {0: {"a": b"x"}, 2: {"a": b"x"}}])
def test_shards_that_are_not_one_per_rank_publish_nothing(tmp_path, shards):
    with raising(errors.incomplete_publication):
        publish_snapshot(tmp_path, 1, shards)
    assert not (tmp_path / "version.yaml").exists()


def test_a_place_that_takes_no_files_is_reported(tmp_path):
    (tmp_path / "file").write_text("x")
    with raising(errors.StorageError):
        publish_snapshot(tmp_path / "file", 1, {0: {"a": b"x"}})


def test_a_failing_tensor_publishes_nothing_and_leaves_the_old_version(snapshot):
    snapshot.publish(1, seed=1)
    bad = {rank: {**make_state(rank, 2), "late": object()} for rank in range(2)}
    with raising(errors.trainer_tensor, match="'late'"):
        publish_snapshot(snapshot.root, 2, bad)
    assert versions(snapshot.root) == ["1"]
    assert hidden(snapshot.root) == set()
    snapshot.brings(seed=1)


def test_parts_hold_what_was_asked_for_and_a_larger_tensor_has_its_own():
    specs = [TensorSpec(str(index), "U8", (size,)) for index, size in enumerate([4, 4, 4, 20, 0, 1])]
    cut = [[spec.nbytes for spec in part] for part in cut_into_parts(specs, 8)]
    assert cut == [[4, 4], [4], [20], [0, 1]]


def test_the_widest_dtypes_come_first_so_that_all_are_aligned():
    specs = [TensorSpec(dtype, dtype, (3,)) for dtype in ("U8", "BF16", "F64", "F32")]
    assert [spec.dtype for spec in cut_into_parts(specs, 1000)[0]] == ["F64", "F32", "BF16", "U8"]


def test_the_directory_is_held_only_while_it_is_open(snapshot):
    path = snapshot.publish(1)
    directory = SnapshotDirectory(str(path))
    assert directory.hold()
    assert is_leased(path)
    directory.close()
    assert not is_leased(path)


def test_a_directory_that_was_renamed_away_is_not_held(snapshot, tmp_path):
    path = snapshot.publish(1)
    directory = SnapshotDirectory(str(path))
    path.rename(tmp_path / "away")
    assert not directory.hold()
    directory.close()


def test_a_version_that_is_out_is_published_whatever_then_befalls_the_look_at_older_ones(
    snapshot, monkeypatch
):
    """Nothing that goes wrong after the announcement may tell the trainer that it failed."""
    snapshot.publish(1)
    snapshot.publish(2)
    listed, looked_at = Path.iterdir, Path.stat

    def broken_iterdir(path):
        if path.name == "versions":
            raise OSError(errno.ESTALE, "Stale file handle")
        return listed(path)

    def broken_stat(path, **options):
        if path.name in ("1", "2"):
            raise FileNotFoundError(errno.ENOENT, "another cleaner was here")
        return looked_at(path, **options)

    monkeypatch.setattr(Path, "iterdir", broken_iterdir)
    snapshot.publish(3)
    monkeypatch.setattr(Path, "iterdir", listed)
    monkeypatch.setattr(Path, "stat", broken_stat)
    snapshot.publish(4)
    monkeypatch.undo()
    assert read_version(snapshot.root) == "4"
    assert load(snapshot.source(), snapshot.target()).version == "4"


# -- versions under labels: how each is found, which is the last, and which one goes ---------------------


def as_number(path):
    """Let the manifests in `path` say a number and no ordinal, as an older wsm wrote them."""
    digests = {}
    for file in sorted(path.glob("model_state.tp*.manifest.json")):
        digests[file.name] = resealed(file, lambda fields: {**fields, "version": int(fields["version"])})

    def older(fields):
        shards = [{**shard, "digest": digests[shard["manifest"]]} for shard in fields["shards"]]
        kept = {key: value for key, value in fields.items() if key != "ordinal"}
        return {**kept, "version": int(fields["version"]), "shards": shards}

    resealed(path / "model_state.manifest.json", older)


def resealed(file, change):
    fields = json.loads(file.read_bytes())
    del fields["digest"]
    file.write_bytes(seal(change(fields)))
    return json.loads(file.read_bytes())["digest"]


def test_a_version_is_published_found_and_loaded_by_its_label(snapshot):
    label = "global_step_1200:a+b=c@d"
    path = snapshot.publish(label, seed=1)
    assert (path.name, read_version(snapshot.root)) == (label, label)
    for asked in (label, None):
        report = snapshot.brings(seed=1, version=asked)
        assert (report.version, report.verified) == (label, 7)
    with raising(errors.SnapshotNotFoundError):
        load(snapshot.source(), snapshot.target(), version=label.upper())


def test_a_version_that_an_older_wsm_published_is_loaded_by_its_text(snapshot):
    path = snapshot.publish(7)
    as_number(path)
    (snapshot.root / "version.yaml").write_text("step: 7\n")
    for asked in ("7", 7, None):
        assert load(snapshot.source(), snapshot.target(), version=asked).version == "7"
    snapshot.publish("next", seed=2)
    snapshot.publish("third", seed=3)
    assert versions(snapshot.root) == ["next", "third"]


def test_the_newest_version_is_the_one_published_last_where_none_is_announced(snapshot):
    """Neither labels nor clocks nor times of modification say so: the publications are numbered."""
    for label in ("z", "10", "9", "a"):
        path = snapshot.publish(label, seed=ord(label[0]), retain=Retention(keep=9))
        os.utime(path, ns=(0, 1_000))
    (snapshot.root / "version.yaml").unlink()
    assert load(snapshot.source(), snapshot.target()).version == "a"
    snapshot.publish("z", seed=1, replace=True, retain=Retention(keep=9))
    (snapshot.root / "version.yaml").unlink()
    assert load(snapshot.source(), snapshot.target()).version == "z"


def test_of_older_versions_the_last_one_is_known_by_time_and_then_by_label(snapshot):
    paths = [snapshot.publish(label, seed=label, retain=Retention(keep=9)) for label in (10, 9, 8)]
    for path in paths:
        as_number(path)
    (snapshot.root / "version.yaml").unlink()
    for path, at_ns in zip(paths, (1, 2, 3), strict=True):
        os.utime(path, ns=(0, at_ns))
    assert load(snapshot.source(), snapshot.target()).version == "8"
    for path in paths:
        os.utime(path, ns=(0, 1))
    assert load(snapshot.source(), snapshot.target()).version == "10"
    snapshot.publish("1", seed=1, retain=Retention(keep=2))
    assert versions(snapshot.root) == ["1", "10"]


def test_only_a_directory_whose_manifest_names_its_label_is_removed(snapshot):
    """A copy under another name, a manifest that is gone, a directory of something else: all stay."""
    first = snapshot.publish("first", seed=1)
    shutil.copytree(first, first.with_name("copy-of-first"))
    gone = snapshot.publish("second", seed=2)
    (gone / "model_state.manifest.json").unlink()
    (snapshot.root / "versions" / "notes").mkdir()
    (snapshot.root / "versions" / "12").write_text("a file")
    for label in ("third", "fourth", "fifth"):
        snapshot.publish(label, seed=len(label))
    assert versions(snapshot.root) == ["12", "copy-of-first", "fifth", "fourth", "notes", "second"]


def test_a_label_that_differs_in_case_alone_is_refused_where_case_does_not_count(snapshot):
    """Such a file system leads from the one name to the directory of the other, as this link does."""
    path = snapshot.publish("Step-1", seed=1)
    path.with_name("step-1").symlink_to(path)
    for replace in (False, True):
        with raising("directory-of-other", match=r"holds version Step-1.*differs in more than case"):
            snapshot.publish("step-1", seed=2, replace=replace)
    with raising(errors.VersionMismatchError, match="holds version Step-1"):
        load(snapshot.source(), snapshot.target(), version="step-1")
    assert snapshot.brings(seed=1).version == "Step-1"


def test_a_publisher_that_died_while_it_replaced_a_label_with_hyphens_is_cleaned_up_after(
    snapshot, monkeypatch
):
    monkeypatch.setattr("wsm.strategies.trainer.retention._exchanged", lambda staged, final: False)
    path = snapshot.publish("a-b-c", seed=1)
    path.rename(path.with_name(".replaced-a-b-c-01234567"))
    snapshot.publish("d", seed=2)
    assert versions(snapshot.root) == ["a-b-c", "d"]


# -- whatever is published arrives bit by bit, however it is cut -----------------------------------------


_names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6).filter(
    lambda name: name != "__metadata__"
)
_shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)


@st.composite
def _states(draw):
    state = {}
    for name in draw(st.lists(_names, min_size=1, max_size=6, unique=True)):
        spec = TensorSpec(name, draw(st.sampled_from([*ITEM_BYTES])), draw(_shapes))
        state[name] = (spec, draw(st.binary(min_size=spec.nbytes, max_size=spec.nbytes)))
    return state


@pytest.mark.slow
@given(_states(), st.integers(1, 300), st.integers(0, 3))
def test_any_state_dict_in_any_parts_is_loaded_as_it_was(state, part_bytes, device_id):
    with tempfile.TemporaryDirectory() as directory:
        published = publish_snapshot(
            directory, 1, {0: state}, device_ids={0: device_id}, part_bytes=part_bytes, durable=False
        )
        target = MemoryTarget(spec for spec, _ in state.values())
        report = load(SnapshotSource(directory, 0, device_id=device_id, shared_directory=None), target)
    assert {name: bytes(target.readable(name)) for name in state} == {
        name: data for name, (_, data) in state.items()
    }
    assert report.digest == published.digests[0]
    assert report.bytes == sum(spec.nbytes for spec, _ in state.values())
    assert len(report.files) == published.files


# -- what is pinned is not retired -----------------------------------------------------------------------


@pytest.fixture
def publish(tmp_path):
    """`publish(version)`: publish it, and return which versions are there then."""

    def publish(version: int, **options) -> list[str]:
        weights = {"weight": np.full(4, version, "float32")}
        publish_snapshot(tmp_path, version, {0: weights}, durable=False, **options)
        return sorted(
            path.name for path in (tmp_path / "versions").iterdir() if not path.name.startswith(".")
        )

    return publish


@pytest.fixture
def pins(tmp_path):
    made = VersionPins(tmp_path)
    yield made
    made.close()


def test_a_pinned_version_stays_until_it_is_let_go(publish, pins):
    publish(1)
    assert pins.add("1")
    publish(2)
    publish(3)
    assert publish(4) == ["1", "3", "4"]
    pins.keep({"3", None})
    assert publish(5) == ["4", "5"]
    assert pins.held == frozenset()


def test_a_version_that_is_not_there_is_not_pinned_and_not_an_error(publish, pins, tmp_path):
    assert not pins.add("7")
    publish(1)
    assert not pins.add("7")
    (tmp_path / "versions" / "9").write_text("a file")
    assert not pins.add("9")
    assert pins.held == frozenset()


def test_a_version_that_is_published_again_is_pinned_as_it_is_now(publish, pins, tmp_path):
    publish(1)
    assert pins.add("1")
    weights = {"weight": np.zeros(4, "float32")}
    publish_snapshot(tmp_path, 1, {0: weights}, durable=False, replace=True)
    assert pins.add("1")
    publish(2)
    assert publish(3) == ["1", "2", "3"]


def test_pins_cost_two_descriptors_each_however_often_they_are_asked_for(publish, pins, tmp_path):
    publish(1)
    before = len(open_below(tmp_path))
    for _ in range(10):
        assert pins.add("1")
    assert len(open_below(tmp_path)) == before + 2
    pins.close()
    pins.close()
    assert len(open_below(tmp_path)) == before


def test_pins_of_nothing_hold_nothing():
    pins = VersionPins(None)
    assert not pins.add("1")
    pins.keep(())
    assert pins.held == frozenset()


def test_a_directory_that_leads_outside_is_left_alone(publish, pins, tmp_path, tmp_path_factory):
    publish(1)
    elsewhere: Path = tmp_path_factory.mktemp("elsewhere")
    (tmp_path / "versions" / "8").symlink_to(elsewhere)
    assert not pins.add("8")
