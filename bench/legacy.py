"""FastDeploy's legacy control schedule, re-enacted with real processes and a real shared int32 word.

What is re-enacted is only when each side looks and sleeps; the work itself is empty on both sides of the
comparison. The facts: the client writes CLEARING (or UPDATING), looks every second until the answer is
there, sleeps once more after the look that succeeded and once at the end; a worker looks at the word in each
turn of its loop, spins in 10 ms sleeps until the state is reached, and while cleared looks once a second.
"""

from __future__ import annotations

import mmap
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.environment import parent_lives

NORMAL, UPDATING, CLEARING, CLEARED = 0, 1, -1, -2

_CLIENT_POLL_S = 1.0
_CLIENT_TAIL_S = 1.0
_WORKER_SPIN_S = 0.01
_WORKER_TURN_S = 0.001
_WORKER_CLEARED_POLL_S = 1.0


class SharedWord:
    """An int32 in a file under ``/dev/shm``, as several processes see it."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 4)
        self._cells = memoryview(self._map).cast("i")

    @property
    def value(self) -> int:
        """The word."""
        return self._cells[0]

    @value.setter
    def value(self, value: int) -> None:
        self._cells[0] = value


def measure_cycles(cycles: int, *, ranks: int = 2) -> list[float]:
    """Return the seconds of `cycles` times clear and update, as the client sees them."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="wsm-bench-") as file:
        path = Path(file.name)
        path.write_bytes(bytes(4))
        word = SharedWord(path)
        workers = [
            subprocess.Popen(  # noqa: S603 - our own module under our own interpreter
                [sys.executable, "-m", "bench.legacy", str(path), str(rank)], stdin=subprocess.PIPE
            )
            for rank in range(ranks)
        ]
        try:
            return [_client_cycle(word) for _ in range(cycles)]
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
                if worker.stdin is not None:
                    worker.stdin.close()


def _client_cycle(word: SharedWord) -> float:
    began = time.perf_counter()
    for command, done in ((CLEARING, CLEARED), (UPDATING, NORMAL)):
        word.value = command
        reached = False
        while not reached:
            reached = word.value == done
            time.sleep(_CLIENT_POLL_S)
        time.sleep(_CLIENT_TAIL_S)
    return time.perf_counter() - began


def _worker(word: SharedWord, rank: int) -> None:
    """One worker's event loop; rank 0 answers. It is killed when the measurement is over."""
    while parent_lives():
        signal = word.value
        if signal in (CLEARING, UPDATING):
            target = CLEARED if signal == CLEARING else NORMAL
            if rank == 0:
                word.value = target
            while word.value != target:
                time.sleep(_WORKER_SPIN_S)
            while word.value == CLEARED:
                time.sleep(_WORKER_CLEARED_POLL_S)
        else:
            time.sleep(_WORKER_TURN_S)


if __name__ == "__main__":
    _worker(SharedWord(Path(sys.argv[1])), int(sys.argv[2]))
