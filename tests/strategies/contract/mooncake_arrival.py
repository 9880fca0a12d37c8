"""How versions arrive in a publisher's memory, and publishers that say something else, or nothing."""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace
from peer_arrival import AddressArrival
from wrongs import Expected, State, Wrong

from wsm.strategies import errors
from wsm.strategies import peer_errors as stream_errors
from wsm.strategies.conversation import listen
from wsm.strategies.mooncake import _lease_messages as say
from wsm.strategies.mooncake.mooncake_transport import MooncakeTransport
from wsm.strategies.mooncake.publisher import MooncakePublisher, PlacedShard, PublishedMemory, grants_of
from wsm.strategies.mooncake.source import EngineSettings
from wsm.strategies.mooncake.transfer_engine import Engine
from wsm.strategies.transports.by_version import GdrSource, RsyncSource

# A trainer that is killed once it has said what it holds, before the rank has read all of it.
_DYING_PUBLISHER = """
import os, signal, sys
from wsm.strategies.mooncake.publisher import LeaseServer, MooncakePublisher
from wrongs import make_state
def dying(server, writer, ask):
    os.kill(os.getpid(), signal.SIGKILL)
LeaseServer._answer = dying
with MooncakePublisher(sys.argv[1]) as publisher:
    publisher.publish(3, {0: make_state(seed=1), 1: make_state(seed=2)})
    print("listening", flush=True)
    sys.stdin.read()
"""


class RawLeaseServer:
    """Listens in a publisher's place, and says whatever bytes a test wants to each rank that asks."""

    def __init__(self, address: str, data: bytes) -> None:
        self._listening = listen(say.place_of(address))
        self._listening.socket.settimeout(0.01)
        self._data = data
        self._stopped = False
        self._held: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped:
            with contextlib.suppress(TimeoutError, ConnectionError):
                made, _ = self._listening.socket.accept()
                self._held.append(made)
                made.recv(1 << 16)
                made.sendall(self._data)

    def close(self) -> None:
        self._stopped = True
        self._thread.join()
        for made in (*self._held, self._listening.socket):
            made.close()
        self._listening.release()


class MooncakeArrival(AddressArrival):
    strategy, _called, _said_of_garbage = "rsync", "publisher", "announces"
    _source = RsyncSource
    impossible: Mapping[Wrong, str] = {
        Wrong.TRUNCATED_ON_THE_WAY: "a publisher's memory is unmapped only with its process",
    }

    def __init__(self, directory: Path) -> None:
        self._path = f"{directory}/publisher"
        super().__init__(f"ipc://{self._path}")
        self.place = self._address
        self._transports: dict[float, MooncakeTransport] = {}
        self._publisher: MooncakePublisher | None = None
        self._leases: RawLeaseServer | None = None
        self._engine: Engine | None = None

    def source(self) -> RsyncSource:
        if self._connect_s not in self._transports:
            self._transports[self._connect_s] = self._make()
        return self._source(self._transports[self._connect_s], 0, world_size=2)

    def close(self) -> None:
        for transport in self._transports.values():
            transport.close()
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None
        self._end_wrongs()

    def _make(self) -> MooncakeTransport:
        # Many spans in few buffers, so that most of a version is read while it is applied.
        return MooncakeTransport(self._address, connect_s=self._connect_s, span_bytes=1 << 16, buffers=2)

    def _hand_over(self, version: int, shards: Mapping[int, State], *, finite: bool = False) -> None:
        self._connect_s = 60.0
        self._end_wrongs()
        if self._publisher is None:
            self._publisher = MooncakePublisher(self._address)
        self._publisher.publish(version, shards, finite=finite)

    def _end_wrongs(self) -> None:
        if self._leases is not None:
            self._leases.close()
            self._leases = None
        if self._engine is not None:
            self._engine.close()
            self._engine = None
        self._end_process()

    def _grant(self, version: int, state: State) -> say.Grant:
        """A right Grant, over memory that can really be read."""
        self._engine = Engine(EngineSettings())
        self._memory = PublishedMemory(self._engine)  # registered for as long as the engine lives
        shard = self._memory.place({0: state})[0]
        said = {"publisher": secrets.token_hex(16), "session": self._engine.session}
        return grants_of(str(version), {0: shard, 1: shard}, **said)[0]

    def _described(self, version: int, state: State) -> bytes:
        return say.to_bytes(self._grant(version, state))

    def _answer(self, *data: bytes) -> None:
        self._leases = RawLeaseServer(self._address, b"".join(data))

    def _peer_endless(self, version: int, state: State) -> Expected:
        self._answer(*[self._described(version, state)] * 3)
        return Expected(stream_errors.peer_message, (self._address, "it is a Grant, nothing was due"))

    def _peer_dies(self, version: int, state: State) -> Expected:
        self._start_dying(_DYING_PUBLISHER, self._address)
        return Expected(stream_errors.PeerDiedError, (self._address, "has ended"))

    def _duplicate_name(self, version: int, state: State) -> Expected:
        grant = self._grant(version, state)
        promise = replace(grant.promise, rows=(*grant.promise.rows, grant.promise.rows[0]))
        twice = replace(grant, promise=promise, places=(*grant.places, grant.places[0]))
        self._answer(say.to_bytes(twice))
        return Expected(stream_errors.peer_message, (self._address, "twice: 'embed.weight'"))

    def _other_rank(self, version: int, state: State) -> Expected:
        grant = self._grant(version, state)
        self._answer(say.to_bytes(replace(grant, promise=replace(grant.promise, rank=1))))
        return Expected(errors.shard_identity, (self._address, "rank 1", "rank 0"))

    def _flipped_bit(self, version: int, state: State) -> Expected:
        _, data = state["large.weight"]
        self.publish(version, state)
        assert self._publisher is not None
        pack = self._publisher._memory._packs[0]
        pack[bytes(pack).index(data) + 2_000_000] ^= 1  # as everybody can who reaches the engine
        return Expected(errors.DigestMismatchError, ("'large.weight'", self._address), may_touch=True)

    def _truncated(self, version: int, state: State) -> Expected:
        grant = self._grant(version, state)
        assert self._engine is not None
        for address, _ in grant.regions:
            self._engine.unregister(address)
        self._answer(say.to_bytes(grant))
        return Expected("transfer-failed", (self._address, grant.session, "could not read"))

    def _empty(self, version: int, state: State) -> Expected:
        self._engine = Engine(EngineSettings())
        said = {"publisher": secrets.token_hex(16), "session": self._engine.session}
        shard = PlacedShard((), (), ())
        grant = grants_of(str(version), {0: shard, 1: shard}, **said)[0]
        self._answer(say.to_bytes(grant))
        return Expected(errors.empty_snapshot, (self._address,))


class GdrMooncakeArrival(MooncakeArrival):
    """The same for a target without loaders, which gets the tensors by name."""

    strategy = "gdr"
    _source = GdrSource
