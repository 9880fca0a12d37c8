"""What moves a version from a trainer to a rank by its number, and how a connection is kept between updates.

A transport is all that differs between Mooncake's transfer engine and CheckpointTransfer; the strategies
``rsync`` and ``gdr`` know nothing else of them. Setting one up takes long (sockets, registered memory), so it
is kept, and set up anew only after an error. Knows no particular transport.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from wsm import log
from wsm.strategies.observer import LoadObserver
from wsm.strategies.offer import Offer
from wsm.strategies.sections import Sections

_log = log.logger("strategies")


class Transport(Protocol):
    """One rank's connection to the process that has versions. Used by one load at a time, from any thread.

    Every wait in it has a deadline of its own, and sees ``observer.cancelled()``.
    """

    @property
    def name(self) -> str:
        """What a configuration calls it."""
        ...

    def open(
        self, version: str | None, rank: int, observer: LoadObserver, *, world_size: int | None = None
    ) -> AbstractContextManager[Offer]:
        """Connect if need be, and offer the shard of `rank`. Blocks until it is known what will come.

        Leaving the context normally says that every tensor was applied and verified; leaving it with an
        exception, that the load has failed. The connection stays in both cases; the owner of the transport
        closes it after an exception.

        Parameters
        ----------
        version : str or None
            The version that it must be; None for the newest that the transport itself can find.
        rank : int
            Global rank of the shard.
        observer : LoadObserver
            Asked for cancellation during every wait.
        world_size : int, optional
            Number of ranks that the version must have been made for; not checked if not given.

        Raises
        ------
        wsm.strategies.errors.BadInputError
            If there is nothing, or not what was asked for. Nothing was changed.
        wsm.errors.GroupError
            If the peer is silent, dead, or gave up. Nothing was changed.
        wsm.errors.RefusedError
            If what the transport needs is not installed.
        """
        ...

    def preview(
        self, version: str | None, rank: int, *, world_size: int | None = None
    ) -> AbstractContextManager[Offer]:
        """Open like :meth:`open`, to look only: no byte of a tensor moves, and a load can follow.

        A transport that cannot look without receiving offers no tensors, undeclared, and the version that
        it was asked for.
        """
        ...

    def close(self) -> None:
        """Let the connection go. Idempotent."""
        ...


@dataclass(frozen=True)
class TransportKind:
    """What ``rsync: {transport: ...}`` names.

    Parameters
    ----------
    build : callable
        Returns a new transport, made of what a configuration says; connects to no process yet, and refuses
        what no load could use.
    from_files : bool
        Whether versions are read where they are published, in the strategy's directory.
    streams : bool
        Whether what it brings is known only as it comes.
    """

    build: Callable[[Sections], Transport]
    from_files: bool = False
    streams: bool = False


class KeptTransport:
    """A transport that is built for the first load, kept between loads, and built anew after an error.

    Parameters
    ----------
    name : str
        What a configuration calls it.
    build : callable
        Returns a new transport; must not connect yet.
    """

    def __init__(self, name: str, build: Callable[[], Transport]) -> None:
        self.name = name
        self._build = build
        self._transport: Transport | None = None

    @contextmanager
    def open(
        self, version: str | None, rank: int, observer: LoadObserver, *, world_size: int | None = None
    ) -> Iterator[Offer]:
        """Open through the transport that is kept; as :meth:`Transport.open`."""
        with (
            self._dropped_after_an_error() as transport,
            transport.open(version, rank, observer, world_size=world_size) as offer,
        ):
            yield offer

    @contextmanager
    def preview(self, version: str | None, rank: int, *, world_size: int | None = None) -> Iterator[Offer]:
        """Look through the transport that is kept; as :meth:`Transport.preview`."""
        with (
            self._dropped_after_an_error() as transport,
            transport.preview(version, rank, world_size=world_size) as offer,
        ):
            yield offer

    def close(self) -> None:
        """Let it go; the next load builds another. Idempotent, never raises."""
        transport, self._transport = self._transport, None
        if transport is None:
            return
        try:
            transport.close()
        except Exception as error:  # noqa: BLE001 - the load's own error must be seen, not this one
            _log.warning(
                log.TRANSPORT_NOT_CLOSED, transport=self.name, error=f"{type(error).__name__}: {error}"
            )

    @contextmanager
    def _dropped_after_an_error(self) -> Iterator[Transport]:
        if self._transport is None:
            self._transport = self._build()
        try:
            yield self._transport
        except BaseException:
            self.close()  # the state in which a stream was left is not known
            raise
