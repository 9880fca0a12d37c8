"""The strategy ``rsync``: one rank's shard by its version number, over a transport.

It finds out which version is meant, lets the transport offer it, and holds the offer against what was asked
for. Knows no particular transport, and applies nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from wsm.strategies.errors import VersionMismatchError
from wsm.strategies.files.version_file import read_version
from wsm.strategies.observer import UNOBSERVED, LoadObserver
from wsm.strategies.offer import Offer
from wsm.strategies.transports.transport import Transport


@dataclass(frozen=True)
class RsyncSource:
    """One rank's way to the versions of a trainer.

    Parameters
    ----------
    transport : Transport
        Brings them; its owner closes it.
    rank : int
        Global rank of the shard.
    world_size : int, optional
        Number of ranks that a version must have been made for; not checked if not given.
    directory : path or str, optional
        Its ``version.yaml`` says which version is meant where none is named (a boot); without it the
        transport must know.
    """

    transport: Transport
    rank: int = 0
    world_size: int | None = None
    directory: Path | str | None = None


class Rsync:
    """Load by version, over a transport."""

    source_type = RsyncSource

    @contextmanager
    def open(
        self, source: RsyncSource, version: int | None, observer: LoadObserver = UNOBSERVED
    ) -> Iterator[Offer]:
        """Let the transport offer the version. Blocks until it is known what will come.

        Parameters
        ----------
        source : RsyncSource
            Where from, and whose shard.
        version : int or None
            The version that it must be; None for the one that ``version.yaml`` or the transport announces.
        observer : LoadObserver
            Asked for cancellation during every wait.

        Raises
        ------
        wsm.strategies.errors.VersionFileMissingError, VersionFileError
            If ``version.yaml`` was to say which version is meant, and does not.
        wsm.strategies.errors.VersionMismatchError
            If the transport offers another one.
        wsm.errors.WsmError
            What :meth:`wsm.strategies.transports.transport.Transport.open` raises.
        """
        wanted = wanted_version(source, version)
        with source.transport.open(wanted, source.rank, observer, world_size=source.world_size) as offer:
            yield _checked(offer, wanted)

    @contextmanager
    def preview(self, source: RsyncSource, version: int | None) -> Iterator[Offer]:
        """Look at what :meth:`open` would offer."""
        wanted = wanted_version(source, version)
        with source.transport.preview(wanted, source.rank, world_size=source.world_size) as offer:
            yield _checked(offer, wanted)


def wanted_version(source: RsyncSource, version: int | None) -> int | None:
    """Return the version to ask the transport for. Blocks (one small file).

    Raises
    ------
    wsm.strategies.errors.VersionFileMissingError, VersionFileError, UnreadableFileError
        If it is not named and ``version.yaml`` is not what it must be.
    """
    if version is not None or source.directory is None:
        return version
    return read_version(source.directory)


def _checked(offer: Offer, wanted: int | None) -> Offer:
    if wanted is not None and offer.version is not None and offer.version != wanted:
        where = ", ".join(offer.files)
        raise VersionMismatchError(requested=wanted, found=offer.version, where=where)
    return offer
