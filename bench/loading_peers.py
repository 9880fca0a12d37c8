"""What wsm's loads are held against: copying memory, and how paddle and FastDeploy load files.

The part loop is written from a description of FastDeploy's, not from its code: parts in ascending order,
each read by ``paddle.load`` as safetensors, every tensor put into its parameter, and the garbage collector
run after every part. Nothing is verified in it. As a context each prepares, and yields what loads once.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bench.loading_limits import bare_reads
from bench.loading_model import Model
from bench.loading_ways import PART_BYTES, Once, Way
from wsm.strategies import publish_snapshot

# More is copied again and again: no cache holds it either, and there is memory left for larger models.
_COPIED_BYTES = 1 << 30


@contextmanager
def memcpy(model: Model, _: Path) -> Iterator[Once]:
    """One thread that copies as many bytes from memory to memory."""
    source, target, times = _to_copy(model)

    def again() -> None:
        for _ in range(times):
            np.copyto(target, source)

    yield lambda: _seconds(again)


@contextmanager
def memcpy_on_two_threads(model: Model, _: Path) -> Iterator[Once]:
    """Two threads that copy a half each."""
    source, target, times = _to_copy(model)
    half = len(source) // 2

    def one(part: slice) -> None:
        for _ in range(times):
            np.copyto(target[part], source[part])

    def both() -> None:
        other = threading.Thread(target=one, args=(slice(half, None),))
        other.start()
        one(slice(half))
        other.join()

    yield lambda: _seconds(both)


@contextmanager
def paddle_load(model: Model, directory: Path) -> Iterator[Once]:
    """``paddle.load`` of one pickle, and ``set_value`` of every tensor."""
    paddle, parameters = _parameters(model)
    path = str(directory / "model.pdparams")
    paddle.save({name: paddle.to_tensor(_array(data)) for name, (_, data) in model.state().items()}, path)

    def all_of_it() -> None:
        for name, value in paddle.load(path).items():
            parameters[name].set_value(value)

    yield lambda: _seconds(all_of_it)


@contextmanager
def part_loop(model: Model, directory: Path) -> Iterator[Once]:
    """FastDeploy's part loop."""
    paddle, parameters = _parameters(model)
    publish_snapshot(directory, 1, {0: model.state()}, part_bytes=PART_BYTES, durable=False)
    parts = sorted(directory.rglob("*.part*.pdparams"), key=_number) or [
        *directory.rglob("model_state*.pdparams")
    ]

    def all_of_it() -> None:
        for part in parts:
            state = paddle.load(str(part), safetensors=True)
            for name, value in state.items():
                parameters[name].set_value(value)
            del state
            gc.collect()

    yield lambda: _seconds(all_of_it)


PEERS: Mapping[str, Way] = {
    "memcpy": memcpy,
    "memcpy, two threads": memcpy_on_two_threads,
    "bare reads, two threads": bare_reads(2),
    "bare reads, one thread": bare_reads(1),
    "paddle.load and set_value": paddle_load,
    "FastDeploy's part loop": part_loop,
}


def _to_copy(
    model: Model,
) -> tuple[np.ndarray[Any, np.dtype[np.uint8]], np.ndarray[Any, np.dtype[np.uint8]], int]:
    """Return a source, a target, and how often to copy it."""
    nbytes = min(model.total, _COPIED_BYTES)
    return np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8), model.total // nbytes


def _parameters(model: Model) -> tuple[Any, dict[str, Any]]:
    import paddle  # noqa: PLC0415 - a second of import time that only these two ways pay

    return paddle, {spec.name: paddle.zeros([spec.nbytes], dtype="uint8") for spec in model.specs()}


def _array(data: memoryview) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.frombuffer(data, np.uint8)


def _number(part: Path) -> int:
    return int(part.name.rpartition(".part")[2].partition(".")[0])


def _seconds(work: Callable[[], None]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun
