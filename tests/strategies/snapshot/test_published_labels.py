"""Versions that are published under labels: how each is found, which is the last one, and which one goes."""

from __future__ import annotations

import json
import os
import shutil

from tests.raising import raising
from wsm.strategies import Retention, errors, load, read_version
from wsm.strategies.promise import seal


def versions(root):
    return sorted(path.name for path in (root / "versions").iterdir() if not path.name.startswith("."))


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


def test_a_label_that_differs_in_case_alone_is_refused_where_case_does_not_count(snapshot, held, bytes_of):
    """Such a file system leads from the one name to the directory of the other, as this link does."""
    path = snapshot.publish("Step-1", seed=1)
    path.with_name("step-1").symlink_to(path)
    for replace in (False, True):
        with raising("directory-of-other", match=r"holds version Step-1.*differs in more than case"):
            snapshot.publish("step-1", seed=2, replace=replace)
    with raising(errors.VersionMismatchError, match="holds version Step-1"):
        load(snapshot.source(), snapshot.target(), version="step-1")
    target = snapshot.target()
    assert load(snapshot.source(), target).version == "Step-1"
    assert held(target) == bytes_of(seed=1)


def test_a_publisher_that_died_while_it_replaced_a_label_with_hyphens_is_cleaned_up_after(
    snapshot, monkeypatch
):
    monkeypatch.setattr("wsm.strategies.trainer.retention._exchanged", lambda staged, final: False)
    path = snapshot.publish("a-b-c", seed=1)
    path.rename(path.with_name(".replaced-a-b-c-01234567"))
    snapshot.publish("d", seed=2)
    assert versions(snapshot.root) == ["a-b-c", "d"]
