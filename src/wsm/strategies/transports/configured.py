"""What a configuration says of transports: by which way a version travels, and whether that way is open here.

The mode is chosen per command; a mode that is not available is refused before anything is touched.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wsm.config_reading import OptionFault, typed_section
from wsm.strategies import errors
from wsm.strategies.files.shard_source import device_index_from_environment, place_fault
from wsm.strategies.strategy import Sections
from wsm.strategies.transports.checkpoint_transfer import (
    CHECKS,
    CheckpointTransferOptions,
    CheckpointTransferTransport,
    Interface,
)
from wsm.strategies.transports.transport import TransportKind
from wsm.typed import CountFrom0

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
