"""The strategies ``rsync`` and ``gdr``: versions by their names, over a transport that a configuration names.

What both share finds out which version is meant, lets the transport offer it, and holds the offer against
what was asked for. ``rsync`` brings one rank's shard. ``gdr`` feeds a version to the loaders of the models
while it comes, which FastDeploy calls GPU-direct: nothing is collected first, each tensor goes from the
transport's buffer into the parameter. The model's own loaders fuse, split and transpose; a model without
loaders gets the tensors by name, as with ``rsync``. A command may choose between the two by its transfer
mode, as FastDeploy's does. Knows no particular transport, and applies nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from wsm import log
from wsm.errors import BadInputError
from wsm.named import NamedObjects
from wsm.strategies.errors import VersionMismatchError, listed, version_file_missing
from wsm.strategies.files.snapshot_names import VERSION_FILE
from wsm.strategies.observer import UNOBSERVED, LoadObserver
from wsm.strategies.offer import Offer
from wsm.strategies.strategy import Sections, Strategy
from wsm.strategies.trainer.publications import newest_version
from wsm.strategies.transports.checkpoint_transfer import (
    CACHE_AS_CONFIGURED,
    CheckpointTransferOptions,
    Interface,
)
from wsm.strategies.transports.configured import (
    INTERFACES,
    RsyncConfig,
    check_transfer_mode,
    feeds_loaders,
)
from wsm.strategies.transports.transport import Transport, TransportKind
from wsm.typed import Count, CountFrom0, typed

_log = log.logger("strategies")


@typed
@dataclass(frozen=True)
class RsyncSource:
    """One rank's way to the versions of a trainer.

    Parameters
    ----------
    transport : Transport
        Brings them. It is closed after each error, and connects anew then.
    rank : int
        Global rank of the shard.
    world_size : int, optional
        Number of ranks that a version must have been made for; not checked if not given.
    directory : path or str, optional
        Its ``version.yaml`` says which version is meant where none is named (a boot), else what was published
        last into it; without a directory the transport must know.
    chunk_tensors : int or None
        Set where versions are checkpoints for the models' loaders: how many tensors an auxiliary model gets
        at once (FastDeploy: ``gdr_mtp_chunk_size``). None where they are applied by name.
    whole : bool
        Whether a stream that is applied by name is collected in host memory before the model is touched.
    unwritten : sequence of str
        Patterns of the names of parameters that those loaders may leave unwritten.
    """

    transport: Transport
    rank: CountFrom0 = 0
    world_size: Count | None = None
    directory: Path | str | None = None
    chunk_tensors: Count | None = None
    whole: bool = True
    unwritten: Sequence[str] = ()


#: What ``rsync: {transport: ...}`` may name; each is imported when it is named.
TRANSPORTS: Mapping[str, TransportKind] = NamedObjects(
    {
        "checkpoint_transfer": "wsm.strategies.transports.configured:CHECKPOINT_TRANSFER",
        "mooncake": "wsm.strategies.mooncake.mooncake_transport:MOONCAKE",
        "files": "wsm.strategies.adopt.checkpoint_files:FILES",
    }
)


class ByVersion(Strategy):
    """A strategy over a transport.

    Parameters
    ----------
    transports : mapping of str to TransportKind
        Those that a configuration may name.

    Attributes
    ----------
    for_loaders : bool
        Whether versions are checkpoints for the models' loaders where the transfer mode leaves it open.
    """

    source_type: ClassVar[type[RsyncSource]]
    for_loaders: ClassVar[bool]

    sections = (RsyncConfig, "mooncake")

    def __init__(self, transports: Mapping[str, TransportKind] = TRANSPORTS) -> None:
        self._transports = transports

    def check(self, sections: Sections) -> None:
        """Refuse a transport that there is not, or whose options no load could use.

        Raises
        ------
        BadInputError
            With what there is instead.
        RefusedError
            If a mode is configured that cannot be.
        """
        section = sections.of(RsyncConfig)
        if section.transport not in self._transports:
            known = sorted(self._transports)
            raise BadInputError(
                f"no transport is called {section.transport!r}; use one of {listed(known)}",
                code="transport-unknown",
                name=section.transport,
                known=tuple(known),
            )
        if section.transfer_mode is not None:  # what rsync_config says is for FastDeploy's commands
            check_transfer_mode(section.transfer_mode, section.transport)
        self._transports[section.transport].build(sections)

    def releases_cache(self, sections: Sections) -> bool:
        """Whether trainer and ranks share devices (mode ``ipc``), or ``gdr_release_cache`` says so."""
        section = sections.of(RsyncConfig)
        return section.mode == "ipc" or CheckpointTransferOptions.of(section.rsync_config).gdr_release_cache

    def collects(self, sections: Sections, *, loaders: bool) -> bool:
        """Whether the transport brings a stream that is applied by name, and is checked whole before."""
        section = sections.of(RsyncConfig)
        fed = loaders and feeds_loaders(section.mode, usually=self.for_loaders)
        return section.checks_whole and self._transports[section.transport].streams and not fed

    def source(self, sections: Sections, rank: int, ranks: int) -> RsyncSource:
        """Return one rank's way to the versions, and the size of an auxiliary model's chunks, if any."""
        section = sections.of(RsyncConfig)
        options = CheckpointTransferOptions.of(section.rsync_config)
        return self.source_type(
            self._transports[section.transport].build(sections),
            *section.place(rank, ranks),
            directory=section.directory,
            chunk_tensors=options.gdr_mtp_chunk_size
            if feeds_loaders(section.mode, usually=self.for_loaders)
            else None,
            whole=section.checks_whole,
            unwritten=(*section.unwritten, *options.unwritten),
        )

    def default_mode(self, sections: Sections) -> str:
        """Return the mode that is configured."""
        return sections.of(RsyncConfig).mode

    def in_mode(self, sections: Sections, mode: str) -> Sections:
        """Return the sections with this mode instead of the configured one; refuse one that is not open."""
        section = replace(sections.of(RsyncConfig), transfer_mode=mode)
        check_transfer_mode(mode, section.transport)
        return sections.replaced(RsyncConfig, section)

    def as_asked(
        self, sections: Sections, *, verify_checksum: bool | None, rsync_config: Mapping[str, Any] | None
    ) -> Sections:
        """Return the sections with what a command says of its own transfer."""
        section = sections.of(RsyncConfig)
        if rsync_config is not None:
            configured = CheckpointTransferOptions.of(section.rsync_config).gdr_release_cache
            section = replace(section, rsync_config={**section.rsync_config, **rsync_config})
            if CheckpointTransferOptions.of(section.rsync_config).gdr_release_cache is not configured:
                _log.warning("transport.option_unused", option="gdr_release_cache", fix=CACHE_AS_CONFIGURED)
        if verify_checksum is not None:
            if verify_checksum and INTERFACES[section.mode] is not Interface.STREAM:
                _log.warning("transfer.unchecked", mode=section.mode)  # FastDeploy ignores it, too
            else:
                section = replace(section, verify_checksum=verify_checksum)
        return sections.replaced(RsyncConfig, section)

    @contextmanager
    def open(
        self, source: RsyncSource, version: str | None, observer: LoadObserver = UNOBSERVED
    ) -> Iterator[Offer]:
        """Let the transport offer the version. Blocks until it is known what will come.

        Parameters
        ----------
        source : RsyncSource
            Where from, and whose shard.
        version : str or None
            The version that it must be; None for the one that ``version.yaml`` announces, else the one that
            was published last, or without a directory the one that the transport announces.
        observer : LoadObserver
            Asked for cancellation during every wait.

        Raises
        ------
        BadInputError
            If a directory was to say which version is meant, and does not.
        wsm.strategies.errors.VersionMismatchError
            If the transport offers another one.
        wsm.errors.WsmError
            What :meth:`wsm.strategies.transports.transport.Transport.open` raises.
        """
        wanted = _wanted(source, version)
        opened = source.transport.open(wanted, source.rank, observer, world_size=source.world_size)
        with _closed_after_an_error(source.transport), opened as offer:
            yield _as_asked(offer, wanted, source)

    @contextmanager
    def preview(self, source: RsyncSource, version: str | None) -> Iterator[Offer]:
        """Look at what :meth:`open` would offer."""
        wanted = _wanted(source, version)
        opened = source.transport.preview(wanted, source.rank, world_size=source.world_size)
        with _closed_after_an_error(source.transport), opened as offer:
            yield _as_asked(offer, wanted, source)

    def retired_from(self, sections: Sections) -> str | None:
        """Return the directory that versions are published in, where the transport reads them there."""
        section = sections.of(RsyncConfig)
        kind = self._transports.get(section.transport)
        return section.directory if kind is not None and kind.from_files else None

    def close(self, source: RsyncSource) -> None:
        """Let the transport's connection go. Never raises."""
        _close(source.transport)


@contextmanager
def _closed_after_an_error(transport: Transport) -> Iterator[None]:
    try:
        yield
    except BaseException:
        _close(transport)  # the state in which a stream was left is not known
        raise


def _close(transport: Transport) -> None:
    try:
        transport.close()
    except Exception as error:  # noqa: BLE001 - the load's own error must be seen, not this one
        text = f"{type(error).__name__}: {error}"
        _log.warning(log.TRANSPORT_NOT_CLOSED, transport=transport.name, error=text)


def _wanted(source: RsyncSource, version: str | None) -> str | None:
    """Return the version to ask the transport for; None where there is no directory, and it must know."""
    if version is not None or source.directory is None:
        return version
    newest = newest_version(source.directory)
    if newest is None:
        raise version_file_missing(file=f"{source.directory}/{VERSION_FILE}")
    return newest


def _as_asked(offer: Offer, wanted: str | None, source: RsyncSource) -> Offer:
    if wanted is not None and offer.version is not None and offer.version != wanted:
        where = ", ".join(offer.files)
        raise VersionMismatchError(requested=wanted, found=offer.version, where=where)
    return replace(offer, chunk_tensors=source.chunk_tensors, whole=source.whole, unwritten=source.unwritten)


@typed
@dataclass(frozen=True)
class GdrSource(RsyncSource):
    """One rank's way to the versions of a trainer, for models with loaders.

    Parameters
    ----------
    transport, rank, world_size, directory, chunk_tensors, whole, unwritten
        As for :class:`wsm.strategies.RsyncSource`.
    """

    chunk_tensors: Count | None = 16


class Gdr(ByVersion):
    """Load by version, over a transport, through the models' loaders."""

    source_type = GdrSource
    for_loaders = True


class Rsync(ByVersion):
    """Load by version, over a transport."""

    source_type = RsyncSource
    for_loaders = False
