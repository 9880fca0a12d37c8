"""The strategies ``rsync`` and ``gdr``: versions by their names, over a transport that a configuration names.

What both share finds out which version is meant, lets the transport offer it, and holds the offer against
what was asked for. ``rsync`` brings one rank's shard. ``gdr`` feeds a version to the loaders of the models
while it comes, which FastDeploy calls GPU-direct: nothing is collected first, each tensor goes from the
transport's buffer into the parameter. The model's own loaders fuse, split and transpose; a model without
loaders gets the tensors by name, as with ``rsync``. A command may choose between the two by its transfer
mode, as FastDeploy's does; one that is not available is refused before anything is touched.

A transport is all that differs between CheckpointTransfer, Mooncake's engine and files. Setting one up takes
long (sockets, registered memory), so it keeps its connection, and is closed after an error. Applies nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

from wsm import log
from wsm.config_reading import OptionFault, typed_section
from wsm.errors import BadInputError
from wsm.named import NamedObjects
from wsm.strategies import errors
from wsm.strategies.conversation import Wanted
from wsm.strategies.errors import listed
from wsm.strategies.files.shard_source import device_index_from_environment, place_fault
from wsm.strategies.files.snapshot_names import VERSION_FILE
from wsm.strategies.observer import UNOBSERVED, LoadObserver
from wsm.strategies.offer import Offer
from wsm.strategies.strategy import Sections, Strategy
from wsm.strategies.trainer.publications import newest_version
from wsm.strategies.transports.checkpoint_transfer import (
    CACHE_AS_CONFIGURED,
    CHECKS,
    CheckpointTransferOptions,
    CheckpointTransferTransport,
    Interface,
)
from wsm.typed import Count, CountFrom0, typed

_log = log.logger("strategies")


class Transport(Protocol):
    """One rank's connection to the process that has versions. Used by one load at a time, from any thread.

    Every wait in it has a deadline of its own, and sees ``observer.cancelled()``.
    """

    @property
    def name(self) -> str:
        """What a configuration calls it."""
        ...

    def open(self, wanted: Wanted, observer: LoadObserver) -> AbstractContextManager[Offer]:
        """Connect if need be, and offer the shard of the rank. Blocks until it is known what will come.

        Leaving the context normally says that every tensor was applied and verified; leaving it with an
        exception, that the load has failed. The connection stays in both cases; the strategy closes it after
        an exception.

        Parameters
        ----------
        wanted : Wanted
            Rank and version (None: the newest that the transport itself can find), and for how many ranks it
            must have been made, if that is checked. With ``look`` no byte of a tensor moves, and a load can
            follow: a transport that cannot look without receiving offers no tensors, undeclared, and the
            version that it was asked for.
        observer : LoadObserver
            Asked for cancellation during every wait.

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


#: How CheckpointTransfer is called in each mode.
INTERFACES: Mapping[str, Interface] = {
    "host": Interface.STREAM,
    "rdma": Interface.STREAM,
    "ipc": Interface.IPC,
    "gpu_direct": Interface.GPU_DIRECT,
    "gdr": Interface.GPU_DIRECT,
}

#: Modes that need no device: through host memory.
_ON_THE_HOST = ("host", "rdma")


def feeds_loaders(mode: str, *, usually: bool) -> bool:
    """Whether a version in this mode is a checkpoint for the models' loaders; `usually`: in mode ``host``.

    FastDeploy's ``rdma`` brings a rank's own tensors by their names; what comes over a device's memory is for
    the loaders.
    """
    return usually if mode == "host" else mode != "rdma"


def check_transfer_mode(mode: str, transport: str) -> None:
    """Refuse a mode in which a transport cannot bring a checkpoint. Imports paddle if it takes a device.

    Raises
    ------
    RefusedError
        If there is no such mode, or it needs what is not there.
    """
    if mode in _ON_THE_HOST:
        return
    problem = lacking = _lacking_device()
    reaches_devices = transport == "checkpoint_transfer" and lacking is None
    available = tuple(INTERFACES if reaches_devices else _ON_THE_HOST)
    if mode not in INTERFACES:
        problem = "there is no such mode"
    elif transport != "checkpoint_transfer":
        problem = f"{transport} has its own"
    if problem is not None:
        raise errors.transfer_mode_unavailable(mode=mode, problem=problem, available=available)


def _lacking_device() -> str | None:
    """Say what this process lacks of a device; None if it has one."""
    try:
        import paddle  # noqa: PLC0415 - a second of import time, in a process that has it already
    except ImportError:
        return "paddle is not installed"
    if not paddle.is_compiled_with_cuda():
        return "paddle is built without CUDA"
    return None if paddle.device.cuda.device_count() else "paddle sees no GPU"


@typed_section
@dataclass(frozen=True)
class RsyncConfig:
    """How the strategies ``rsync`` and ``gdr`` reach a trainer's versions.

    Parameters
    ----------
    transport : str
        ``checkpoint_transfer``; ``mooncake``, which has a section of its own; or ``files``, for ``gdr``:
        whole versions that are published in `directory`, as adopted ones are.
    directory : str or None
        Its ``version.yaml`` says which version a boot loads (FastDeploy: the model directory), else what was
        published last into it; None where every command names one, or the transport knows the newest.
    verify_checksum : bool
        Whether a stream must bring its manifest, so that every tensor is verified; without it what a trainer
        that does not know wsm sends is applied unverified, and the receipt says so.
    requires_manifest : bool or None
        Whether a stream is refused that brings no manifest; None: as `verify_checksum` says. False leaves
        `verify_checksum` to the package, as in FastDeploy: a manifest that comes is held to all the same.
    keep : bool
        Whether a released parameter may keep memory that CheckpointTransfer handed over, instead of a copy.
        Only for builds that never write to it again.
    transfer_mode : str or None
        By which way versions travel where the command does not say
        (:class:`wsm.states.vocabulary.TransferMode`); None: as `rsync_config` says, else ``host``.
    rsync_config : mapping
        For ``checkpoint_transfer``: FastDeploy's ``rsync_config``, as it is.
    first_rank : int
        The number of the group's first rank among the trainer's receivers, where several groups of a job
        receive side by side (FastDeploy's data-parallel parts).
    job_ranks : int
        Ranks of that whole job; 0: up to this group's last one.
    check : str
        What is done before the first tensor of a model that serves is written, where a stream comes by name:
        ``whole``, all of it is collected in host memory and held against the model; ``as_it_comes``, each
        tensor is when it comes, and a stream that does not fit costs the weights. An `rsync_config` may say
        it, too.
    unwritten : list of str
        Patterns (``lm_head.*``) of parameters that the models' loaders may leave unwritten, in whole or in
        part: padded vocabularies and heads. An `rsync_config` may name more.
    """

    transport: str = "checkpoint_transfer"
    directory: str | None = None
    verify_checksum: bool = True
    requires_manifest: bool | None = None
    keep: bool = False
    transfer_mode: str | None = None
    rsync_config: Mapping[str, Any] = field(default_factory=dict)
    first_rank: CountFrom0 = 0
    job_ranks: CountFrom0 = 0
    check: str = CHECKS[0]
    unwritten: Sequence[str] = ()

    @property
    def mode(self) -> str:
        """The transfer mode of a command that names none."""
        return self.transfer_mode or CheckpointTransferOptions.of(self.rsync_config).transfer_mode or "host"

    def fault(self, ranks: int, *, used: bool) -> OptionFault | None:  # noqa: ARG002 - the same either way
        """Return what is wrong with where the ranks lie; see ``CheckedSection``."""
        if self.check not in CHECKS:
            return OptionFault("check", f"is {self.check!r}", f"use one of {', '.join(CHECKS)}")
        return place_fault(self.first_rank, self.job_ranks, ranks)

    @property
    def checks_whole(self) -> bool:
        """Whether streams are collected before a model that serves is touched."""
        return (CheckpointTransferOptions.of(self.rsync_config).check or self.check) == CHECKS[0]

    def place(self, rank: int, ranks: int) -> tuple[int, int]:
        """Return the number of a rank among all receivers, and how many there are."""
        return self.first_rank + rank, self.job_ranks or self.first_rank + ranks


def _checkpoint_transfer(sections: Sections) -> CheckpointTransferTransport:
    section = sections.of(RsyncConfig)
    return CheckpointTransferTransport(
        CheckpointTransferOptions.of(section.rsync_config),
        interface=INTERFACES[section.mode],
        verify_checksum=section.verify_checksum,
        requires_manifest=section.requires_manifest,
        keep=section.keep,
        device_index=device_index_from_environment(os.environ)
        if "FLAGS_selected_gpus" in os.environ
        else None,
    )


CHECKPOINT_TRANSFER = TransportKind(_checkpoint_transfer, streams=True)


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
        "checkpoint_transfer": "wsm.strategies.transports.by_version:CHECKPOINT_TRANSFER",
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
        self,
        source: RsyncSource,
        version: str | None,
        observer: LoadObserver = UNOBSERVED,
        *,
        look: bool = False,
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
        look : bool
            Only look at what would come.

        Raises
        ------
        BadInputError
            If a directory was to say which version is meant, and does not.
        wsm.errors.WsmError
            What :meth:`Transport.open` raises.
        """
        if version is None and source.directory is not None:
            version = newest_version(source.directory)
            if version is None:
                raise errors.version_file_missing(file=f"{source.directory}/{VERSION_FILE}")
        wanted = Wanted(source.rank, source.world_size, version, look)
        try:
            with source.transport.open(wanted, observer) as offer:
                chunk, whole = source.chunk_tensors, source.whole
                yield replace(offer, chunk_tensors=chunk, whole=whole, unwritten=source.unwritten)
        except BaseException:
            self.close(source)  # the state in which a stream was left is not known
            raise

    def preview(self, source: RsyncSource, version: str | None) -> AbstractContextManager[Offer]:
        """Look at what :meth:`open` would offer."""
        return self.open(source, version, look=True)

    def retired_from(self, sections: Sections) -> str | None:
        """Return the directory that versions are published in, where the transport reads them there."""
        section = sections.of(RsyncConfig)
        kind = self._transports.get(section.transport)
        return section.directory if kind is not None and kind.from_files else None

    def close(self, source: RsyncSource) -> None:
        """Let the transport's connection go. Never raises."""
        try:
            source.transport.close()
        except Exception as error:  # noqa: BLE001 - the load's own error must be seen, not this one
            text = f"{type(error).__name__}: {error}"
            _log.warning(log.TRANSPORT_NOT_CLOSED, transport=source.transport.name, error=text)


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
