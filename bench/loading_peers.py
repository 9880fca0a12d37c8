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

from bench.loading_model import Model
from bench.loading_ways import PART_BYTES, Once, Way
from wsm.strategies import publish_snapshot


@contextmanager
def memcpy(model: Model, _: Path) -> Iterator[Once]:
    """One thread that copies as many bytes from memory to memory."""
    source, target = np.ones(model.total, np.uint8), np.zeros(model.total, np.uint8)
    yield lambda: _seconds(lambda: np.copyto(target, source))


@contextmanager
def memcpy_on_two_threads(model: Model, _: Path) -> Iterator[Once]:
    """Two threads that copy a half each."""
    source, target = np.ones(model.total, np.uint8), np.zeros(model.total, np.uint8)
    half = model.total // 2

    def both() -> None:
        other = threading.Thread(target=np.copyto, args=(target[half:], source[half:]))
        other.start()
        np.copyto(target[:half], source[:half])
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
    "paddle.load and set_value": paddle_load,
    "FastDeploy's part loop": part_loop,
}


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
