"""A new epoch for a group that has lost a rank, and what it served before, loaded again.

For the owner of the group's processes: whoever calls this has killed and reaped what it replaces. The
controller role is held from the moment before the epoch is raised until the group is restored, so that no
other command can slip in between. What is restored is decided by :mod:`wsm.states.epochs`; who is started
when, by whoever owns the processes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from wsm import log
from wsm.clock import Clock, SystemClock
from wsm.command import CommandArguments
from wsm.commit_report import commit_report
from wsm.controller import abandoned, admission, outcome
from wsm.controller.abandoned import AbandonedCommands
from wsm.controller.driving import Drive
from wsm.controller.errors import RankAliveError
from wsm.controller.group_view import GroupView
from wsm.controller.pending import Pending
from wsm.controller.transaction import SETTLE_S, Transaction
from wsm.errors import InternalError
from wsm.report import ReportFormatError
from wsm.signals.errors import RoleBusyError
from wsm.signals.liveness import Life
from wsm.signals.lock_file import LockHold
from wsm.signals.segment import Segment
from wsm.states import decide, epochs, restoring
from wsm.states.restoring import Attempt, Repair
from wsm.states.view import View
from wsm.states.vocabulary import WeightState
from wsm.states.words import CommandWord, Operation, StatusCode

#: Longest wait between two looks at whether waiting is still wanted, in seconds.
_LOOK_S = 0.05


@dataclass(frozen=True)
class NewEpoch:
    """An epoch that has begun.

    Parameters
    ----------
    number : int
        The epoch.
    because_of : tuple of int
        The participants that ended the one before.
    version : int or None
        What the group must serve again; None: it stays CLEARED.
    """

    number: int
    because_of: tuple[int, ...]
    version: int | None


class Recovery:
    """The recoveries of one group, one after the other. For one thread.

    Parameters
    ----------
    segment : Segment
        The group's segment, attached or owned; must stay open.
    clock : Clock or None
        For deadlines; None is the host's.
    """

    def __init__(self, segment: Segment, *, clock: Clock | None = None) -> None:
        self._segment = segment
        self._group = GroupView(segment)
        segment.supervise(begins=True)
        self._abandoned = AbandonedCommands(segment, who="the owner of the group", clock=clock)
        self._clock = clock or SystemClock()
        self._hold: LockHold | None = None
        self._bases: tuple[int, frozenset[int]] = (0, frozenset())
        self._log = log.logger("controller.recovery", group=segment.name)

    @property
    def epoch(self) -> int:
        """The present epoch."""
        return self._group.view().command.epoch

    def ended_by(self, dead: Collection[int]) -> list[int]:
        """Return the participants because of whom the epoch must end: dead that had joined, and broken."""
        return epochs.ended_by(self._group.view(), dead)

    def end_abandoned(self) -> None:
        """Do what is owed to a command whose controller does not come back; to be called again and again.

        Waits for nobody. Without a command that needs a decision it reads a few words.
        """
        self._abandoned.look()

    def late(self) -> tuple[CommandWord, list[int]]:
        """Return the present command, and who keeps it from its end although it is decided.

        Whoever has stopped after an abort waits for others itself.
        """
        view = self._group.view()
        if not view.command.operation.is_decision:
            return view.command, []
        stopped = (StatusCode.STOPPED_UNTOUCHED, StatusCode.STOPPED_TOUCHED)
        waiting = decide.waiting_on(view)
        late = [rank for rank, status in waiting.items() if status is None or status.code not in stopped]
        return view.command, late

    def owed(self) -> int | None:
        """Return the version that the group must serve again and does not; None once it does, or need not.

        An update that was to restore it and failed leaves the debt; any other command takes it away.
        """
        return self._group.unrestored(self._group.view())

    def next_attempt(self, *, failed: int, limit: int) -> Attempt:
        """Say what follows after `failed` attempts to restore the group, of which `limit` may fail."""
        view = self._group.view()
        restores = self._group.restores(view)
        return restoring.next_attempt(view, restores=restores, failed=failed, limit=limit)

    def faulted(self) -> list[int]:
        """Return the participants whose teardown failed, and who live."""
        return restoring.faulted(self._group.view())

    def next_repair(self, *, failed: int, limit: int) -> Repair:
        """Say what follows for FAULTED ranks after `failed` clears, of which `limit` may fail."""
        return restoring.next_repair(self._group.view(), failed=failed, limit=limit)

    def versions(self) -> set[int]:
        """Return the versions that the group may have to load: the committed, and that of an open command.

        Where the committed one is a part, that means what it was put on, too.

        Whoever publishes must not take them away.
        """
        view = self._group.view()
        found = {view.committed.version, *self._bases_of(view.committed.sequence)}
        if not decide.is_over(view):
            arguments = self._group.arguments(view.command)
            found.add(None if arguments is None else arguments.version)
        return {version for version in found if version is not None}

    def _bases_of(self, sequence: int) -> frozenset[int]:
        """Return what the version of a commit was put on, on any rank; read once for each commit."""
        if self._bases[0] != sequence:
            segment = self._group.segment
            try:
                found = [commit_report(segment, rank, sequence) for rank in range(segment.world_size)]
            except ReportFormatError:
                found = [None]
            bases = frozenset(base for report in found if report is not None for base in report.bases)
            if None in found:  # a rank is writing it at the moment: until it can be read, nothing is let go
                return bases | self._bases[1]
            self._bases = sequence, bases
        return self._bases[1]

    def missing(self) -> list[int]:
        """Return the participants that have not joined the present epoch."""
        view = self._group.view()
        return [index for index, status in enumerate(view.statuses) if status.epoch != view.command.epoch]

    def left(self) -> list[int]:
        """Return the participants of this epoch that have left their place, or died."""
        joined = set(range(self._group.participants)) - set(self.missing())
        return [index for index in sorted(joined) if self._group.life(index) is Life.DEAD]

    def take_role(self, wait_s: float, cancelled: Callable[[], bool] = bool) -> bool:
        """Take the controller role and keep it; blocks up to `wait_s` seconds for another controller.

        Returns
        -------
        bool
            Whether this object has it now. Not if `cancelled` said so, or another controller has it still.
        """
        deadline = time.monotonic() + wait_s
        while self._hold is None and not cancelled():
            with contextlib.suppress(RoleBusyError):
                self._hold = self._group.role.acquire(min(_LOOK_S, max(deadline - time.monotonic(), 0.0)))
            if time.monotonic() >= deadline:
                break
        return self._hold is not None

    def role_holder(self) -> str:
        """Name the process that has the controller role, and say what to do if it is stopped."""
        stopped = self._group.role.stopped_holder()
        if stopped is not None:
            return f"process {stopped}, which is stopped: end it (kill -9 {stopped})"
        return f"process {self._group.role.holder()}"

    def begin(self, gone: Collection[int], *, wait_s: float = 0.0) -> NewEpoch | None:
        """Raise the epoch, after what was decided in the old one is completed. Keeps the controller role.

        Parameters
        ----------
        gone : collection of int
            Participants whose processes were killed and reaped. None of them writes a word any more.
        wait_s : float
            Seconds to wait for another controller, whose command ends soon when a rank is dead. Blocks that
            long at most.

        Returns
        -------
        NewEpoch or None
            None if the present epoch goes on: whoever is gone had not joined it, and may be replaced in it.

        Raises
        ------
        RoleBusyError
            If another controller still has the role, or a process stays where it was about to decide in the
            place of a stopped one. No epoch was written; ask again.
        RefusedError
            If a process of `gone` lives. Nothing was written.
        BadInputError
            If there are no more epochs; the group must be started anew.
        """
        if self._hold is None:
            self._hold = self._group.role.acquire(wait_s)
        for rank in gone:
            if self._group.life(rank) is Life.ALIVE:
                raise RankAliveError(rank=rank, pid=self._group.pid(rank) or 0)
        view = abandoned.decide_undecided(self._group)
        because_of = epochs.ended_by(view, gone)
        if not because_of:
            return None
        word = epochs.next_epoch(view)
        word.pack()  # an epoch that does not fit is refused before anything is written
        self._group.role.await_stand_in()
        version = self._write_goal(view)
        self._group.write_command(word)
        self._log.warning(log.EPOCH_BEGUN, epoch=word.epoch, because_of=because_of, version=version)
        return NewEpoch(word.epoch, tuple(because_of), version)

    def restore(self, *, deadline_s: float = 300.0, settle_s: float = SETTLE_S) -> Pending | None:
        """Load what the group must serve again; every participant has joined the epoch. Does not block.

        Gives the controller role back when the update is over, or none was due. After one that failed, take
        the role and call this again: the group is owed the version still (:meth:`owed`), and whoever gave it
        another command in between has ended that.

        Returns
        -------
        Pending or None
            The update of the committed version, none other; None if the group stays as it is.

        Raises
        ------
        RankLostError, CommandOpenError
            If a participant is gone again, or has not joined, or has not ended what was aborted. The role is
            kept.
        RefusedError
            If a replacement derived other plans than its peers. The role is kept.
        """
        if self._hold is None:
            raise InternalError("a group is restored only in an epoch that was begun here")
        view = self._group.view()
        version = self._group.unrestored(view)
        if version is None:
            self.release()
            return None
        admission.require_alive(self._group, Operation.UPDATE)
        command = decide.next_command(view, Operation.UPDATE)
        admission.require_equal_plans(self._group, command.epoch)
        # A rank that dies in this command must find the group's goal, not the empty hands it begins with.
        arguments = CommandArguments(
            f"recovery-epoch-{command.epoch}",
            version,
            before=WeightState.NORMAL,
            restores=True,
            deadline_s=deadline_s,
        )
        return self._drive(command, arguments, deadline_s=deadline_s, settle_s=settle_s)

    def clear_again(self, *, deadline_s: float = 300.0, settle_s: float = SETTLE_S) -> Pending:
        """Clear the whole group, which repairs FAULTED ranks. Does not block.

        Give the controller role to this object before (:meth:`take_role`); it goes with the clear. What the
        group is owed it is owed still.

        Raises
        ------
        RankLostError, CommandOpenError
            If a participant is gone, or has not come to the end of the last command. The role is kept.
        """
        if self._hold is None:
            raise InternalError("a group is cleared again only by who has the controller role")
        view = self._group.view()
        admission.require_alive(self._group, Operation.CLEAR)
        command = decide.next_command(view, Operation.CLEAR)
        owed = self._group.unrestored(view) is not None
        arguments = CommandArguments(
            f"repair-epoch-{command.epoch}-sequence-{command.sequence}",
            before=WeightState.NORMAL if owed else WeightState.CLEARED,
            clears=True,
            restores=owed,
            deadline_s=deadline_s,
        )
        return self._drive(command, arguments, deadline_s=deadline_s, settle_s=settle_s)

    def _drive(
        self, command: CommandWord, arguments: CommandArguments, *, deadline_s: float, settle_s: float
    ) -> Pending:
        """Write a command and drive it; the role goes back when it is over."""
        command = self._group.open(command, arguments)
        hold, self._hold = self._hold, None
        transaction = Transaction(
            self._group, command, arguments, deadline_s=deadline_s, settle_s=settle_s, clock=self._clock
        )
        ending = contextlib.ExitStack()
        if hold is not None:
            ending.callback(hold.release)
        return Drive(transaction, ending).start()

    def release(self) -> None:
        """Give the controller role back. Idempotent."""
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.release()

    def close(self) -> None:
        """Give the role back and let go of the processes that are watched."""
        self.release()
        self._abandoned.close()
        if not self._segment.is_closed and not self._segment.is_truncated():
            self._segment.supervise(begins=False)
        self._group.close()

    def _write_goal(self, view: View) -> int | None:
        """Store what the group must hold again, so that it is known after the next death, too."""
        command, arguments = view.command, self._group.arguments(view.command)
        asked = arguments.version if arguments is not None else None
        if asked is None and command.operation.is_commit:
            asked = outcome.version(self._group, command)
        served = None
        if arguments is not None and arguments.before is not None:
            served = arguments.before is WeightState.NORMAL
        restores = arguments is not None and arguments.restores
        goal = restoring.goal(view, asked=asked, served=served, restores=restores)
        completed = epochs.completed_commit(view, goal) if goal is not None else None
        word = completed or epochs.goal_word(view, goal)
        if word is not None:
            self._group.write_committed(word)
        return goal
