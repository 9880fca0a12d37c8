"""What moves a version from a trainer to a rank by its number.

A transport is all that differs between Mooncake's transfer engine and CheckpointTransfer; the strategies
``rsync`` and ``gdr`` know nothing else of them. Setting one up takes long (sockets, registered memory), so a
transport keeps its connection, and the strategy closes it after an error. Knows no particular transport.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from wsm.strategies.observer import LoadObserver
from wsm.strategies.offer import Offer
from wsm.strategies.strategy import Sections


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
        exception, that the load has failed. The connection stays in both cases; the strategy closes it after
        an exception.

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
        """Let the connection go; the next :meth:`open` makes another. Idempotent."""
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
