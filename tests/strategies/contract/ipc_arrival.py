"""How versions arrive in a trainer's shared memory, and what happens to it and to its metas file."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path

import msgspec
from snapshot_arrival import flip
from wrongs import BY_STATE, Expected, State, Wrong, make_state, wrong_state

from tests.forkserver import WITHOUT_PADDLE
from wsm.errors import BadInputError
from wsm.shared_directory import private_directory
from wsm.strategies import errors
from wsm.strategies.ipc.metas import IpcMetas
from wsm.strategies.ipc.shared_tensors import SharedTensors
from wsm.strategies.ipc.source import IpcSource
from wsm.strategies.promise import seal

# A trainer that is killed when the memory is half written.
_DYING_TRAINER = """
import os, signal, sys
from wsm.strategies import TensorSpec
from wsm.errors import BadInputError
from wsm.shared_directory import private_directory
from wsm.strategies.ipc.shared_tensors import SharedTensors
spec = TensorSpec("w", "U8", (1 << 21,))
with SharedTensors(sys.argv[1]) as shared:
    state = {"w": (spec, bytes(spec.nbytes))}
    shared.publish(int(sys.argv[2]), {0: state}, progress=lambda _: os.kill(os.getpid(), signal.SIGKILL))
"""


class IpcArrival:
    strategy = "ipc"
    declared = True
    impossible: Mapping[Wrong, str] = {}

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "metas"
        self._metas = self._directory / "ipc_metas_0"
        self.place = ""  # the metas file or the segment; each test says which
        self._shared: SharedTensors | None = None

    def publish(self, version: int, state: State, *, finite: bool = False) -> None:
        if self._shared is None:
            self._shared = SharedTensors(self._directory)
        shards = {0: state, 1: make_state(seed=version + 1000, finite=finite)}
        self._shared.publish(version, shards, finite=finite)

    def publish_wrong(self, version: int, state: State, wrong: Wrong) -> Expected:
        if wrong is Wrong.NOTHING_THERE:
            return Expected("metas-not-found", (str(self._metas),))
        if wrong is Wrong.PEER_DIES:
            with WITHOUT_PADDLE.start("-c", _DYING_TRAINER, self._directory, version) as dying:
                assert dying.wait() == -signal.SIGKILL
            return Expected("metas-not-found", (str(self._metas),))
        if wrong is Wrong.OTHER_WORLD:
            with SharedTensors(self._directory) as shared:
                shared.publish(version, {0: state})
                content = self._metas.read_bytes()
            self._metas.write_bytes(content)
            return Expected(errors.shard_identity, (str(self._metas), "world size 1", "world size 2"))
        self.publish(version, wrong_state(state, wrong))
        if wrong in BY_STATE:
            return BY_STATE[wrong]
        return getattr(self, f"_{wrong.name.lower()}")(version)

    def source(self) -> IpcSource:
        return IpcSource(self._directory, 0, device_id=0, world_size=2)

    def close(self) -> None:
        if self._shared is not None:
            self._shared.close()

    @property
    def _segment(self) -> Path:
        (name,) = IpcMetas.decode(self._metas.read_bytes(), file="metas").segments
        return private_directory() / name

    def _duplicate_name(self, version: int) -> Expected:
        fields = json.loads(self._metas.read_bytes())
        fields["tensors"][1][0] = fields["tensors"][0][0]
        self._metas.write_bytes(seal(fields))
        twice = f"lists a tensor twice: {fields['tensors'][0][0]!r}"
        return Expected(errors.ManifestError, (str(self._metas), twice))

    def _other_version(self, version: int) -> Expected:
        self.publish(version + 1, make_state(seed=9))
        return Expected(
            errors.VersionMismatchError, (str(self._metas), f"version {version} ", f"version {version + 1}")
        )

    def _other_rank(self, version: int) -> Expected:
        shutil.copy(self._directory / "ipc_metas_1", self._metas)
        return Expected(errors.shard_identity, (str(self._metas), "rank 1", "rank 0"))

    def _flipped_bit(self, version: int) -> Expected:
        segment = self._segment
        with segment.open("r+b") as file:
            file.seek(8000)
            byte = file.read(1)
            file.seek(8000)
            file.write(bytes([byte[0] ^ 1]))
        return Expected(errors.DigestMismatchError, (str(segment),), may_touch=True)

    def _flipped_bit_in_description(self, version: int) -> Expected:
        flip(self._metas, 200)
        return Expected(errors.ManifestError, (str(self._metas),))

    def _truncated(self, version: int) -> Expected:
        segment = self._segment
        os.truncate(segment, segment.stat().st_size - 1)
        return Expected(errors.bad_file_size, (str(segment), "truncated"))

    def _truncated_on_the_way(self, version: int) -> Expected:
        segment = self._segment
        return Expected(
            BadInputError, (str(segment),), may_touch=True, meanwhile=lambda: os.truncate(segment, 0)
        )

    def _truncated_description(self, version: int) -> Expected:
        os.truncate(self._metas, self._metas.stat().st_size - 9)
        return Expected(errors.ManifestError, (str(self._metas),))

    def _garbage(self, version: int) -> Expected:
        self._metas.write_bytes(b"\x00no weights today")
        return Expected(errors.ManifestError, (str(self._metas),))

    def _empty(self, version: int) -> Expected:
        metas = IpcMetas.decode(self._metas.read_bytes(), file="metas")
        self._metas.write_bytes(msgspec.structs.replace(metas, kinds=(), rows=(), places=()).encode())
        return Expected(errors.empty_snapshot, (str(self._metas),))

    def _peer_silent(self, version: int) -> Expected:
        self._metas.unlink()
        os.mkfifo(self._metas)  # a reader that opened it would wait for a writer
        return Expected(errors.not_a_regular_file, (str(self._metas),))

    def _peer_endless(self, version: int) -> Expected:
        os.truncate(self._metas, 1 << 40)
        return Expected(errors.ManifestError, (str(self._metas), "larger than"))
