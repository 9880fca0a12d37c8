"""Readers are other users, and may only read: they load, delay a retirement by so much, and block nothing."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path

import numpy as np
import pytest

from tests.another_user import acting, as_another_user, makers, shared_place
from wsm.shared_directory import ForeignPathError
from wsm.strategies import MemoryTarget, SharedTensors, SnapshotSource, TensorSpec, load, publish_snapshot
from wsm.strategies.files.snapshot_directory import VersionPins
from wsm.strategies.trainer.retention import Retention

WEIGHTS = {0: {"w": np.arange(4, dtype="float32")}}


@pytest.fixture
def place():
    with shared_place() as path:
        yield path


def publish(directory: Path, version: int, **options) -> list[str]:
    """Publish a version, and return which are there then."""
    publish_snapshot(directory, version, WEIGHTS, durable=False, **options)
    return sorted(path.name for path in (directory / "versions").iterdir() if not path.name.startswith("."))


def lock_all_that_can_be_opened(directory: Path, kind: int) -> list[int]:
    """Lock every file and directory that this user can open, in all ways, and return the descriptors."""
    held = []
    for path in (directory, *directory.rglob("*")):
        for flags in (os.O_RDWR, os.O_RDONLY):
            try:
                descriptor = os.open(path, flags)
            except OSError:
                continue
            held.append(descriptor)
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            if path.is_file() and (kind == fcntl.LOCK_SH or flags == os.O_RDWR):
                fcntl.lockf(descriptor, kind | fcntl.LOCK_NB)
            break
    assert held
    return held


@pytest.mark.slow_but
@pytest.mark.needs("root")
@pytest.mark.parametrize("kind", [fcntl.LOCK_EX, fcntl.LOCK_SH])
def test_a_reader_that_locks_what_it_can_blocks_neither_the_publisher_nor_another_reader(place, kind):
    directory = place / "published"
    publish(directory, 1)
    with SharedTensors(directory):
        pass
    directory.chmod(0o755)
    with acting(lambda: lock_all_that_can_be_opened(directory, kind)):
        assert "2" in publish(directory, 2)
        SharedTensors(directory).close()
        source = SnapshotSource(directory, 0, device_id=0, shared_directory=None)
        assert load(source, MemoryTarget([TensorSpec("w", "F32", (4,))]), version=1).version == "1"
        pins = VersionPins(directory)
        assert pins.add("1")
        pins.close()


@pytest.mark.needs("root")
def test_a_rank_of_another_user_loads_and_holds_what_it_may_read(place):
    directory = place / "published"
    publish(directory, 1)
    directory.chmod(0o755)

    def load_and_hold():
        source = SnapshotSource(directory, 0, device_id=0, shared_directory=None)
        assert load(source, MemoryTarget([TensorSpec("w", "F32", (4,))])).version == "1"
        pins = VersionPins(directory)
        assert pins.add("1")
        return pins

    with acting(load_and_hold):
        publish(directory, 2)
        publish(directory, 3)
        assert publish(directory, 4) == ["1", "3", "4"]
    assert publish(directory, 5) == ["4", "5"]


def test_readers_keep_so_many_versions_and_no_more(tmp_path):
    pins = VersionPins(tmp_path)
    for version in range(1, 7):
        there = publish(tmp_path, version, retain=Retention(keep=1, held=3))
        assert pins.add(str(version))
    assert there == ["3", "4", "5", "6"]
    pins.close()
    assert publish(tmp_path, 7, retain=Retention(keep=1, held=3)) == ["7"]


def test_only_who_may_write_in_the_directory_may_open_its_lock(tmp_path):
    for name, mode, expected in (("mine", 0o755, 0o600), ("ours", 0o775, 0o660)):
        directory = tmp_path / name
        (directory / "versions").mkdir(parents=True)
        (directory / "versions").chmod(mode)
        (directory / "versions" / ".publisher.lock").touch(0o644)  # as an older version of wsm left it
        publish(directory, 1)
        lock = directory / "versions" / ".publisher.lock"
        assert stat.S_IMODE(lock.stat().st_mode) == expected


@pytest.mark.needs("root")
def test_a_lock_file_of_another_user_is_refused_where_every_user_can_make_one(place):
    (place / ".ipc_metas.lock").touch()
    os.chown(place / ".ipc_metas.lock", 65534, 65534)
    with pytest.raises(ForeignPathError, match="belongs to user 65534"):
        SharedTensors(place)


@pytest.mark.parametrize("kind", ["a directory", "a pipe", "a link", "a dangling link"])
def test_what_stands_in_the_place_of_a_lock_file_is_refused_at_once(tmp_path, kind):
    lock = tmp_path / ".ipc_metas.lock"
    makers(lock)[kind]()
    with pytest.raises(ForeignPathError, match="not a regular file"):
        SharedTensors(tmp_path)
    assert os.path.lexists(lock)


@pytest.mark.needs("root")
def test_what_another_user_calls_shared_memory_is_neither_swept_nor_touched(tmp_path):
    with shared_place() as memory, SharedTensors(tmp_path, memory_directory=str(memory)) as shared:
        path = memory / f"{shared._prefix}{'0' * 16}"
        as_another_user(lambda: path.touch(0o666))
        shared.publish(1, {0: {"w": (TensorSpec("w", "U8", (3,)), b"abc")}})
        assert path.exists()
