"""Plays many cases in batch processes, and ends those that hang. Knows names and results, no groups."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any

from campaign.case import Case
from campaign.environment import victims_environment
from campaign.leftovers import remove_batch
from campaign.result import Result

#: No case takes that long unless something hangs that no deadline of the campaign's own has caught.
CASE_LIMIT_S = 240.0

#: Seconds that a batch may take to end its group when it is asked to.
_END_S = 20.0


class Batches:
    """The batch processes that run, to be ended by signals. Safe for threads and signal handlers."""

    def __init__(self) -> None:
        self.are_over = False
        self._running: dict[int, subprocess.Popen[str]] = {}

    @contextlib.contextmanager
    def start(self, arguments: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
        """Run one batch process; what it leaves, ended or killed in mid-case, is removed on leaving."""
        batch = subprocess.Popen(  # noqa: S603 - our own module under our own interpreter
            arguments,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=victims_environment(),
            **options,
        )
        self._running[batch.pid] = batch
        if self.are_over:
            batch.terminate()
        try:
            with batch:
                yield batch
        finally:
            del self._running[batch.pid]
            if batch.returncode:
                remove_batch(batch.pid)

    def end(self) -> None:
        """Ask every batch to end its group and itself; blocks, and kills those that do not. No more begin."""
        self.are_over = True
        running = list(self._running.values())
        for batch in running:
            batch.terminate()
        deadline = time.monotonic() + _END_S
        for batch in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                batch.wait(max(deadline - time.monotonic(), 0.0))
            if batch.poll() is None:
                kill_batch(batch)

    def kill(self) -> None:
        """Kill every batch, ranks and all: they die with it."""
        self.are_over = True
        for batch in list(self._running.values()):
            kill_batch(batch)


def kill_batch(batch: subprocess.Popen[str]) -> None:
    """Kill a batch process and what it started in its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(batch.pid, signal.SIGKILL)


def list_cases(
    kind: str, ranks: int, family: str = "commands", *, batches: Batches | None = None
) -> list[Case]:
    """Ask a batch process for all cases of one family on one kind of group.

    Raises
    ------
    subprocess.CalledProcessError
        If the group does not even run without faults.
    """
    with (batches or Batches()).start([*_batch(kind, ranks), "--list", family]) as batch:
        listed = batch.communicate()[0]
    if batch.returncode:
        raise subprocess.CalledProcessError(batch.returncode, batch.args)
    return [Case.parse(line) for line in listed.splitlines()]


def play_all(
    cases: Sequence[Case],
    *,
    jobs: int,
    tell: Callable[[Result], object],
    batches: Batches | None = None,
) -> list[Result]:
    """Play the cases, `jobs` batches at once; `tell` is called with each result, in one thread at a time."""
    batches = batches or Batches()
    results: list[Result] = []
    told = threading.Lock()
    work: queue.SimpleQueue[list[Case]] = queue.SimpleQueue()
    for chunk in _chunks(cases, jobs):
        work.put(chunk)

    def take(result: Result) -> None:
        with told:
            results.append(result)
            tell(result)

    def work_off() -> None:
        while not work.empty() and not batches.are_over:
            try:
                chunk = work.get_nowait()
            except queue.Empty:
                return
            _play_chunk(chunk, take, batches)

    threads = [threading.Thread(target=work_off) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def _chunks(cases: Iterable[Case], jobs: int) -> list[list[Case]]:
    """Split into batches of one kind of group each; larger ones first."""
    groups: dict[tuple[str, int], list[Case]] = defaultdict(list)
    for case in cases:
        groups[case.kind, case.ranks].append(case)
    chunks = []
    for members in groups.values():
        size = -(-len(members) // jobs)
        chunks += [members[start : start + size] for start in range(0, len(members), size)]
    return sorted(chunks, key=len, reverse=True)


def _play_chunk(cases: list[Case], take: Callable[[Result], None], batches: Batches) -> None:
    left = list(cases)
    while left and not batches.are_over:
        done = _run_batch(left, take, batches)
        left = left[done:]


def _run_batch(cases: list[Case], take: Callable[[Result], None], batches: Batches) -> int:
    """Run one batch process; return how many cases are done with, a hanging or fatal one included."""
    done, begun = 0, ""
    with batches.start(_batch(cases[0].kind, cases[0].ranks), stdin=subprocess.PIPE) as batch:
        assert batch.stdin is not None  # noqa: S101 - it was asked for
        assert batch.stdout is not None  # noqa: S101 - it was asked for
        feeder = threading.Thread(target=_feed, args=(batch.stdin, cases), daemon=True)
        feeder.start()
        watchdog = _Watchdog(batch)
        try:
            for line in batch.stdout:
                watchdog.feed()
                if line.startswith("begin "):
                    begun = line[6:].strip()
                else:
                    result = Result.from_line(line)
                    take(result)
                    done += not result.case.endswith("/end")
        finally:
            watchdog.end()
            feeder.join()
            code = batch.wait()
    if (done == len(cases) and code == 0) or batches.are_over:
        return done
    why = f"nothing was heard for {CASE_LIMIT_S:g} s" if watchdog.bit else f"its process ended with {code}"
    take(Result(begun or str(cases[0]), "hang" if watchdog.bit else "crashed", problems=[why]))
    return done + 1


class _Watchdog:
    """Ends a batch process that says nothing for too long."""

    def __init__(self, batch: subprocess.Popen[str]) -> None:
        self._batch = batch
        self._timer: threading.Timer | None = None
        self.bit = False
        self.feed()

    def feed(self) -> None:
        self.end()
        self._timer = threading.Timer(CASE_LIMIT_S, self._bite)
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _bite(self) -> None:
        self.bit = True
        kill_batch(self._batch)


def _feed(stdin: IO[str], cases: list[Case]) -> None:
    with contextlib.suppress(BrokenPipeError):  # the batch ended early; the reader of its answers sees that
        stdin.writelines(f"{case}\n" for case in cases)
        stdin.close()


def _batch(kind: str, ranks: int) -> list[str]:
    return [sys.executable, "-m", "campaign.batch", kind, str(ranks)]
