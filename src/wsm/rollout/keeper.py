"""Keeps a group alive: sees that a rank is gone, begins a new epoch, replaces it, restores what was served.

A thread of the supervisor. What the group must be afterwards is decided by :mod:`wsm.controller.recovery`;
here is who is killed, when, and how often. Everything is told in one line for the terminal.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from wsm import log
from wsm.controller.errors import RankLostError
from wsm.controller.recovery import Recovery
from wsm.rollout.config import RolloutConfig
from wsm.rollout.deaths import Death, RestartBudget
from wsm.rollout.errors import RestartLimitError
from wsm.rollout.rank_processes import RankProcesses
from wsm.rollout.repairing import Repairs
from wsm.rollout.restoring import Restoration
from wsm.rollout.run_directory import log_tail
from wsm.shortage import described, shortage_of
from wsm.signals.errors import RoleBusyError
from wsm.states.errors import CommandOpenError
from wsm.worker.sources import pins_for

#: Longest time between two looks, in seconds. A death wakes at once, where the kernel has pidfds.
_LOOK_S = 0.02

#: Seconds that a process may take from leaving its place to its end.
_LEAVE_S = 5.0

#: Seconds after which it is told that a recovery still waits for another controller.
_TELL_S = 5.0


class GroupKeeper:
    """The recoveries of one group.

    Parameters
    ----------
    config : RolloutConfig
        The group.
    processes : RankProcesses
        Of its ranks; all were started.
    recovery : Recovery
        Of its segment.
    run_directory : Path
        Where the logs are.
    tell : callable
        Given one line for each death and each recovery.

    Attributes
    ----------
    recoveries : int
        How many have been completed, those included whose group could not be restored.
    """

    def __init__(
        self,
        config: RolloutConfig,
        processes: RankProcesses,
        recovery: Recovery,
        *,
        run_directory: Path,
        tell: Callable[[str], object],
    ) -> None:
        self.recoveries = 0
        self._config = config
        self._processes = processes
        self._recovery = recovery
        self._run_directory = run_directory
        self._tell = tell
        self._budget = RestartBudget(config.recovery)
        self._closing = threading.Event()
        self._whole = threading.Event()
        self._whole.set()
        self._fatal: BaseException | None = None
        self._leaving_since: float | None = None
        self._overdue: tuple[object, float] = (None, 0.0)
        self._restoration: Restoration | None = None
        self._repairs = Repairs(config, recovery, tell=tell, cancelled=self._closing.is_set)
        self._pins = pins_for(config.group)
        self._log = log.logger("rollout.supervisor", group=config.group.name)
        self._thread = threading.Thread(target=self._run, name="wsm-rollout-keeper", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def close(self) -> None:
        """Watch no more; a recovery under way is left where it is. Blocks until that is so. Idempotent.

        A command of the recovery's that a rank keeps from its end is over without the ranks: they are killed.
        """
        self._closing.set()
        self._processes.wake()
        if self._thread.is_alive():
            self._thread.join(_LEAVE_S)
        if self._thread.is_alive():
            self._processes.kill_all()
            self._thread.join()

    def check(self) -> None:
        """Raise what ended the keeper: RestartLimitError, or a bug."""
        if self._fatal is not None:
            raise self._fatal

    @property
    def gave_up(self) -> bool:
        """Whether there will be no more recoveries."""
        return self._fatal is not None

    def wait_until_whole(self, timeout_s: float) -> bool:
        """Wait until no recovery is under way; blocks up to `timeout_s` seconds; return whether it is so."""
        return self._whole.wait(timeout_s)

    # -- watching -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                victims = self._look() or self._repair() or self._restore_again()
                if victims:
                    self._whole.clear()
                    self._recover(victims)
                elif self._restoration is None and not self._repairs.pending:
                    self._whole.set()
                if not victims:
                    self._processes.wait(_LOOK_S)
        except BaseException as error:  # noqa: BLE001 - whoever asks with check() gets it, whatever it is
            self._fatal = error
            self._log.error(log.GROUP_GIVEN_UP, error=str(error))
        finally:
            self._recovery.release()
            self._pins.close()
            self._whole.set()

    def _look(self) -> dict[int, str]:
        """Return who has to be replaced, and why if it lives."""
        self._pin()
        self._recovery.end_abandoned()
        broken = self._recovery.ended_by(())  # first: whoever broke because of a death is seen after it
        ended = self._processes.ended()
        if ended:
            return dict.fromkeys(ended, "")
        if broken and not self._is_leaving():
            stopped = [rank for rank in self._processes.known() if self._processes.stopped(rank)]
            if stopped:
                return dict.fromkeys(stopped, "it was stopped while the others waited for it in a step")
            return dict.fromkeys(broken, "its step raised")
        return self._hung()

    def _named(self, participants: Collection[int]) -> list[int]:
        """Return those as they call themselves: of a KV-cache process its number alone says nothing."""
        return [one for one in self._processes.known() if one in participants]

    def _pin(self) -> None:
        """Keep what the group may have to load again. Its ranks do so, too, but all may die at once."""
        versions = self._recovery.versions()
        for version in versions:
            self._pins.add(version)
        self._pins.keep(versions)

    def _is_leaving(self) -> bool:
        """Whether a rank has left its place and its process is about to end: the steps of others break then.

        Who is waited for too long is no longer taken for one that ends by itself.
        """
        left = self._recovery.left()
        if not left:
            self._leaving_since = None
            return False
        now = time.monotonic()
        self._leaving_since = now if self._leaving_since is None else self._leaving_since
        return now - self._leaving_since < _LEAVE_S

    def _hung(self) -> dict[int, str]:
        """Return who keeps a decided command from its end for too long."""
        command, waiting = self._recovery.late()
        late = self._named(waiting)
        now, limit = time.monotonic(), self._config.recovery.hung_s
        if command != self._overdue[0]:
            self._overdue = command, now
        waited = now - self._overdue[1]
        if not late or waited < limit:
            return {}
        if command.operation.is_hot and waited < limit + self._config.group.deadlines.drain_s:
            late = [rank for rank in late if self._processes.stopped(rank)]  # the others drain after it
        return dict.fromkeys(late, f"it did not end a decided command within {waited:.0f} s")

    # -- repairing ------------------------------------------------------------------------------

    def _repair(self) -> dict[int, str]:
        """Clear the group again where a teardown failed; return who has to be replaced instead, and why."""
        replaced = self._repairs.look()
        if self._repairs.pending:
            self._whole.clear()
        return {rank: replaced[rank] for rank in self._named(replaced)}

    # -- recovering -----------------------------------------------------------------------------

    def _recover(self, victims: dict[int, str]) -> None:
        began = time.monotonic()
        started: dict[int, float] = {}
        gone, delay_s = set(victims), self._mourn(victims)
        self._restoration = None  # an epoch that ends before it was restored hands its debt on
        while not self._closing.is_set():
            self._begin(gone)
            if self._closing.wait(delay_s):
                return
            number = self._recovery.epoch
            for rank in sorted(gone):
                self._start(rank, number)
                started[rank] = time.monotonic()
            more = self._await_joined(started)
            if not more and not self._closing.is_set():
                self._restoration = Restoration(
                    self._config,
                    self._recovery,
                    tell=self._tell,
                    cancelled=self._closing.is_set,
                    since_s=began,
                )
                more = self._restore()
            if not more:
                return
            # A survivor that only did not come back in time is no sign of a crash loop.
            delay_s = self._mourn(more) if any(not why for why in more.values()) else self._bury_quietly(more)
            gone = set(more)

    def _start(self, rank: int, epoch: int) -> None:
        """Start a process, as soon as this one has the descriptors, the memory and the thread for that."""
        told = False
        while not self._closing.is_set():
            try:
                self._processes.start(rank, epoch)
            except (OSError, MemoryError, RuntimeError) as error:
                if shortage_of(error) is None:
                    raise
                if not told:
                    self._tell(
                        f"{self._config.group.name} waits with starting rank {rank}: {described(error)}"
                    )
                told = True
            else:
                return
            self._closing.wait(self._config.recovery.delay_s)

    def _mourn(self, victims: dict[int, str]) -> float:
        """Kill and reap, tell, and return how long to wait.

        Raises
        ------
        RestartLimitError
            If it happens too often.
        """
        deaths = [self._bury(rank, why) for rank, why in victims.items()]
        delay_s = self._budget.take(deaths, time.monotonic())
        if delay_s is None:
            raise RestartLimitError(
                group=self._config.group.name,
                limit=self._config.recovery.restarts,
                within_s=self._config.recovery.within_s,
                deaths=self._budget.recent(),
                directory=str(self._run_directory),
            )
        return delay_s

    def _bury_quietly(self, victims: dict[int, str]) -> float:
        for rank, why in victims.items():
            self._bury(rank, why)
        return 0.0

    def _bury(self, rank: int, why: str) -> Death:
        pid, epoch = self._processes.pid(rank), self._recovery.epoch
        code = self._processes.bury(rank)
        death = Death(rank, pid, epoch, code, why, log_tail(self._run_directory, rank))
        self._log.error(log.RANK_LOST, rank=rank, pid=pid, epoch=epoch, cause=death.cause)
        self._tell(death.sentence())
        return death

    def _begin(self, gone: Collection[int]) -> None:
        """Raise the epoch as soon as another controller's command has ended."""
        while not self._closing.is_set():
            # Whoever has the role ends soon: its command cannot go on without the dead. If it is stopped, or
            # hangs itself, nobody may write in its place: the recovery waits, and says so.
            if self._recovery.take_role(_TELL_S, self._closing.is_set):
                with contextlib.suppress(RoleBusyError):
                    self._recovery.begin(gone)
                    return
            self._tell(f"the recovery waits for the controller in {self._recovery.role_holder()}")

    def _await_joined(self, started: Mapping[int, float]) -> dict[int, str]:
        """Wait until all have joined the epoch; return who has to be replaced before that.

        A new process takes longer than one that lives, and is counted from its own start.
        """
        began, limits = time.monotonic(), self._config.recovery
        while not self._closing.is_set():
            missing = self._recovery.missing()
            ended = self._processes.ended()
            if ended:
                return dict.fromkeys(ended, "")
            if not missing:
                return {}
            late = {}
            for rank in self._named(missing):
                limit = limits.start_s if rank in started else limits.rejoin_s
                if time.monotonic() - started.get(rank, began) > limit:
                    late[rank] = f"it did not join the epoch within {limit:g} s"
            if late:
                return late
            self._processes.wait(_LOOK_S)
        return {}

    def _await_end(self) -> dict[int, str]:
        """Return who is gone: a process may have left its place a while before it has ended."""
        deadline = time.monotonic() + _LEAVE_S
        while not self._closing.is_set() and time.monotonic() < deadline:
            ended = self._processes.ended()
            if ended:
                return dict.fromkeys(ended, "")
            self._processes.wait(_LOOK_S)
        return dict.fromkeys(self._named(self._recovery.left()), "it left its place in the group")

    def _restore(self) -> dict[int, str]:
        """Make one attempt to load what the group is owed; return who has to be replaced before that."""
        restoration = self._restoration
        if restoration is None:
            return {}
        try:
            restoration.attempt()
        except (RankLostError, CommandOpenError) as error:
            gone = self._await_end()
            if gone:
                return gone
            restoration.failed(error)
        if restoration.over:
            self._restoration = None
            self.recoveries += 1
        return {}

    def _restore_again(self) -> dict[int, str]:
        """Make the next attempt once it is due; return who has to be replaced before that."""
        restoration = self._restoration
        if restoration is None or self._repairs.pending or time.monotonic() < restoration.due_s:
            return {}
        return self._restore()
