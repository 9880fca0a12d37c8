"""A new epoch for a group that has lost a rank, and what it is given again.

:class:`Recovery` is what the process that keeps a group knows of it, for :mod:`._drive`: whose processes are
dead or to be replaced, and how often a restore, or the repair of a FAULTED rank, may fail. The table of
:mod:`wsm.states.group` says what follows. Its caller ends and starts the processes; :mod:`.keeper` is one.
The controller role is held from the moment before the epoch is raised until the group is restored, so that no
other command comes in between.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from wsm.command import CommandArguments
from wsm.committed_record import CommittedRecord, CommittedRecordError, commit_report
from wsm.controller import outcome
from wsm.controller._command_request import SETTLE_S
from wsm.controller._opening import require_able, restore_of
from wsm.controller._records import known_arguments
from wsm.controller._transaction import Transaction
from wsm.controller.abandoned_commands import AbandonedCommands
from wsm.controller.errors import RankLostError
from wsm.controller.group_view import GroupView, Look
from wsm.controller.pending import Pending
from wsm.errors import InternalError, RefusedError, WsmError
from wsm.receipt import Receipt
from wsm.report import ReportFormatError
from wsm.signals.errors import RoleBusyError
from wsm.signals.liveness import Life
from wsm.signals.segment import Segment
from wsm.states import decide, epochs
from wsm.states.epochs import Backoff, Cause
from wsm.states.errors import CommandOpenError
from wsm.states.group import GroupMove, GroupState, GroupTodo, Known, May, Opens, goal_of
from wsm.states.view import View
from wsm.states.vocabulary import WeightState
from wsm.states.words import CommandWord, Operation
from wsm.typed import Count, CountFrom0, Seconds, Wait, typed


@typed
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
    end_hung_controller_s : float or None
        Seconds after which the keeper ends (SIGKILL) a process that has the controller role and does not go
        on: its command has waited five seconds for its word. None: it is named, and ended by no process.
    replace_stopped_after_s : float or None
        Seconds after which a rank is replaced that is stopped (SIGSTOP, a debugger), whether others wait for
        it in a step or not. None: it is named, and replaced only where they do.
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
        If a number is below 0, or `restore_attempts` below 1 (``bad-keyword``).
    """

    start_s: Seconds = 120.0
    restarts: CountFrom0 = 5
    within_s: Seconds = 60.0
    delay_s: Wait = 0.5
    longest_delay_s: Seconds = 30.0
    rejoin_s: Seconds = 10.0
    hung_s: Seconds = 60.0
    restore_s: Seconds = 300.0
    end_hung_controller_s: Wait | None = None
    replace_stopped_after_s: Wait | None = None
    restore_attempts: Count = 8
    repair_attempts: CountFrom0 = 3

    @property
    def backoff(self) -> Backoff:
        """How the waits grow."""
        return Backoff(self.delay_s, self.longest_delay_s)


@dataclass(frozen=True)
class NewEpoch:
    """An epoch that has begun.

    `because_of`: the participants that ended the one before. `version`: what the group must serve again;
    None: it stays CLEARED.
    """

    number: int
    because_of: tuple[int, ...]
    version: str | None


class CommandEnd(NamedTuple):
    """How a restore, or a repair of FAULTED ranks, ended: with its receipt, or why it failed.

    `again_s`: in how many seconds the next attempt is due.
    """

    opens: Opens
    receipt: Receipt | None
    error: WsmError | None
    again_s: float


class Recovery(AbandonedCommands):
    """The recoveries of one group, one after the other. For one thread.

    `segment`: the group's segment, attached or owned; must stay open. `limits`: how often it commands a
    restore or a repair by itself; None: never. `given_up`: set when what it commands is not wanted any more.
    `whom`: returns whose processes are to be replaced, of a view that was read before. `dead`: participants
    whose processes were ended and reaped, and not replaced yet. `leaving`: whether others may be about to
    end. `own`, `opens`: its restore or repair that is under way, and what that is. `ends`: how those ended
    that are over, until taken away.
    """

    def __init__(
        self,
        segment: Segment,
        *,
        limits: RecoveryConfig | None = None,
        given_up: threading.Event | None = None,
        whom: Callable[[View], Mapping[int, Cause]] | None = None,
    ) -> None:
        self._limits = limits or RecoveryConfig()
        hung_s = self._limits.end_hung_controller_s
        super().__init__(segment, who="the owner of the group", end_hung_controller_s=hung_s)
        segment.supervise(begins=True)
        self.dead: set[int] = set()
        self.leaving = False
        self.own: Transaction | None = None
        self.ends: list[CommandEnd] = []
        self._keeps = limits is not None
        self._given_up = given_up or threading.Event()
        self._whom = whom
        self._segment = segment
        self._known = Known(May.KEEP)
        self._begun: NewEpoch | None = None
        self.opens: Opens | None = None
        self._lacks_a_rank = False  # so that no command could be given
        self._vain: tuple[CommandWord | None, int] = None, 0  # commands that were not given behind that one
        self._committed = CommittedRecord(0)  # as it was read last
        self._bases: tuple[int, frozenset[str]] = (0, frozenset())

    @property
    def group(self) -> GroupView:
        """The group whose recoveries these are."""
        return self._group

    # -- by hand -----------------------------------------------------------------------------------

    def take_role(self, wait_s: float) -> bool:
        """Take the controller role and keep it; blocks up to `wait_s` seconds; return whether it is there."""
        with contextlib.suppress(RoleBusyError):
            self.drive.take_role(wait_s)
        return self.drive.has_role

    def begin(self, gone: Collection[int], *, wait_s: float = 0.0) -> NewEpoch | None:
        """Raise the epoch, after what was decided in the old one is completed. Keeps the controller role.

        `gone`: participants whose processes were killed and reaped. None of them writes a word any more.
        `wait_s`: seconds to wait for another controller, whose command ends soon when a rank is dead. Blocks
        that long at most.

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
        self.drive.take_role(wait_s)
        for rank in gone:
            if self._group.liveness.look(rank) is Life.ALIVE:
                pid = self._group.liveness.pid(rank) or 0
                raise RefusedError(
                    f"the process {pid} of rank {rank} lives; kill and reap it before it is replaced",
                    code="rank-alive",
                    rank=rank,
                    pid=pid,
                )
        self.dead, self._begun, keeps = set(gone), None, self._keeps
        self._keeps = True
        try:
            self.turn()
        finally:
            self.dead, self._keeps = set(), keeps
        return self._begun

    def restore(self, *, deadline_s: float = 300.0) -> Pending | None:
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
        if not self.drive.has_role:
            raise InternalError("a group is restored only in an epoch that was begun here")
        group, view = self._group, self._group.view()
        if not epochs.unrestored(view):
            self.release()
            return None
        try:
            arguments = restore_of(group, view, f"recovery-epoch-{view.command.epoch}", deadline_s)
        except CommittedRecordError:
            self.release()  # no process can restore it: any may update it
            raise
        pending = Pending(arguments.request_id, group.ring, here=group.meanwhile is not None)
        transaction = Transaction(group, arguments, self._clock, SETTLE_S, pending=pending)

        def run() -> Receipt:
            try:
                return transaction.run(self.drive)
            finally:
                self.release()

        return pending.carry_out(run)

    def missing(self) -> list[int]:
        """Return the participants that have not joined the present epoch."""
        view = self._group.view()
        return [index for index, status in enumerate(view.statuses) if status.epoch != view.command.epoch]

    def owed(self) -> str | None:
        """Return the version that the group must serve again and does not; None once it does, or need not.

        An update that was to restore it and failed leaves the debt; any other command takes it away.
        """
        view = self._group.view()
        return self._group.committed(view).version if epochs.unrestored(view) else None

    def release(self) -> None:
        """Give the controller role back. Idempotent."""
        self.drive.release()

    def close(self) -> None:
        """Give the role back and let go of the processes that are watched."""
        super().close()
        self.end_supervision()

    def end_supervision(self) -> None:
        """Say in the segment that this process replaces ranks no more. Idempotent."""
        if not self._segment.is_closed and not self._segment.is_truncated():
            self._segment.supervise(begins=False)

    # -- for a process that keeps the group ----------------------------------------------------------

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

    def left(self) -> list[int]:
        """Return the participants of this epoch that have left their places, died, or are dying.

        Empty while neither a step nor a command has met with that: a process that leaves ends by itself.
        """
        view, liveness = self._group.view(), self._group.liveness
        if not (self._lacks_a_rank or epochs.ended_by(view, ())):
            return []
        joined = [index for index, word in enumerate(view.statuses) if word.epoch == view.command.epoch]
        return [one for one in joined if liveness.look(one) is Life.DEAD or not liveness.has_place(one)]

    def attempts_left(self) -> int:
        """Return how many restores may fail still before the group stays as it is."""
        limit = self._limits.restore_attempts - self._in_vain(self.drive.look.view)
        return max(limit - self.drive.state.failed, 0)

    def _in_vain(self, view: View) -> int:
        return self._vain[1] if self._vain[0] == view.command else 0

    def put_off_repair(self) -> float:
        """Let the next repair of FAULTED ranks be due after a while; return in how many seconds."""
        return self._put_off(self.drive.state.repaired + 1)

    def _put_off(self, failures: int) -> float:
        delay_s = self._limits.backoff.after(failures)
        self.again_at_s = time.monotonic() + delay_s
        return delay_s

    def turn(self) -> GroupTodo:
        """Do what can be done now; return what is left to be done, of processes above all."""
        todo = super().turn()
        if todo is GroupTodo.UNSETTLED:  # only once it is given up
            self.own = None
        return todo

    # -- for the shell -------------------------------------------------------------------------------

    def known(self, look: Look, state: GroupState, *, own: bool) -> Known:
        """Return what is known besides the words."""
        if not self._keeps:
            return super().known(look, state, own=own)
        view, group = look.view, self._group
        replaced = {} if self._whom is None else self._whom(view)
        if self.own is None:
            known = super().known(look, state, own=own)
        else:
            known = self.own.known(look, state, own=own)
            if self._given_up.is_set():
                return known  # as its controller: that ends no epoch
            self._lacks_a_rank = bool(self.own.lost)
            known = replace(known, gave_up=known.gave_up or self._lacks_a_rank, stuck=False)
        if epochs.ended_by(view, self.dead) or view.command[:2] != state.command[:2]:
            asked = known_arguments(group, view)
            known = replace(
                self.known_of_command(known, view, asked),
                leased=asked.leased,
                served=None if asked.before is None else asked.before is WeightState.NORMAL,
                committed=group.known_record(view).version,
            )
        limits, vain = self._limits, self._in_vain(view)
        self._known = replace(
            known,
            may=May.KEEP,
            dead=frozenset(self.dead),
            replaced=replaced,
            leaving=self.leaving,
            restore_limit=max(limits.restore_attempts - vain, 0),
            repair_limit=max(limits.repair_attempts - vain, 0),
        )
        return self._known

    def arguments(self, opens: Opens | None) -> CommandArguments:
        """Return the arguments of a restore, a repair or a release, or of the command at hand."""
        if opens is None or opens.operation is Operation.RELEASE:
            return super().arguments(opens) if self.own is None else self.own.arguments(opens)
        self._gives, self.opens = opens, opens
        group, view = self._group, self._group.view()
        epoch, sequence = view.command[:2]
        deadline_s = self._limits.restore_s
        if opens.operation is Operation.UPDATE:
            arguments = restore_of(group, view, f"recovery-epoch-{epoch}", deadline_s)
        else:
            require_able(group, view, opens.operation)
            name = f"repair-epoch-{epoch}-sequence-{sequence + 1}"
            arguments = CommandArguments(name, clears=True, deadline_s=deadline_s)
        pending = Pending(arguments.request_id, group.ring, given_up=self._given_up)
        self.own = Transaction(group, arguments, self._clock, SETTLE_S, pending=pending)
        return arguments

    def stores(self, view: View, move: GroupMove) -> Mapping[str, Any]:
        """Take in what is stored next: an epoch ends, or its own command is decided."""
        command = move.command
        if command is None or move.arguments is not None or command.epoch == view.command.epoch:
            return super().stores(view, move) if self.own is None else self.own.stores(view, move)
        self.own, self._lacks_a_rank, self.again_at_s = None, False, 0.0
        because_of, version = epochs.ended_by(view, self.dead), goal_of(view, self._known)
        self._begun = NewEpoch(command.epoch, tuple(because_of), version)
        self._log.warning("epoch.begun", epoch=command.epoch, because_of=because_of, version=version)
        return {}

    def wrote(self, command: CommandWord, arguments: CommandArguments) -> None:
        """Take in that its command stands in the words."""
        self._gives, self._lacks_a_rank = None, False
        if self.own is None:
            super().wrote(command, arguments)
        else:
            self.own.wrote(command, arguments)

    def ended(self, view: View) -> None:
        """Keep how its own command has ended."""
        own, opens, self.own = self.own, self.opens, None
        if own is None or opens is None:
            return
        try:
            self.ends.append(CommandEnd(opens, own.result(GroupTodo.END, view), None, 0.0))
        except WsmError as error:
            self._failed_to(opens, error)

    def _failed_to(self, opens: Opens, error: WsmError) -> None:
        """Put off the next attempt; what can never be restored is given up until another command is given."""
        if opens.operation is Operation.CLEAR:
            delay_s = self.put_off_repair()
        else:
            delay_s = self._put_off(self._limits.restore_attempts - self.attempts_left())
            if outcome.cannot_be_restored(error):
                self._vain = self.drive.look.view.command, self._limits.restore_attempts
        self.ends.append(CommandEnd(opens, None, error, delay_s))

    def wait_s(self) -> float:
        """Seconds until it wants to look again."""
        return super().wait_s() if self.own is None else self.own.wait_s()

    def _may_end_leases(self) -> bool:
        return True

    def _not_given(self, opens: Opens, error: WsmError) -> None:
        self.own, command = None, self.drive.look.view.command
        if opens.operation is Operation.RELEASE:
            super()._not_given(opens, error)
        elif isinstance(error, (RankLostError, CommandOpenError)):
            self._lacks_a_rank = True
            self._put_off(1)
        else:
            self._vain = command, self._vain[1] + 1 if self._vain[0] == command else 1
            self._failed_to(opens, error)
