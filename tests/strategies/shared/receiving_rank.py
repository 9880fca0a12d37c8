"""A rank that loads from buckets, as a process of its own: ADDRESS RANK VERSION POINT.

At POINT it says so, and waits to be killed or stopped: `begun` is before it asks, `applying` when the first
bytes are applied.
"""

from __future__ import annotations

import sys

from wsm.strategies import MemoryTarget, TensorSpec, load
from wsm.strategies.buckets.source import IpcAsyncSource

SPECS = (TensorSpec("a", "U8", (3 << 20,)), TensorSpec("b", "F32", (7, 5)))


def main() -> None:
    address, rank, version, point = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]

    def progress(done: int, total: int) -> None:
        if point == "applying":
            say_and_wait("applying")

    if point == "begun":
        say_and_wait("begun")
    source = IpcAsyncSource(address, rank, world_size=2)
    load(source, MemoryTarget(SPECS), name="ipc_async", version=version, progress=progress)


def say_and_wait(point: str) -> None:
    sys.stdout.write(f"{point}\n")
    sys.stdout.flush()
    sys.stdin.readline()


if __name__ == "__main__":
    main()
