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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from wsm.command import CommandArguments, ReportFormatError
from wsm.committed_record import CommittedRecord, CommittedRecordError, commit_report
from wsm.controller import outcome
from wsm.controller._command_request import SETTLE_S
from wsm.controller._opening import require_able, restore_of
from wsm.controller._transaction import Transaction
from wsm.controller.abandoned_commands import AbandonedCommands
from wsm.controller.errors import RankLostError
from wsm.controller.group_view import GroupView, Look, known_arguments
from wsm.controller.pending import Pending
from wsm.errors import WsmError
from wsm.receipt import Receipt
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
    restore or a repair. `given_up`: set when what it commands is not wanted any more. `whom`: returns whose
    processes are to be replaced, of a view that was read before. `dead`: participants whose processes were
    ended and reaped, and not replaced yet; its caller says so. `leaving`: whether others may be about to end.
    `own`, `opens`: its restore or repair that is under way, and what that is. `ends`: how those ended that
    are over, until taken away.
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
        self._given_up = given_up or threading.Event()
        self._whom = whom
        self._segment = segment
        self._known = Known(May.KEEP)
        self.opens: Opens | None = None
        self._lacks_a_rank = False  # so that no command could be given
        self._vain: tuple[CommandWord | None, int] = None, 0  # commands that were not given behind that one
        self._committed = CommittedRecord(0)  # as it was read last
        self._bases: tuple[int, frozenset[str]] = (0, frozenset())

    @property
    def group(self) -> GroupView:
        """The group whose recoveries these are."""
        return self._group

    def take_role(self, wait_s: float) -> bool:
        """Take the controller role and keep it; blocks up to `wait_s` seconds; return whether it is there."""
        with contextlib.suppress(RoleBusyError):
            self.drive.take_role(wait_s)
        return self.drive.has_role

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
