"""How versions arrive as changes of the one before, and what happens to such files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from msgspec.structs import replace
from snapshot_arrival import FileArrival, flip
from wrongs import BY_STATE, Expected, State, Wrong, make_state, wrong_state

from wsm.errors import BadInputError
from wsm.strategies import errors, publish_snapshot
from wsm.strategies.delta import source as delta_errors
from wsm.strategies.delta._manifest import DeltaManifest, DeltaShard
from wsm.strategies.delta.publish import publish_delta
from wsm.strategies.delta.source import DeltaSource

BLOCKS = "delta.tp0.blocks"
MANIFEST = "delta.tp0.manifest.json"
GROUP_MANIFEST = "delta.manifest.json"

# A publisher that is killed between its last block and the announcement.
_DYING_PUBLISHER = """
import os, signal, sys
from wsm.strategies import TensorSpec, publish_delta
os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
state = {0: {"w": (TensorSpec("w", "F32", (4,)), bytes(16))}}
publish_delta(sys.argv[1], sys.argv[2], 0, state, base=state)
"""


class DeltaArrival(FileArrival):
    strategy = "delta"
    data, manifest = BLOCKS, MANIFEST
    not_found = delta_errors.delta_not_found
    dying_publisher = _DYING_PUBLISHER

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._last: tuple[int, dict[int, State]] | None = None

    def publish(self, version: int, state: State, *, finite: bool = False) -> Path:
        """The first version whole, every other as a change of the one before."""
        shards = {0: state, 1: make_state(seed=version + 1000, finite=finite)}
        if self._last is None:
            path = publish_snapshot(
                self._root, version, shards, durable=False, replace=True, finite=finite
            ).path
        else:
            base_version, base = self._last
            report = publish_delta(
                self._root,
                version,
                base_version,
                shards,
                base=base,
                crossover=2.0,
                durable=False,
                finite=finite,
            )
            assert report.whole is None
            path = report.path
        self._last = (version, shards)
        return Path(path)

    def _publish_before(self, version: int, state: State, wrong: Wrong) -> Path:
        self.publish(version - 1, wrong_state(make_state(seed=2), wrong))
        base = self._last
        path = self.publish(version, wrong_state(state, wrong))
        self._last = None if wrong in BY_STATE else base
        return path

    def _other_world(self, version: int, state: State) -> Expected:
        publish_snapshot(self._root, version - 1, {0: make_state(seed=2)}, durable=False)
        path = publish_delta(self._root, version, version - 1, {0: state}, crossover=2.0, durable=False).path
        return Expected("delta-layout", (path, "world size 1", "world size 2"))

    def source(self) -> DeltaSource:
        return DeltaSource(self._root, 0, device_id=0, world_size=2)

    def _duplicate_name(self, path: Path, version: int) -> Expected:
        shard = self._shard(path)
        twice = replace(shard, tensors=(*shard.tensors, shard.tensors[-1]))
        (path / MANIFEST).write_bytes(twice.encode())
        return Expected(errors.ManifestError, (str(path / MANIFEST), "a tensor twice"))

    def _other_version(self, path: Path, version: int) -> Expected:
        shutil.rmtree(path)
        shutil.copytree(self.publish(version + 1, make_state(seed=9)), path)
        self._last = None
        shutil.rmtree(path.with_name(str(version + 1)))
        return Expected(errors.VersionMismatchError, (str(path), str(version), str(version + 1)))

    def _other_rank(self, path: Path, version: int) -> Expected:
        for name in (MANIFEST, BLOCKS):
            shutil.copy(path / name.replace("tp0", "tp1"), path / name)
        return Expected(errors.shard_identity, (MANIFEST, "rank 1", "rank 0"))

    def _flipped_bit(self, path: Path, version: int) -> Expected:
        flip(path / BLOCKS, (path / BLOCKS).stat().st_size // 2)
        return Expected(delta_errors.bad_delta, (str(path / BLOCKS), "'large.weight'"))

    def _truncated_on_the_way(self, path: Path, version: int) -> Expected:
        file = path / BLOCKS
        return Expected(BadInputError, (str(file),), may_touch=True, meanwhile=lambda: os.truncate(file, 0))

    def _garbage(self, path: Path, version: int) -> Expected:
        (path / GROUP_MANIFEST).write_bytes(b"\x00no weights today")
        return Expected(errors.ManifestError, (str(path / GROUP_MANIFEST),))

    def _empty(self, path: Path, version: int) -> Expected:
        shard = replace(self._shard(path), tensors=(), nbytes=0)
        other = DeltaShard.decode((path / MANIFEST.replace("tp0", "tp1")).read_bytes(), file="rank 1")
        (path / MANIFEST).write_bytes(shard.encode())
        (path / BLOCKS).write_bytes(b"")
        (path / GROUP_MANIFEST).write_bytes(DeltaManifest.of([shard, other]).encode())
        return Expected(errors.empty_snapshot, (str(path / MANIFEST),))

    def _shard(self, path: Path) -> DeltaShard:
        return DeltaShard.decode((path / MANIFEST).read_bytes(), file=MANIFEST)
