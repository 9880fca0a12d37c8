"""Links in a directory that is read: followed from the directory that is held, and never out of it."""

from __future__ import annotations

import os
import socket
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from tests.descriptors import open_below
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


def socket_at(path):
    """A socket's name may have 108 bytes, so it is made under a short one."""
    with tempfile.TemporaryDirectory() as short, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{short}/s")
        Path(f"{short}/s").rename(path)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (os.mkfifo, not_a_regular_file, "special file"),
        (Path.mkdir, not_a_regular_file, "is a directory"),
        (socket_at, (errors.UnreadableFileError, not_a_regular_file), "cannot read|special file"),
        (lambda path: path.symlink_to("gone"), FileNotFoundError, "No such file"),
        (lambda path: path.symlink_to(path.name), errors.UnreadableFileError, "cannot read"),
        (lambda path: path.symlink_to("/dev/zero"), "outside-directory", "/dev/zero"),
        (lambda path: path.symlink_to("/etc/hostname"), "outside-directory", "/etc/hostname"),
    ],
    ids=["pipe", "directory", "socket", "dangling", "to itself", "device", "link out"],
)
@pytest.mark.parametrize("name", ["thing", "link"])
def test_what_is_no_file_inside_is_neither_waited_for_nor_kept_open(tmp_path, name, make, error, text):
    path = version(tmp_path / "7", b"x")
    make(path / "thing")
    (path / "link").unlink()
    (path / "link").symlink_to("thing")
    with (
        closing(SnapshotDirectory(str(path), boundary=str(tmp_path))) as directory,
        raising(error, match=text),
    ):
        directory.open(name)
    assert open_below(tmp_path) == []
