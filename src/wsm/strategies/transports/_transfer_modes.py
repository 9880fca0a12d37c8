"""By which way a version may travel in one update, and whether that way is open here.

The mode is chosen per command; a mode that is not available is refused before anything is touched. Knows the
transports by name only.
"""

from __future__ import annotations

from collections.abc import Mapping

from wsm.strategies import errors
from wsm.strategies.transports.checkpoint_transfer import Interface

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
    lacking = _lacking_device()
    reaches_devices = transport == "checkpoint_transfer" and lacking is None
    available = list(INTERFACES if reaches_devices else _ON_THE_HOST)
    if mode not in INTERFACES:
        raise errors.transfer_mode_unavailable(
            mode=mode, problem="there is no such mode", available=available
        )
    if transport != "checkpoint_transfer":
        raise errors.transfer_mode_unavailable(
            mode=mode, problem=f"{transport} has its own", available=available
        )
    if lacking is not None:
        raise errors.transfer_mode_unavailable(mode=mode, problem=lacking, available=available)


def _lacking_device() -> str | None:
    """Say what this process lacks of a device; None if it has one."""
    try:
        import paddle  # noqa: PLC0415 - a second of import time, in a process that has it already
    except ImportError:
        return "paddle is not installed"
    if not paddle.is_compiled_with_cuda():
        return "paddle is built without CUDA"
    return None if paddle.device.cuda.device_count() else "paddle sees no GPU"
