"""A whole engine on numpy, of one rank: ``python -m examples.numpy_loop wsm.yaml``.

Each line of standard input is a number, each line of output the version and the answer. A new process holds
nothing: its turns are HOLD until the first update has brought a version.
"""

import queue
import sys
import threading

import numpy as np

import wsm
from wsm.actions.backends.memory import HostMemory
from wsm.strategies import MemoryTarget, TensorSpec


class Requests(queue.Queue[str]):
    """What wsm asks of a scheduler. One step answers a request, so none is in flight between two."""

    admitting = True

    def stop_admitting(self) -> None:
        """Leave queued requests where they are."""
        self.admitting = False

    def resume_admitting(self) -> None:
        """Take them again."""
        self.admitting = True

    def is_admitting(self) -> bool:
        """Whether they are taken; wsm looks after each resume, and believes a scheduler without this."""
        return self.admitting

    def in_flight(self) -> int:
        """Count those that run, end them (`abort_all`), or set them aside (`freeze`); return how many."""
        return 0

    abort_all = freeze = in_flight

    def reset_inputs(self) -> None:
        """Drop cached inputs; there are none."""


class Engine:
    """What wsm calls the runner: weights that are bytes, the host's memory, requests."""

    def __init__(self) -> None:
        self.weights = MemoryTarget([TensorSpec("table", "F32", (16,))])
        self.memory, self.requests = HostMemory(), Requests()

    def answer(self, number: int) -> float:
        """Look a number up in the weights."""
        return float(np.frombuffer(self.weights.readable("table"), np.float32)[number % 16])


def read(requests: Requests) -> None:
    """Queue the lines of standard input, and an empty one at its end."""
    for line in sys.stdin:
        requests.put(line)
    requests.put("")


def main(configuration: str) -> None:
    """Serve until standard input ends."""
    engine = Engine()
    threading.Thread(target=read, args=[engine.requests], daemon=True).start()
    with wsm.Worker.from_config(configuration, engine, rank=0) as worker:
        while True:
            if worker.poll() is wsm.HOLD or not engine.requests.admitting:
                continue
            try:
                line = engine.requests.get(timeout=0.001)
            except queue.Empty:
                continue
            if not line:
                return
            with worker.step() as permit:  # this step, whole, is of permit.version
                sys.stdout.write(f"{permit.version} {engine.answer(int(line))}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
