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

import bisect
import mmap
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from wsm import log
from wsm.clock import Clock, SystemClock
from wsm.errors import RefusedError
from wsm.labels import checked_version
from wsm.strategies.applier.finite import check_finite
from wsm.strategies.byte_copy import copy_and_digest
from wsm.strategies.conversation import listen
from wsm.strategies.digest import running_digest
from wsm.strategies.mooncake._lease_messages import Grant, MemoryRegion, place_of
from wsm.strategies.mooncake._lease_server import LeaseServer, ServedPublication
from wsm.strategies.mooncake.transfer_engine import Engine, EngineSettings, address_of
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
        placed = self._place({rank: shards[rank] for rank in first.values()}, finite=finite)
        return {rank: placed[first[id(tensors)]] for rank, tensors in shards.items()}

    def _place(self, shards: Mapping[int, TrainerTensors], *, finite: bool) -> dict[int, PlacedShard]:
        specs = {rank: specs_of_rank(rank, tensors) for rank, tensors in shards.items()}
        data = {
            rank: {spec.name: bytes_of(shards[rank], spec) for spec in of_rank if not self._packs_it(spec)}
            for rank, of_rank in specs.items()
        }
        packs = {
            rank: self._pack(rank, sum(aligned(spec.nbytes) for spec in of_rank if self._packs_it(spec)))
            for rank, of_rank in specs.items()
        }
        read = {rank: merged([_region(packs[rank]), *map(_region, data[rank].values())]) for rank in specs}
        alive = [*packs.values(), *(view for views in data.values() for view in views.values())]
        self._register(merged([of_one for of_rank in read.values() for of_one in of_rank]), alive)
        self._packs = {rank: pack for rank, pack in self._packs.items() if rank in packs}
        return {
            rank: self._placed(shards[rank], specs[rank], data[rank], packs[rank], read[rank], finite=finite)
            for rank in shards
        }

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

    def _register(self, wanted: Sequence[MemoryRegion], alive: Sequence[memoryview]) -> None:
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
        self,
        tensors: TrainerTensors,
        specs: Sequence[TensorSpec],
        data: Mapping[str, memoryview],
        pack: memoryview,
        regions: Sequence[MemoryRegion],
        *,
        finite: bool,
    ) -> PlacedShard:
        begins = [begin for begin, _ in regions]
        placed, places, packed = [], [], 0
        for spec in specs:
            digest = running_digest()
            if self._packs_it(spec):
                view = pack[packed : packed + spec.nbytes]
                source = bytes_of(tensors, spec)
                copy_and_digest(source, view, digest)
                packed += aligned(spec.nbytes)
            else:
                source = view = data[spec.name]
                digest.update(view)
            if finite:
                check_finite(spec, source)
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
class MooncakePublisher:
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
    clock : Clock, optional
        For leases and reports.

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
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
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
        begun = self._clock.monotonic_ns()
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
            seconds=(self._clock.monotonic_ns() - begun) / 1e9,
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

    def __enter__(self) -> MooncakePublisher:  # noqa: PYI034 - typing has Self from Python 3.11 on
        return self

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
