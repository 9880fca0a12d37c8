"""The processes of a group: started, watched, killed and reaped, with their logs. Knows no words.

They are those of its ranks, and its KV-cache process, where there is one, which counts as one more. All of
them are started by one thread that lives as long as this object: each asks the kernel to be killed when the
thread that started it is gone.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from examples.rollout.process_life import environment_of_processes
from examples.rollout.run_directory import bound_log, log_path, log_tail, rotate_log
from wsm import log
from wsm.controller.keeper import ProcessEnd
from wsm.status.facts import CacheProcess

#: What the KV-cache process runs.
CACHE_MODULE = "examples.rollout.cache_process"

_END_S = 5.0

#: Longest time between two looks at whether the end is urgent by now, in seconds.
_LOOK_S = 0.05

#: Seconds between two looks at how long the logs are.
_LOGS_S = 1.0


class RankProcesses:
    """One process per rank, or none where it ended and was not replaced; a keeper's :class:`.GroupProcesses`.

    Parameters
    ----------
    group : str
        The group, for the log.
    run_directory : Path
        Where ranks find their configuration and write their logs.
    module, cache_module : str
        What each rank runs, and what the KV-cache process does.
    """

    def __init__(
        self, group: str, run_directory: Path, module: str, cache_module: str = CACHE_MODULE
    ) -> None:
        self._run_directory = run_directory
        self._module = module
        self._cache_module = cache_module
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._descriptors: dict[int, int] = {}
        self._ending = threading.Event()
        self._log_bounds = threading.Thread(target=self._bound_logs, name="wsm-rank-logs", daemon=True)
        self._starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="wsm-rank-starter")
        self._in_haste = False
        self._log = log.logger("rollout.supervisor", group=group)

    def start(self, rank: int, epoch: int) -> None:
        """Start the process of a rank, whose predecessor is reaped and leaves its log under another name."""
        if self._log_bounds.ident is None:
            self._log_bounds.start()
        rotate_log(self._run_directory, rank, epoch)
        process = self._starter.submit(self._spawn, rank).result()
        self._processes[rank] = process  # whose key says what it is, from the first time on
        with contextlib.suppress(OSError):  # without a pidfd it is looked at now and then
            self._descriptors[rank] = os.pidfd_open(process.pid)
        if epoch > 1:
            self._log.info("rank.started", rank=rank, pid=process.pid, epoch=epoch)

    def known(self) -> list[int]:
        """Return who has, or had, a process; the KV-cache process says what it is."""
        return sorted(self._processes)

    def pids(self) -> list[int]:
        """Return the process of each rank, the KV-cache process last; of one that ended, its last."""
        return [self._processes[rank].pid for rank in sorted(self._processes)]

    def ended(self) -> dict[int, int]:
        """Return how each process that has ended did so, by rank; those are reaped."""
        codes = {rank: process.poll() for rank, process in self._processes.items()}
        return {rank: code for rank, code in codes.items() if code is not None}

    def end(self, rank: int) -> ProcessEnd:
        """Kill the process if it lives, reap it, and return how it ended. Blocks for the kernel only."""
        process = self._processes[rank]
        if process.poll() is None:
            process.kill()
        descriptor = self._descriptors.pop(rank, None)
        if descriptor is not None:
            os.close(descriptor)
        return ProcessEnd(process.pid, process.wait(), log_tail(self._run_directory, rank))

    def kill_all(self) -> None:
        """Kill every process; to reap them is left to others. Safe in a signal handler."""
        self._in_haste = True
        # By descriptor: between two lines of the code that reaps, a pid may be another process' already.
        for descriptor in list(self._descriptors.values()):
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)

    def wait(self, timeout_s: float) -> None:
        """Wait until a process ends; blocks up to `timeout_s` seconds."""
        poll = select.poll()
        for descriptor in self._descriptors.values():
            poll.register(descriptor, select.POLLIN)
        poll.poll(timeout_s * 1000)

    def end_all(self) -> None:
        """End rank 0 between two steps first: the others still join the step that it is in. Blocks.

        Processes that do not end in time, or at once after :meth:`kill_all`, are killed. All are reaped.
        """
        ranks = sorted(self._processes)
        for some in (ranks[:1], ranks[1:]):
            self._end(some)
        self._starter.shutdown()
        self._ending.set()
        if self._log_bounds.ident is not None:
            self._log_bounds.join()
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    def _end(self, ranks: Iterable[int]) -> None:
        processes = [self._processes[rank] for rank in ranks]
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + _END_S
        for process in processes:
            while process.poll() is None and not self._in_haste and time.monotonic() < deadline:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_LOOK_S)
            if process.poll() is None:
                self._log.warning("rank.stopped", pid=process.pid, killed=True)
                process.kill()
                process.wait()

    def _bound_logs(self) -> None:
        while not self._ending.wait(_LOGS_S):
            for rank in self.known():
                with contextlib.suppress(OSError):  # rotated just now, or no room for a moment
                    bound_log(self._run_directory, rank)

    def _spawn(self, rank: int) -> subprocess.Popen[bytes]:
        module = self._cache_module if isinstance(rank, CacheProcess) else self._module
        with log_path(self._run_directory, rank).open("ab") as output:
            return subprocess.Popen(  # noqa: S603 - our own module under our own interpreter
                [sys.executable, "-m", module, self._run_directory, str(rank), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment_of_processes(),
                start_new_session=True,  # Ctrl-C is for the supervisor, which ends the ranks in order
            )
