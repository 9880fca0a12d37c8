"""What limits ``ipc_snapshot``: reading and digesting the same files, with nothing around it."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import xxhash

from bench.loading_model import Model
from bench.loading_ways import PART_BYTES, Once, Way, warm_target
from wsm.strategies import publish_snapshot
from wsm.strategies.byte_copy import CHUNK_BYTES


def bare_reads(threads: int) -> Way:
    """Return the way of so many threads that read and digest a snapshot's files.

    No header is looked at, no digest compared, and no command could end it.
    """

    @contextmanager
    def way(model: Model, directory: Path) -> Iterator[Once]:
        publish_snapshot(directory, 1, {0: model.state()}, part_bytes=PART_BYTES, durable=False)
        target = warm_target(model)
        tensors = deque(target.writable(spec.name) for spec in model.specs())
        with ExitStack() as stack:
            files = [stack.enter_context(part.open("rb")) for part in sorted(directory.rglob("*.pdparams"))]

            def read(mine: Sequence[tuple[memoryview, int, int]]) -> None:
                for memory, file, begin in mine:
                    digest = xxhash.xxh3_128()
                    for offset in range(0, len(memory), CHUNK_BYTES):
                        chunk = memory[offset : offset + CHUNK_BYTES]
                        os.preadv(file, [chunk], begin + offset)
                        digest.update(chunk)

            places = list(_places(tensors, [file.fileno() for file in files]))

            def on_threads() -> float:
                begun = time.perf_counter()
                others = [
                    threading.Thread(target=read, args=(places[index::threads],))
                    for index in range(1, threads)
                ]
                for other in others:
                    other.start()
                read(places[::threads])
                for other in others:
                    other.join()
                return time.perf_counter() - begun

            yield on_threads

    return way


def _places(tensors: deque[memoryview], files: Sequence[int]) -> Iterator[tuple[memoryview, int, int]]:
    """Say where each tensor is read from; they lie in a row at the end of each file."""
    for file in files:
        begin = os.fstat(file).st_size % PART_BYTES
        while tensors and begin + len(tensors[0]) <= os.fstat(file).st_size:
            yield tensors[0], file, begin
            begin += len(tensors.popleft())
