"""A new epoch for a group that has lost a rank, and what it is given again.

:class:`Recovery` begins the epoch, and loads again what the group served. Its caller has killed and reaped
what it replaces. The controller role is held from the moment before the epoch is raised until the group is
restored, so that no other command comes in between. What is restored is decided by :mod:`wsm.states.epochs`;
which process is started when, by :mod:`.keeper`. :class:`Repetition` gives a command of these again while it
fails. Commands whose controllers are gone:
:mod:`.abandoned_commands`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from wsm import log
from wsm.clock import Clock, SystemClock
from wsm.command import CommandArguments
from wsm.committed_record import CommittedRecord, CommittedRecordError, commit_report
from wsm.controller import errors
from wsm.controller._command_request import SETTLE_S
from wsm.controller._opening import require_able
from wsm.controller._transaction import (
    Pending,
    Transaction,
    commanded_version,
    committed_by,
    decision_held,
    known_arguments,
)
from wsm.controller.abandoned_commands import AbandonedCommands, decide_undecided
from wsm.controller.errors import RankLostError
from wsm.controller.group_view import GroupView
from wsm.errors import InternalError
from wsm.receipt import Receipt
from wsm.report import ReportFormatError
from wsm.signals.errors import RoleBusyError, go_on_or_end
from wsm.signals.liveness import Life
from wsm.signals.lock_file import LockHold
from wsm.signals.segment import Segment
from wsm.states import decide, epochs, holding
from wsm.states.epochs import Attempt, Backoff
from wsm.states.errors import CommandOpenError
from wsm.states.view import View
from wsm.states.vocabulary import WeightState
from wsm.states.words import CommandWord, Operation

#: Longest wait between two looks at whether waiting is still wanted, in seconds.
_LOOK_S = 0.05

#: The same while a command is given again.
_CANCEL_S = 0.02


@dataclass(frozen=True)
class NewEpoch:
    """An epoch that has begun.

    Parameters
    ----------
    number : int
        The epoch.
    because_of : tuple of int
        The participants that ended the one before.
    version : str or None
        What the group must serve again; None: it stays CLEARED.
    """

    number: int
    because_of: tuple[int, ...]
    version: str | None


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
        self._abandoned = AbandonedCommands(segment, who="the owner of the group", clock=clock, keeps=True)
        self._clock = clock or SystemClock()
        self._hold: LockHold | None = None
        self._committed = CommittedRecord(0)  # as it was read last
        self._bases: tuple[int, frozenset[str]] = (0, frozenset())
        self._log = log.logger("controller.recovery", group=segment.name)

    @property
    def group(self) -> GroupView:
        """The group whose recoveries these are."""
        return self._group

    @property
    def epoch(self) -> int:
        """The present epoch."""
        return self._group.view().command.epoch

    def end_abandoned(self) -> None:
        """Do what is owed to a command whose controller does not come back; to be called again and again.

        Does not block. Without a command that needs a decision it reads a few words.
        """
        self._abandoned.look()

    def owed(self) -> str | None:
        """Return the version that the group must serve again and does not; None once it does, or need not.

        An update that was to restore it and failed leaves the debt; any other command takes it away.
        """
        view = self._group.view()
        return self._group.committed(view).version if epochs.unrestored(view) else None

    def next_attempt(self, *, failed: int, limit: int) -> Attempt:
        """Say what follows after `failed` attempts to restore the group, of which `limit` may fail."""
        return epochs.next_attempt(self._group.view(), failed=failed, limit=limit)

    def versions(self) -> set[str]:
        """Return the versions that the group may have to load: the committed, and that of an open command.

        Where the committed one is a part, that means what it was put on, too.

        No publisher may take them away.
        """
        view = self._group.view()
        with contextlib.suppress(CommittedRecordError):  # then what was known before must be kept
            self._committed = self._group.committed(view)
        found = {self._committed.version, *self._bases_of(self._committed.load_sequence)}
        if not decide.is_over(view):
            arguments = self._group.arguments(view.command)
            found.add(None if arguments is None else arguments.version)
        return {version for version in found if version is not None}

    def _bases_of(self, sequence: int) -> frozenset[str]:
        """Return what the version of a load was put on, on any rank; read once for each load."""
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
        """Return the participants of this epoch that have left their place, died, or are dying."""
        joined = set(range(self._group.participants)) - set(self.missing())
        group = self._group
        return [
            index for index in sorted(joined) if group.life(index) is Life.DEAD or not group.has_place(index)
        ]

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
            fix = go_on_or_end(stopped, supervisor=self._group.role.is_supervisor(stopped))
            return f"process {stopped}, which is stopped: {fix}"
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
            None if the present epoch goes on: what is gone had not joined it, and may be replaced in it.

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
                raise errors.rank_alive(rank=rank, pid=self._group.pid(rank) or 0)
        view = decide_undecided(self._group, self._group.view())
        if not epochs.may_end(view):
            self.release()  # for the process that brings what was decided
            raise decision_held(view, self._group.arguments(view.command))
        because_of = epochs.ended_by(view, gone)
        if not because_of:
            return None
        word = epochs.next_epoch(view)
        word.pack()  # an epoch that does not fit is refused before anything is written
        self._group.role.await_stand_in()
        with self._group.journal.words_first():
            self._group.journal.asked("next_epoch", view, word)
            version = self._write_goal(view)
            self._group.write_command(word)
        self._log.warning(log.EPOCH_BEGUN, epoch=word.epoch, because_of=because_of, version=version)
        return NewEpoch(word.epoch, tuple(because_of), version)

    def restore(self, *, deadline_s: float = 300.0, settle_s: float = SETTLE_S) -> Pending | None:
        """Load what the group must serve again; every participant has joined the epoch. Does not block.

        Gives the controller role back when the update is over, or none was due. After one that failed, take
        the role and call this again: the group is owed the version still (:meth:`owed`), unless another
        command was given in between.

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
        if not epochs.unrestored(view):
            self.release()
            return None
        try:
            record = self._group.committed(view)
        except CommittedRecordError:
            self.release()  # no process can restore it: any may update it
            raise
        command = require_able(self._group, view, Operation.UPDATE)
        # A rank that dies in this command must find the group's goal, not the empty hands it begins with.
        arguments = CommandArguments(
            f"recovery-epoch-{command.epoch}",
            record.version,
            before=WeightState.NORMAL,
            restores=True,
            deadline_s=deadline_s,
        ).loading_as(record.load)
        return self._drive(view, command, arguments, deadline_s=deadline_s, settle_s=settle_s)

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
            raise InternalError("a group is cleared again only with the controller role")
        view = self._group.view()
        command = require_able(self._group, view, Operation.CLEAR)
        owed = epochs.unrestored(view)
        arguments = CommandArguments(
            f"repair-epoch-{command.epoch}-sequence-{command.sequence}",
            before=WeightState.NORMAL if owed else WeightState.CLEARED,
            clears=True,
            restores=owed,
            deadline_s=deadline_s,
        )
        return self._drive(view, command, arguments, deadline_s=deadline_s, settle_s=settle_s)

    def _drive(
        self,
        view: View,
        command: CommandWord,
        arguments: CommandArguments,
        *,
        deadline_s: float,
        settle_s: float,
    ) -> Pending:
        """Write a command and drive it; the role goes back when it is over."""
        command = self._group.open(view, command, arguments)
        transaction = Transaction(
            self._group,
            command,
            arguments,
            deadline_s=deadline_s,
            settle_s=settle_s,
            clock=self._clock,
            previous=self._group.known_version(view),
        )
        ending = contextlib.ExitStack()
        hold, self._hold = self._hold, None  # until here this object gives the role back
        if hold is not None:
            ending.callback(hold.release)
        return Pending.driven(transaction, ending, transaction.drive)

    def release(self) -> None:
        """Give the controller role back. Idempotent."""
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.release()

    def close(self) -> None:
        """Give the role back and let go of the processes that are watched."""
        self.release()
        self._abandoned.close()
        self.end_supervision()
        self._group.close()

    def end_supervision(self) -> None:
        """Say in the segment that this process replaces ranks no more. Idempotent."""
        if not self._segment.is_closed and not self._segment.is_truncated():
            self._segment.supervise(begins=False)

    def _completed(self, view: View, goal: str | None, arguments: CommandArguments) -> CommittedRecord:
        """Return the record of a decided commit, whose epoch ends before its word was stored."""
        with contextlib.suppress(CommittedRecordError):
            return committed_by(self._group, view, goal, arguments)
        held = holding.held_after(arguments.after, held=view.committed.held)
        return CommittedRecord(view.command.sequence, hold={} if held else None)

    def _write_goal(self, view: View) -> str | None:
        """Store what the group must hold again, so that it is known after the next death, too."""
        command, given = view.command, known_arguments(self._group, view)
        asked = commanded_version(self._group, view, given) if command.operation.is_commit else None
        served = None if given.before is None else given.before is WeightState.NORMAL
        committed = self._group.known_version(view)
        of_admission = given.of_admission
        goal = epochs.goal(
            view,
            asked=asked,
            committed=committed,
            served=served,
            of_admission=of_admission,
        )
        self._group.journal.asked(
            "goal",
            view,
            goal,
            asked=asked,
            committed=committed,
            served=served,
            of_admission=of_admission,
        )
        held = holding.held_after(given.after, held=view.committed.held)
        completed = epochs.completed_commit(view, goal, held=held)
        word = completed or epochs.goal_word(view, goal)
        journal = self._group.journal
        if completed is None:
            journal.asked("goal_word", view, word, goal=goal)
        else:
            journal.asked("completed_commit", view, word, goal=goal, held=held)
        if completed is not None:
            self._group.commit(view, self._completed(view, goal, given))
        elif word is not None:
            self._group.commit(view, CommittedRecord(word.sequence, hold=self._group.hold(view)))
        return goal


class Repetition:
    """A command of a recovery's that is given again while it fails, with growing waits in between.

    It restores a group after a loss, or clears one with a FAULTED rank. It gives way to another controller
    that has the role at the moment.

    Parameters
    ----------
    recovery : Recovery
        Of the group.
    backoff : Backoff
        How long to wait between two attempts.
    following : callable
        Says what follows after so many failures.
    begin : callable
        Begins the command, with the role; None where there is nothing to command.
    cancelled : callable
        Whether it is not wanted any more.

    Attributes
    ----------
    failures : int
        How many attempts have failed.
    due_s : float
        When the next one is to be made, by ``time.monotonic()``.
    """

    def __init__(
        self,
        recovery: Recovery,
        backoff: Backoff,
        *,
        following: Callable[..., Attempt],
        begin: Callable[[], Pending | None],
        cancelled: Callable[[], bool],
    ) -> None:
        self.failures = 0
        self.due_s = 0.0
        self._recovery = recovery
        self._backoff = backoff
        self._following = following
        self._begin = begin
        self._cancelled = cancelled

    def following(self) -> Attempt:
        """Say what is to be done now."""
        return self._following(failed=self.failures)

    def attempt(self) -> tuple[Attempt, Receipt | None]:
        """Give the command; it need not be due. Blocks for the length of it.

        Returns
        -------
        Attempt, Receipt or None
            MAKE once it worked, with its receipt; WAIT if another controller has the role; else why there is
            nothing to do any more.

        Raises
        ------
        RankLostError, CommandOpenError
            If a participant is gone again, or has not come to the end of the last command. The role is kept.
        WsmError
            If it failed for a reason that may pass. It is counted with :meth:`failed`.
        """
        if not self._recovery.take_role(0.0):
            self.due_s = time.monotonic() + self._backoff.first_s
            return Attempt.WAIT, None
        now, receipt = self.following(), None  # another command may have been quicker
        try:
            if now is Attempt.MAKE:
                receipt = self._result()
        except (RankLostError, CommandOpenError):
            raise
        except BaseException:
            self._recovery.release()
            raise
        self._recovery.release()
        return now, receipt

    def failed(self) -> float:
        """Count a failure; return how many seconds to wait for the next attempt."""
        self.failures += 1
        return self.put_off(self.failures)

    def put_off(self, failures: int) -> float:
        """Let the next attempt be due as after that many failures; return in how many seconds that is."""
        delay_s = self._backoff.after(failures)
        self.due_s = time.monotonic() + delay_s
        return delay_s

    def _result(self) -> Receipt | None:
        pending = self._begin()
        while pending is not None:
            with contextlib.suppress(TimeoutError):
                return pending.result(_CANCEL_S)
            if self._cancelled():
                pending.give_up()
        return None
