"""How much memory this process really occupies, and handing back what is unused.

The kernel counts a process's own pages, paddle what its allocator has taken from a device.
:func:`available_bytes` is the kernel's estimate within the limits of ``/proc`` and of the control groups
(version 2, and 1 beside it). A file that is not there, or not for this user, is no limit; one that cannot be
read for want of descriptors or memory may be any, so there is no figure then.
"""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from wsm.actions.backends import call_missing, required_call

_STATUS = Path("/proc/self/status")


class HostMemory:
    """The memory of a process on a CPU, as the Linux kernel counts it; all ranks of a node share it.

    Pages of mapped files do not count: the kernel takes them back when it likes. Needs no paddle.
    """

    shared_by_ranks = True

    def resident_bytes(self) -> int:
        """Bytes of anonymous and shared-memory pages (``RssAnon`` and ``RssShmem`` of ``proc(5)``)."""
        fields = _fields(_STATUS)
        return (fields["RssAnon:"] + fields["RssShmem:"]) * 1024

    def figures(self) -> Mapping[str, int]:
        """Bytes that are resident now, and were at most (``VmHWM``)."""
        return {"resident": self.resident_bytes(), "peak_resident": _fields(_STATUS)["VmHWM:"] * 1024}

    def available_bytes(self) -> int | None:
        """Bytes that may still be taken from the host, within every limit on it; None: unreadable."""
        return available_bytes()

    def empty_cache(self) -> None:
        """Return free blocks of the C heap to the kernel; without glibc there is nothing to call. Idempotent.

        Without the trim, freeing 300 MiB of tensors below 128 KiB returned nothing (paddle 3.3).
        """
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


class DeviceMemory:
    """The memory that paddle's allocator has taken from this process's device: CUDA's, or a custom one.

    `device` is used in place of ``paddle.device``. Each rank has a device of its own.

    Raises
    ------
    BadInputError (``call-missing``)
        If this build of paddle has no allocator of a device to ask, or sees no device.
    """

    shared_by_ranks = False

    def __init__(self, device: Any = None) -> None:
        self._device = _paddle_device() if device is None else device
        for call in _MEASURES:
            required_call(self._device, call, needed_for="measuring a device's memory")

    def figures(self) -> Mapping[str, int]:
        """Bytes that the allocator has given out and holds, now and at most, as far as paddle says."""
        calls = {
            "allocated": "memory_allocated",
            "reserved": "memory_reserved",
            "peak_allocated": "max_memory_allocated",
            "peak_reserved": "max_memory_reserved",
        }
        found = {name: getattr(self._device, call, None) for name, call in calls.items()}
        return {name: int(call()) for name, call in found.items() if call is not None}

    def resident_bytes(self) -> int:
        """Bytes that the allocator holds of the device, in use or cached."""
        return int(self._device.memory_reserved())

    def available_bytes(self) -> int | None:
        """Bytes of the device that this process does not use; None if paddle cannot say.

        What other processes hold of the device is not known to paddle: a device per rank is assumed.
        """
        if not all(hasattr(self._device, call) for call in ("get_device_properties", "memory_allocated")):
            return None
        total = int(self._device.get_device_properties().total_memory)
        return total - int(self._device.memory_allocated())

    def empty_cache(self) -> None:
        """Return cached blocks to the device. Synchronizes. Idempotent."""
        self._device.empty_cache()


#: What measures a device.
_MEASURES = ("memory_reserved", "empty_cache")


def _paddle_device() -> Any:
    """Return what has the calls of this build's device; builds before paddle 3 have them for CUDA alone."""
    import paddle  # noqa: PLC0415 - only processes with a device pay for the import

    generic = all(hasattr(paddle.device, call) for call in _MEASURES)
    if not generic and not paddle.is_compiled_with_cuda():
        raise call_missing(
            owner="this build of paddle",
            call="CUDA or custom device",
            needed_for="measuring a device's memory",
        )
    device = paddle.device if generic else paddle.device.cuda
    if not device.device_count():  # the measuring call would end in an error of the driver's
        raise call_missing(
            owner="this machine", call="GPU or custom device", needed_for="measuring a device's memory"
        )
    return device


_MOUNT = "sys/fs/cgroup"


#: What says nothing about the file that was to be read.
_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def available_bytes(root: Path = Path("/")) -> int | None:
    """Return the bytes that can be taken without swapping, and without passing a limit; None: not known."""
    try:
        estimate = _fields(root / "proc/meminfo").get("MemAvailable:")
        return None if estimate is None else max(0, min([estimate * 1024, *_left_in_groups(root)]))
    except OSError:
        return None


def _left_in_groups(root: Path) -> Iterator[int]:
    """Iterate over what every limited group that this process is in has left, its own and those above."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from _left(root / _MOUNT, path, "memory.max", "memory.current", "")
        elif "memory" in controllers.split(","):
            mount = root / _MOUNT / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
            yield from _left(mount, path, *names)


def _left(mount: Path, path: str, limit: str, usage: str, prefix: str) -> Iterator[int]:
    inside = PurePosixPath(path.lstrip("/"))
    # A container often sees its own group at the mount itself, whatever the path says.
    for group in dict.fromkeys((inside, *inside.parents, PurePosixPath())):
        directory = mount / group
        bound, used = _number(directory / limit), _number(directory / usage)
        if bound is not None and used is not None:
            # Cached pages of files count as used, and are given up before the limit is passed: also those
            # read more than once, as snapshots are, which the kernel calls active.
            counted = _fields(directory / "memory.stat")
            cached = sum(counted.get(f"{prefix}{kind}_file", 0) for kind in ("inactive", "active"))
            yield bound - used + cached


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None  # no such group, no right to look, or "max"


def _fields(path: Path) -> dict[str, int]:
    """Return the second word of every line that has a number there, by the first."""
    rows = [line.split() for line in _text(path).splitlines()]
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdecimal()}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        if error.errno in _SHORTAGES:
            raise
        return ""
