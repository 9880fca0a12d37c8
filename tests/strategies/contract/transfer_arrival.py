"""How versions arrive over CheckpointTransfer: the stand-in's sender, and senders that do something else."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from checkpoint_transfer import wire
from checkpoint_transfer.sender import FakeSender
from msgspec.structs import replace
from peer_arrival import PeerArrival
from wrongs import Expected, State, Wrong

from wsm.strategies import errors, with_manifest, write_version
from wsm.strategies import peer_errors as stream_errors
from wsm.strategies.transports.by_version import GdrSource, RsyncSource
from wsm.strategies.transports.checkpoint_transfer import (
    CheckpointTransferOptions,
    CheckpointTransferTransport,
)
from wsm.strategies.transports.stream_manifest import MANIFEST_TENSOR, StreamManifest

# A trainer that is killed when half of its buckets are sent.
_DYING_TRAINER = """
import sys
from checkpoint_transfer import wire
from checkpoint_transfer.sender import FakeSender
from wrongs import make_state
from wsm.strategies import with_manifest
sender = FakeSender(port=int(sys.argv[1]))
state = with_manifest(make_state(seed=1), version=3, rank=0, world_size=2, publication="p3")
sender.send(state, step_id="3", wrong="die")
print("listening", flush=True)
sys.stdin.read()
"""


def described(state: State, version: int, *, finite: bool = False) -> dict[str, Any]:
    return with_manifest(
        state, version=version, rank=0, world_size=2, publication=f"p{version}", finite=finite
    )


class TransferArrival(PeerArrival):
    strategy = "rsync"
    declared = False
    impossible: Mapping[Wrong, str] = {
        Wrong.TRUNCATED_ON_THE_WAY: "what is cut is a connection, and its end is seen",
    }
    #: Whether each tensor is applied when it comes; else the stream is collected and checked before.
    touches = False
    _source = RsyncSource

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory
        self._sender: FakeSender | None = None
        self._raw: tuple[socket.socket, threading.Thread] | None = None
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self._port: int = probe.getsockname()[1]
        self.place = str(self._port)
        self._kept: dict[float, CheckpointTransferTransport] = {}
        self._patience_s = 60.0

    def publish(self, version: int, state: State, *, finite: bool = False) -> None:
        self._patience_s = 60.0
        if self._sender is not None:
            self._sender.settle()
        self._send(version, described(state, version, finite=finite))

    def source(self) -> RsyncSource:
        if self._patience_s not in self._kept:
            self._kept[self._patience_s] = self._transport()
        transport, place = self._kept[self._patience_s], {"world_size": 2, "directory": self._directory}
        return self._source(transport, 0, **place, whole=not self.touches)

    def _transport(self) -> CheckpointTransferTransport:
        options = CheckpointTransferOptions.of(
            {
                "redis_host": "127.0.0.1",
                "redis_port": self._port,
                "materialize_tensors": False,
                "discover_timeout_s": self._patience_s,
                "recv_bucket_timeout_s": self._patience_s,
            }
        )
        return CheckpointTransferTransport(options)

    def close(self) -> None:
        for kept in self._kept.values():
            kept.close()
        self._end_senders()

    def _send(self, version: int, state: Any, wrong: str = "") -> None:
        if self._process is not None or self._raw is not None:
            self._end_senders()
        if self._sender is None:
            self._sender = FakeSender(port=self._port)
        self._sender.send(state, step_id=str(version), wrong=wrong)
        write_version(self._directory, version)

    def _end_senders(self) -> None:
        if self._sender is not None:
            self._sender.close()
            self._sender = None
        if self._raw is not None:
            listener, thread = self._raw
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            thread.join()
            self._raw = None
        self._end_process()

    def _change_manifest(self, version: int, state: State, /, **changes: Any) -> None:
        sent = described(state, version)
        manifest = StreamManifest.decode(bytes(sent[MANIFEST_TENSOR]), file="ourselves")
        self._send(version, {**sent, MANIFEST_TENSOR: replace(manifest, **changes).encode()})

    def _duplicate_name(self, version: int, state: State) -> Expected:
        sent = described(state, version)
        self._send(version, [*sent.items(), ("embed.weight", state["embed.weight"])])
        return Expected(errors.not_covered, ("1 duplicate: 'embed.weight'",), may_touch=self.touches)

    def _other_version(self, version: int, state: State) -> Expected:
        self._change_manifest(version, state, version=version + 1)
        return Expected(errors.VersionMismatchError, (str(self._port), f"version {version + 1}"))

    def _other_rank(self, version: int, state: State) -> Expected:
        self._change_manifest(version, state, rank=1)
        return Expected(errors.shard_identity, (str(self._port), "rank 1", "rank 0"))

    def _other_world(self, version: int, state: State) -> Expected:
        self._change_manifest(version, state, world_size=1)
        return Expected(errors.shard_identity, (str(self._port), "world size 1", "world size 2"))

    def _flipped_bit(self, version: int, state: State) -> Expected:
        self._send(version, described(state, version), "lie")
        return Expected(
            errors.DigestMismatchError, ("'head.weight'", str(self._port)), may_touch=self.touches
        )

    def _flipped_bit_in_description(self, version: int, state: State) -> Expected:
        sent = described(state, version)
        data = bytearray(bytes(sent[MANIFEST_TENSOR]))
        data[data.index(b"BF16")] ^= 1
        self._send(version, {**sent, MANIFEST_TENSOR: bytes(data)})
        return Expected(errors.ManifestError, (str(self._port), "damaged or edited"))

    def _truncated(self, version: int, state: State) -> Expected:
        sent = described(state, version)
        del sent["head.weight"]
        self._send(version, sent)
        return Expected(errors.not_covered, ("1 missing: 'head.weight'",), may_touch=self.touches)

    def _truncated_description(self, version: int, state: State) -> Expected:
        sent = described(state, version)
        self._send(version, {**sent, MANIFEST_TENSOR: bytes(sent[MANIFEST_TENSOR])[:-7]})
        return Expected(errors.ManifestError, (str(self._port), "not JSON"))

    def _garbage(self, version: int, state: State) -> Expected:
        listener = socket.create_server(("127.0.0.1", self._port))

        def talk() -> None:
            try:
                while True:
                    with listener.accept()[0] as connection:
                        wire.receive(connection, bytearray())
                        connection.sendall(b"no weights today, and no message either")
            except OSError:
                return

        thread = threading.Thread(target=talk)
        thread.start()
        self._raw = (listener, thread)
        return Expected(stream_errors.PeerFailedError, (str(self._port), "no length"))

    def _empty(self, version: int, state: State) -> Expected:
        self._change_manifest(version, state, kinds=(), rows=())
        return Expected(errors.empty_snapshot, (str(self._port),))

    def _nothing_there(self, version: int, state: State) -> Expected:
        return Expected(stream_errors.PeerFailedError, (str(self._port), "ConnectionRefusedError"))

    def _peer_dies(self, version: int, state: State) -> Expected:
        self._start_dying(_DYING_TRAINER, str(self._port))
        return Expected(
            stream_errors.PeerFailedError, (str(self._port), "ConnectionError"), may_touch=self.touches
        )

    def _peer_silent(self, version: int, state: State) -> Expected:
        self._send(version, described(state, version), "silent")
        self._patience_s = 3.0  # a connection that takes longer on busy cores is another error
        return Expected(stream_errors.PeerSilentError, (str(self._port), "the first tensor was due"))

    def _peer_endless(self, version: int, state: State) -> Expected:
        self._send(version, described(state, version), "endless")
        return Expected(errors.not_covered, ("1 duplicate: 'head.weight'",), may_touch=self.touches)


class TransferAsItComes(TransferArrival):
    """The same, each tensor applied when it comes."""

    touches = True


class GdrArrival(TransferArrival):
    """The same for a target without loaders, which gets the tensors by name."""

    strategy = "gdr"
    _source = GdrSource
