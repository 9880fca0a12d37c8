"""Small models, their snapshots, and ways to damage them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wsm.strategies import LoadReport, MemoryTarget, SnapshotSource, load, publish_snapshot

# What tests of several packages share; the program of a receiving rank is both run as a process and read.
sys.path.insert(0, str(Path(__file__).parent / "shared"))

from small_state import contents, make_state


class Snapshot:
    """A published version of a small model of two ranks, and what a test does to it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def publish(self, version: int = 1, *, seed: int = 0, part_bytes: int = 600, **options: Any) -> Path:
        """Publish the state of `seed`; return the version's directory."""
        shards = {rank: make_state(rank, seed) for rank in range(2)}
        options.setdefault("durable", False)
        return Path(publish_snapshot(self.root, version, shards, part_bytes=part_bytes, **options).path)

    def source(self, rank: int = 0, **options: Any) -> SnapshotSource:
        """The source of one rank."""
        options.setdefault("device_id", rank)
        options.setdefault("shared_directory", None)
        return SnapshotSource(options.pop("directory", self.root), rank, **options)

    def target(self, rank: int = 0) -> MemoryTarget:
        """A target that the state of `rank` fits, with nothing in it."""
        return MemoryTarget(spec for spec, _ in make_state(rank).values())

    def brings(
        self, *, seed: int = 0, version: int | str | None = None, readahead_bytes: int = 0, **options: Any
    ) -> LoadReport:
        """See that a load of rank 0 brings the state of `seed`; `options` are the load's."""
        target = self.target()
        report = load(self.source(readahead_bytes=readahead_bytes), target, version=version, **options)
        assert contents(target) == {name: data for name, (_, data) in make_state(0, seed).items()}
        return report

    def served_target(self) -> MemoryTarget:
        """A target that holds weights already."""
        target = self.target()
        for name in target.specs():
            target.writable(name)[:] = b"\x5a" * target.specs()[name].nbytes
        return target


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    return Snapshot(tmp_path / "snapshots")


@pytest.fixture
def bytes_of() -> Callable[..., dict[str, bytes]]:
    """What a target holds after a load of one rank's state: ``bytes_of(rank=0, seed=0)``."""

    def contents_of(rank: int = 0, seed: int = 0) -> dict[str, bytes]:
        return {name: data for name, (_, data) in make_state(rank, seed).items()}

    return contents_of


@pytest.fixture
def held() -> Callable[[MemoryTarget], dict[str, bytes]]:
    return contents
