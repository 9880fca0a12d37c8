"""How versions arrive as snapshot files, and what happens to such files."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wrongs import BY_STATE, Expected, State, Wrong, make_state, wrong_state

from tests.forkserver import WITHOUT_PADDLE
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


class FileArrival:
    """Versions in files of a directory, which a publisher of its own writes.

    Each way of being wrong that names, dtypes and shapes do not show is a method of its name.
    """

    strategy: str
    declared = True
    impossible: Mapping[Wrong, str] = {
        Wrong.PEER_ENDLESS: "a file has the size that its manifest says, or is refused",
    }
    #: One of rank 0's files with data, its manifest, and what a load says where there is no version.
    data: str
    manifest: str
    not_found: Any
    #: A publisher of ``DIRECTORY VERSION`` that is killed between its last byte and the announcement.
    dying_publisher: str

    def __init__(self, directory: Path) -> None:
        self._root = directory / "published"
        self.place = str(self._root)

    def publish(self, version: int, state: State, *, finite: bool = False) -> Path:
        raise NotImplementedError

    def publish_wrong(self, version: int, state: State, wrong: Wrong) -> Expected:
        if wrong is Wrong.NOTHING_THERE:
            return Expected(self.not_found, (str(self._root), "rank 0"))
        if wrong is Wrong.PEER_DIES:
            with WITHOUT_PADDLE.start("-c", self.dying_publisher, self._root, version) as dying:
                assert dying.wait() == -signal.SIGKILL
            return Expected(self.not_found, (str(self._root),))
        if wrong is Wrong.OTHER_WORLD:
            return self._other_world(version, state)
        path = self._publish_before(version, state, wrong)
        if wrong in BY_STATE:
            return BY_STATE[wrong]
        return getattr(self, f"_{wrong.name.lower()}")(path, version)

    def close(self) -> None:
        pass

    def _publish_before(self, version: int, state: State, wrong: Wrong) -> Path:
        """Publish what is then made wrong, or is so by its state."""
        return self.publish(version, wrong_state(state, wrong))

    def _other_world(self, version: int, state: State) -> Expected:
        raise NotImplementedError

    def _flipped_bit_in_description(self, path: Path, version: int) -> Expected:
        flip(path / self.manifest, 200)
        return Expected(errors.ManifestError, (str(path / self.manifest),))

    def _truncated(self, path: Path, version: int) -> Expected:
        os.truncate(path / self.data, (path / self.data).stat().st_size - 3)
        return Expected(errors.bad_file_size, (str(path / self.data),))

    def _truncated_description(self, path: Path, version: int) -> Expected:
        os.truncate(path / self.manifest, (path / self.manifest).stat().st_size // 2)
        return Expected(errors.ManifestError, (str(path / self.manifest),))

    def _peer_silent(self, path: Path, version: int) -> Expected:
        (path / self.data).unlink()
        os.mkfifo(path / self.data)  # a reader that opened it would wait for a writer
        return Expected(errors.not_a_regular_file, (str(path / self.data), "regular file"))


class SnapshotArrival(FileArrival):
    strategy = "ipc_snapshot"
    data, manifest = PART, MANIFEST
    not_found = errors.SnapshotNotFoundError
    dying_publisher = _DYING_PUBLISHER

    def publish(self, version: int, state: State, *, finite: bool = False) -> Path:
        shards = {0: state, 1: make_state(seed=version + 1000, finite=finite)}
        report = publish_snapshot(
            self._root, version, shards, part_bytes=1 << 20, durable=False, replace=True, finite=finite
        )
        return Path(report.path)

    def source(self) -> SnapshotSource:
        return SnapshotSource(self._root, 0, device_id=0, world_size=2, shared_directory=None)

    def _other_world(self, version: int, state: State) -> Expected:
        path = publish_snapshot(self._root, version, {0: state}, durable=False).path
        return Expected(errors.shard_identity, (path, "world size 1", "world size 2"))

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


def flip(file: Path, position: int) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= 4
    file.write_bytes(data)
