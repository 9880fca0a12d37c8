"""Links in a directory that is read: followed from the directory that is held, and never out of it."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

from tests.raising import raising
from wsm.strategies import errors
from wsm.strategies.errors import not_a_regular_file
from wsm.strategies.files import snapshot_directory
from wsm.strategies.files.snapshot_directory import SnapshotDirectory


def version(path: Path, content: bytes) -> Path:
    path.mkdir()
    (path / "real").write_bytes(content)
    (path / "link").symlink_to("real")
    return path


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - the directory of this process


def test_a_link_leads_to_the_version_that_was_opened_though_another_has_its_name_now(tmp_path):
    path = version(tmp_path / "7", b"old")
    with closing(SnapshotDirectory(str(path), boundary=str(tmp_path))) as directory:
        path.rename(tmp_path / ".removed-7")
        version(path, b"new")
        assert directory.read("link", 100) == b"old"


def test_a_directory_that_became_a_link_meanwhile_leads_nowhere_else(tmp_path):
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    version(outside, b"secret")
    version(root / "7", b"ours")
    (root / "7" / "deep").symlink_to("parent/real")
    version(root / "7" / "parent", b"ours")
    with closing(SnapshotDirectory(str(root / "7"), boundary=str(root))) as directory:
        assert directory.read("deep", 100) == b"ours"
        (root / "7" / "parent").rename(root / "7" / "away")
        (root / "7" / "parent").symlink_to(outside)
        with raising("outside-directory", match="outside/real"):
            directory.open("deep")


def test_a_directory_that_is_renamed_while_it_is_opened_is_not_called_a_link(tmp_path, monkeypatch):
    path = version(tmp_path / "7", b"old")
    found = snapshot_directory.path_of

    def renamed(descriptor):
        if path.exists():
            path.rename(tmp_path / "8")
        return found(descriptor)

    monkeypatch.setattr(snapshot_directory, "path_of", renamed)
    with raising(errors.UnreadableFileError, match="renamed while it was opened; load again"):
        SnapshotDirectory(str(path))


def test_what_a_link_leads_to_is_not_opened_before_it_is_known_what_it_is(tmp_path):
    path = version(tmp_path / "7", b"x")
    os.mkfifo(path / "pipe")
    (path / "to-pipe").symlink_to("pipe")
    (path / "to-directory").symlink_to("..")
    before = descriptors()
    with closing(SnapshotDirectory(str(path), boundary=str(tmp_path))) as directory:
        with raising(not_a_regular_file, match="special file"):
            directory.open("to-pipe")
        with raising(not_a_regular_file, match="directory"):
            directory.open("to-directory")
    assert descriptors() == before
