"""What a group does about a command, or a hold, whose controller does not come back.

:class:`AbandonedCommands` ends such a command, for the group's supervisor and its ranks. It finds out about
the controller role, counts the command's deadline, and writes what :mod:`wsm.states.decide` says is owed:
with the role, which proves that the controller is gone, a decision and the committed version; in the place of
a controller that is only stopped, the one decision that is left. The role is held for a few words, never
while ranks work; what follows a decision, ranks do alone.

:class:`LeaseWatch` ends a hold whose lease has run out, by an ordinary release. When that is due is decided
by :func:`wsm.states.holding.lease_end`; the lease is read again once the controller role is had, since its
owner needs that to renew it.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from wsm import log
from wsm.clock import Clock, SystemClock, monotonic_ns
from wsm.command import CommandArguments
from wsm.controller import errors
from wsm.controller._command_request import SETTLE_S
from wsm.controller._opening import require_able
from wsm.controller._transaction import (
    Pending,
    Transaction,
    complete_commit,
    due_decision,
    known_arguments,
    write_decision,
)
from wsm.controller.group_view import GroupView
from wsm.errors import GroupError, WsmError
from wsm.signals.errors import RoleBusyError, SegmentReplacedError, go_on_or_end
from wsm.signals.segment import Segment
from wsm.states import decide, epochs, holding
from wsm.states.decide import Duty, Role
from wsm.states.epochs import Backoff
from wsm.states.holding import LeaseEnd
from wsm.states.view import View
from wsm.states.vocabulary import After, InFlightPolicy, KVPolicy
from wsm.states.words import Operation

#: Seconds after which a release that is not decided is taken back, and tried again later.
_DEADLINE_S = 60.0

_CLOSE_S = 1.0

_AGAIN = Backoff(1.0, 30.0)


class LeaseWatch:
    """Looks after the lease of the hold that one group stands under. For one thread.

    Parameters
    ----------
    group : GroupView
        The group.
    clock : Clock
        For the deadline of a release; a lease is counted by the host's clock.
    who : str
        Who looks, for logs.
    """

    def __init__(self, group: GroupView, clock: Clock, *, who: str) -> None:
        self._group = group
        self._clock = clock
        self._ending: Pending | None = None
        self._failures = 0
        self._again_at_s = 0.0
        self._told: tuple[str, int] | None = None
        self._log = log.logger("controller.lease", group=group.segment.name, by=who)

    def look(self, view: View) -> None:
        """Begin the release that is due, if one is; takes microseconds where none is, and does not wait."""
        if self._ending is not None and self._ending.over:
            self._take_in(self._ending)
            self._ending = None
        due = self._due(view)
        hold = self._group.known_hold(view)
        if due is LeaseEnd.STAYS and hold is not None and self._told != (hold.hold_id, hold.renewed_ns):
            self._told = hold.hold_id, hold.renewed_ns
            self._log.warning(
                log.LEASE_RAN_OUT, owner=hold.owner, hold=hold.hold_id, on_lease=hold.on_lease.value
            )
        if due is LeaseEnd.RELEASE and self._ending is None and time.monotonic() >= self._again_at_s:
            self._release()

    def close(self) -> None:
        """Take back a release that is not decided; blocks a second at most for its end."""
        if self._ending is not None:
            self._ending.give_up()
            with suppress(WsmError, TimeoutError):
                self._ending.result(_CLOSE_S)

    def _due(self, view: View) -> LeaseEnd:
        each = decide.resident_on_each(view)
        return holding.lease_end(
            self._group.known_hold(view),
            monotonic_ns(),
            held=view.committed.held,
            is_over=decide.is_over(view),
            whole=all(resident.serving for resident in each),
            owed=decide.before_admission(each, owed=epochs.unrestored(view))[1],
        )

    def _release(self) -> None:
        """Take the role without waiting, look again, and give the release if it is due still."""
        try:
            role = self._group.role.acquire(0)
        except (RoleBusyError, SegmentReplacedError):
            return  # another process commands the group, or no rank hears it any more
        with ExitStack() as ending:
            ending.callback(role.release)
            view = self._group.view()
            hold = self._group.known_hold(view)
            if hold is None or self._due(view) is not LeaseEnd.RELEASE:
                return
            try:
                command = require_able(self._group, view, Operation.RELEASE)
                arguments = CommandArguments(
                    f"lease-of-{hold.hold_id}"[:200],
                    in_flight=InFlightPolicy.KEEP,
                    kv_policy=KVPolicy.KEEP,
                    before=decide.before_admission(decide.resident_on_each(view), owed=False)[0],
                    tags=frozenset(),
                    deadline_s=_DEADLINE_S,
                    after=After.SERVE,
                    of_admission=True,
                )
                word = command._replace(operation=Operation.RELEASE)
                command = self._group.open(view, word, arguments)
            except WsmError as error:
                self._failed(error)
                return
            self._log.warning(log.LEASE_ENDED, owner=hold.owner, hold=hold.hold_id)
            transaction = Transaction(
                self._group,
                command,
                arguments,
                deadline_s=_DEADLINE_S,
                settle_s=SETTLE_S,
                clock=self._clock,
                previous=self._group.known_version(view),
            )
            self._ending = Pending.driven(transaction, ending.pop_all(), transaction.drive)

    def _take_in(self, ended: Pending) -> None:
        try:
            ended.result()
        except WsmError as error:
            self._failed(error)
        else:
            self._failures = 0

    def _failed(self, error: WsmError) -> None:
        self._failures += 1
        self._again_at_s = time.monotonic() + _AGAIN.after(self._failures)
        self._log.error(log.COMMAND_FAILED, error=str(error))


#: Seconds beyond a command's deadline in which a controller that is not seen to be stopped may decide it.
_GRACE_S = 5.0


def decide_undecided(group: GroupView, view: View) -> View:
    """Decide what is undecided in `view`, as any successor would; return what is read then.

    For who has the role. COMMIT if all are PREPARED and their reports agree, else ABORT; what a caller
    decides is aborted, and what is decided outside is left as it is once all are PREPARED.
    """
    due = due_decision(group, view, give_up=True)
    return group.view() if write_decision(group, view, due) else view


@dataclass
class _Watched:
    """The command that lacks a word of a controller.

    Attributes
    ----------
    key : tuple of int
        Its epoch and sequence.
    since_ns : int
        When it was first seen, by the clock that its deadline is counted by.
    arguments : CommandArguments or None
        None if they are gone.
    expired_at_s : float or None
        When the deadline was first seen to have passed, by the host's clock.
    prepared_at_s : float or None
        When all were first seen to be PREPARED, by the host's clock: a caller's lease counts from there.
    told : str
        What was logged about it last.
    due : Duty
        What was owed to it at the last look.
    """

    key: tuple[int, int]
    since_ns: int
    arguments: CommandArguments | None
    expired_at_s: float | None = None
    prepared_at_s: float | None = None
    told: str = ""
    due: Duty = Duty.NOTHING


def _is_leased(view: View, watched: _Watched) -> bool:
    """Whether a lease holds the decision of the command that is watched, and is not over."""
    arguments = watched.arguments
    if arguments is None or not arguments.leased or not decide.all_prepared(view):
        return False
    now_s = time.monotonic()
    watched.prepared_at_s = watched.prepared_at_s or now_s
    return now_s - watched.prepared_at_s <= (arguments.lease_s or 0.0)


class AbandonedCommands:
    """Looks after the commands of one group whose controllers do not come back. For one thread.

    Parameters
    ----------
    segment : Segment
        The group's segment, attached or owned; must stay open.
    who : str
        Who looks, for logs: a rank, the supervisor.
    clock : Clock or None
        What deadlines are counted by; None is the host's.
    journal_directory : path or None
        Of the controllers' journal.
    keeps : bool
        Whether this process keeps the group, and ends holds whose leases have run out. A process that does
        not keep it ends them while there is no supervisor.
    """

    def __init__(
        self,
        segment: Segment,
        *,
        who: str,
        clock: Clock | None = None,
        journal_directory: str | Path | None = None,
        keeps: bool = False,
    ) -> None:
        self._group = GroupView(segment, journal_directory)
        self._clock = clock or SystemClock()
        self._keeps = keeps
        self._lease = LeaseWatch(self._group, self._clock, who=who)
        self._watched: _Watched | None = None
        self._log = log.logger("controller.recovery", group=segment.name, by=who)

    @property
    def lacks_a_word(self) -> bool:
        """Whether the command at hand, or a lease, may need a controller's word still; reads words only."""
        view = self._group.view()
        return decide.lacks_a_word(view) or view.committed.held

    def look(self) -> GroupError | None:
        """Do what is owed to the command at hand. Takes microseconds where nothing is; does not wait.

        Returns
        -------
        GroupError or None
            Why each rank that still may has to fail the command; None: it need not.

        Raises
        ------
        wsm.signals.errors.WordFormatError
            If a word is damaged.
        """
        view = self._group.view()
        if not decide.lacks_a_word(view):
            if self._watched is not None:
                self._watched = None
                self._group.journal.write()
            if view.committed.held and (self._keeps or not self._is_supervised()):
                self._lease.look(view)
            return None
        watched = self._known(view)
        role, stopped = self._role(watched)
        expired = watched.expired_at_s is not None
        leased = _is_leased(view, watched)
        due = decide.duty(view, role, expired=expired, leased=leased)
        if due is not watched.due:
            watched.due = due
            self._group.journal.asked("duty", view, due, role=role.name, expired=expired, leased=leased)
        if due is Duty.FAIL:
            return self._cause(watched, stopped)  # the rank's word waits for no file: written when it is over
        with self._group.journal.words_first():
            if due is Duty.TAKE_ROLE:
                self._end_with_the_role(watched)
            elif due is Duty.ABORT:
                self._abort_in_its_place(watched, role)
            elif due is Duty.NAME and stopped is not None:
                fix = go_on_or_end(stopped, supervisor=self._group.role.is_supervisor(stopped))
                self._tell(watched, log.CONTROLLER_STALLED, pid=stopped, stopped=True, fix=fix)
        return None

    def close(self) -> None:
        """Let go of the processes that are watched."""
        self._lease.close()
        self._group.close()

    def _is_supervised(self) -> bool:
        supervisor = self._group.segment.supervisor
        return supervisor is not None and supervisor.is_known_alive

    def _known(self, view: View) -> _Watched:
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

    def _role(self, watched: _Watched) -> tuple[Role, int | None]:
        """Return what is known of the role, and the pid of its holder if that is seen to be stopped."""
        role = self._group.role
        if role.holder() is None:
            return Role.FREE, None
        stopped = role.stopped_holder()
        expired_at_s = watched.expired_at_s
        late = expired_at_s is not None and time.monotonic() - expired_at_s > _GRACE_S
        return Role.STALLED if stopped is not None or late else Role.KEPT, stopped

    def _end_with_the_role(self, watched: _Watched) -> None:
        if not decide.lacks_a_word(self._group.view()):
            return  # it ended between two looks, and the role is another command's
        try:
            hold = self._group.role.acquire(0)
        except (RoleBusyError, SegmentReplacedError):
            return  # another process does it, or no rank hears it any more
        with hold:
            view = self._group.view()
            if view.command[:2] != watched.key or decide.is_held(view, leased=_is_leased(view, watched)):
                return  # another command, or all are PREPARED since it was looked at
            view = decide_undecided(self._group, view)
            arguments = watched.arguments or known_arguments(self._group, view)
            if decide.lacks_a_word(view):
                complete_commit(self._group, view, arguments)
        self._tell(
            watched,
            log.COMMAND_ABANDONED,
            request_id=arguments.request_id,
            decision=view.command.operation.name,
        )

    def _abort_in_its_place(self, watched: _Watched, role: Role) -> None:
        """Write the only decision that its controller could write, while no next command can be written."""
        hold = self._group.role.try_to_stand_in()
        if hold is None:
            return  # another process does it
        with hold:
            view = self._group.view()
            due = decide.decision(view, agree=False, give_up=True)
            if decide.duty(view, role, expired=False) is not Duty.ABORT or due is None:
                return
            self._group.journal.asked("decision", view, due, agree=False, give_up=True)
            self._group.write_command(decide.decided(view, due))
        pid = self._group.role.holder()
        self._tell(watched, log.CONTROLLER_STALLED, pid=pid, decision=due.name)

    def _cause(self, watched: _Watched, stopped: int | None) -> GroupError:
        deadline_s = None if watched.arguments is None else watched.arguments.deadline_s
        pid = stopped or self._group.role.holder() or 0
        return errors.controller_stopped(
            sequence=watched.key[1],
            pid=pid,
            deadline_s=deadline_s or 0.0,
            stopped=stopped is not None,
            supervisor=self._group.role.is_supervisor(pid),
        )

    def _tell(self, watched: _Watched, event: str, **facts: object) -> None:
        epoch, sequence = watched.key
        text = f"{event} {facts}"
        if text != watched.told:
            watched.told = text
            self._log.warning(event, epoch=epoch, sequence=sequence, **facts)
