"""Plays many cases in batch processes, and ends those that hang. Knows names and results, no groups."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import IO

from campaign.case import Case
from campaign.environment import victims_environment
from campaign.leftovers import remove_leftovers
from campaign.result import Result

#: No case takes that long unless something hangs that no deadline of the campaign's own has caught.
CASE_LIMIT_S = 240.0


def list_cases(kind: str, ranks: int, family: str = "commands") -> list[Case]:
    """Ask a batch process for all cases of one family on one kind of group.

    Raises
    ------
    subprocess.CalledProcessError
        If the group does not even run without faults.
    """
    listed = subprocess.run(  # noqa: S603 - our own module under our own interpreter
        [*_batch(kind, ranks), "--list", family],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=victims_environment(),
    )
    return [Case.parse(line) for line in listed.stdout.splitlines()]


def play_all(cases: Sequence[Case], *, jobs: int, tell: Callable[[Result], object]) -> list[Result]:
    """Play the cases, `jobs` batches at once; `tell` is called with each result, in one thread at a time."""
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
        while not work.empty():
            try:
                chunk = work.get_nowait()
            except queue.Empty:
                return
            _play_chunk(chunk, take)

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


def _play_chunk(cases: list[Case], take: Callable[[Result], None]) -> None:
    left = list(cases)
    while left:
        done = _run_batch(left, take)
        left = left[done:]


def _run_batch(cases: list[Case], take: Callable[[Result], None]) -> int:
    """Run one batch process; return how many cases are done with, a hanging or fatal one included."""
    batch = subprocess.Popen(  # noqa: S603 - our own module under our own interpreter
        _batch(cases[0].kind, cases[0].ranks),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=victims_environment(),
    )
    assert batch.stdin is not None  # noqa: S101 - it was asked for
    assert batch.stdout is not None  # noqa: S101 - it was asked for
    threading.Thread(target=_feed, args=(batch.stdin, cases), daemon=True).start()
    watchdog = _Watchdog(batch)
    done, begun = 0, ""
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
        batch.stdout.close()
        code = batch.wait()
    if done == len(cases) and code == 0:
        return done
    remove_leftovers(f"campaign-{batch.pid}-")
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
        os.killpg(self._batch.pid, signal.SIGKILL)


def _feed(stdin: IO[str], cases: list[Case]) -> None:
    try:
        stdin.writelines(f"{case}\n" for case in cases)
        stdin.close()
    except BrokenPipeError:
        pass  # the batch ended early; whoever reads its answers sees that


def _batch(kind: str, ranks: int) -> list[str]:
    return [sys.executable, "-m", "campaign.batch", kind, str(ranks)]
