"""Keeps a group alive: a rank that is gone is replaced in a new epoch, and what was served is loaded again.

A thread of the process that owns the group's processes, whichever engine they run: it starts and ends them
through :class:`GroupProcesses`. What follows is decided by the table of :mod:`wsm.states.group`, which
:mod:`.recovery` asks; whose process is replaced, and how long it waits, by :mod:`wsm.states.epochs`. It tells
each death and each recovery in one line.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol, final

from wsm import log
from wsm.config import WsmConfig
from wsm.controller import outcome
from wsm.controller.errors import Death, RestartLimitError
from wsm.controller.recovery import Recovery, RecoveryConfig
from wsm.errors import WsmError, described, shortage_of
from wsm.journal import entry as kinds
from wsm.signals.errors import RoleBusyError
from wsm.signals.segment import Segment
from wsm.states import decide, epochs
from wsm.states.epochs import Cause
from wsm.states.group import GroupTodo
from wsm.states.view import View
from wsm.states.words import Operation
from wsm.strategies.registry import strategy_called
from wsm.typed import Wait, typed_calls

#: Longest time between two looks, in seconds.
_LOOK_S = 0.02

#: Seconds that a process may take from leaving its place to its end.
_LEAVE_S = 5.0

#: Seconds after which it is told that a recovery still waits for another controller.
_TELL_S = 5.0


@dataclass(frozen=True)
class ProcessEnd:
    """How a process ended.

    Parameters
    ----------
    pid : int
        Its number.
    code : int
        As ``subprocess`` gives it: what it exited with, or minus the signal that killed it.
    log : str
        The last lines that it wrote, if they are known.
    """

    pid: int
    code: int
    log: str = ""


class GroupProcesses(Protocol):
    """The processes of a group, as a :class:`Keeper` starts and ends them; called by its thread alone.

    A participant is a rank's number; of a group with a KV-cache process, the number after the last rank's.
    The kernel ends a process that asked for it (``PR_SET_PDEATHSIG``) with the thread that started it: with
    this one, which ends as the keeper is closed or gives up, unless :meth:`start` hands the work to another.
    """

    def start(self, participant: int, epoch: int) -> None:
        """Start the process of a participant, whose predecessor was reaped; do not wait until it attaches.

        Raises
        ------
        OSError, MemoryError, RuntimeError
            If this process lacks descriptors, memory or threads for it: it is tried again.
        """

    def ended(self) -> Collection[int]:
        """Return the participants whose processes have ended and were not replaced; do not wait."""

    def end(self, participant: int) -> ProcessEnd:
        """Kill the process (SIGKILL) if it lives, and reap it: afterwards it writes no word any more."""

    def wait(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` seconds; less if a process ends meanwhile."""


@final
@typed_calls
class Keeper:
    """The recoveries of one group; a context manager, from :meth:`start` to :meth:`close`.

    Parameters
    ----------
    config : WsmConfig
        The group.
    segment : Segment
        Of the group, owned by this process (:func:`wsm.group_segment.own_group`); must stay open.
    processes : GroupProcesses
        Starts and ends the processes of its ranks.
    limits : RecoveryConfig or None
        How often, and how long; None: the defaults.
    tell : callable
        Given one line for each death and each recovery.
    logs : str
        Where the ranks' logs are, for the error that gives up.

    Attributes
    ----------
    recoveries : int
        How many have been completed, those included whose group could not be restored.
    """

    def __init__(
        self,
        config: WsmConfig,
        segment: Segment,
        processes: GroupProcesses,
        *,
        limits: RecoveryConfig | None = None,
        tell: Callable[[str], object] = len,
        logs: str = "",
    ) -> None:
        self.recoveries = 0
        self._config = config
        self._processes = processes
        self._limits = limits or RecoveryConfig()
        self._closing = threading.Event()
        self._recovery = Recovery(segment, limits=self._limits, given_up=self._closing, whom=self._whom)
        self._group = self._recovery.group
        self._tell = tell
        self._logs = logs
        self._since: dict[str, dict[int, float]] = {}  # of which participants what is so since when
        self._start_at_s = 0.0  # not before that
        self._lacks: str | None = None  # what it lacks to start one
        self._ended_as: dict[int, Death] = {}  # until their ranks are replaced
        self._hung_s = 0.0  # how long the group has waited for processes that hung in their starts
        self._begun_s: list[float] = []
        self._deaths: list[tuple[float, Death]] = []
        self._whole = threading.Event()
        self._whole.set()
        self._fatal: BaseException | None = None
        self._busy_since: float | None = None  # since when it waits for the role
        self._decided: tuple[object, float] = (None, 0.0)
        self._recovering: tuple[float, str] | None = None  # since when, and after what
        self._is_faulted = False
        retired_from = strategy_called(config.strategy).retired_from
        from wsm.strategies.files.snapshot_directory import VersionPins  # noqa: PLC0415 - no rank keeps a group

        self._pins = VersionPins(retired_from(config.strategy_sections()))
        self._log = log.logger("controller.keeper", group=config.name)
        self._thread = threading.Thread(target=self._run, name="wsm-keeper", daemon=True)

    def start(self) -> Keeper:
        """Begin to watch. The processes of all participants were started, or are started meanwhile."""
        self._since["starting"] = dict.fromkeys(range(self._group.participants), time.monotonic())
        self._thread.start()
        return self

    def close(self) -> None:
        """Watch no more; a recovery under way is left where it is. Blocks until that is so. Idempotent.

        A command of the recovery's that a rank keeps from its end is over without the ranks: they are ended.
        """
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(_LEAVE_S)
        if self._thread.is_alive():
            for participant in range(self._group.participants):
                self._processes.end(self._group.named(participant))
            self._thread.join()
        self._recovery.close()

    def __enter__(self) -> Keeper:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def check(self) -> None:
        """Look whether the group is still kept. Does not block.

        Raises
        ------
        RestartLimitError
            If its ranks died too often; none is replaced any more.
        """
        if self._fatal is not None:
            raise self._fatal

    @property
    def gave_up(self) -> bool:
        """Whether there will be no more recoveries."""
        return self._fatal is not None

    def wait_until_whole(self, timeout_s: Wait) -> bool:
        """Wait until no recovery is under way; blocks up to `timeout_s` seconds; return whether it is so."""
        return self._whole.wait(timeout_s)

    # -- the loop -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing.is_set() or self._recovery.own is not None:
                # Its ranks keep what the group may have to load again, too, but all may die at once.
                versions = self._recovery.versions()
                for version in versions:
                    self._pins.add(version)
                self._pins.keep(versions)
                self._do(self._recovery.turn())
        except BaseException as error:  # noqa: BLE001 - check() raises it in the owner's thread
            self._fatal = error
            self._log.error("group.given_up", error=str(error))
        finally:
            self._recovery.release()
            self._recovery.end_supervision()  # status does not name this process as one that helps any more
            self._pins.close()
            self._whole.set()

    def _do(self, todo: GroupTodo) -> None:
        """Do what is to be done with processes, tell what has ended, and wait for what comes next."""
        self._tell_of_role(waits=todo is GroupTodo.TAKE_ROLE)
        self._tell_ends()
        if todo is GroupTodo.REPLACE:
            self._end(self._recovery.drive.replaced)
        elif todo is GroupTodo.START and self._start():
            return
        elif self._recovery.own is not None:
            if self._recovery.opens is not None and self._recovery.opens.operation is Operation.UPDATE:
                self._begin_recovery("its update was left aborted")
            self._recovery.drive.wait(self._recovery)
        else:
            self._conclude()
            self._processes.wait(_LOOK_S)

    # -- whose processes are replaced -----------------------------------------------------------

    def _whom(self, view: View) -> Mapping[int, Cause]:
        """Return whose processes are to be replaced, and why.

        `view` was read before: a step that broke because of a death is seen after that.
        """
        if self._closing.is_set():
            return {}
        dead, self._recovery.leaving = self._recovery.dead, False
        ended = set(self._processes.ended()) - dead
        if ended or dead:  # the epoch ends because of these; what others do meanwhile is their doing
            return epochs.whom_to_replace(view, ended=ended, stopped=()) if ended else {}
        if self._recovery.own is None:
            self._see_faults(view)
        stopped = self._stopped() if epochs.late(view) or epochs.ended_by(view, ()) else ()
        left = self._recovery.left()
        leaving = bool(left) and not self._so_for("left", left, _LEAVE_S)  # they may end by themselves
        self._recovery.leaving = leaving
        found = epochs.whom_to_replace(view, ended=(), stopped=stopped, left=left, leaving=leaving)
        if view.command != self._decided[0]:
            self._decided = view.command, time.monotonic()
        waited_s, drain_s = time.monotonic() - self._decided[1], self._config.deadlines.drain_s
        hung = epochs.hung(view, stopped, waited_s=waited_s, limit_s=self._limits.hung_s, drain_s=drain_s)
        return found or self._late(view) or hung

    def _why(self, rank: int, cause: Cause) -> str:
        """Say why the keeper ends a process; empty if it has ended by itself."""
        limits = self._limits
        match cause:
            case Cause.ENDED:
                return ""
            case Cause.LATE:
                limit_s = limits.start_s if rank in self._starting else limits.rejoin_s
                return f"it did not join the epoch within {limit_s:g} s"
            case Cause.FROZEN:
                return f"it was stopped for {limits.replace_stopped_after_s:g} s"
            case Cause.HUNG:
                return f"it did not end a decided command within {time.monotonic() - self._decided[1]:.0f} s"
            case Cause.FAULTED:
                repaired = self._recovery.drive.state.repaired
                return f"its teardown failed, and {repaired} times more when it was cleared"
            case _:
                return str(cause.value)

    @property
    def _starting(self) -> dict[int, float]:
        """Whose process has not joined since it was started."""
        return self._since.get("starting", {})

    def _stopped(self) -> list[int]:
        return [rank for rank in range(self._group.participants) if self._group.liveness.is_stopped(rank)]

    def _late(self, view: View) -> dict[int, Cause]:
        """Return which participants had their time to join the epoch, or to go on, and did not.

        A new process takes longer than one that lives, and is counted from its own start.
        """
        limits = self._limits
        missing = {rank for rank, word in enumerate(view.statuses) if word.epoch != view.command.epoch}
        starting = missing & set(self._starting)
        late = self._so_for("starting", starting, limits.start_s)
        late += self._so_for("joining", missing - starting, limits.rejoin_s)
        frozen: list[int] = []
        if limits.replace_stopped_after_s is not None:
            frozen = self._so_for("stopped", self._stopped(), limits.replace_stopped_after_s)
        return dict.fromkeys(late, Cause.LATE) or dict.fromkeys(frozen, Cause.FROZEN)

    def _so_for(self, what: str, participants: Collection[int], limit_s: float) -> list[int]:
        """Return those of the participants, all of which are so now, that have been so for `limit_s`."""
        now, before = time.monotonic(), self._since.get(what, {})
        since = self._since[what] = {one: before.get(one, now) for one in participants}
        return [one for one, since_s in since.items() if now - since_s >= limit_s]

    # -- processes that end and start -------------------------------------------------------------

    def _end(self, replaced: Mapping[int, Cause]) -> None:
        """End and reap, tell, and say when they may be replaced.

        Raises
        ------
        RestartLimitError
            If it happens too often.
        """
        self._begin_recovery("the loss")
        epoch, limits, deaths = self._recovery.drive.look.view.command.epoch, self._limits, []
        # A rank that has lived and only did not come back in time is no sign of a crash loop.
        counts = any(cause is not Cause.LATE or rank in self._starting for rank, cause in replaced.items())
        if any(cause is not Cause.ENDED and rank in self._starting for rank, cause in replaced.items()):
            self._hung_s += limits.start_s
        for index, cause in replaced.items():
            rank, why = self._group.named(index), self._why(index, cause)
            end = self._processes.end(rank)
            death = Death(rank, end.pid, epoch, end.code, why, end.log)
            self._log.error(log.RANK_LOST, rank=rank, pid=end.pid, epoch=epoch, cause=death.cause)
            self._tell(death.sentence())
            deaths.append(death)
            self._ended_as[rank] = death
            self._recovery.dead.add(index)
        if not counts:
            return
        now = time.monotonic() - self._hung_s
        self._deaths = [(at, one) for at, one in self._deaths if now - at <= limits.within_s]
        self._deaths += [(now, death) for death in deaths]
        delay_s = epochs.restart_delay_s(
            self._begun_s, now, restarts=limits.restarts, within_s=limits.within_s, backoff=limits.backoff
        )
        self._begun_s = [*self._begun_s[-limits.restarts :], now]
        if delay_s is None:
            name, limit, last = self._config.name, limits.restarts, self._deaths[-1][1]
            logs = f"; the logs stay in {self._logs}" if self._logs else ""
            raise RestartLimitError(
                f"group {name!r} gives up after {len(self._deaths)} deaths, more than {limit} restarts "
                f"within {limits.within_s:g} s; the last one: {last.sentence()}{logs}",
                group=name,
                limit=limit,
                within_s=limits.within_s,
                deaths=tuple(death for _, death in self._deaths),
                rank=last.rank,
                log=last.log,
                directory=self._logs,
            )
        self._start_at_s = time.monotonic() + delay_s

    def _start(self) -> bool:
        """Start what was ended; return whether all were started, else it is to be tried again.

        This process may lack the descriptors, the memory or the thread for it.
        """
        command, has_role = self._recovery.drive.state.command, self._recovery.drive.has_role
        if time.monotonic() < self._start_at_s:
            return False
        for index in sorted(self._recovery.dead):
            rank = self._group.named(index)
            try:
                self._processes.start(rank, command.epoch)
            except (OSError, MemoryError, RuntimeError) as error:
                if shortage_of(error) is None:
                    raise
                lacks, self._lacks = self._lacks, described(error)
                if lacks is None:
                    self._tell(f"{self._config.name} waits with starting rank {rank}: {self._lacks}")
                self._start_at_s = time.monotonic() + self._limits.delay_s
                return False
            self._lacks = None
            self._recovery.dead.remove(index)
            # What was so of others was so before they had to begin anew.
            self._since = {"starting": {**self._starting, index: time.monotonic()}}
            death = self._ended_as.pop(rank, None)
            # One that had not joined is replaced without the role, which the journal needs.
            if death is not None and self._recovery.take_role(_LOOK_S):
                self._group.journal.note(
                    kinds.RANK_REPLACED, command, replaced=rank, pid=death.pid, cause=death.cause
                )
            if not has_role:
                self._recovery.release()
        return True

    # -- what is told ---------------------------------------------------------------------------

    def _begin_recovery(self, after: str) -> None:
        self._recovering = self._recovering or (time.monotonic(), after)
        self._whole.clear()

    def _tell_of_role(self, *, waits: bool) -> None:
        """Say that a recovery waits for another controller.

        One with the role ends soon: its command cannot go on without the dead. If it is stopped, or hangs
        itself, no other process may write.
        """
        now = time.monotonic()
        if not waits:
            self._busy_since = None
        elif self._busy_since is None:
            self._busy_since = now
        elif now - self._busy_since > _TELL_S:
            self._busy_since = now
            try:
                self._recovery.drive.take_role(0.0)
            except RoleBusyError as busy:
                self._tell(f"the recovery waits: {busy}")

    def _see_faults(self, view: View) -> None:
        """Put off the first repair of ranks whose teardown failed.

        A FAULTED rank may hold anything, and no rank serves beside it until all have released everything.
        Most causes pass (no descriptor was left, a view into the memory was open); one that stays goes with
        its process.
        """
        faulted = epochs.faulted(view)
        if faulted and not self._is_faulted:
            self._whole.clear()
            why = f"a teardown failed on rank {', '.join(map(str, faulted))}"
            self._tell_of_faults(why, self._recovery.put_off_repair())
        self._is_faulted = bool(faulted)

    def _tell_of_faults(self, why: str, again_s: float) -> None:
        failed = self._recovery.drive.state.repaired
        last = failed >= self._limits.repair_attempts
        then = "that rank is replaced" if last else "all ranks are cleared again"
        self._log.error("group.faulted", failed=failed, retry_s=again_s, cause=why)
        self._tell(f"{self._config.name} is FAULTED, {why}; {then} in {again_s:g} s")

    def _tell_ends(self) -> None:
        ends, self._recovery.ends = self._recovery.ends, []
        for end in [] if self._closing.is_set() else ends:
            receipt, error = end.receipt, end.error
            if error is not None and end.opens.operation is Operation.CLEAR:
                self._tell_of_faults(f"clearing it again failed: {error}", end.again_s)
            elif error is not None:
                self._tell_of_restore(error, end.again_s)
            elif receipt is not None and end.opens.operation is Operation.CLEAR:
                self._log.warning("group.repaired", epoch=receipt.epoch, sequence=receipt.sequence)
                self._tell(
                    f"{self._config.name} is CLEARED, its teardown worked in the end; "
                    "the next update makes it serve"
                )
            elif receipt is not None:
                verb = "serves" if receipt.hold is None else "is held as before, and has"
                self._recovered(f"{verb} version {receipt.version} again")

    def _tell_of_restore(self, error: WsmError, again_s: float) -> None:
        """Tell of an attempt to restore that has failed."""
        limit, epoch = self._limits.restore_attempts, self._recovery.drive.state.command.epoch
        left = self._recovery.attempts_left()
        hopeless = outcome.cannot_be_restored(error)
        number = self._recovery.drive.state.failed if hopeless else limit - left
        told = {"epoch": epoch, "error": str(error)}
        if left > 0:
            self._log.warning("group.restore_failed", attempt=number, retry_s=again_s, **told)
            self._tell(
                f"{self._config.name} is not restored yet, attempt {number + 1} of {limit} in {again_s:g} s: "
                f"{error}"
            )
            return
        self._log.error("group.not_restored", attempts=number, **told)
        how = "cannot be restored" if hopeless else f"is not restored after {number} attempts"
        self._recovered(f"{how} and stays CLEARED until it is updated: {error}")

    def _conclude(self) -> None:
        """See whether the group is whole again."""
        view = self._recovery.drive.look.view
        if self._recovery.dead or not decide.is_over(view) or epochs.faulted(view):
            return
        if epochs.unrestored(view) and self._recovery.attempts_left() > 0:
            return
        if self._recovering is not None:
            begun = view.command.operation is not Operation.NONE
            how = "was given another command, and is restored no more"
            self._recovered(how if begun else "is CLEARED, as it was before")
        self._whole.set()

    def _recovered(self, how: str) -> None:
        epoch = self._recovery.drive.state.command.epoch
        since_s, after = self._recovering or (time.monotonic(), "the loss")
        self._recovering, seconds = None, time.monotonic() - since_s
        self._log.warning("group.recovered", epoch=epoch, seconds=seconds, held=how)
        self._tell(f"{self._config.name} {how} (epoch {epoch}, {seconds:.2f} s after {after})")
        self.recoveries += 1  # last: what is told of a recovery that is counted can be read
