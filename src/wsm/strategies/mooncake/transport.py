"""The transport over Mooncake's transfer engine: one rank reads its shard out of the publisher's memory.

It keeps what is dear between loads: the engine and its acquaintance with the publisher's, the buffers, the
layout and the plan of the reads. After an error all of it is dropped, and with the engine whatever was in
flight. Knows no targets.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial

from wsm import log
from wsm.strategies import errors as strategies_errors
from wsm.strategies.digest import shard_digest
from wsm.strategies.messages.errors import PeerMessageError, PeerSilentError
from wsm.strategies.mooncake import errors as mooncake_errors
from wsm.strategies.mooncake import messages as say
from wsm.strategies.mooncake.addresses import parse_address
from wsm.strategies.mooncake.engine import Engine, EngineSettings
from wsm.strategies.mooncake.lease import RankLease
from wsm.strategies.mooncake.plan import ReadPlan, TransferLayout, in_reading_order
from wsm.strategies.mooncake.publisher import manifest_digest
from wsm.strategies.mooncake.reader import SpanReader
from wsm.strategies.observer import UNOBSERVED, LoadObserver
from wsm.strategies.offer import ManifestScope, Offer, OfferedTensor

#: Bytes of one read: large enough that a request costs nothing, small enough to be consumed while in a cache.
SPAN_BYTES = 4 << 20
#: Reads that are in flight or being consumed.
BUFFERS = 4

_log = log.logger("strategies")


@dataclass(frozen=True)
class TransferCosts:
    """What one load cost.

    Parameters
    ----------
    version, rank : int
        What was loaded.
    bytes : int
        Bytes of its tensors.
    connect_s : float
        Until the version was found, and the first bytes of it were here.
    sync_s : float
        Waiting for bytes after that.
    apply_s : float
        Everything else: copying, digests, the target.
    total_s : float
        All together.
    first : bool
        Whether the engine had to be started or the publisher's to be found.
    """

    version: str
    rank: int
    bytes: int
    connect_s: float
    sync_s: float
    apply_s: float
    total_s: float
    first: bool


@dataclass(frozen=True)
class _KnownLayout:
    """A layout, and what follows from it: kept as long as the publisher keeps to it."""

    digest: str
    layout: TransferLayout
    plan: ReadPlan
    order: tuple[int, ...]


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

    Attributes
    ----------
    costs : TransferCosts or None
        Of the last load that succeeded.

    Raises
    ------
    BadInputError
        If the address, or a size, cannot be.
    """

    name = "mooncake"

    def __init__(
        self,
        address: str,
        *,
        settings: EngineSettings | None = None,
        connect_s: float = 60.0,
        silence_s: float = 10.0,
        span_bytes: int = SPAN_BYTES,
        buffers: int = BUFFERS,
    ) -> None:
        for field, value in (("span_bytes", span_bytes), ("buffers", buffers)):
            if value < 1:
                raise mooncake_errors.bad_engine_settings(
                    field=field, value=value, problem="is less than one"
                )
        parse_address(address)
        self.costs: TransferCosts | None = None
        self._address = address
        self._settings = settings or EngineSettings()
        self._connect_s = connect_s
        self._silence_s = silence_s
        self._span_bytes = span_bytes
        self._count = buffers
        self._engine: Engine | None = None
        self._buffers: tuple[memoryview, ...] = ()
        self._publisher = ""
        self._layout: _KnownLayout | None = None

    @contextmanager
    def open(
        self, version: str | None, rank: int, observer: LoadObserver, *, world_size: int | None = None
    ) -> Iterator[Offer]:
        """Get a lease on the version and begin to read it. Blocks until its first bytes are here.

        Raises
        ------
        VersionMismatchError, BadInputError
            If it is not what was asked for. Nothing was changed.
        PeerSilentError, PeerDiedError, PeerFailedError, PeerMessageError, GroupError
            If the publisher does not answer properly or cannot be read, now or later; ``touched`` says
            whether anything was changed.
        RefusedError
            If there is no engine here. Nothing was changed.
        """
        begun_s = time.monotonic()
        with closing(RankLease(self._address, observer, silence_s=self._silence_s)) as lease:
            grant, known = self._ask(lease, say.Ask(rank, world_size, version, False, self._known()))
            first = self._meet(grant, known.layout, lease)
            assert self._engine is not None  # noqa: S101 - for the type checker: _meet has seen to it
            reader = SpanReader(
                self._engine, grant.session, known.plan, self._buffers, lease, silence_s=self._silence_s
            )
            try:
                reader.begin()
                connected_s, reader.waited_s = time.monotonic() - begun_s, 0.0
                yield self._offer(grant, known, lease.peer, reader)
                reader.drain()
                lease.release()
            except BaseException:
                self.close()  # what is in flight may write to our buffers until the engine is gone
                raise
            total_s = time.monotonic() - begun_s
            self.costs = TransferCosts(
                version=grant.version,
                rank=rank,
                bytes=sum(t.spec.nbytes for t in known.layout.tensors),
                connect_s=connected_s,
                sync_s=reader.waited_s,
                apply_s=total_s - connected_s - reader.waited_s,
                total_s=total_s,
                first=first,
            )
            _log.info(log.VERSION_TRANSFERRED, transport=self.name, **vars(self.costs))

    @contextmanager
    def preview(self, version: str | None, rank: int, *, world_size: int | None = None) -> Iterator[Offer]:
        """Ask to look only: no lease, no engine."""
        with closing(RankLease(self._address, UNOBSERVED, silence_s=self._silence_s)) as lease:
            grant, known = self._ask(lease, say.Ask(rank, world_size, version, True, self._known()))
            yield self._offer(grant, known, lease.peer, None)

    def close(self) -> None:
        """Let the engine and the buffers go. Idempotent."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()
        self._buffers = ()
        self._publisher, self._layout = "", None

    def _known(self) -> str | None:
        return None if self._layout is None else self._layout.digest

    def _ask(self, lease: RankLease, ask: say.Ask) -> tuple[say.Grant, _KnownLayout]:
        """Get a grant, and its layout and plan; those of the last load if they are still right."""
        grant = lease.ask(ask, self._connect_s)
        if grant.layout is not None:
            if grant.layout.digest() != grant.layout_digest:
                raise PeerMessageError(peer=lease.peer, problem="its layout does not have its digest")
            plan = ReadPlan(grant.layout.regions, self._span_bytes)
            self._layout = _KnownLayout(
                grant.layout_digest, grant.layout, plan, tuple(in_reading_order(grant.layout.tensors))
            )
        if self._layout is None or grant.layout_digest != self._layout.digest:
            raise PeerMessageError(peer=lease.peer, problem="it leaves out a layout that we do not know")
        known = self._layout
        layout = known.layout
        if not layout.tensors:
            raise strategies_errors.empty_snapshot(where=lease.peer)
        if len(grant.digests) != len(layout.tensors):
            raise PeerMessageError(
                peer=lease.peer, problem=f"{len(grant.digests)} digests for {len(layout.tensors)} tensors"
            )
        digest = shard_digest((t.spec, each) for t, each in zip(layout.tensors, grant.digests, strict=True))
        if digest != grant.shards[grant.rank]:
            raise PeerMessageError(peer=lease.peer, problem="its digests do not add up to that of the shard")
        return grant, known

    def _meet(self, grant: say.Grant, layout: TransferLayout, lease: RankLease) -> bool:
        """Have an engine that knows the publisher's; whether that had to be done."""
        # What an engine knows of another is never right for the next one, even at the same port; and with
        # RDMA its knowledge of what is registered there is that of the first time.
        known = grant.publisher
        if self._settings.protocol != "tcp":
            known += grant.layout_digest
        if self._engine is not None and self._publisher == known:
            return False
        layout_of_last = self._layout
        self.close()
        self._layout = layout_of_last
        self._engine = Engine(self._settings)
        self._buffers = tuple(memoryview(mmap.mmap(-1, self._span_bytes)) for _ in range(self._count))
        for buffer in self._buffers:
            self._engine.register_destination(buffer)
        self._find(self._engine, grant.session, layout, lease)
        self._publisher = known
        return True

    def _find(self, engine: Engine, session: str, layout: TransferLayout, lease: RankLease) -> None:
        if not layout.regions:
            return
        found = engine.find(session, layout.regions[0].address, self._silence_s, lease.keep)
        if found:
            return
        self.close()
        lease.keep()  # which may know better what is wrong
        peer = f"{lease.peer} (engine {session})"
        if found is None:
            raise PeerSilentError(peer=peer, waited_s=self._silence_s, expected="its memory")
        raise mooncake_errors.transfer_failed(peer=peer, nbytes=1, touched=False)

    def _offer(self, grant: say.Grant, known: _KnownLayout, peer: str, reader: SpanReader | None) -> Offer:
        def nothing(_region: int, _offset: int, _destination: memoryview) -> None:
            raise PeerMessageError(peer=peer, problem="nothing is read in a preview")

        copy = nothing if reader is None else reader.copy
        tensors = []
        for index in known.order:
            placed = known.layout.tensors[index]
            read_into = partial(_read, copy, placed.region, placed.offset)
            tensors.append(
                OfferedTensor(placed.spec, peer, read_into, grant.digests[index], finite=grant.finite)
            )
        return Offer(
            version=grant.version,
            tensors=tuple(tensors),
            files=(self._address,),
            manifest_digest=manifest_digest(grant.version, grant.shards),
            manifest_scope=ManifestScope.GROUP,
            peak_extra_bytes=self._span_bytes * self._count,
            waited_s=None if reader is None else lambda: reader.waited_s,
        )


def _read(
    copy: Callable[[int, int, memoryview], None],
    region: int,
    begin: int,
    offset: int,
    destination: memoryview,
) -> None:
    copy(region, begin + offset, destination)
