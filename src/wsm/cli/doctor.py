"""``wsm doctor``: what this host has of what wsm can use, and how to get the rest."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import resource
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import click

from wsm import __version__
from wsm.cli._base import answer, command, json_option
from wsm.shared_directory import SHARED_MEMORY, ForeignPathError, private_directory
from wsm.signals.waiting import has_wait_any

#: Extras, what each is for, and the packages that it brings, by the names that are imported.
EXTRAS: Final = {
    "cpu": ("tensors of paddle, FastDeploy", ("paddle",)),
    "torch": ("an engine of torch", ("torch",)),
    "http": ("wsm serve, --url", ("starlette", "uvicorn", "httpx")),
    "metrics": ("wsm metrics", ("prometheus_client",)),
    "otel": ("commands as spans", ("opentelemetry",)),
    "delta": ("the strategy delta", ("zstandard",)),
    "ipc-async": ("the strategy ipc_async", ("zmq",)),
    "mooncake": ("rsync and gdr over Mooncake", ("mooncake",)),
    "testing": ("wsm.testing.hypothesis", ("hypothesis",)),
}

#: Libraries of the system, what they are for, and Debian's packages that bring them.
_LIBRARIES: Final = {
    "libatomic.so.1": ("FastDeploy's words", "libatomic1"),
    "libibverbs.so.1": ("Mooncake's engine", "libibverbs1"),
    "libnuma.so.1": ("Mooncake's engine", "libnuma1"),
    "libcurl.so.4": ("Mooncake's engine", "libcurl4"),
    "libcuda.so.1": ("a GPU of NVIDIA", "the driver of the GPU"),
}

#: A group of eight ranks, its server and its trainer, with room.
_FEW_DESCRIPTORS: Final = 1024


@dataclass(frozen=True)
class HostFact:
    """One thing that was looked at: `ok`, `missing` (a part is out of use) or `wrong` (no group can run)."""

    subject: str
    state: str
    found: str
    fix: str = ""


@command
@json_option("Print the findings as JSON.")
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Show what this host has of what wsm can use, and how to get the rest.

    Looks and changes nothing but the directory of this user in shared memory, which is made if there is none.
    Exits with 1 if no group can run here; what is missing for a part of wsm is no failure.

    Examples
    --------
      wsm doctor
          Python, extras, libraries, shared memory, limits and kernel, a line each
    """
    found = [*_python(), *_extras(), *_libraries(), *_shared_memory(), *_limits(), *_kernel()]
    width = max(len(each.subject) for each in found)
    lines = [
        f"{each.state:<7}  {each.subject:<{width}}  {each.found}" + (f"; {each.fix}" if each.fix else "")
        for each in found
    ]
    answer([asdict(each) for each in found], *lines, as_json=as_json)
    if any(each.state == "wrong" for each in found):
        ctx.exit(1)


def _python() -> Iterator[HostFact]:
    yield HostFact("wsm", "ok", f"{__version__} on Python {platform.python_version()}, {platform.platform()}")


def _extras() -> Iterator[HostFact]:
    versions = importlib.metadata.packages_distributions()
    for extra, (use, names) in EXTRAS.items():
        absent = [name for name in names if importlib.util.find_spec(name) is None]
        if absent:
            found = f"{', '.join(absent)} not installed; for {use}"
            yield HostFact(f"[{extra}]", "missing", found, f"pip install 'wsm[{extra}]'")
            continue
        brought = [min(versions.get(name, [name]), key=len) for name in names]
        yield HostFact(f"[{extra}]", "ok", ", ".join(map(_with_version, brought)))


def _with_version(distribution: str) -> str:
    with suppress(importlib.metadata.PackageNotFoundError):
        return f"{distribution} {importlib.metadata.version(distribution)}"
    return distribution  # it lies on the path, and no installer knows of it


def _libraries() -> Iterator[HostFact]:
    for name, (use, package) in _LIBRARIES.items():
        if _loads(name):
            yield HostFact(name, "ok", "can be loaded")
        else:
            yield HostFact(name, "missing", f"cannot be loaded; for {use}", f"install {package}")


def _loads(library: str) -> bool:
    with suppress(OSError):
        ctypes.CDLL(library)
        return True
    return False


def _shared_memory() -> Iterator[HostFact]:
    try:
        place = private_directory()
        room = os.statvfs(place)
    except (OSError, ForeignPathError) as error:
        yield HostFact(str(SHARED_MEMORY), "wrong", str(error))
        return
    total, free = room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
    fix = "" if free > total // 10 else "remove what is stale there, or give it more (containers: --shm-size)"
    found = f"{free >> 20} of {total >> 20} MiB free, private to this user"
    yield HostFact(str(place), "missing" if fix else "ok", found, fix)


def _limits() -> Iterator[HostFact]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = 0 <= soft < _FEW_DESCRIPTORS
    fix = f"ulimit -n {_FEW_DESCRIPTORS} or more" if few else ""
    yield HostFact("open files", "missing" if few else "ok", f"{soft} (at most {hard})", fix)
    yield HostFact("cores", "ok", f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} for this process")
    with suppress(OSError, ValueError):
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        found = "no limit" if limit == "max" else f"{int(limit) >> 20} MiB, shared memory counts as well"
        yield HostFact("memory of the cgroup", "ok", found)


def _kernel() -> Iterator[HostFact]:
    if has_wait_any():
        yield HostFact("futex_waitv", "ok", "ranks sleep until a word changes")
    else:
        fix = "Linux 5.16 or newer, or a container that allows the call"
        yield HostFact("futex_waitv", "missing", "words are looked at each millisecond instead", fix)
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        found = f"deaths are seen by locks alone ({error.strerror})"
        yield HostFact("pidfd_open", "missing", found, "Linux 5.3 or newer, or a container that allows it")
    else:
        yield HostFact("pidfd_open", "ok", "deaths are seen at once")
