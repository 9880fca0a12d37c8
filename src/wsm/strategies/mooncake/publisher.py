"""The trainer's side of Mooncake: versions in registered memory, which ranks read by themselves.

A publisher owns one engine and one address for as long as it lives. What it publishes is a copy of its own,
or what the trainer has (``in_place``), whose tensors must not change then until the version is withdrawn:
that waits for the ranks that are reading. A rank holds a lease, which ends when it says so, when it dies, or
when it has not been heard of for `lease_s`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from wsm import log
from wsm.clock import Clock, SystemClock
from wsm.labels import checked_version
from wsm.strategies.digest import shard_digest
from wsm.strategies.documents import content_digest
from wsm.strategies.mooncake import addresses
from wsm.strategies.mooncake import errors as mooncake_errors
from wsm.strategies.mooncake.desk import Desk, ServedPublication
from wsm.strategies.mooncake.engine import Engine, EngineSettings
from wsm.strategies.mooncake.leases import Leases
from wsm.strategies.mooncake.memory import PACKED_BELOW, PublishedMemory, check_shards
from wsm.strategies.mooncake.plan import TransferLayout
from wsm.strategies.trainer.report import TrainerReport
from wsm.strategies.trainer.tensors import TrainerTensors, check_ranks

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
        How long a rank may say nothing while it reads.
    in_place : bool
        Let ranks read the trainer's own memory instead of a copy, which takes as much memory again. Then
        each process that reaches the engine can change the weights that are being trained, and training goes
        on with them: for hosts and networks where all users are trusted.
    packed_below : int
        Tensors with fewer bytes are copied beside each other all the same.
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
        lease_s: float = LEASE_S,
        in_place: bool = False,
        packed_below: int = PACKED_BELOW,
        clock: Clock | None = None,
    ) -> None:
        if not lease_s > 0:
            raise mooncake_errors.bad_engine_settings(
                field="lease_s", value=lease_s, problem="is no time; give seconds"
            )
        self._clock = clock or SystemClock()
        listener = addresses.listen(address)
        try:
            self._engine = Engine(settings or EngineSettings())
        except BaseException:
            listener.close()
            raise
        self.address = listener.address
        self._memory = PublishedMemory(self._engine, in_place=in_place, packed_below=packed_below)
        if in_place:
            _log.warning(log.MEMORY_WRITABLE, address=self.address, by="each process that reaches the engine")
        self._version: str | None = None
        self._desk = Desk(
            listener,
            publisher=secrets.token_hex(16),
            session=self._engine.session,
            leases=Leases(lease_s),
            clock=self._clock,
        )

    def publish(
        self,
        version: str | int,
        shards: Mapping[int, TrainerTensors],
        *,
        wait_s: float = WITHDRAW_S,
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
        BadInputError, TrainerTensorError
            If what was handed over is no version. Nothing was changed, unless a tensor is not finite although
            it is to be: nothing is published then.
        RefusedError
            If the engine does not take the memory. Nothing is published.
        """
        begun = self._clock.monotonic_ns()
        version = checked_version(version)
        check_ranks(version, shards)
        check_shards(shards)
        self.withdraw(wait_s=wait_s)
        placed = self._memory.place(shards, finite=finite)
        digests = {rank: _digest(*placed[rank]) for rank in sorted(placed)}
        self._desk.put(
            ServedPublication(
                version,
                {rank: (layout, layout.digest(), each) for rank, (layout, each) in placed.items()},
                tuple(digests.values()),
                finite,
            )
        )
        self._version = version
        return MooncakeReport(
            version=version,
            manifest_digest=manifest_digest(version, tuple(digests.values())),
            digests=digests,
            bytes=sum(t.spec.nbytes for layout, _ in placed.values() for t in layout.tensors),
            regions=self._memory.regions,
            seconds=(self._clock.monotonic_ns() - begun) / 1e9,
        )

    @contextmanager
    def publishing(
        self,
        version: str | int,
        shards: Mapping[int, TrainerTensors],
        *,
        wait_s: float = WITHDRAW_S,
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

    def withdraw(self, *, wait_s: float = WITHDRAW_S, revoke: bool = False) -> None:
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
        self._desk.take()
        if revoke:
            self._desk.revoke(f"version {self._version} was withdrawn")
        else:
            ranks = self._desk.wait_until_free(wait_s)
            if ranks:
                raise mooncake_errors.publication_held(version=self._version, ranks=ranks, waited_s=wait_s)
        self._version = None

    def close(self) -> None:
        """End every connection and the engine; what ranks are reading fails. Idempotent."""
        self.withdraw(revoke=True)
        self._desk.close()
        self._engine.close()
        self._memory.close()

    def __enter__(self) -> MooncakePublisher:  # noqa: PYI034 - typing has Self from Python 3.11 on
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def manifest_digest(version: str, shard_digests: tuple[str, ...]) -> str:
    """Return the digest of a version of all ranks: equal content has an equal one."""
    return content_digest({"version": version, "shards": list(shard_digests)})


def _digest(layout: TransferLayout, digests: tuple[str, ...]) -> str:
    return shard_digest((t.spec, each) for t, each in zip(layout.tensors, digests, strict=True))
