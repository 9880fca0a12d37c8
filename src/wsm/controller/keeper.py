"""Keeps a group alive: a rank that is gone is replaced in a new epoch, and what was served is loaded again.

A thread of the process that owns the group's processes, whichever engine they run: it starts and ends them
through :class:`GroupProcesses`. Whose process is replaced, and when it tries again what failed, is decided by
:mod:`wsm.states.epochs`; what the group must be afterwards by
:mod:`.recovery`. It tells each death and each recovery in one line.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Protocol, final

from wsm import log
from wsm.config import WsmConfig
from wsm.controller import errors, outcome
from wsm.controller._transaction import Pending
from wsm.controller.errors import Death, DecisionHeldError, RankLostError, RestartLimitError
from wsm.controller.recovery import Recovery, Repetition
from wsm.errors import WsmError
from wsm.shortage import described, shortage_of
from wsm.signals.errors import RoleBusyError
from wsm.signals.segment import Segment
from wsm.states import epochs
from wsm.states.epochs import Attempt, Backoff, Cause
from wsm.states.errors import CommandOpenError
from wsm.states.view import View
from wsm.strategies.registry import strategy_called
from wsm.strategies.snapshot.version_pins import VersionPins

#: Longest time between two looks, in seconds.
_LOOK_S = 0.02

#: Seconds that a process may take from leaving its place to its end.
_LEAVE_S = 5.0

#: Seconds after which it is told that a recovery still waits for another controller.
_TELL_S = 5.0


@dataclass(frozen=True)
class RecoveryConfig:
    """What a keeper does when a rank dies, and how long processes may take.

    Parameters
    ----------
    start_s : float
        How long a new process may take to attach, when the group starts and when it replaces a rank. One that
        ends is seen at once; this is for one that hangs, and must cover its imports on a busy machine.
        One that hangs is replaced, which counts as one of `restarts`.
    restarts : int
        How many recoveries it begins within `within_s` seconds; one more, and the group gives up. 0: the
        first death ends the group.
    within_s : float
        The window, in seconds; those in which the group waited for a process that hung in its start do not
        count.
    delay_s, longest_delay_s : float
        Seconds before the dead are replaced the second time within the window; doubled each time, up to the
        longest. The first time they are replaced at once.
    rejoin_s : float
        How long a rank that lives may take to join the new epoch before it is replaced, too.
    hung_s : float
        How long a rank may keep a decided command from its end before it is replaced.
    restore_s : float
        Deadline of the update that loads what the group served before.
    restore_attempts : int
        How often that update is tried where it fails without a death (a damaged file, a file server that is
        away), `delay_s` after the first time and then twice as long each time, up to the longest. Then the
        group stays CLEARED, and says so; any other command ends it at once. At least 1.
    repair_attempts : int
        How often a group is cleared again in which a teardown failed on a rank that lives, `delay_s` after
        the first failure and then twice as long each time, up to the longest. Then that rank is replaced,
        which counts as one of `restarts`. 0: it is replaced at once.

    Raises
    ------
    BadInputError
        If a number is below 0, or `restore_attempts` below 1.
    """

    start_s: float = 120.0
    restarts: int = 5
    within_s: float = 60.0
    delay_s: float = 0.5
    longest_delay_s: float = 30.0
    rejoin_s: float = 10.0
    hung_s: float = 60.0
    restore_s: float = 300.0
    restore_attempts: int = 8
    repair_attempts: int = 3

    def __post_init__(self) -> None:
        for option, least in (("restarts", 0), ("restore_attempts", 1), ("repair_attempts", 0)):
            value = getattr(self, option)
            if value < least:
                raise errors.recovery_limit(option=option, value=value, least=least)

    @property
    def backoff(self) -> Backoff:
        """How the waits grow."""
        return Backoff(self.delay_s, self.longest_delay_s)


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
        self._recovery = Recovery(segment)
        self._group = self._recovery.group
        self._limits = limits or RecoveryConfig()
        self._tell = tell
        self._logs = logs
        self._starting: dict[int, float] = {}  # whose process has not joined yet, and when it was started
        self._hung_s = 0.0  # how long the group has waited for processes that hung in their starts
        self._begun_s: list[float] = []
        self._deaths: list[tuple[float, Death]] = []
        self._closing = threading.Event()
        self._whole = threading.Event()
        self._whole.set()
        self._fatal: BaseException | None = None
        self._leaving_since: float | None = None
        self._decided: tuple[object, float] = (None, 0.0)
        self._lost_at_s = 0.0
        self._restore: Repetition | None = None
        self._repair: Repetition | None = None
        retired_from = strategy_called(config.strategy).retired_from
        self._pins = VersionPins(retired_from(config.strategy_sections()))
        self._log = log.logger("controller.keeper", group=config.name)
        self._thread = threading.Thread(target=self._run, name="wsm-keeper", daemon=True)

    def start(self) -> Keeper:
        """Begin to watch. The processes of all participants were started, or are started meanwhile."""
        now = time.monotonic()
        self._starting = {self._group.named(index): now for index in range(self._group.participants)}
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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

    def wait_until_whole(self, timeout_s: float) -> bool:
        """Wait until no recovery is under way; blocks up to `timeout_s` seconds; return whether it is so."""
        return self._whole.wait(timeout_s)

    # -- watching -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                victims = self._look() or self._repair_if_due() or self._restore_if_due()
                if victims:
                    self._whole.clear()
                    self._recover(victims)
                elif self._restore is None and self._repair is None:
                    self._whole.set()
                if not victims:
                    self._processes.wait(_LOOK_S)
        except BaseException as error:  # noqa: BLE001 - check() raises it in the owner's thread
            self._fatal = error
            self._log.error(log.GROUP_GIVEN_UP, error=str(error))
        finally:
            self._recovery.release()
            self._recovery.end_supervision()  # status does not name this process as one that helps any more
            self._pins.close()
            self._whole.set()

    def _look(self) -> dict[int, str]:
        """Return which participants have to be replaced, and why the keeper ends those that live."""
        self._pin()
        self._recovery.end_abandoned()
        # The words before the processes: a step that broke because of a death is seen after that.
        view = self._group.view()
        late, broken = epochs.late(view), epochs.ended_by(view, ())
        ended = self._processes.ended()
        stopped = self._stopped() if late or broken else ()
        left = self._recovery.left() if broken else ()
        leaving = self._may_end(left)
        found = epochs.whom_to_replace(view, ended=ended, stopped=stopped, left=left, leaving=leaving)
        if found:
            return self._told(found)
        now = time.monotonic()
        overdue = self._overdue(view, began_s=now)
        if overdue:
            return overdue
        if view.command != self._decided[0]:
            self._decided = view.command, now
        waited_s, drain_s = now - self._decided[1], self._config.deadlines.drain_s
        hung = epochs.hung(view, stopped, waited_s=waited_s, limit_s=self._limits.hung_s, drain_s=drain_s)
        return self._told(hung, f"it did not end a decided command within {waited_s:.0f} s")

    def _told(self, found: Mapping[int, Cause], detail: str = "") -> dict[int, str]:
        """Name the participants as they call themselves, and say why they are ended if they live."""
        named = {self._group.named(rank): why for rank, why in found.items()}
        return {rank: "" if why is Cause.ENDED else detail or why.value for rank, why in named.items()}

    def _stopped(self) -> list[int]:
        return [rank for rank in range(self._group.participants) if self._group.stopped(rank)]

    def _overdue(self, view: View, *, began_s: float) -> dict[int, str]:
        """Return which participants had their time to join the epoch, and did not.

        A new process takes longer than one that lives, and is counted from its own start; one that lives is
        counted from `began_s`.
        """
        now, limits, found = time.monotonic(), self._limits, {}
        for index, status in enumerate(view.statuses):
            rank = self._group.named(index)
            if status.epoch == view.command.epoch:
                self._starting.pop(rank, None)
                continue
            limit = limits.start_s if rank in self._starting else limits.rejoin_s
            if now - self._starting.get(rank, began_s) > limit:
                found[rank] = f"it did not join the epoch within {limit:g} s"
        return found

    def _pin(self) -> None:
        """Keep what the group may have to load again. Its ranks do so, too, but all may die at once."""
        versions = self._recovery.versions()
        for version in versions:
            self._pins.add(version)
        self._pins.keep(versions)

    def _may_end(self, left: Collection[int]) -> bool:
        """Whether the processes of participants that left their places may still be about to end."""
        if not left:
            self._leaving_since = None
            return False
        now = time.monotonic()
        self._leaving_since = now if self._leaving_since is None else self._leaving_since
        return now - self._leaving_since < _LEAVE_S

    # -- recovering -----------------------------------------------------------------------------

    def _recover(self, victims: dict[int, str]) -> None:
        self._lost_at_s = time.monotonic()
        self._leaving_since = None
        gone, delay_s = set(victims), self._end(victims)
        self._restore = None  # the next epoch inherits what is still to be restored
        while not self._closing.is_set():
            self._begin(gone)
            if self._closing.wait(delay_s):
                return
            number = self._recovery.epoch
            for rank in sorted(gone):
                self._start(rank, number)
                self._starting[rank] = time.monotonic()
            more = self._await_joined()
            if not more and not self._closing.is_set():
                self._restore = self._repetition(
                    partial(self._recovery.next_attempt, limit=self._limits.restore_attempts),
                    partial(self._recovery.restore, deadline_s=self._limits.restore_s),
                )
                more = self._restore_now(self._restore)
            if not more:
                return
            # A rank that has lived and only did not come back in time is no sign of a crash loop.
            counts = any(not why or rank in self._starting for rank, why in more.items())
            delay_s = self._end(more, counts=counts)
            gone = set(more)

    def _end(self, victims: Mapping[int, str], *, counts: bool = True) -> float:
        """End and reap, tell, and return how long to wait before they are replaced.

        Raises
        ------
        RestartLimitError
            If it happens too often.
        """
        deaths = []
        for rank, why in victims.items():
            epoch = self._recovery.epoch
            end = self._processes.end(rank)
            death = Death(rank, end.pid, epoch, end.code, why, end.log)
            self._log.error(log.RANK_LOST, rank=rank, pid=end.pid, epoch=epoch, cause=death.cause)
            self._tell(death.sentence())
            deaths.append(death)
        if not counts:
            return 0.0
        limits = self._limits
        if any(why and rank in self._starting for rank, why in victims.items()):
            self._hung_s += limits.start_s
        now = time.monotonic() - self._hung_s
        self._deaths = [(at, one) for at, one in self._deaths if now - at <= limits.within_s]
        self._deaths += [(now, death) for death in deaths]
        delay_s = epochs.restart_delay_s(
            self._begun_s, now, restarts=limits.restarts, within_s=limits.within_s, backoff=limits.backoff
        )
        self._begun_s = [*self._begun_s[-limits.restarts :], now]
        if delay_s is None:
            raise RestartLimitError(
                group=self._config.name,
                limit=limits.restarts,
                within_s=limits.within_s,
                deaths=[death for _, death in self._deaths],
                directory=self._logs,
            )
        return delay_s

    def _begin(self, gone: Collection[int]) -> None:
        """Raise the epoch as soon as another controller's command has ended."""
        told = ""
        while not self._closing.is_set():
            # A controller with the role ends soon: its command cannot go on without the dead. If it is
            # stopped, or hangs itself, no other process may write: the recovery waits, and says so.
            held_by = ""
            if self._recovery.take_role(_TELL_S, self._closing.is_set):
                try:
                    self._recovery.begin(gone)
                except RoleBusyError:
                    pass
                except DecisionHeldError as held:
                    held_by = str(held)
                else:
                    return
            line = (
                f"the recovery waits: {held_by}"
                if held_by
                else f"the recovery waits for the controller in {self._recovery.role_holder()}"
            )
            if not held_by or line != told:
                self._tell(line)
            told = line
            if held_by:
                self._closing.wait(_LOOK_S)

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
                    self._tell(f"{self._config.name} waits with starting rank {rank}: {described(error)}")
                told = True
            else:
                return
            self._closing.wait(self._limits.delay_s)

    def _await_joined(self) -> dict[int, str]:
        """Wait until all have joined the epoch; return which have to be replaced before that."""
        began_s = time.monotonic()
        while not self._closing.is_set():
            view = self._group.view()
            ended = self._processes.ended()
            overdue = self._overdue(view, began_s=began_s)
            if ended:
                return self._told(dict.fromkeys(ended, Cause.ENDED))
            if all(status.epoch == view.command.epoch for status in view.statuses):
                return {}
            if overdue:
                return overdue
            self._processes.wait(_LOOK_S)
        return {}

    def _await_end(self) -> dict[int, str]:
        """Return which are gone: a process may have left its place a while before it has ended."""
        deadline = time.monotonic() + _LEAVE_S
        while not self._closing.is_set() and time.monotonic() < deadline:
            ended = self._processes.ended()
            if ended:
                return self._told(dict.fromkeys(ended, Cause.ENDED))
            self._processes.wait(_LOOK_S)
        return self._told(dict.fromkeys(self._recovery.left(), Cause.LEFT))

    # -- commands that are given again while they fail -------------------------------------------

    def _repetition(
        self, following: Callable[..., Attempt], begin: Callable[[], Pending | None]
    ) -> Repetition:
        return Repetition(
            self._recovery,
            self._limits.backoff,
            following=following,
            begin=begin,
            cancelled=self._closing.is_set,
        )

    def _restore_if_due(self) -> dict[int, str]:
        """Make the next attempt to restore once it is due; return which have to be replaced before that."""
        restore = self._restore
        if restore is None or self._repair is not None or time.monotonic() < restore.due_s:
            return {}
        return self._restore_now(restore)

    def _restore_now(self, restore: Repetition) -> dict[int, str]:
        try:
            now, receipt = restore.attempt()
        except (RankLostError, CommandOpenError) as error:
            gone = self._await_end()
            if gone:
                return gone
            self._recovery.release()
            self._not_restored(restore, error)
        except WsmError as error:
            self._not_restored(restore, error)
        else:
            if now is Attempt.MAKE:
                told = "is CLEARED, as it was before"
                if receipt is not None:
                    verb = "serves" if receipt.hold is None else "is held as before, and has"
                    told = f"{verb} version {receipt.version} again"
                self._restored(told)
            elif now is not Attempt.WAIT:
                self._restored("was given another command, and is restored no more")
        return {}

    def _not_restored(self, restore: Repetition, error: WsmError) -> None:
        """Take in that an attempt has failed for a reason that may pass; the last one gives up."""
        delay_s, number, epoch = restore.failed(), restore.failures, self._recovery.epoch
        following = restore.following()
        if self._closing.is_set():
            self._restore = None
        elif following is Attempt.OVERTAKEN:
            self._restored("was given another command, and is restored no more")
        elif following is Attempt.GIVE_UP or outcome.cannot_be_restored(error):
            self._log.error(log.GROUP_NOT_RESTORED, epoch=epoch, attempts=number, error=str(error))
            hopeless = outcome.cannot_be_restored(error)
            how = "cannot be restored" if hopeless else f"is not restored after {number} attempts"
            self._restored(f"{how} and stays CLEARED until it is updated: {error}")
        else:
            self._log.warning(
                log.GROUP_RESTORE_FAILED, epoch=epoch, attempt=number, retry_s=delay_s, error=str(error)
            )
            limit = self._limits.restore_attempts
            self._tell(
                f"{self._config.name} is not restored yet, attempt {number + 1} of {limit} in {delay_s:g} s: "
                f"{error}"
            )

    def _restored(self, held: str) -> None:
        self._restore = None
        epoch, seconds = self._recovery.epoch, time.monotonic() - self._lost_at_s
        self._log.warning(log.GROUP_RECOVERED, epoch=epoch, seconds=seconds, held=held)
        self._tell(f"{self._config.name} {held} (epoch {epoch}, {seconds:.2f} s after the loss)")
        self.recoveries += 1  # last: what is told of a recovery that is counted can be read

    def _repair_if_due(self) -> dict[int, str]:
        """Clear the group again where a teardown failed, if that is due; return which are replaced instead.

        A FAULTED rank may hold anything, and no rank serves beside it until all have released everything.
        Most causes pass (no descriptor was left, a view into the memory was open); one that stays goes with
        its process.
        """
        faulted = epochs.faulted(self._group.view())
        if not faulted:
            self._repair = None
            return {}
        self._whole.clear()
        repair = self._repair
        if repair is None:
            repair = self._repair = self._repetition(
                lambda failed: epochs.next_repair(
                    self._group.view(), failed=failed, limit=self._limits.repair_attempts
                ),
                partial(self._recovery.clear_again, deadline_s=self._limits.restore_s),
            )
            self._put_off(repair, f"a teardown failed on rank {', '.join(map(str, faulted))}")
        following = repair.following()
        if following is Attempt.WAIT or time.monotonic() < repair.due_s:
            return {}
        if following is Attempt.GIVE_UP:
            self._repair = None
            why = f"its teardown failed, and {repair.failures} times more when it was cleared"
            return {self._group.named(rank): why for rank in faulted}
        try:
            now, receipt = repair.attempt()
        except (RankLostError, CommandOpenError):
            self._recovery.release()
            repair.due_s = time.monotonic() + self._limits.delay_s  # a rank that is gone is replaced first
        except WsmError as error:
            repair.failed()
            if not self._closing.is_set():
                self._put_off(repair, f"clearing it again failed: {error}")
        else:
            if now is Attempt.MAKE and receipt is not None:
                self._log.warning(log.GROUP_REPAIRED, epoch=receipt.epoch, sequence=receipt.sequence)
                self._tell(
                    f"{self._config.name} is CLEARED, its teardown worked in the end; "
                    "the next update makes it serve"
                )
        return {}

    def _put_off(self, repair: Repetition, why: str) -> None:
        delay_s = repair.put_off(repair.failures + 1)
        last = repair.failures >= self._limits.repair_attempts
        then = "that rank is replaced" if last else "all ranks are cleared again"
        self._log.error(log.GROUP_FAULTED, failed=repair.failures, retry_s=delay_s, cause=why)
        self._tell(f"{self._config.name} is FAULTED, {why}; {then} in {delay_s:g} s")
