"""How fast each strategy loads, beside the speed at which this machine copies memory, in one run.

Everything is warm: source and target have been touched before, files are in the page cache. Every load is a
whole one (coverage, copy, digest of every byte). The trainer that streams is a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.measure import Distribution
from wsm.strategies import (
    IpcAsyncSource,
    IpcSource,
    MemoryTarget,
    SharedTensors,
    SnapshotSource,
    TensorSpec,
    load,
    publish_snapshot,
)


@dataclass(frozen=True)
class Model:
    """A model of `count` tensors of `nbytes` each."""

    count: int
    nbytes: int

    @property
    def total(self) -> int:
        """Bytes of all tensors."""
        return self.count * self.nbytes

    def specs(self) -> list[TensorSpec]:
        """Return the tensors."""
        return [TensorSpec(f"layer.{index}.weight", "U8", (self.nbytes,)) for index in range(self.count)]

    def state(self) -> dict[str, tuple[TensorSpec, bytes]]:
        """Return the tensors with bytes; they share them, as reading is what is measured."""
        content = np.random.default_rng(0).bytes(self.nbytes)
        return {spec.name: (spec, content) for spec in self.specs()}


@dataclass(frozen=True)
class Loading:
    """What one way to load took.

    Parameters
    ----------
    way : str
        The strategy, and what became of the memory.
    ms : Distribution
        Milliseconds of a whole load.
    of_memcpy : float
        Its speed as a part of that of one thread that copies as many bytes: best against best, and the two
        took turns, so that a busy machine slows both down.
    """

    way: str
    ms: Distribution
    of_memcpy: float


def measure_loading(model: Model, repeats: int) -> list[Loading]:
    """Measure two threads that copy, and every strategy, each in turns with one thread that copies."""
    one, two = _copies(model)
    found = [_measured("memcpy, two threads", two, one, repeats)]
    with tempfile.TemporaryDirectory(prefix="wsm-bench-") as directory:
        for way, measure in _WAYS.items():
            with measure(model, Path(directory)) as once:
                found.append(_measured(way, once, one, repeats))
    return found


def _measured(way: str, once: Callable[[], float], memcpy: Callable[[], float], repeats: int) -> Loading:
    once()  # touches every page
    memcpy()
    loads, copies = zip(*((once(), memcpy()) for _ in range(repeats)), strict=True)
    return Loading(way, Distribution.of([seconds * 1e3 for seconds in loads]), min(copies) / min(loads))


def _copies(model: Model) -> tuple[Callable[[], float], Callable[[], float]]:
    source, target = np.ones(model.total, np.uint8), np.zeros(model.total, np.uint8)
    half = model.total // 2

    def one() -> float:
        begun = time.perf_counter()
        np.copyto(target, source)
        return time.perf_counter() - begun

    def two() -> float:
        begun = time.perf_counter()
        other = threading.Thread(target=np.copyto, args=(target[half:], source[half:]))
        other.start()
        np.copyto(target[:half], source[:half])
        other.join()
        return time.perf_counter() - begun

    return one, two


@contextmanager
def _snapshot(model: Model, directory: Path) -> Iterator[Callable[[], float]]:
    publish_snapshot(directory / "snapshots", 1, {0: model.state()}, durable=False)
    source = SnapshotSource(directory / "snapshots", 0, device_id=0, shared_directory=None)
    target = MemoryTarget(model.specs())
    yield lambda: load(source, target, version=1).seconds


@contextmanager
def _copied(model: Model, directory: Path) -> Iterator[Callable[[], float]]:
    with SharedTensors(directory / "metas") as shared:
        shared.publish(1, {0: model.state()})
        source = IpcSource(directory / "metas", 0, device_id=0)
        target = MemoryTarget(model.specs())
        yield lambda: load(source, target, name="ipc", version=1).seconds


@contextmanager
def _kept(model: Model, directory: Path) -> Iterator[Callable[[], float]]:
    with SharedTensors(directory / "metas") as shared:
        shared.publish(1, {0: model.state()})
        source = IpcSource(directory / "metas", 0, device_id=0)

        def once() -> float:
            target = MemoryTarget(model.specs(), adopting=True)
            return load(source, target, name="ipc", version=1).seconds

        yield once


@contextmanager
def _streamed(model: Model, directory: Path) -> Iterator[Callable[[], float]]:
    address = f"ipc://{directory}/buckets"
    command = [sys.executable, "-m", "bench.sending_process", address, str(model.count), str(model.nbytes)]
    target = MemoryTarget(model.specs())
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


_WAYS = {
    "ipc_snapshot": _snapshot,
    "ipc, copied": _copied,
    "ipc, kept": _kept,
    "ipc_async": _streamed,
}
