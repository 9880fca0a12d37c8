"""How versions arrive in a publisher's memory, and publishers that say something else, or nothing."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from peer_arrival import AddressArrival
from wrongs import Expected, State, Wrong

from wsm.strategies import errors
from wsm.strategies.digest import shard_digest
from wsm.strategies.messages import errors as stream_errors
from wsm.strategies.mooncake import _lease_messages as lease_messages
from wsm.strategies.mooncake import _lease_messages as say
from wsm.strategies.mooncake import errors as mooncake_errors
from wsm.strategies.mooncake._read_plan import TransferLayout
from wsm.strategies.mooncake.mooncake_transport import MooncakeTransport
from wsm.strategies.mooncake.publisher import MooncakePublisher, PublishedMemory
from wsm.strategies.mooncake.transfer_engine import Engine, EngineSettings
from wsm.strategies.transports.by_version import GdrSource, RsyncSource
from wsm.strategies.transports.transport import KeptTransport

# A trainer that is killed when the rank says that it has applied everything.
_DYING_PUBLISHER = """
import os, signal, sys
from wsm.strategies.mooncake import _lease_messages as say
from wsm.strategies.mooncake._lease_server import LeaseServer
from wsm.strategies.mooncake.publisher import MooncakePublisher
from wrongs import make_state
answer = LeaseServer._answer
def dying(server, visit, message):
    if isinstance(message, say.Release):
        os.kill(os.getpid(), signal.SIGKILL)
    return answer(server, visit, message)
LeaseServer._answer = dying
with MooncakePublisher(sys.argv[1]) as publisher:
    publisher.publish(3, {0: make_state(seed=1), 1: make_state(seed=2)})
    print("listening", flush=True)
    sys.stdin.read()
"""


class RawLeaseServer:
    """Listens in a publisher's place, and answers each message with whatever bytes a test wants."""

    def __init__(self, address: str, answer: Callable[[say.Message], Iterable[bytes]]) -> None:
        self._listener = lease_messages.listen(address)
        self._answer = answer
        self._stopped = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped:
            heard = self._listener.receive() if self._listener.poll(0.01) else None
            if heard is None or heard[1] is None:
                continue
            for data in self._answer(say.from_bytes(heard[1], peer="the rank under test")):
                self._listener.send(heard[0], data)

    def close(self) -> None:
        self._stopped = True
        self._thread.join()
        self._listener.close()


class MooncakeArrival(AddressArrival):
    strategy = "rsync"
    _source = RsyncSource
    impossible: Mapping[Wrong, str] = {
        Wrong.TRUNCATED_ON_THE_WAY: "a publisher's memory is unmapped only with its process",
    }

    def __init__(self, directory: Path) -> None:
        self._path = f"{directory}/publisher"
        super().__init__(f"ipc://{self._path}")
        self.place = self._address
        self._transport = KeptTransport("mooncake", self._make)
        self._publisher: MooncakePublisher | None = None
        self._leases: RawLeaseServer | None = None
        self._engine: Engine | None = None

    def source(self) -> RsyncSource:
        return self._source(self._transport, 0, world_size=2)

    def close(self) -> None:
        self._transport.close()
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
        layout, digests = self._memory.place({0: state})[0]
        shard = shard_digest((t.spec, each) for t, each in zip(layout.tensors, digests, strict=True))
        return say.Grant(
            version=str(version),
            rank=0,
            world_size=2,
            publisher=secrets.token_hex(16),
            session=self._engine.session,
            lease_ms=60_000,
            layout_digest=layout.digest(),
            layout=layout,
            digests=digests,
            shards=(shard, shard),
        )

    def _answer(self, *data: bytes) -> None:
        """Answer everything a rank says with `data`."""
        self._leases = RawLeaseServer(self._address, lambda _message: data)

    def _peer_silent(self, version: int, state: State) -> Expected:
        self._connect_s = 0.3
        self._answer()
        return Expected(stream_errors.PeerSilentError, (self._address, "its offer was due"))

    def _peer_endless(self, version: int, state: State) -> Expected:
        self._answer(*[say.to_bytes(self._grant(version, state))] * 3)
        return Expected(stream_errors.PeerMessageError, (self._address, "it is a Grant, nothing was due"))

    def _peer_dies(self, version: int, state: State) -> Expected:
        self._start_dying(_DYING_PUBLISHER, self._address)
        return Expected(stream_errors.PeerDiedError, (self._address, "has ended"), may_touch=True)

    def _duplicate_name(self, version: int, state: State) -> Expected:
        grant = self._grant(version, state)
        assert grant.layout is not None
        tensors = (*grant.layout.tensors, grant.layout.tensors[0])
        twice = replace(
            grant,
            layout=TransferLayout(grant.layout.regions, tensors),
            digests=(*grant.digests, grant.digests[0]),
        )
        self._answer(say.to_bytes(twice))
        return Expected(stream_errors.PeerMessageError, (self._address, "'embed.weight' twice"))

    def _other_rank(self, version: int, state: State) -> Expected:
        self._answer(say.to_bytes(replace(self._grant(version, state), rank=1)))
        return Expected(errors.shard_identity, (self._address, "rank 1", "rank 0"))

    def _flipped_bit(self, version: int, state: State) -> Expected:
        _, data = state["large.weight"]
        self.publish(version, state)
        assert self._publisher is not None
        pack = self._publisher._memory._packs[0]
        pack[bytes(pack).index(data) + 2_000_000] ^= 1  # as everybody can who reaches the engine
        return Expected(errors.DigestMismatchError, ("'large.weight'", self._address), may_touch=True)

    def _flipped_bit_in_description(self, version: int, state: State) -> Expected:
        data = bytearray(say.to_bytes(self._grant(version, state)))
        data[99] ^= 1
        self._answer(bytes(data))
        return Expected(stream_errors.PeerMessageError, (self._address, "damaged on the way"))

    def _truncated(self, version: int, state: State) -> Expected:
        grant = self._grant(version, state)
        assert grant.layout is not None
        assert self._engine is not None
        for region in grant.layout.regions:
            self._engine.unregister(region.address)
        self._answer(say.to_bytes(grant))
        return Expected(mooncake_errors.transfer_failed, (self._address, grant.session, "could not read"))

    def _truncated_description(self, version: int, state: State) -> Expected:
        self._answer(say.to_bytes(self._grant(version, state))[:-7])
        return Expected(stream_errors.PeerMessageError, (self._address, "announces"))

    def _garbage(self, version: int, state: State) -> Expected:
        self._answer(b"no weights today, and no message either")
        return Expected(stream_errors.PeerMessageError, (self._address, "begins with"))

    def _empty(self, version: int, state: State) -> Expected:
        nothing, digest = TransferLayout((), ()), shard_digest([])
        grant = replace(
            self._grant(version, state),
            layout=nothing,
            layout_digest=nothing.digest(),
            digests=(),
            shards=(digest, digest),
        )
        self._answer(say.to_bytes(grant))
        return Expected(errors.empty_snapshot, (self._address,))


class GdrMooncakeArrival(MooncakeArrival):
    """The same for a target without loaders, which gets the tensors by name."""

    strategy = "gdr"
    _source = GdrSource
