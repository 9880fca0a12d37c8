"""The trainer's side of Mooncake: versions in registered memory, which ranks read by themselves.

A publisher owns one engine and one address for as long as it lives. What it publishes is a copy of its own,
or what the trainer has (``in_place``), whose tensors must not change then until the version is withdrawn:
that waits for the ranks that are reading. A rank holds a lease, which ends when it says so, when it dies, or
when it has not been heard of for `lease_s`.

Whatever ranks can read there, others can write: the engine does not authenticate. So copies are registered,
beside each other in one region, unless the trainer says that its own memory may be; then only small tensors
are copied, because every region and every read has a price. What is registered stays so until a version does
without it, so that publishing the same buffers again registers nothing.
"""

from __future__ import annotations

import asyncio
import bisect
import mmap
import resource
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from wsm import log
from wsm.errors import BadInputError, RefusedError
from wsm.labels import checked_version
from wsm.own_descriptor import not_inherited
from wsm.strategies.byte_copy import copy_and_digest
from wsm.strategies.conversation import Abort, ListeningSocket, listen, why_not
from wsm.strategies.digest import running_digest
from wsm.strategies.mooncake import _lease_messages as say
from wsm.strategies.mooncake._lease_messages import Grant, MemoryRegion, place_of
from wsm.strategies.mooncake.source import EngineSettings
from wsm.strategies.mooncake.transfer_engine import Engine, address_of
from wsm.strategies.promise import PromisedShard, PromisedTensor, Publication, ShardPromise
from wsm.strategies.tensor import TensorSpec, aligned
from wsm.strategies.trainer.tensors import TrainerReport, TrainerTensors, bytes_of, check_ranks, specs_of_rank
from wsm.typed import Seconds, Wait, typed_calls

#: Tensors smaller than this share a region of copies, also where larger ones are read in place.
PACKED_BELOW = 1 << 20


class PlacedShard(NamedTuple):
    """One rank's tensors, the registered memory, and where in which region of it each of them begins."""

    tensors: tuple[PromisedTensor, ...]
    regions: tuple[MemoryRegion, ...]
    places: tuple[tuple[int, int], ...]


class PublishedMemory:
    """Registered memory of one publisher.

    Parameters
    ----------
    engine : Engine
        Reads it for others.
    in_place : bool
        Whether the trainer's own memory may be registered.
    """

    def __init__(self, engine: Engine, *, in_place: bool = False) -> None:
        self._engine = engine
        self._packed_below = PACKED_BELOW if in_place else sys.maxsize
        self._packs: dict[int, memoryview] = {}
        self._registered: set[MemoryRegion] = set()
        self._alive: tuple[memoryview, ...] = ()

    @property
    def regions(self) -> int:
        """How many regions are registered."""
        return len(self._registered)

    def place(self, shards: Mapping[int, TrainerTensors], *, finite: bool = False) -> dict[int, PlacedShard]:
        """Let ranks read `shards`; no rank may be reading what was placed before. Blocks: reads every byte.

        Ranks that are given the very same state dict share its place.

        Returns
        -------
        dict of int to PlacedShard
            Per rank, its tensors and where they lie.

        Raises
        ------
        BadInputError (``trainer-tensor``)
            If one of them is no tensor in an accepted form, or `finite` and one is not.
        RefusedError
            If the engine does not take it.
        """
        first = {id(tensors): rank for rank, tensors in reversed(list(shards.items()))}
        specs = {rank: specs_of_rank(rank, shards[rank]) for rank in first.values()}
        views: dict[int, list[memoryview]] = {}  # of each rank its pack, then what is registered where it is
        for rank, held in specs.items():
            large = [spec for spec in held if not self._packs_it(spec)]
            own = [bytes_of(shards[rank], spec, finite=finite, rank=rank) for spec in large]
            packed = sum(aligned(spec.nbytes) for spec in held if self._packs_it(spec))
            views[rank] = [self._pack(rank, packed), *own]
        self._register([view for of_rank in views.values() for view in of_rank])
        self._packs = {rank: pack for rank, pack in self._packs.items() if rank in views}
        placed = {
            rank: self._placed(shards[rank], held, views[rank], finite=finite) for rank, held in specs.items()
        }
        return {rank: placed[first[id(tensors)]] for rank, tensors in shards.items()}

    def close(self) -> None:
        """Forget everything; the engine must be closed before."""
        self._registered.clear()
        self._packs.clear()
        self._alive = ()

    def _packs_it(self, spec: TensorSpec) -> bool:
        return spec.nbytes < self._packed_below

    def _pack(self, rank: int, nbytes: int) -> memoryview:
        pack = self._packs.get(rank, memoryview(b""))
        if len(pack) < nbytes:
            pack = memoryview(mmap.mmap(-1, nbytes))
            self._packs[rank] = pack
        return pack[:nbytes]

    def _register(self, alive: Sequence[memoryview]) -> None:
        wanted = merged(list(map(_region, alive)))
        # First what goes: memory that moved may overlap with where it was.
        for old in self._registered - set(wanted):
            self._engine.unregister(old.address)
            self._registered.discard(old)
        self._alive = tuple(alive)
        for new in wanted:
            if new not in self._registered:
                self._engine.register(*new)
                self._registered.add(new)

    def _placed(
        self, tensors: TrainerTensors, specs: list[TensorSpec], views: list[memoryview], *, finite: bool
    ) -> PlacedShard:
        regions, (pack, *own) = merged(list(map(_region, views))), views
        begins, in_place = [begin for begin, _ in regions], iter(own)
        placed, places, packed = [], [], 0
        for spec in specs:
            digest = running_digest()
            if self._packs_it(spec):
                view = pack[packed : packed + spec.nbytes]
                copy_and_digest(bytes_of(tensors, spec, finite=finite), view, digest)
                packed += aligned(spec.nbytes)
            else:
                view = next(in_place)
                digest.update(view)
            region = bisect.bisect_right(begins, address_of(view)) - 1 if spec.nbytes else 0
            offset = address_of(view) - begins[region] if spec.nbytes else 0
            placed.append(PromisedTensor(spec, digest.hexdigest()))
            places.append((region, offset))
        return PlacedShard(tuple(placed), tuple(regions), tuple(places))


def merged(regions: Sequence[MemoryRegion]) -> list[MemoryRegion]:
    """Return regions, overlapping and touching ones made one, in order; pure."""
    found: list[MemoryRegion] = []
    for begin, nbytes in sorted(each for each in regions if each[1]):
        if found and begin <= sum(found[-1]):
            last, held = found[-1]
            found[-1] = MemoryRegion(last, max(held, begin + nbytes - last))
        else:
            found.append(MemoryRegion(begin, nbytes))
    return found


def _region(view: memoryview) -> MemoryRegion:
    return MemoryRegion(address_of(view), view.nbytes)


# Connections at a time (a quarter of what the process may open, if that is less), and those of them that may
# hold leases on one rank's shard: the oldest make room.
_MOST_CONNECTIONS, _MOST_LEASES = 1 << 10, 8
# Bytes of an answer that are handed to a connection at once; asyncio holds twice as many besides.
_PIECE_BYTES = 1 << 15
# How long a connection without a lease may say nothing, and any may take no answer.
_SILENCE_S = 10.0
# How long last words may take to leave, and a wait for descriptors.
_LAST_WORDS_S, _AGAIN_S = 1.0, 0.1


@dataclass(frozen=True)
class ServedPublication:
    """What is published: per rank its Grant, and the bytes of those that were asked for, one copy for all."""

    version: str
    grants: Mapping[int, Grant]
    encoded: dict[int, bytes] = field(default_factory=dict)


class LeaseServer:
    """The publisher's end of every connection: grants and ends leases on the version that is published.

    One thread answers all ranks, and a rank that is slow or silent keeps no other waiting, nor the publisher.

    Parameters
    ----------
    listening : ListeningSocket
        Where they come; belongs to the server from now on.
    lease_s : float
        How long a rank's host may answer nothing while the rank holds a lease.
    """

    def __init__(self, listening: ListeningSocket, *, lease_s: float) -> None:
        self._listening, self._lease_s = listening, lease_s
        self._changed = threading.Condition()
        self._publication: ServedPublication | None = None
        # Every connection, the oldest first, and those that hold a lease, on whose shard.
        self._connections: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}
        self._readers: dict[asyncio.StreamWriter, int] = {}
        # What is told to one connection is told whole.
        self._telling: dict[asyncio.StreamWriter, asyncio.Lock] = {}
        self._most = min(_MOST_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="wsm-mooncake-leases", daemon=True)
        self._thread.start()

    def put(self, publication: ServedPublication | None) -> None:
        """Grant leases on `publication` from now on; None: on none. Those that are held go on."""
        with self._changed:
            self._publication = publication

    def wait_until_free(self, wait_s: float) -> list[int]:
        """Wait until no rank reads; returns the ranks that still do after `wait_s`. Blocks."""
        with self._changed:
            self._changed.wait_for(lambda: not self._readers, wait_s)
            return sorted(set(self._readers.values()))

    def revoke(self, text: str) -> None:
        """End all leases at once and have it told to the readers that held them. Does not wait for that."""
        with self._changed:
            ended, self._readers = self._readers, {}
        for writer in ended:
            asyncio.run_coroutine_threadsafe(self._end(writer, text), self._loop)

    def close(self) -> None:
        """Answer no rank any more. Blocks, a second at most where ranks take no last word. Idempotent."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve_all())
        finally:
            self._loop.close()
            self._listening.socket.close()
            self._listening.release()

    async def _serve_all(self) -> None:
        self._listening.socket.setblocking(False)
        accepting = self._loop.create_task(self._accept())
        await self._over.wait()
        accepting.cancel()
        tasks = [accepting, *self._connections.values()]
        for writer in list(self._connections):
            writer.close()
        _, late = await asyncio.wait(tasks, timeout=_LAST_WORDS_S)
        for task in late:
            task.cancel()
        await asyncio.wait(tasks, timeout=_LAST_WORDS_S)

    async def _accept(self) -> None:
        while True:
            try:
                made, _ = await self._loop.sock_accept(self._listening.socket)
            except OSError:  # no descriptors are left: those who wait are seen again at once
                await asyncio.sleep(_AGAIN_S)
                continue
            not_inherited(made)
            try:
                if made.family == socket.AF_INET:  # the lease of a host that is gone ends, too
                    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(int(self._lease_s / 2), 1))
                    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(self._lease_s * 1000))
                reader, writer = await asyncio.open_connection(sock=made, limit=say.MOST_TO_PUBLISHER * 2)
            except OSError:
                made.close()  # it alone is lost: all others are taken as before
                continue
            self._connections[writer] = self._loop.create_task(self._serve(reader, writer))
            if len(self._connections) > self._most:
                idle = (each for each in self._connections if each not in self._readers)
                next(idle, writer).transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection until its end, or until it says what no rank says."""
        try:
            while True:
                wait_s = None if writer in self._readers else _SILENCE_S
                length = await asyncio.wait_for(reader.readexactly(say.LENGTH_BYTES), wait_s)
                nbytes = say.frame_bytes(length, say.MOST_TO_PUBLISHER, "a rank")
                frame = await asyncio.wait_for(reader.readexactly(nbytes), _SILENCE_S)
                await self._say(writer, self._answer(writer, say.ask_of(frame)))
        except (OSError, EOFError, asyncio.TimeoutError, BadInputError):
            pass  # its lease ends with its connection, whatever the reason
        finally:
            with self._changed:
                self._readers.pop(writer, None)
                self._changed.notify_all()
            del self._connections[writer]
            self._telling.pop(writer, None)
            writer.close()

    async def _say(self, writer: asyncio.StreamWriter, answer: bytes) -> None:
        """Answer one connection as fast as it takes that, and hold little of the answer meanwhile."""
        async with self._telling.setdefault(writer, asyncio.Lock()):
            for begin in range(0, len(answer), _PIECE_BYTES):
                writer.write(answer[begin : begin + _PIECE_BYTES])
                await asyncio.wait_for(writer.drain(), _SILENCE_S)

    async def _end(self, writer: asyncio.StreamWriter, text: str) -> None:
        """Tell a rank that its lease is over, behind what it is told now, and hang up."""
        with suppress(OSError, RuntimeError, asyncio.TimeoutError):
            await self._say(writer, say.to_bytes(Abort("failed", "Revoked", text)))
            writer.close()

    def _answer(self, writer: asyncio.StreamWriter, ask: say.Ask) -> bytes:
        with self._changed:
            publication = self._publication
            if publication is None:
                return say.to_bytes(Abort("busy", "NothingPublished", "no version is published now"))
            refusal = why_not(ask, publication.version, len(publication.grants))
            if refusal is not None:
                return say.to_bytes(refusal)
            if not ask.look:
                self._readers[writer] = ask.rank
                same = [each for each, rank in self._readers.items() if rank == ask.rank]
                if len(same) > _MOST_LEASES:
                    del self._readers[same[0]]
                    self._loop.create_task(self._end(same[0], "others asked for the same rank's shard"))
        if ask.rank not in publication.encoded:
            publication.encoded[ask.rank] = say.to_bytes(publication.grants[ask.rank])
        return publication.encoded[ask.rank]


_log = log.logger("strategies")

#: Long enough for a rank that copies in between, short enough to wait for one that hangs.
LEASE_S = 30.0
#: How long to wait for ranks that are reading, before a version is withdrawn.
WITHDRAW_S = 60.0


@dataclass(frozen=True, kw_only=True)
class MooncakeReport(TrainerReport):
    """What was published.

    Its `seconds` include waiting for the readers of the version before.

    Parameters
    ----------
    regions : int
        Regions of memory that are registered.
    """

    regions: int


@typed_calls
class MooncakePublisher(AbstractContextManager["MooncakePublisher"]):
    """Publishes versions to ranks that read them; use it in ``with``. One version at a time.

    Parameters
    ----------
    address : str
        Where ranks ask: ``tcp://IPv4:port`` (0: any free port) or ``ipc:///absolute/path`` (mode 0600). There
        is no authentication: each process that reaches it, or the engine, can read what is published, and
        each that reaches the engine (of every user of this host at least) can write there. Ranks find that
        out.
    settings : EngineSettings, optional
        How the engine is reached; by default over TCP, from this host only.
    lease_s : float
        How long the host of a rank that reads may answer nothing; the rank's end is seen at once.
    in_place : bool
        Let ranks read the trainer's own memory instead of a copy, which takes as much memory again. Then
        each process that reaches the engine can change the weights that are being trained, and training goes
        on with them: for hosts and networks where all users are trusted.

    Attributes
    ----------
    address : str
        Where ranks ask.

    Raises
    ------
    RefusedError, BadInputError
        If the engine does not start.
    RefusedError
        If it cannot listen there.
    """

    def __init__(
        self,
        address: str,
        *,
        settings: EngineSettings | None = None,
        lease_s: Seconds = LEASE_S,
        in_place: bool = False,
    ) -> None:
        listening = listen(place_of(address))
        try:
            self._engine = Engine(settings or EngineSettings())
        except BaseException:
            listening.socket.close()
            listening.release()
            raise
        self.address = listening.address
        self._memory = PublishedMemory(self._engine, in_place=in_place)
        if in_place:
            _log.warning("memory.writable", address=self.address, by="each process that reaches the engine")
        self._version: str | None = None
        self._publisher = secrets.token_hex(16)
        self._leases = LeaseServer(listening, lease_s=lease_s)

    def publish(
        self,
        version: str | int,
        shards: Mapping[int, TrainerTensors],
        *,
        wait_s: Wait = WITHDRAW_S,
        finite: bool = False,
    ) -> MooncakeReport:
        """Let ranks read a version, instead of the one before. Blocks; reads every byte once.

        The tensors must not change meanwhile, and, if they are read in place, until :meth:`withdraw` has
        returned.

        Parameters
        ----------
        version : str or int
            Its number.
        shards : mapping of int to mapping
            Per rank 0..world size - 1, its state dict (:mod:`wsm.strategies.trainer.tensors`).
        wait_s : float
            How long to wait for ranks that are reading the version before.
        finite : bool
            Refuse NaN and infinity here, and have every load refuse them.

        Raises
        ------
        RefusedError
            If they still read it then. Nothing was changed, but no rank is given that version any more.
        BadInputError
            If what was handed over is no version. Nothing was changed, unless a tensor is not finite although
            it is to be: nothing is published then.
        RefusedError
            If the engine does not take the memory. Nothing is published.
        """
        begun_s = time.monotonic()
        version = checked_version(version)
        check_ranks(version, shards)
        for rank, tensors in shards.items():
            specs_of_rank(rank, tensors)  # nothing is withdrawn for what is no version
        self.withdraw(wait_s=wait_s)
        placed = self._memory.place(shards, finite=finite)
        grants = grants_of(
            version, placed, publisher=self._publisher, session=self._engine.session, finite=finite
        )
        self._leases.put(ServedPublication(version, grants))
        self._version = version
        return MooncakeReport(
            version=version,
            manifest_digest=grants[0].publication.group_digest,
            digests={rank: grants[rank].promise.content_digest for rank in sorted(grants)},
            bytes=sum(tensor.spec.nbytes for shard in placed.values() for tensor in shard.tensors),
            regions=self._memory.regions,
            seconds=time.monotonic() - begun_s,
        )

    @contextmanager
    def publishing(
        self,
        version: str | int,
        shards: Mapping[int, TrainerTensors],
        *,
        wait_s: Wait = WITHDRAW_S,
        finite: bool = False,
    ) -> Iterator[MooncakeReport]:
        """Publish for as long as the context lasts, in which the caller commands the group.

        Leaving it waits for ranks that still read; leaving it with an exception revokes their leases.
        Parameters and errors are those of :meth:`publish` and :meth:`withdraw`.
        """
        report = self.publish(version, shards, wait_s=wait_s, finite=finite)
        try:
            yield report
        except BaseException:
            self.withdraw(revoke=True)
            raise
        self.withdraw(wait_s=wait_s)

    def withdraw(self, *, wait_s: Wait = WITHDRAW_S, revoke: bool = False) -> None:
        """Let no rank begin to read, and wait for those that are reading; then the tensors may change.

        Blocks, `wait_s` at most. Does nothing if nothing is published.

        Parameters
        ----------
        wait_s : float
            How long to wait.
        revoke : bool
            Do not wait: tell the ranks that are reading that it is over; their loads fail.

        Raises
        ------
        RefusedError
            If ranks still read after `wait_s`; the tensors must not change. It can be called again.
        """
        if self._version is None:
            return
        self._leases.put(None)
        if revoke:
            self._leases.revoke(f"version {self._version} was withdrawn")
        else:
            ranks = self._leases.wait_until_free(wait_s)
            if ranks:
                raise RefusedError(
                    f"version {self._version} is still being read by ranks {ranks} after {wait_s:.3g} s; its "
                    "tensors must not change yet. Wait longer, or withdraw with revoke=True",
                    code="publication-held",
                    version=self._version,
                    waited_s=wait_s,
                    retryable=True,
                    ranks=tuple(ranks),
                )
        self._version = None

    def close(self) -> None:
        """End every connection and the engine; what ranks are reading fails. Idempotent."""
        self.withdraw(revoke=True)
        self._leases.close()
        self._engine.close()
        self._memory.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def grants_of(
    version: str, placed: Mapping[int, PlacedShard], *, publisher: str, session: str, finite: bool = False
) -> dict[int, Grant]:
    """Return what each rank is told of a publication of all of them."""
    name = secrets.token_hex(8)
    promises = {
        rank: ShardPromise.with_tensors(
            placed[rank].tensors,
            version=version,
            rank=rank,
            world_size=len(placed),
            publication=name,
            finite=finite,
        )
        for rank in sorted(placed)
    }
    shards = tuple(PromisedShard(content_digest=promise.content_digest) for promise in promises.values())
    publication = Publication(version=version, publication=name, shards=shards)
    return {
        rank: Grant(promise, publication, publisher, session, placed[rank].regions, placed[rank].places)
        for rank, promise in promises.items()
    }
