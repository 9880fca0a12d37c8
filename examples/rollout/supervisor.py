"""The owner of a rollout group: its segment, its processes, its first weights, and their common end.

What ``python -m examples.rollout`` and the demo run. It commands the group only once, at boot, and that is
an ordinary update; afterwards any controller may. When a rank dies, the group is kept by
:class:`wsm.Keeper`. It hosts FastDeploy's words and the load generator where they are configured.
Knows no model; imports no paddle.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import final

from examples.rollout.client import LoadGenerator, RolloutClient
from examples.rollout.config import RolloutConfig
from examples.rollout.errors import GroupNotReadyError, RankExitedError
from examples.rollout.model.sharding import initial_state, placements, shard
from examples.rollout.rank_processes import CACHE_MODULE, RankProcesses
from examples.rollout.request_socket import request_socket_path
from examples.rollout.run_directory import (
    keep_logs_only,
    log_path,
    log_tail,
    make_run_directory,
    remove_run_directory,
    run_directory_path,
)
from wsm import log
from wsm.controller import Controller, EngineBridge, Pending
from wsm.controller.errors import EpochEndedError, RankLostError
from wsm.controller.group_view import GroupView
from wsm.controller.keeper import Keeper
from wsm.ending import Ending, SignalReceived
from wsm.errors import WsmError
from wsm.group_segment import own_new_group
from wsm.receipt import Receipt
from wsm.signals.errors import EngineWordMissingError, RoleBusyError
from wsm.signals.fastdeploy import EngineWord, EngineWordKind
from wsm.signals.owner_settings import owner_adds
from wsm.signals.segment import Segment
from wsm.states.errors import CommandOpenError
from wsm.states.vocabulary import WeightState
from wsm.status.facts import who
from wsm.strategies.files.version_file import announced_version
from wsm.strategies.snapshot.publish import publish_snapshot

INITIAL_VERSION = "1"

#: What each rank's process runs.
RANK_MODULE = "examples.rollout.worker_process"

_LOOK_S = 0.01

#: Seconds until the supervisor says which ranks a starting group waits for; then twice as long each time.
_TELL_S = 5.0


@final
class RolloutSupervisor:
    """One rollout group, from its start to its end; a context manager.

    Parameters
    ----------
    config : RolloutConfig
        The group.
    tell : callable
        Given one line for each rank that dies and each recovery; for a terminal.
    rank_module, cache_module : str
        The modules that each rank and the KV-cache process run; others wrap
        :mod:`.worker_process` and :mod:`.cache_process`, as the fault campaign does to make its
        victims fail at a chosen point.
    ending : Ending or None
        Asked while the group starts; its haste kills the ranks. None where no signal ends this process.

    Raises
    ------
    wsm.signals.errors.SegmentOwnedError
        On entering, if a living process owns a group of that name.
    RankExitedError, GroupNotReadyError
        On entering, if a rank ends or does not attach in time.
    wsm.errors.WsmError
        On entering, if the first update fails. Nothing is left behind then.
    wsm.ending.SignalReceived
        On entering, if `ending` was asked for meanwhile. Nothing is left behind then, either.
    """

    def __init__(
        self,
        config: RolloutConfig,
        *,
        tell: Callable[[str], object] = len,
        rank_module: str = RANK_MODULE,
        cache_module: str = CACHE_MODULE,
        ending: Ending | None = None,
    ) -> None:
        self.config = config
        self._ending = ending or Ending()
        self._tell = tell
        self._run_directory = run_directory_path(config.group.name)
        self._processes = RankProcesses(config.group.name, self._run_directory, rank_module, cache_module)
        self._log = log.logger("rollout.supervisor", group=config.group.name)
        self._undo = contextlib.ExitStack()
        self._keeper: Keeper | None = None
        self.load: LoadGenerator | None = None

    def __enter__(self) -> RolloutSupervisor:
        with contextlib.ExitStack() as undo:
            self._ending.check()
            segment = self._own_segment(undo)
            requests = request_socket_path(self.config.group.name)
            requests.unlink(missing_ok=True)
            make_run_directory(self._run_directory, self.config.as_mapping())
            undo.callback(self._leave_run_directory)
            owner_adds(segment, logs=str(self._run_directory))
            undo.callback(requests.unlink, missing_ok=True)
            # Ends after the ranks: a command of its own that they keep from its end is over without them.
            hosted = undo.enter_context(contextlib.ExitStack())
            undo.callback(self._processes.end_all)
            undo.enter_context(self._ending.hastened_by(self._processes.kill_all))
            for participant in self.config.participants:
                self._processes.start(participant, epoch=1)
            self.controller = undo.enter_context(
                Controller(self.config.group.name, journal_directory=self.config.group.journal_directory)
            )
            self._wait_until_attached()
            self._keep(segment, undo)
            receipt = self._boot(segment)
            self._log.info("group.started", ranks=self.config.group.ranks, version=receipt.version)
            self._host(hosted, undo)
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()
        self._log.info("group.stopped")

    def client(self) -> RolloutClient:
        """Return a new connection to the group."""
        return RolloutClient(self.config.group.name)

    def pids(self) -> list[int]:
        """Return the process of each rank, then the KV-cache process; a replaced rank has another one."""
        return self._processes.pids()

    @property
    def recoveries(self) -> int:
        """How often a rank was lost and the group recovered."""
        return 0 if self._keeper is None else self._keeper.recoveries

    def wait_until_whole(self, timeout_s: float) -> bool:
        """Wait until no recovery is under way; blocks up to `timeout_s` seconds; return whether it is so."""
        return self._keeper is None or self._keeper.wait_until_whole(timeout_s)

    def check(self) -> None:
        """Look whether the group is still kept.

        Raises
        ------
        RestartLimitError
            If its ranks died too often; nothing replaces them any more.
        """
        if self._keeper is not None:
            self._keeper.check()

    # -- the start, step by step ----------------------------------------------------------------

    def _own_segment(self, undo: contextlib.ExitStack) -> Segment:
        segment = own_new_group(self.config.group)
        undo.callback(_remove, segment)
        return segment

    def _wait_until_attached(self) -> None:
        limit_s = self.config.recovery.start_s
        deadline, tell_s = time.monotonic() + limit_s, _TELL_S
        while not (status := self.controller.status()).over:
            self._ending.check()
            participants = zip(self.config.participants, status.ranks, strict=True)
            missing = [one for one, rank in participants if rank.epoch != status.epoch]
            if missing and time.monotonic() > deadline - limit_s + tell_s:
                last = log_tail(self._run_directory, missing[0], lines=1) or "nothing yet"
                waits = f"has waited {tell_s:g} s for {' and '.join(map(who, missing))}"
                log_file = log_path(self._run_directory, missing[0])
                self._tell(
                    f"{status.name} starts, and {waits}; the first of them wrote last: {last} ({log_file})"
                )
                tell_s *= 2
            for rank, code in self._processes.ended().items():
                raise RankExitedError(rank=rank, code=code, log=log_tail(self._run_directory, rank))
            if time.monotonic() > deadline:
                raise GroupNotReadyError(
                    group=self.config.group.name,
                    ranks=missing,
                    seconds=limit_s,
                    log=log_tail(self._run_directory, missing[0]) if missing else "",
                )
            self._processes.wait(_LOOK_S)  # a rank's end ends this wait, its joining does not

    def _keep(self, segment: Segment, undo: contextlib.ExitStack) -> None:
        self._keeper = Keeper(
            self.config.group,
            segment,
            self._processes,
            limits=self.config.recovery,
            tell=self._tell,
            logs=str(self._run_directory),
        )
        undo.enter_context(self._keeper)

    def _boot(self, segment: Segment) -> Receipt:
        """Load the announced version, or initial weights where the snapshot directory is empty."""
        version = None  # whichever the ranks' source announces
        if self.config.group.strategy == "ipc_snapshot":
            version = self._snapshot_to_begin_with()
        receipt = None
        while receipt is None:
            with contextlib.suppress(RankLostError, EpochEndedError, CommandOpenError, RoleBusyError):
                receipt = self._awaited(self.controller.begin_update(version))
            if receipt is None:
                # A rank died while the group booted. Nothing was served before, so nothing is restored.
                self._wait_until_recovered(segment)
        return receipt

    def _awaited(self, pending: Pending) -> Receipt:
        """Wait for a command, unless the group is to end; the end of its ranks ends it then."""
        while not pending.over:
            self._ending.check()
            with contextlib.suppress(TimeoutError):
                pending.result(_LOOK_S)
        return pending.result()

    def _snapshot_to_begin_with(self) -> str | None:
        directory = Path(self.config.group.snapshot.directory)
        if _is_empty(directory):
            shape, ranks = self.config.engine.shape, self.config.group.ranks
            full = initial_state(shape, self.config.seed)
            shards = {rank: shard(full, shape, rank, ranks) for rank in range(ranks)}
            publish_snapshot(directory, INITIAL_VERSION, shards, placements=placements(shape))
        return announced_version(directory)

    def _host(self, hosted: contextlib.ExitStack, undo: contextlib.ExitStack) -> None:
        """Answer FastDeploy's words, and ask for tokens, where that is configured."""
        words = self.config.group.engine_words
        for suffix, answer in itertools.product(words.suffixes, words.answers):
            kind = EngineWordKind[answer.upper()]
            # Where no engine has made them, a program that commands by words needs them all the same.
            try:
                EngineWord(kind, suffix, user=words.user).close()  # one of another user is refused
            except EngineWordMissingError:
                word = hosted.enter_context(EngineWord.create(kind, suffix, int(WeightState.NORMAL)))
                hosted.callback(word.unlink)
        if words.suffixes:
            controller = hosted.enter_context(Controller(self.config.group.name))
            hosted.enter_context(EngineBridge(controller, words).start())
        if self.config.load is not None:
            name, vocabulary = self.config.group.name, self.config.engine.shape.vocabulary
            self.load = LoadGenerator(name, self.config.load, vocabulary).start()
            undo.callback(self.load.close)

    def _wait_until_recovered(self, segment: Segment) -> None:
        with contextlib.closing(GroupView(segment)) as group:
            while True:
                look = group.look()
                self._ending.check()
                if self._all_there():
                    return
                self.check()
                group.wait(look, _LOOK_S)  # for a rank that joins; the role that a recovery holds is no word

    def _all_there(self) -> bool:
        now = self.controller.status()
        joined = all(rank.life == "alive" and rank.epoch == now.epoch for rank in now.ranks)
        return joined and now.controller_pid is None

    # -- the end --------------------------------------------------------------------------------

    def _leave_run_directory(self) -> None:
        """Remove the run directory; where the group gave up, its logs stay."""
        if self._keeper is not None and self._keeper.gave_up:
            keep_logs_only(self._run_directory)
        else:
            remove_run_directory(self._run_directory)


def run_group(
    config: RolloutConfig,
    announce: Callable[[RolloutSupervisor], None],
    tell: Callable[[str], object] = len,
) -> int:
    """Run a group until a signal asks for its end, at any time; what ``python -m examples.rollout`` does.

    A second signal hastens the end: the ranks are killed then.

    Parameters
    ----------
    config : RolloutConfig
        The group.
    announce : callable
        Called once it serves.
    tell : callable
        Given one line for each rank that dies and each recovery.

    Returns
    -------
    int
        What the process is to exit with: 128 and the number of the first signal.

    Raises
    ------
    RestartLimitError
        If ranks die too often. The logs are left behind.
    wsm.errors.WsmError
        As :class:`RolloutSupervisor`.
    """
    ending = Ending()
    try:
        with ending.heeded(), RolloutSupervisor(config, tell=tell, ending=ending) as group:
            announce(group)
            while not ending.wait(_LOOK_S * 10):
                group.check()
    except (SignalReceived, WsmError):
        if ending.number is None:
            raise
        # What fails in a group that is ended while it starts fails because of that.
    return ending.exit_code


def _remove(segment: Segment) -> None:
    segment.unlink()
    segment.close()


def _is_empty(directory: Path) -> bool:
    return not directory.exists() or not any(directory.iterdir())
