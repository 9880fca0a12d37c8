"""How versions arrive as snapshot files, and what happens to such files."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from wrongs import BY_STATE, Expected, State, Wrong, make_state, wrong_state

from wsm.strategies import SnapshotSource, errors, publish_snapshot

PART = "model_state.tp0.0.part0.pdparams"
MANIFEST = "model_state.tp0.0.manifest.json"

# A publisher that is killed between its last part and the announcement.
_DYING_PUBLISHER = """
import os, signal, sys
from wsm.strategies import SnapshotPublisher, TensorSpec
with SnapshotPublisher(sys.argv[1], world_size=2, durable=False).version(int(sys.argv[2])) as staged:
    for rank in range(2):
        staged.put(rank, {"w": (TensorSpec("w", "U8", (4,)), b"1234")})
    os.kill(os.getpid(), signal.SIGKILL)
"""


class SnapshotArrival:
    strategy = "ipc_snapshot"
    declared = True
    impossible: Mapping[Wrong, str] = {
        Wrong.PEER_ENDLESS: "a file has the size that its manifest says, or is refused",
    }

    def __init__(self, directory: Path) -> None:
        self._root = directory / "snapshots"
        self.place = str(self._root)

    def publish(self, version: int, state: State, *, finite: bool = False) -> Path:
        shards = {0: state, 1: make_state(seed=version + 1000, finite=finite)}
        report = publish_snapshot(
            self._root, version, shards, part_bytes=1 << 20, durable=False, replace=True, finite=finite
        )
        return Path(report.path)

    def publish_wrong(self, version: int, state: State, wrong: Wrong) -> Expected:
        if wrong is Wrong.NOTHING_THERE:
            return Expected(errors.SnapshotNotFoundError, (str(self._root), "rank 0"))
        if wrong is Wrong.PEER_DIES:
            return self._killed_while_publishing(version)
        if wrong is Wrong.OTHER_WORLD:
            path = publish_snapshot(self._root, version, {0: state}, durable=False).path
            return Expected(errors.shard_identity, (path, "world size 1", "world size 2"))
        path = self.publish(version, wrong_state(state, wrong))
        if wrong in BY_STATE:
            return BY_STATE[wrong]
        return getattr(self, f"_{wrong.name.lower()}")(path, version)

    def source(self) -> SnapshotSource:
        return SnapshotSource(self._root, 0, device_id=0, world_size=2, shared_directory=None)

    def close(self) -> None:
        pass

    def _killed_while_publishing(self, version: int) -> Expected:
        command = [sys.executable, "-c", _DYING_PUBLISHER, str(self._root), str(version)]
        assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
        return Expected(errors.SnapshotNotFoundError, (str(self._root),))

    def _duplicate_name(self, path: Path, version: int) -> Expected:
        part = path / "model_state.tp0.0.part1.pdparams"
        shutil.copy(path / PART, part)
        return Expected((errors.differs_from_manifest, errors.bad_file_size), ("part1",))

    def _other_version(self, path: Path, version: int) -> Expected:
        shutil.rmtree(path)
        shutil.copytree(self.publish(version + 1, make_state(seed=9)), path)
        return Expected(errors.VersionMismatchError, (str(path), str(version), str(version + 1)))

    def _other_rank(self, path: Path, version: int) -> Expected:
        for file in path.glob("model_state.tp0.0.*"):
            file.unlink()
        for file in path.glob("model_state.tp1.1.*"):
            shutil.copy(file, path / file.name.replace("tp1.1.", "tp0.0."))
        return Expected(errors.shard_identity, (MANIFEST, "rank 1", "rank 0"))

    def _truncated_on_the_way(self, path: Path, version: int) -> Expected:
        file = self._largest_part(path)
        return Expected(
            errors.bad_file_size, (str(file),), may_touch=True, meanwhile=lambda: os.truncate(file, 0)
        )

    @staticmethod
    def _largest_part(path: Path) -> Path:
        return max(path.glob("model_state.tp0.0.part*"), key=lambda part: part.stat().st_size)

    def _flipped_bit(self, path: Path, version: int) -> Expected:
        file = self._largest_part(path)
        flip(file, file.stat().st_size - 1)
        return Expected(errors.DigestMismatchError, (str(file),), may_touch=True)

    def _flipped_bit_in_description(self, path: Path, version: int) -> Expected:
        flip(path / MANIFEST, 200)
        return Expected(errors.ManifestError, (str(path / MANIFEST),))

    def _truncated(self, path: Path, version: int) -> Expected:
        os.truncate(path / PART, (path / PART).stat().st_size - 3)
        return Expected(errors.bad_file_size, (str(path / PART),))

    def _truncated_description(self, path: Path, version: int) -> Expected:
        os.truncate(path / MANIFEST, (path / MANIFEST).stat().st_size // 2)
        return Expected(errors.ManifestError, (str(path / MANIFEST),))

    def _garbage(self, path: Path, version: int) -> Expected:
        (path / MANIFEST).unlink()
        (path / "model_state.manifest.json").unlink()
        (path / PART).write_bytes(b"no weights today")
        return Expected(errors.bad_safetensors, (str(path / PART),))

    def _empty(self, path: Path, version: int) -> Expected:
        for file in path.glob("model_state*"):
            file.unlink()
        (path / "model_state.tp0.0.pdparams").write_bytes((2).to_bytes(8, "little") + b"{}")
        (path / "version.yaml").write_text(f"step: {version}\n")
        return Expected(errors.empty_snapshot, (str(path),))

    def _peer_silent(self, path: Path, version: int) -> Expected:
        (path / PART).unlink()
        os.mkfifo(path / PART)  # a reader that opened it would wait for a writer
        return Expected(errors.not_a_regular_file, (str(path / PART), "regular file"))


def flip(file: Path, position: int) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= 4
    file.write_bytes(data)
