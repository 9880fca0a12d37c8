"""The owner of a rollout group: its segment, its processes, its first weights, and their common end.

What ``wsm rollout`` and the demo run. It commands the group only once, at boot, and that is an ordinary
update; afterwards anybody may. It hosts FastDeploy's words and the load generator where they are
configured. Knows no model; imports no paddle.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import final

from wsm import log
from wsm.controller import Controller, EngineBridge
from wsm.errors import GroupError
from wsm.group_segment import own_group
from wsm.receipt import Receipt
from wsm.rollout.client import RolloutClient
from wsm.rollout.config import RolloutConfig
from wsm.rollout.errors import GroupNotReadyError, RankExitedError
from wsm.rollout.load import LoadGenerator
from wsm.rollout.request_socket import request_socket_path
from wsm.rollout.run_directory import (
    log_path,
    log_tail,
    make_run_directory,
    remove_run_directory,
    run_directory_path,
)
from wsm.rollout.sharding import initial_state, shard
from wsm.signals.fastdeploy import EngineWord, EngineWordKind
from wsm.signals.segment import Segment
from wsm.states.vocabulary import WeightState
from wsm.strategies.errors import VersionFileMissingError
from wsm.strategies.publish import publish_snapshot
from wsm.strategies.version_file import read_version

INITIAL_VERSION = 1

#: What each rank's process runs.
RANK_MODULE = "wsm.rollout.worker_process"

_LOOK_S = 0.01
_END_S = 5.0


@final
class RolloutSupervisor:
    """One rollout group, from its start to its end; a context manager.

    Parameters
    ----------
    config : RolloutConfig
        The group.
    start_s : float
        How long its processes may take to attach.
    rank_module : str
        The module that each rank runs; another one wraps :mod:`wsm.rollout.worker_process`, as the fault
        campaign does to make its victims fail at a chosen point.

    Raises
    ------
    wsm.signals.errors.SegmentOwnedError
        On entering, if a living process owns a group of that name.
    RankExitedError, GroupNotReadyError
        On entering, if a rank ends or does not attach in time.
    wsm.errors.WsmError
        On entering, if the first update fails. Nothing is left behind then.
    """

    def __init__(
        self, config: RolloutConfig, *, start_s: float = 60.0, rank_module: str = RANK_MODULE
    ) -> None:
        self.config = config
        self._start_s = start_s
        self._rank_module = rank_module
        self._run_directory = run_directory_path(config.group.name)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._log = log.logger("rollout.supervisor", group=config.group.name)
        self._undo = contextlib.ExitStack()
        self.load: LoadGenerator | None = None

    def __enter__(self) -> RolloutSupervisor:
        with contextlib.ExitStack() as undo:
            self._own_segment(undo)
            undo.callback(remove_run_directory, self._run_directory)
            undo.callback(request_socket_path(self.config.group.name).unlink, missing_ok=True)
            make_run_directory(self._run_directory, self.config.as_mapping())
            undo.callback(self._end_processes)
            for rank in range(self.config.group.ranks):
                self._processes.append(self._start(rank))
            self.controller = undo.enter_context(Controller(self.config.group.name))
            self._wait_until_attached()
            receipt = self._boot()
            self._log.info(log.GROUP_STARTED, ranks=self.config.group.ranks, version=receipt.version)
            self._host(undo)
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()
        self._log.info(log.GROUP_STOPPED)

    def client(self) -> RolloutClient:
        """Return a new connection to the group."""
        return RolloutClient(self.config.group.name)

    def pids(self) -> list[int]:
        """Return the process of each rank."""
        return [process.pid for process in self._processes]

    def check(self) -> None:
        """Look at every process.

        Raises
        ------
        RankExitedError
            If one has ended.
        """
        for rank, process in enumerate(self._processes):
            code = process.poll()
            if code is not None:
                raise RankExitedError(rank=rank, code=code, log=log_tail(self._run_directory, rank))

    # -- the start, step by step ----------------------------------------------------------------

    def _own_segment(self, undo: contextlib.ExitStack) -> None:
        segment = own_group(self.config.group)
        if segment.adopted:
            # The kernel is killing the ranks of a supervisor that died; new ranks need a new segment.
            segment.unlink()
            segment.close()
            segment = own_group(self.config.group)
        undo.callback(_remove, segment)

    def _start(self, rank: int) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "GLOG_minloglevel": "1",
            "PYTHONWARNINGS": "ignore:No ccache found:UserWarning",
        }
        with log_path(self._run_directory, rank).open("wb") as output:
            return subprocess.Popen(  # noqa: S603 - our own module under our own interpreter
                [
                    sys.executable,
                    "-m",
                    self._rank_module,
                    self._run_directory,
                    str(rank),
                    str(os.getpid()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the supervisor, which ends the ranks in order
            )

    def _wait_until_attached(self) -> None:
        deadline = time.monotonic() + self._start_s
        while not self.controller.status().over:
            self.check()
            if time.monotonic() > deadline:
                missing = [rank.rank for rank in self.controller.status().ranks if rank.life != "alive"]
                raise GroupNotReadyError(group=self.config.group.name, ranks=missing, seconds=self._start_s)
            time.sleep(_LOOK_S)

    def _boot(self) -> Receipt:
        """Load the announced version, or initial weights where the snapshot directory is empty."""
        directory = Path(self.config.group.snapshot.directory)
        if self.config.group.strategy == "ipc_snapshot" and _is_empty(directory):
            full, ranks = initial_state(self.config.engine.shape, self.config.seed), self.config.group.ranks
            shards = {rank: shard(full, self.config.engine.shape, rank, ranks) for rank in range(ranks)}
            publish_snapshot(directory, INITIAL_VERSION, shards)
        try:
            version = read_version(directory)
        except VersionFileMissingError:
            version = None
        try:
            return self.controller.update(version)
        except GroupError:
            self.check()  # a rank that died says more in its log than its peers can
            raise

    def _host(self, undo: contextlib.ExitStack) -> None:
        words = self.config.group.engine_words
        for suffix, answer in itertools.product(words.suffixes, words.answers):
            kind = EngineWordKind[answer.upper()]
            # Where no engine has made them, whoever commands by words needs them all the same.
            if not EngineWord.exists(kind, suffix):
                word = undo.enter_context(EngineWord.create(kind, suffix, int(WeightState.NORMAL)))
                undo.callback(word.unlink)
        if words.suffixes:
            controller = undo.enter_context(Controller(self.config.group.name))
            undo.enter_context(EngineBridge(controller, words).start())
        if self.config.load is not None:
            name, vocabulary = self.config.group.name, self.config.engine.shape.vocabulary
            self.load = LoadGenerator(name, self.config.load, vocabulary).start()
            undo.callback(self.load.close)

    # -- the end --------------------------------------------------------------------------------

    def _end_processes(self) -> None:
        """End rank 0 between two steps first: the others still join the step that it is in."""
        for some in (self._processes[:1], self._processes[1:]):
            for process in some:
                process.terminate()
            deadline = time.monotonic() + _END_S
            for process in some:
                self._end(process, max(deadline - time.monotonic(), 0.0))

    def _end(self, process: subprocess.Popen[bytes], patience_s: float) -> None:
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._log.warning(log.RANK_STOPPED, pid=process.pid, killed=True)
            process.kill()
            process.wait()


def run_group(config: RolloutConfig, announce: Callable[[RolloutSupervisor], None]) -> signal.Signals:
    """Run a group until SIGTERM or SIGINT; what ``wsm rollout`` does.

    Parameters
    ----------
    config : RolloutConfig
        The group.
    announce : callable
        Called once it serves.

    Returns
    -------
    signal.Signals
        The first signal that asked for the end.

    Raises
    ------
    RankExitedError
        If a rank ends by itself. Nothing is left behind.
    wsm.errors.WsmError
        As :class:`RolloutSupervisor`.
    """
    received: list[int] = []
    ending = threading.Event()

    def end(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        ending.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with RolloutSupervisor(config) as group:
            announce(group)
            while not ending.wait(_LOOK_S * 10):
                group.check()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return signal.Signals(received[0])


def _remove(segment: Segment) -> None:
    segment.unlink()
    segment.close()


def _is_empty(directory: Path) -> bool:
    return not directory.exists() or not any(directory.iterdir())
