"""Copying and digesting different tensors on several threads, the calling one among them.

What reads a tensor and what digests it let go of the interpreter's lock, so threads help as far as memory
does. Only bytes move on other threads: targets, observers and whatever they call are the calling thread's
own. The first error ends all of it, and no thread is left when :func:`copy_on_threads` is. Knows no targets.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from wsm.strategies.applier.tensor_copy import Steps, copy_tensor, digest_tensor
from wsm.strategies.offer import OfferedTensor

# How long the calling thread waits for the others between two looks at cancellation.
_GLANCE_S = 0.02
# A tensor larger than this part of all begins first: were it the last, the others would wait for it.
_LARGE_PART = 32


#: More threads of one rank than this gain nothing: they fill any memory bus.
MOST_THREADS = 8


def default_threads(ranks: int = 1) -> int:
    """Return how many threads a load uses by default: this rank's part of the cores, 1 to 8.

    Parameters
    ----------
    ranks : int
        How many ranks of this host load at the same time. They share the cores that this process may run on.
    """
    return max(1, min(MOST_THREADS, len(os.sched_getaffinity(0)) // ranks))


@dataclass
class CopyJob:
    """One tensor to bring into memory, or to digest where it lies.

    Parameters
    ----------
    tensor : OfferedTensor
        What to read.
    memory : memoryview
        Where its bytes belong, or lie already.
    kept : bool
        Whether they lie there already.
    digest : str
        Digest of its bytes, once the job is done.
    """

    tensor: OfferedTensor
    memory: memoryview
    kept: bool
    digest: str = ""

    def run(self, steps: Steps) -> None:
        """Do it. Blocks."""
        work = digest_tensor if self.kept else copy_tensor
        self.digest = work(self.tensor, self.memory, steps)


def copy_on_threads(jobs: Sequence[CopyJob], threads: int, steps: Steps) -> None:
    """Do all `jobs`. Blocks until every thread has ended, also if it raises.

    Parameters
    ----------
    jobs : sequence of CopyJob
        Of an offer that may be read in parallel.
    threads : int
        How many at most, the calling one included.
    steps : Steps
        Called from the calling thread alone, for what all threads do.

    Raises
    ------
    BaseException
        Whatever went wrong first.
    """
    crew, helping = _Crew(jobs, steps), min(threads, len(jobs)) - 1
    if helping < 1:
        crew.lead(())
    else:
        with ThreadPoolExecutor(helping, thread_name_prefix="wsm-load") as pool:
            try:
                crew.lead([pool.submit(crew.help, index) for index in range(helping)])
            finally:
                crew.stop()
    crew.raise_first_error()


class _StoppedError(Exception):
    """Another thread's error ended this one's work."""


class _Crew:
    """Threads that take jobs off one queue."""

    def __init__(self, jobs: Sequence[CopyJob], steps: Steps) -> None:
        total = sum(len(job.memory) for job in jobs)
        # Apart from the largest, tensors are read in the source's own order, which disks are fastest in.
        self._jobs = deque(sorted(jobs, key=lambda job: -len(job.memory) if _large(job, total) else 0))
        self._steps = steps
        self._stopped = threading.Event()
        self._first = threading.Lock()
        self._error: BaseException | None = None
        self._moved: dict[int, int] = {}
        self._told = 0

    def lead(self, helpers: Sequence[Future[None]]) -> None:
        """Work in the calling thread, then wait for the others."""
        try:
            self._work(self)
            while wait(helpers, _GLANCE_S).not_done:
                self.moved(0)
                self.go_on()
            self.moved(0)
        except BaseException as error:  # noqa: BLE001 - raised again once all threads have ended
            self._fail(error)

    def help(self, index: int) -> None:
        """Work in a thread of its own."""
        try:
            self._work(_HelperSteps(self._stopped, self._moved, index))
        except BaseException as error:  # noqa: BLE001 - the calling thread raises it
            self._fail(error)

    def stop(self) -> None:
        """Let every thread end at its next chunk. Idempotent."""
        self._stopped.set()

    def raise_first_error(self) -> None:
        """Raise what went wrong first, if anything did, and forget it: its traceback holds every tensor."""
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error

    def go_on(self) -> None:
        """Tell the calling thread whether to go on: no thread failed, and the caller still wants it."""
        if self._stopped.is_set():
            raise _StoppedError
        self._steps.go_on()

    def moved(self, nbytes: int) -> None:
        """Take in a chunk of the calling thread, and pass on what the others did meanwhile."""
        others = sum(self._moved.values())
        if nbytes or others > self._told:
            self._steps.moved(nbytes + others - self._told)
            self._told = others

    def _work(self, steps: Steps) -> None:
        while True:
            try:
                job = self._jobs.popleft()
            except IndexError:
                return
            steps.go_on()
            job.run(steps)

    def _fail(self, error: BaseException) -> None:
        with self._first:
            if self._error is None and not isinstance(error, _StoppedError):
                self._error = error
        self._stopped.set()


class _HelperSteps:
    """What a helping thread is told, and tells."""

    def __init__(self, stopped: threading.Event, moved: dict[int, int], index: int) -> None:
        self._stopped = stopped
        self._moved = moved
        self._index = index
        moved[index] = 0

    def go_on(self) -> None:
        if self._stopped.is_set():
            raise _StoppedError

    def moved(self, nbytes: int) -> None:
        self._moved[self._index] += nbytes


def _large(job: CopyJob, total: int) -> bool:
    return len(job.memory) * _LARGE_PART > total
