"""Every way of wsm's to load a model, as something that can be done again and again in one process.

Each is a context that prepares source and target and yields a function: it loads once, whole (coverage, copy,
digest of every byte), and returns the seconds. Trainers that stream are processes of their own.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeAlias

from bench.loading_model import Model
from wsm.strategies import (
    IpcAsyncSource,
    IpcSource,
    MemoryTarget,
    SharedTensors,
    SnapshotSource,
    load,
    publish_snapshot,
)
from wsm.strategies.applier import tensor_copy

Once: TypeAlias = Callable[[], float]
Way: TypeAlias = Callable[[Model, Path], AbstractContextManager[Once]]

#: What the snapshots' files are cut into.
PART_BYTES = 64 << 20


class _AnyDigest(str):
    """A digest that equals every other."""

    __slots__ = ()

    def __eq__(self, _: object) -> bool:
        return True

    def __ne__(self, _: object) -> bool:
        return False

    __hash__ = str.__hash__


class _NoDigest:
    """A digest that takes nothing in."""

    def update(self, data: bytes | memoryview, /) -> None:
        """Ignore the bytes."""

    def hexdigest(self) -> str:
        """Return what no comparison refuses."""
        return _AnyDigest("0" * 32)


def load_without_digests() -> None:
    """Let this process digest nothing that it copies: what loading would cost without verification.

    The library has no such mode; this is for measuring alone.
    """
    vars(tensor_copy)["running_digest"] = _NoDigest


def warm_target(model: Model) -> MemoryTarget:
    """Return a target whose memory has been touched."""
    target = MemoryTarget(model.specs())
    for spec in model.specs():
        target.writable(spec.name)[:: 1 << 12] = bytes(-(-spec.nbytes // (1 << 12)))
    return target


def snapshot(threads: int | None = None) -> Way:
    """Return the way of ``ipc_snapshot`` on so many threads, by default as many as a load takes itself."""

    @contextmanager
    def way(model: Model, directory: Path) -> Iterator[Once]:
        publish_snapshot(directory, 1, {0: model.state()}, part_bytes=PART_BYTES, durable=False)
        source = SnapshotSource(directory, 0, device_id=0, shared_directory=None)
        target = warm_target(model)
        yield lambda: load(source, target, version=1, threads=threads).seconds

    return way


@contextmanager
def copied(model: Model, directory: Path) -> Iterator[Once]:
    """``ipc`` into memory that the rank holds."""
    with SharedTensors(directory) as shared:
        shared.publish(1, {0: model.state()})
        source = IpcSource(directory, 0, device_id=0)
        target = warm_target(model)
        yield lambda: load(source, target, name="ipc", version=1).seconds


@contextmanager
def kept(model: Model, directory: Path) -> Iterator[Once]:
    """``ipc`` whose memory a rank without any keeps."""
    with SharedTensors(directory) as shared:
        shared.publish(1, {0: model.state()})
        source = IpcSource(directory, 0, device_id=0)

        def once() -> float:
            target = MemoryTarget(model.specs(), adopting=True)
            return load(source, target, name="ipc", version=1).seconds

        yield once


@contextmanager
def streamed(model: Model, directory: Path) -> Iterator[Once]:
    """``ipc_async`` from a trainer that is a process of its own."""
    address = f"ipc://{directory}/buckets"
    command = [sys.executable, "-m", "bench.sending_process", address, str(model.count), str(model.nbytes)]
    target = warm_target(model)
    version = 0

    def once() -> float:
        nonlocal version
        version += 1
        trainer.stdin.write(b"\n")  # type: ignore[union-attr]  # it is a pipe
        trainer.stdin.flush()  # type: ignore[union-attr]  # it is a pipe
        source = IpcAsyncSource(address, 0, world_size=1)
        return load(source, target, name="ipc_async", version=version).seconds

    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as trainer:  # noqa: S603 - our own program
        try:
            trainer.stdout.readline()  # type: ignore[union-attr]  # it is a pipe
            yield once
        finally:
            trainer.stdin.close()  # type: ignore[union-attr]  # it is a pipe
            trainer.wait()


WAYS: Mapping[str, Way] = {
    "ipc_snapshot": snapshot(),
    "ipc_snapshot, one thread": snapshot(1),
    "ipc, copied": copied,
    "ipc, kept": kept,
    "ipc_async": streamed,
}
