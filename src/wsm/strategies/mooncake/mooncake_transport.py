"""The transport over Mooncake's transfer engine: one rank reads its shard out of the publisher's memory.

It keeps what is dear between loads: the engine, which knows the publisher's, and the buffers. After an
error all of it is dropped, and with the engine whatever was in
flight. Knows no targets.

A plan's spans are read ahead of their use, through a few buffers that are used again and again: while one
span is copied out and digested the engine reads the next ones. Spans are consumed in order; a caller that
leaves some out, or comes back, is served too, only more slowly.

The connection to a publisher is the lease on its version. Every wait has a deadline, sees a cancellation, and
sees the publisher's end at once.
"""

from __future__ import annotations

import errno
import mmap
import select
import socket
import stat
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import KW_ONLY, InitVar, dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import ClassVar

import msgspec

from wsm import log
from wsm.errors import GroupError, WsmError
from wsm.shared_directory import require
from wsm.strategies.byte_copy import copy_bytes
from wsm.strategies.conversation import Abort, Meeting, Wanted, refused, socket_for
from wsm.strategies.errors import LoadCancelledError
from wsm.strategies.mooncake import _lease_messages as say
from wsm.strategies.mooncake.source import EngineSettings, MooncakeConfig
from wsm.strategies.mooncake.transfer_engine import Engine
from wsm.strategies.observer import LoadObserver
from wsm.strategies.offer import ManifestScope, Offer, OfferedTensor, not_to_be_read
from wsm.strategies.peer_errors import PeerDiedError, PeerSilentError, peer_message
from wsm.strategies.strategy import Sections
from wsm.strategies.transports.by_version import TransportKind
from wsm.typed import Count, Seconds, typed

# How long a wait lasts before cancellation and deadlines are looked at again.
_LOOK_S = 0.02
# How long one attempt to connect may take, in which no cancellation is seen.
_CONNECT_S = 1.0


class RankLease:
    """One lease. :meth:`ask`, then :meth:`keep` often; :meth:`close` in any case, which lets go.

    Attributes
    ----------
    peer : str
        What errors call the publisher.
    """

    def __init__(self, address: str, observer: LoadObserver, *, silence_s: float) -> None:
        self.peer = f"the publisher at {address}"
        self._place = say.place_of(address)
        self._observer = observer
        self._silence_s = silence_s
        self._socket: socket.socket | None = None
        self._heard = bytearray()
        self._asked = False
        self._tensors = 0

    def ask(self, ask: say.Ask, connect_s: float) -> say.Grant:
        """Connect, and ask until there is something. Blocks, `connect_s` at most.

        A publisher that ends before it has granted anything may come back, and is asked again then.

        Raises
        ------
        VersionMismatchError, BadInputError
            If another version, rank or number of ranks is published, or no tensor.
        PeerDiedError
            If the publisher has ended, and no process took its place for ``silence_s``.
        PeerSilentError, PeerFailedError, BadInputError, LoadCancelledError
            If there is no proper answer.
        """
        meeting = Meeting(self.peer, connect_s, self._silence_s)
        while True:
            self._observer.stop_if_cancelled(0)
            answer, left = None, False
            try:
                if not self._asked and meeting.asks_again():
                    self._ask(ask)
                if self._socket is None:
                    time.sleep(_LOOK_S)
                else:
                    answer = self._next(_LOOK_S, "its offer")
            except PeerDiedError:
                self.close()
                left = True
            if isinstance(answer, Abort):
                if answer.reason != "busy":
                    raise refused(ask, answer, self.peer)
                meeting.told, self._asked = answer, False
            elif answer is not None:
                answer.promise.require(ask.version, ask.rank, ask.world_size, where=self.peer)
                say.check_grant(answer, self.peer)
                self._tensors = len(answer.promise.rows)
                return answer
            meeting.wait(there=self._socket is not None, left=left)

    def _ask(self, ask: say.Ask) -> None:
        """Ask the publisher, if there is one."""
        self._socket = self._socket or self._connected()
        if self._socket is not None:
            try:
                self._socket.sendall(say.to_bytes(ask))
            except OSError as error:
                raise PeerDiedError(peer=self.peer, expected="its offer") from error
            self._asked = True

    def keep(self, wait_s: float = 0.0) -> None:
        """Hear whether the lease holds; waits `wait_s` at most for news.

        Raises
        ------
        PeerFailedError, PeerDiedError, BadInputError
            If it does not.
        LoadCancelledError
            If the load was cancelled.
        """
        message = self._next(wait_s, "the rest of the version")
        if isinstance(message, Abort):
            raise refused(None, message, self.peer)
        if message is not None:
            problem = f"it is a {type(message).__name__}, nothing was due"
            raise peer_message(peer=self.peer, problem=problem)
        self._observer.stop_if_cancelled(self._tensors)

    def close(self) -> None:
        """Let go, whatever happened. Idempotent, never raises."""
        made, self._socket, self._asked = self._socket, None, False
        self._heard.clear()
        if made is not None:
            made.close()

    def _connected(self) -> socket.socket | None:
        """Return a connection; None if no process has been there, PeerDiedError if one left its socket."""
        place = self._place
        if isinstance(place, Path):
            try:
                require(place, place.lstat(), stat.S_IFSOCK)
            except FileNotFoundError:
                return None
        made = socket_for(place)
        made.settimeout(min(self._silence_s, _CONNECT_S))
        failed = made.connect_ex(str(place) if isinstance(place, Path) else place)
        if failed == 0 and not _is_own(made):
            return made
        if failed == 0:  # the port must be free again for the process that is to listen there
            made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        made.close()
        if failed == errno.ECONNREFUSED and isinstance(place, Path):
            raise PeerDiedError(peer=self.peer, expected="its offer")
        return None

    def _next(self, wait_s: float, expected: str) -> say.FromPublisher | None:
        """Return what the publisher says next; None if it says nothing within `wait_s`."""
        made = self._socket
        if made is None:
            raise PeerDiedError(peer=self.peer, expected=expected)
        message = self._whole()
        poll = select.poll()
        poll.register(made, select.POLLIN)
        if message is None and poll.poll(wait_s * 1000):
            try:
                data = made.recv(1 << 20)
            except OSError:
                data = b""
            if not data:
                raise PeerDiedError(peer=self.peer, expected=expected)
            self._heard += data
            message = self._whole()
        return message

    def _whole(self) -> say.FromPublisher | None:
        """Return the message that was heard whole, if there is one."""
        length = bytes(self._heard[: say.LENGTH_BYTES])
        if len(length) < say.LENGTH_BYTES:
            return None
        end = say.LENGTH_BYTES + say.frame_bytes(length, say.MOST_TO_RANK, self.peer)
        if len(self._heard) < end:
            return None
        frame = bytes(self._heard[say.LENGTH_BYTES : end])
        del self._heard[:end]
        return say.answer_of(frame, self.peer)


def _is_own(connected: socket.socket) -> bool:
    """Whether a TCP socket has met itself, as happens at ports that the kernel gives to callers."""
    try:
        return connected.family != socket.AF_UNIX and connected.getsockname() == connected.getpeername()
    except OSError:
        return True  # it has gone again


# How long a wait lasts before reads in flight, the lease and deadlines are looked at again.
_GLANCE_S = 0.001
# How long the publisher may take to say why its memory cannot be read.
_LAST_WORDS_S = 1.0


class ReadPlan:
    """The reads that bring regions of memory, in their order. Pure.

    Small tensors lie beside each other, so that one read brings many; large ones are cut. Each read is made
    when it is asked for, since a peer may claim any number of bytes.

    Parameters
    ----------
    regions : sequence of MemoryRegion
        What is read, one behind the other.
    span_bytes : int
        The longest read.

    Attributes
    ----------
    spans : int
        How many reads there are.
    """

    def __init__(self, regions: Sequence[say.MemoryRegion], span_bytes: int) -> None:
        self._regions, self._span_bytes = regions, span_bytes
        self._first = [0, *accumulate(-(-region.nbytes // span_bytes) for region in regions)]
        self.spans = self._first[-1]

    def span(self, index: int) -> say.MemoryRegion:
        """Return one read."""
        number = bisect_right(self._first, index) - 1
        region, begin = self._regions[number], (index - self._first[number]) * self._span_bytes
        return say.MemoryRegion(region.address + begin, min(self._span_bytes, region.nbytes - begin))

    def where(self, region: int, offset: int) -> tuple[int, int]:
        """Return the index of the span that brings a byte of a region, and the byte's place in it."""
        return self._first[region] + offset // self._span_bytes, offset % self._span_bytes


@dataclass(eq=False)
class SpanReader:
    """The reads of one load.

    Parameters
    ----------
    engine : Engine
        Reads.
    session : str
        The publisher's engine.
    plan : ReadPlan
        What to read.
    buffers : sequence of memoryview
        Each as long as the longest span, and no other process's until the reader is done or the engine
        closed.
    lease : RankLease
        Kept while we wait.
    silence_s : float
        How long a read may take.

    Attributes
    ----------
    waited_s : float
        Seconds that were spent waiting for bytes.
    """

    engine: Engine
    session: str
    plan: ReadPlan
    buffers: InitVar[Sequence[memoryview]]
    lease: RankLease
    silence_s: float

    def __post_init__(self, buffers: Sequence[memoryview]) -> None:
        self.waited_s = 0.0
        self._free = list(buffers)
        # Index, ticket and buffer of each read in flight, in the order of the spans.
        self._flying: deque[tuple[int, int, memoryview]] = deque()
        self._next = 0
        # The span that is copied out, and the buffer that it lies in.
        self._held, self._span, self._buffer = -1, memoryview(b""), memoryview(b"")
        self._kept_s = 0.0

    def begin(self) -> None:
        """Wait for the first span, before anything is touched, which is no waiting yet. Blocks.

        Raises
        ------
        As :meth:`copy`.
        """
        if self.plan.spans:
            self._fetch(0)
        self.lease.keep()
        self.waited_s = 0.0

    def copy(self, place: tuple[int, int], offset: int, destination: memoryview) -> None:
        """Fill `destination` from byte `offset` of what lies in a region, from a byte of it on. Blocks.

        Raises
        ------
        GroupError, PeerSilentError
            If the engine cannot read, or no read ends.
        GroupError, PeerDiedError, PeerFailedError, BadInputError, LoadCancelledError
            As :meth:`RankLease.keep`.
        """
        done, (region, first) = 0, place
        while done < len(destination):
            index, begin = self.plan.where(region, first + offset + done)
            # Most small tensors lie in the span of the one before.
            span = self._span if index == self._held else self._fetch(index)
            self._keep()
            part = span[begin : begin + len(destination) - done]
            copy_bytes(part, destination[done : done + len(part)])
            done += len(part)

    def drain(self) -> None:
        """Wait until the engine lets go of every buffer, those of unconsumed reads included. Blocks."""
        while self._flying:
            self._land()

    def _fetch(self, index: int) -> memoryview:
        """Return a span once it is here, and read the next ones meanwhile."""
        if self._held >= 0:
            self._free.append(self._buffer)
            self._held = -1
        while self._flying and self._flying[0][0] != index:  # left out, or the caller comes back
            self._free.append(self._land())
        if not self._flying:
            self._next = index
        self._begin_reads()
        self._buffer = self._land()
        self._held, self._span = index, self._buffer[: self.plan.span(index).nbytes]
        return self._span

    def _keep(self) -> None:
        """Look after the lease, but no more often than is of use: it costs more than a small tensor."""
        now_s = time.monotonic()
        if now_s - self._kept_s > _GLANCE_S:
            self._kept_s = now_s
            self.lease.keep()

    def _begin_reads(self) -> None:
        while self._free and self._next < self.plan.spans:
            buffer, span = self._free.pop(), self.plan.span(self._next)
            ticket = self.engine.read(self.session, span.address, buffer[: span.nbytes])
            if not ticket:
                self._free.append(buffer)
                raise self._failed(span)
            self._flying.append((self._next, ticket, buffer))
            self._next += 1

    def _land(self) -> memoryview:
        """Wait until the first read in flight has ended, and return its buffer."""
        index, ticket, buffer = self._flying[0]
        begun_s = time.monotonic()
        while (done := self.engine.done(ticket)) is None:
            self.lease.keep(_GLANCE_S)
            if time.monotonic() - begun_s > self.silence_s:
                expected = "a part of the version"
                raise PeerSilentError(peer=self.lease.peer, waited_s=self.silence_s, expected=expected)
        self.waited_s += time.monotonic() - begun_s
        self._flying.popleft()
        if not done:
            self._free.append(buffer)
            raise self._failed(self.plan.span(index))
        return buffer

    def _failed(self, span: say.MemoryRegion) -> GroupError:
        """Ask the publisher first whether it lives and still publishes; that raises if not."""
        deadline_s = time.monotonic() + _LAST_WORDS_S
        while time.monotonic() < deadline_s:
            self.lease.keep(_GLANCE_S)
        return _unreadable(f"{self.lease.peer} (engine {self.session})", span.nbytes)


#: Bytes of one read: large enough that a request costs nothing, small enough to be consumed while in a cache.
SPAN_BYTES = 4 << 20
#: Reads that are in flight or being consumed.
BUFFERS = 4

_log = log.logger("strategies")


@typed
@dataclass(eq=False)
class MooncakeTransport:
    """One rank's way to a :class:`wsm.strategies.mooncake.publisher.MooncakePublisher`.

    Parameters
    ----------
    address : str
        The publisher's: ``tcp://IPv4:port`` or ``ipc:///absolute/path``.
    settings : EngineSettings, optional
        How this rank's engine works; the protocol must be the publisher's.
    connect_s : float
        How long to wait for the publisher to have a version.
    silence_s : float
        How long it may say nothing, and no read may end; and how long one that ended before it had granted
        anything may take to come back.
    span_bytes, buffers : int
        Bytes of a read, and how many buffers of that size are held.

    Raises
    ------
    BadInputError
        If the address, or a size, cannot be.
    """

    name: ClassVar[str] = "mooncake"

    address: str
    _: KW_ONLY
    settings: EngineSettings | None = None
    connect_s: Seconds = 60.0
    silence_s: Seconds = 10.0
    span_bytes: Count = SPAN_BYTES
    buffers: Count = BUFFERS

    def __post_init__(self) -> None:
        say.place_of(self.address)
        self._settings = self.settings or EngineSettings()
        self._engine: Engine | None = None
        self._buffers: tuple[memoryview, ...] = ()
        self._publisher: object = None

    @contextmanager
    def open(self, wanted: Wanted, observer: LoadObserver) -> Iterator[Offer]:
        """Get a lease on the version and begin to read it. Blocks until its first bytes are here.

        Who only looks gets no lease, and needs no engine.

        Raises
        ------
        VersionMismatchError, BadInputError
            If it is not what was asked for. Nothing was changed.
        PeerSilentError, PeerDiedError, PeerFailedError, BadInputError, GroupError
            If the publisher does not answer properly or cannot be read, now or later; ``touched`` says
            whether anything was changed.
        RefusedError
            If there is no engine here. Nothing was changed.
        """
        with closing(RankLease(self.address, observer, silence_s=self.silence_s)) as lease:
            grant = lease.ask(say.Ask(*msgspec.structs.astuple(wanted)), self.connect_s)
            if wanted.look:
                yield self._offer(grant, lease.peer, None)
                return
            engine, plan = self._meet(grant, lease), ReadPlan(grant.regions, self.span_bytes)
            reader = SpanReader(engine, grant.session, plan, self._buffers, lease, self.silence_s)
            reader.begin()
            yield self._offer(grant, lease.peer, reader)
            self._end(reader, grant.promise.version)

    def _end(self, reader: SpanReader, version: str) -> None:
        """Let go of the buffers behind a load whose every digest was right, which no lapse changes."""
        try:
            reader.drain()
        except LoadCancelledError:
            raise
        except WsmError as error:
            self.close()
            _log.warning("lease.ended_early", transport=self.name, version=version, error=str(error))

    def close(self) -> None:
        """Let the engine and the buffers go. Idempotent."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()
        self._buffers = ()
        self._publisher = None

    def _meet(self, grant: say.Grant, lease: RankLease) -> Engine:
        """Return an engine that knows the publisher's."""
        # What an engine knows of another is never right for the next one, even at the same port; and with
        # RDMA its knowledge of what is registered there is that of the first time.
        known = grant.publisher, () if self._settings.protocol == "tcp" else grant.regions
        if self._engine is not None and self._publisher == known:
            return self._engine
        self.close()
        self._engine = engine = Engine(self._settings)
        self._buffers = tuple(memoryview(mmap.mmap(-1, self.span_bytes)) for _ in range(self.buffers))
        for buffer in self._buffers:
            engine.register_destination(buffer)
        found: bool | None = True
        if grant.regions:
            found = engine.find(grant.session, grant.regions[0].address, self.silence_s, lease.keep)
        if found:
            self._publisher = known
            return engine
        self.close()
        lease.keep()  # which may know better what is wrong
        peer = f"{lease.peer} (engine {grant.session})"
        if found is None:
            raise PeerSilentError(peer=peer, waited_s=self.silence_s, expected="its memory")
        raise _unreadable(peer, 1)

    def _offer(self, grant: say.Grant, peer: str, reader: SpanReader | None) -> Offer:
        promise = grant.promise
        # In the order in which their bytes arrive.
        placed = sorted(zip(grant.places, promise.tensors, strict=True), key=lambda each: each[0])
        return Offer(
            version=promise.version,
            tensors=tuple(
                OfferedTensor(
                    spec,
                    peer,
                    not_to_be_read if reader is None else partial(reader.copy, place),
                    digest,
                    finite=promise.finite,
                )
                for place, (spec, digest, _) in placed
            ),
            files=(self.address,),
            manifest_digest=grant.publication.group_digest,
            manifest_scope=ManifestScope.GROUP,
            peak_extra_bytes=self.span_bytes * self.buffers,
            waited_s=None if reader is None else lambda: reader.waited_s,
        )


def _unreadable(peer: str, nbytes: int) -> GroupError:
    return GroupError(
        f"the transfer engine could not read {nbytes} bytes from {peer}; load again, and if it stays so "
        "set MC_LOG_LEVEL=INFO and read what the engine writes to standard error on both sides",
        code="transfer-failed",
        peer=peer,
        nbytes=nbytes,
    )


def _configured(sections: Sections) -> MooncakeTransport:
    section = sections.of(MooncakeConfig)
    return MooncakeTransport(
        section.address,
        settings=section,
        connect_s=section.connect_s,
        silence_s=section.silence_s,
    )


MOONCAKE = TransportKind(_configured)
