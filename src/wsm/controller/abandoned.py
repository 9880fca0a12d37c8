"""Ends a command whose controller does not come back, for its group's supervisor and ranks.

What is owed to such a command is decided by :mod:`wsm.states.takeover`. This module finds out about the
controller role, counts the command's deadline, and writes: with the role, which proves that the controller
is gone, a decision and the committed version; in the place of a controller that is only stopped, the one
decision that is left. The role is held for a few words, never while ranks work; what follows a decision,
ranks do alone.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path

from wsm import log
from wsm.clock import Clock, SystemClock
from wsm.command import CommandArguments
from wsm.controller import outcome
from wsm.controller.errors import ControllerStoppedError
from wsm.controller.group_view import GroupView
from wsm.report import ReportFormatError
from wsm.signals.errors import RoleBusyError, SegmentReplacedError
from wsm.signals.segment import Segment
from wsm.states import decide, takeover
from wsm.states.takeover import Duty, Role
from wsm.states.view import View
from wsm.states.words import StatusCode

#: Seconds beyond a command's deadline in which a controller that is not seen to be stopped may decide it.
_GRACE_S = 5.0


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
    told : str
        What was logged about it last.
    """

    key: tuple[int, int]
    since_ns: int
    arguments: CommandArguments | None
    expired_at_s: float | None = None
    told: str = ""


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
    """

    def __init__(
        self,
        segment: Segment,
        *,
        who: str,
        clock: Clock | None = None,
        journal_directory: str | Path | None = None,
    ) -> None:
        self._group = GroupView(segment, journal_directory)
        self._clock = clock or SystemClock()
        self._watched: _Watched | None = None
        self._log = log.logger("controller.abandoned", group=segment.name, by=who)

    @property
    def lacks_a_word(self) -> bool:
        """Whether the command at hand needs a word of a controller still; reads words only."""
        return takeover.lacks_a_word(self._group.view())

    def look(self) -> ControllerStoppedError | None:
        """Do what is owed to the command at hand. Takes microseconds where nothing is; waits for nobody.

        Returns
        -------
        ControllerStoppedError or None
            Why each rank that still may has to fail the command; None: it need not.

        Raises
        ------
        wsm.signals.errors.WordFormatError
            If a word is damaged.
        """
        view = self._group.view()
        if not takeover.lacks_a_word(view):
            self._watched = None
            return None
        watched = self._known(view)
        role, stopped = self._role(watched)
        due = takeover.duty(view, role, expired=watched.expired_at_s is not None)
        if due is Duty.TAKE_ROLE:
            self._end_with_the_role(watched)
        elif due is Duty.ABORT:
            self._abort_in_its_place(watched, role)
        elif due is Duty.NAME and stopped is not None:
            fix = f"end it (kill -9 {stopped}), and the group goes on by itself"
            self._tell(watched, log.CONTROLLER_STALLED, pid=stopped, stopped=True, fix=fix)
        return self._cause(watched, stopped) if due is Duty.FAIL else None

    def close(self) -> None:
        """Let go of the processes that are watched."""
        self._group.close()

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
        if not takeover.lacks_a_word(self._group.view()):
            return  # it ended between two looks, and the role is another command's
        try:
            hold = self._group.role.acquire(0)
        except (RoleBusyError, SegmentReplacedError):
            return  # somebody else does it, or nobody hears it any more
        with hold:
            view = decide_undecided(self._group)
            arguments = watched.arguments or CommandArguments("its arguments are gone")
            if takeover.lacks_a_word(view) and view.command[:2] == watched.key:
                word = outcome.committed_word(self._group, view, arguments)
                if word is not None:
                    self._group.write_committed(word)
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
            return  # somebody else does it
        with hold:
            view = self._group.view()
            due = decide.decision(view, agree=False, give_up=True)
            if takeover.duty(view, role, expired=False) is not Duty.ABORT or due is None:
                return
            self._group.decide(decide.decided(view, due))
        pid = self._group.role.holder()
        self._tell(watched, log.CONTROLLER_STALLED, pid=pid, decision=due.name)

    def _cause(self, watched: _Watched, stopped: int | None) -> ControllerStoppedError:
        deadline_s = None if watched.arguments is None else watched.arguments.deadline_s
        return ControllerStoppedError(
            sequence=watched.key[1],
            pid=stopped or self._group.role.holder() or 0,
            deadline_s=deadline_s or 0.0,
            stopped=stopped is not None,
        )

    def _tell(self, watched: _Watched, event: str, **facts: object) -> None:
        epoch, sequence = watched.key
        text = f"{event} {facts}"
        if text != watched.told:
            watched.told = text
            self._log.warning(event, epoch=epoch, sequence=sequence, **facts)


def decide_undecided(group: GroupView) -> View:
    """Decide what is undecided, as any successor would, and return what is read then; for who has the role.

    COMMIT if all are PREPARED and their reports agree, else ABORT.
    """
    view = group.view()
    prepared = None
    if decide.all_prepared(view):
        # What cannot be read cannot be compared, and is not committed.
        with contextlib.suppress(ReportFormatError):
            prepared = outcome.reports(group, view.command, StatusCode.PREPARED)
    agree = prepared is not None and outcome.agree(prepared)
    word = decide.decision(view, agree=agree, give_up=True)
    if word is None:
        return view
    command = view.command
    log.logger("controller").info(
        log.COMMAND_DECIDED, epoch=command.epoch, sequence=command.sequence, decision=word.name
    )
    group.decide(decide.decided(view, word))
    return group.view()
