"""What a group does about a command, or a hold, whose controller does not come back.

:class:`AbandonedCommands` ends such a command, for the group's supervisor and its ranks: it knows the role,
the command's deadline and the leases, and :mod:`._drive` writes what is owed. With the role, which proves
that the controller is gone, that is a decision and the committed version; in the place of a controller that
is only stopped, the one decision that is left. It ends a hold whose lease is over by an ordinary release. The
role is held for a few words, or until that release is decided; what follows a decision, ranks do alone.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wsm import log
from wsm.clock import Clock, SystemClock, monotonic_ns
from wsm.command import CommandArguments
from wsm.controller._command_request import admission_of
from wsm.controller._drive import Drive, Kind
from wsm.controller._opening import require_able
from wsm.controller.group_view import GroupAccess, GroupView, Look, known_arguments
from wsm.errors import GroupError, WsmError
from wsm.signals.errors import go_on_or_end
from wsm.signals.segment import Segment
from wsm.states import decide
from wsm.states.decide import Role
from wsm.states.epochs import Backoff
from wsm.states.group import GroupMove, GroupState, GroupTodo, Known, May, Opens
from wsm.states.holding import Hold
from wsm.states.view import View
from wsm.states.vocabulary import After, OnLease
from wsm.states.words import CommandWord

#: Seconds after which a release that is not decided is taken back, and tried again later.
_DEADLINE_S = 60.0

_AGAIN = Backoff(1.0, 30.0)


def revise_hold(
    access: GroupAccess, revise: Callable[[Hold, str | None], Hold], *, wait_s: float
) -> Hold | None:
    """Write the record of the hold in force anew, under the controller role. Blocks up to `wait_s`.

    A command that a dead controller left behind is decided before: it may be the release of that hold.

    `revise`: ``revise(hold, version)`` returns what is to stand there, from the hold as it is and the
    committed version.

    Returns
    -------
    Hold or None
        What stands there now; None: the group is open, or nothing is known of its hold.

    Raises
    ------
    RoleBusyError
        If another controller has the role still. Nothing was written.
    """
    access.begin_use()
    group = access.group
    abandoned = AbandonedCommands(group.segment, who="this process", group=group)
    abandoned.again_at_s, drive = math.inf, abandoned.drive  # whose lease is over is not looked at
    try:
        drive.take_role(wait_s)
        with group.journal.open_for_a_command():
            drive.run(abandoned)
            view = group.view()
            hold = group.known_hold(view)
            revised = None if hold is None else revise(hold, group.known_record(view).version)
            if revised is not None and revised != hold:
                group.revise_hold(view, revised)
            return revised
    finally:
        drive.release()
        access.end_use()


@dataclass
class _Watched:
    """The command that lacks a word of a controller.

    `key`: its epoch and sequence. `since_ns`: when it was first seen, by the clock that its deadline is
    counted by. `arguments`: none if they are gone. `expired_at_s`: when the deadline was first seen to have
    passed, by the host's clock. `prepared_at_s`: when all were first seen to be PREPARED, by the host's
    clock: a caller's lease counts from there. `hung`: which process has the controller role and does not go
    on, and since when that is seen, by the host's clock; None: none. `told`: what was logged about it last.
    """

    key: tuple[int, int]
    since_ns: int
    arguments: CommandArguments | None
    expired_at_s: float | None = None
    prepared_at_s: float | None = None
    hung: tuple[int, float] | None = None
    told: str = ""


def _is_leased(view: View, watched: _Watched) -> bool:
    """Whether a lease holds the decision of the command that is watched, and is not over."""
    arguments = watched.arguments
    if arguments is None or not arguments.leased or not decide.all_prepared(view):
        return False
    now_s = time.monotonic()
    watched.prepared_at_s = watched.prepared_at_s or now_s
    return now_s - watched.prepared_at_s <= (arguments.lease_s or 0.0)


class AbandonedCommands(Kind):
    """Looks after the commands of one group whose controllers do not come back. For one thread.

    `segment`: the group's segment, attached or owned; must stay open.
    `clock`: what deadlines are counted by; None is the host's.
    `journal_directory`: of the controllers' journal.
    `end_hung_controller_s`: seconds after which this process ends one that has the controller role and does
    not go on, counted from when that is seen; None: never.
    `again_at_s`: before that no lease is ended, by the host's clock.
    `drive`: writes in the place of a controller; has the controller role for a few words, and while it
    releases a hold.
    """

    def __init__(
        self,
        segment: Segment,
        *,
        who: str,
        clock: Clock | None = None,
        journal_directory: str | Path | None = None,
        end_hung_controller_s: float | None = None,
        group: GroupView | None = None,
    ) -> None:
        super().__init__(group or GroupView(segment, journal_directory))
        self._end_hung_controller_s = end_hung_controller_s
        self.drive = Drive(self._group)
        self._clock = clock or SystemClock()
        self._watched: _Watched | None = None
        self._gives: Opens | None = None  # the command that is about to be given
        self._is_closing = False
        self._failures, self.again_at_s = 0, 0.0  # of releases
        self._told: tuple[str, int] | None = None  # whose lease ran out
        self._log = log.logger("controller.recovery", group=segment.name, by=who)
        self._lease_log = log.logger("controller.lease", group=segment.name, by=who)

    @property
    def lacks_a_word(self) -> bool:
        """Whether the command at hand, or a lease, may need a controller's word still; reads words only."""
        view = self._group.view()
        return decide.lacks_a_word(view) or view.committed.held or self.drive.has_role

    def look(self) -> GroupError | None:
        """Do what is owed to the command at hand. Takes microseconds where nothing is; does not wait.

        Returns
        -------
        GroupError or None
            Why each rank that still may has to fail the command; None: it need not.

        Raises
        ------
        wsm.states.errors.WordFormatError
            If a word is damaged.
        """
        view = self._group.view()
        ends_leases = view.committed.held and self._may_end_leases()
        if not (decide.lacks_a_word(view) or ends_leases or self.drive.has_role):
            return None
        todo, watched = self.turn(), self._watched
        if watched is not None and todo is GroupTodo.FAIL:
            return self._cause(watched, self._group.role.stopped_holder())
        return None

    def turn(self) -> GroupTodo:
        """Do what can be done now, words before lines of the journal; return what is left to be done."""
        with self._group.journal.words_first():
            try:
                todo = self.drive.run_without_waiting(self)
            except WsmError as error:
                opens, self._gives = self._gives, None
                if opens is None:
                    raise
                self.drive.release()
                self._not_given(opens, error)
                return GroupTodo.WAIT
        if self.drive.look.view.committed.held and self._may_end_leases():
            self._tell_of_lease()
        watched = self._watched
        pid = None if watched is None else self._group.role.holder()
        if watched is None or pid is None:
            return todo
        if todo is GroupTodo.NAME:
            stopped = self._group.role.stopped_holder() is not None
            fix = go_on_or_end(pid, stopped=stopped, supervisor=self._group.role.is_supervisor(pid))
            self._tell(watched, log.CONTROLLER_STALLED, pid=pid, stopped=stopped, fix=fix)
        if self._end_hung_controller_s is not None and not self.drive.has_role:
            self._end_if_hung(watched, self._end_hung_controller_s)
        return todo

    def close(self) -> None:
        """Take back a release that is not decided, and let go of the processes that are watched."""
        self._is_closing = True
        if self.drive.has_role:
            with suppress(WsmError):
                self.drive.run_without_waiting(self)
        self.drive.release()
        self._group.close()

    # -- for the shell -----------------------------------------------------------------------------

    def known(self, look: Look, state: GroupState, *, own: bool) -> Known:
        """Return what is known besides the words."""
        view, group = look.view, self._group
        may = May.END_LEASES if view.committed.held and self._may_end_leases() else May.STAND_IN
        hold = group.known_hold(view) if view.committed.held else None
        known = Known(may, hold=hold, now_ns=monotonic_ns(), due=time.monotonic() >= self.again_at_s)
        if not decide.lacks_a_word(view):
            self._watched = None
            return known if own else replace(known, role=self._role(None))
        watched = self._watch(view)
        expired, leased = watched.expired_at_s is not None, _is_leased(view, watched)
        known = replace(known, expired=expired, leased=leased)
        if not own:
            return replace(known, role=self._role(watched))
        known = self.known_of_command(known, view, watched.arguments or known_arguments(group, view))
        return replace(known, dead=frozenset(group.lost() if state.mine else ()), gave_up=self._is_closing)

    def arguments(self, opens: Opens | None) -> CommandArguments:
        """Return the arguments of the command at hand, or of the release of a hold whose lease is over."""
        if opens is None:
            return super().arguments(opens)
        self._gives, view = opens, self._group.view()
        require_able(self._group, view, opens.operation)
        hold = self._group.known_hold(view)
        name = "" if hold is None else hold.hold_id
        return admission_of(f"lease-of-{name}"[:200], After.SERVE, deadline_s=_DEADLINE_S)

    def stores(self, view: View, move: GroupMove) -> Mapping[str, Any]:
        """Say what is written in the place of a controller."""
        command, watched = move.command, self._watched
        if command is None or not command.operation.is_decision or watched is None:
            return {}
        decision = command.operation.name
        if not self.drive.has_role:
            self._tell(watched, log.CONTROLLER_STALLED, pid=self._group.role.holder(), decision=decision)
        elif not self.drive.state.mine:
            asked = watched.arguments or known_arguments(self._group, view)
            self._tell(watched, log.COMMAND_ABANDONED, request_id=asked.request_id, decision=decision)
        elif command.operation.is_abort:
            self._failed("the release of a hold whose lease is over was aborted")
        else:
            self._failures = 0
        return {"because": "its controller was gone"} if command.operation.is_abort else {}

    def wrote(self, command: CommandWord, arguments: CommandArguments) -> None:  # noqa: ARG002 - it is said as that
        """Say that the lease of a hold has ended."""
        self._gives = None
        hold = self._group.known_hold(self._group.view())
        if hold is not None:
            self._lease_log.warning("lease.ended", owner=hold.owner, hold=hold.hold_id)

    # -- what is seen ------------------------------------------------------------------------------

    def _may_end_leases(self) -> bool:
        supervisor = self._group.segment.supervisor
        return supervisor is None or not supervisor.is_known_alive

    def _tell_of_lease(self) -> None:
        """Say once of a hold whose lease is over that it stays."""
        hold = self._group.known_hold(self._group.view())
        left_s = None if hold is None else hold.left_s(monotonic_ns())
        if hold is None or left_s is None or left_s > 0 or self._told == (hold.hold_id, hold.renewed_ns):
            return
        if hold.on_lease is OnLease.STAY or hold.closed is not None:
            self._told = hold.hold_id, hold.renewed_ns
            on_lease = hold.on_lease.value
            self._lease_log.warning("lease.ran_out", owner=hold.owner, hold=hold.hold_id, on_lease=on_lease)

    def _not_given(self, opens: Opens, error: WsmError) -> None:  # noqa: ARG002 - it gives releases alone
        self._failed(str(error))

    def _failed(self, error: str) -> None:
        self._failures += 1
        self.again_at_s = time.monotonic() + _AGAIN.after(self._failures)
        self._lease_log.error(log.COMMAND_FAILED, error=error)

    def _watch(self, view: View) -> _Watched:
        key = view.command.epoch, view.command.sequence
        watched = self._watched
        if watched is None or watched.key != key:
            arguments = self._group.arguments(view.command)
            watched = self._watched = _Watched(key, self._clock.monotonic_ns(), arguments)
        deadline_s = None if watched.arguments is None else watched.arguments.deadline_s
        if watched.expired_at_s is None and deadline_s is not None:
            elapsed_s = (self._clock.monotonic_ns() - watched.since_ns) / 1e9
            watched.expired_at_s = time.monotonic() if elapsed_s > deadline_s else None
        return watched

    def _role(self, watched: _Watched | None) -> Role:
        role = self._group.role
        if role.holder() is None:
            return Role.FREE
        expired_at_s = None if watched is None else watched.expired_at_s
        late = expired_at_s is not None and time.monotonic() - expired_at_s > decide.CONTROLLER_GRACE_S
        return Role.STALLED if late or role.stopped_holder() is not None else Role.KEPT

    def _end_if_hung(self, watched: _Watched, limit_s: float) -> None:
        """End the process that has the role, once it has been seen for that long not to go on.

        A process that takes the role of one that was ended, as a rank does, has that time for itself.
        """
        facts, now_s = self._group.facts(), time.monotonic()
        pid = facts.controller_pid
        if not pid or not facts.controller_hung:
            watched.hung = None
            return
        if watched.hung is None or watched.hung[0] != pid:
            watched.hung = pid, now_s
        if pid == os.getpid() or now_s - watched.hung[1] < limit_s:
            return
        if self._group.role.end_holder(pid):
            self._tell(watched, "controller.ended", pid=pid, unanswered_s=facts.controller_unanswered_s)

    def _cause(self, watched: _Watched, stopped: int | None) -> GroupError:
        deadline_s = None if watched.arguments is None else watched.arguments.deadline_s
        sequence, is_stopped = watched.key[1], stopped is not None
        pid = stopped or self._group.role.holder() or 0
        process = f"process {pid}" if pid else "a process in another pid namespace"
        fix = go_on_or_end(pid, stopped=is_stopped, supervisor=self._group.role.is_supervisor(pid))
        return GroupError(
            f"the deadline of command {sequence} ({deadline_s or 0:g} s) has passed without a decision, "
            f"since its controller, {process}, {'is stopped' if is_stopped else 'does nothing'}; {fix}",
            code="controller-stopped",
            sequence=sequence,
            pid=pid,
            deadline_s=deadline_s or 0.0,
            stopped=is_stopped,
        )

    def _tell(self, watched: _Watched, event: str, **facts: object) -> None:
        epoch, sequence = watched.key
        text = f"{event} {facts}"
        if text != watched.told:
            watched.told = text
            self._log.warning(event, epoch=epoch, sequence=sequence, **facts)
