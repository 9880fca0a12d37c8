"""The shell of the group's algorithm: take the role, read, ask :func:`wsm.states.group.advance`, store, wait.

Every process that looks after a group walks it here: a controller with its command, its successor, a rank or
the supervisor in the place of a controller that does not come back, and the process that keeps the group.
What each of them knows, and says of what it stores, is its :class:`Kind`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

from msgspec import structs

from wsm import log
from wsm.clock import monotonic_ns
from wsm.command import CommandArguments, ReportFormatError
from wsm.committed_record import CommittedRecord, CommittedRecordError, write_record
from wsm.controller import outcome
from wsm.controller.group_view import GroupAccess, GroupView, Look, brought, committed_by, known_arguments
from wsm.journal import entry as kinds
from wsm.signals.errors import RoleBusyError, SegmentMissingError, SegmentReplacedError, SlotReusedError
from wsm.signals.liveness import Life
from wsm.signals.lock_file import LockHold
from wsm.states import decide
from wsm.states.decide import Role
from wsm.states.epochs import Cause
from wsm.states.group import GroupMove, GroupState, GroupTodo, Known, Opens, advance
from wsm.states.view import View
from wsm.states.words import CommandWord, Decider, StatusCode
from wsm.status.facts import who

#: Longest wait for the role between two looks at whether it is still wanted, in seconds.
_SLICE_S = 0.05

#: Seconds that a process of the group may take for the words of a command whose controller is gone.
ENDING_S = 0.2

#: Seconds between two looks of a process that waits for ranks.
_LOOK_S = 0.02

#: Seconds between two looks for a group that is not there yet.
_ANEW_S = 0.05

#: What is done to processes, and not to words.
_OF_PROCESSES = (GroupTodo.REPLACE, GroupTodo.START)

_log = log.logger("controller")


class Kind:
    """What one process knows of its group, and what it says of that.

    `is_written`: whether the command that it is about stands in the words; until then another one's end is
    none of its. `unreadable`: a report of another build; `when_unreadable`: whether all agree in spite of it;
    None: not all reports are there.
    """

    when_unreadable: bool | None = None

    def __init__(self, group: GroupView) -> None:
        self.is_written = True
        self.unreadable: ReportFormatError | None = None
        self._group = group

    def known(self, look: Look, state: GroupState, *, own: bool) -> Known:
        """Return what is known besides the words that were read; `own`: this process has the role."""
        raise NotImplementedError

    def known_of_command(self, known: Known, view: View, asked: CommandArguments) -> Known:
        """Return what is known, with what the command at hand and its reports say."""
        version, is_known, agree = None, True, None
        if view.command.operation.is_commit:
            version, is_known = brought(self._group, view, asked)
        elif decide.is_prepared(view):
            agree = self.agree(view)
        return replace(
            known,
            agree=agree,
            version=version,
            version_known=is_known,
            after=asked.after,
            of_admission=asked.of_admission,
            restores=asked.restores,
        )

    def agree(self, view: View) -> bool | None:
        """Whether all reports say the same; None: not all are there."""
        try:
            prepared = outcome.reports(self._group, view.command, StatusCode.PREPARED)
        except ReportFormatError as error:
            self.unreadable = error
            return self.when_unreadable
        return None if prepared is None else not outcome.disagreement(prepared)

    def arguments(self, opens: Opens | None) -> CommandArguments:  # noqa: ARG002 - no command is given
        """Return the arguments of a command that is given, or of the one at hand (None)."""
        return known_arguments(self._group, self._group.view())

    def stores(self, view: View, move: GroupMove) -> Mapping[str, Any]:  # noqa: ARG002 - nothing is said
        """Take in what is stored next; return what the journal says of a decision besides."""
        return {}

    def wrote(self, command: CommandWord, arguments: CommandArguments) -> None:
        """Take in that its command stands in the words."""

    def tell_prepared(self, view: View) -> None:
        """Tell the caller of the command, if there is one, that all are PREPARED."""

    def ended(self, view: View) -> None:
        """Take in that the command at hand is over."""

    def wait_s(self) -> float:
        """Seconds until it wants to look again, whatever the words say."""
        return _LOOK_S


class Drive:
    """One process that looks after one group, in one thread.

    `replaced`: whose processes are to be replaced, where that is the next thing to do. `woken`: whether a
    word ended the last wait.
    """

    def __init__(self, group: GroupView) -> None:
        self.look = group.look()
        self.state = GroupState.of(self.look.view)
        self.replaced: Mapping[int, Cause] = {}
        self.woken = False
        self._chosen: object = None  # what was journaled last of processes that are replaced or started
        self._group = group
        self._hold: LockHold | None = None

    @property
    def has_role(self) -> bool:
        """Whether this process has the controller role, by this object."""
        return self._hold is not None

    def take_role(self, wait_s: float, cancelled: Callable[[], object] = bool) -> None:
        """Take the controller role; blocks up to `wait_s` seconds. `cancelled` is called, and may raise.

        A process of the group that only ends an abandoned command is waited for in any case. With the group's
        `meanwhile` none is waited for: in one thread no other process could give the role back.

        Raises
        ------
        RoleBusyError
            If another process has the role still; it says what that does.
        """
        if self._group.meanwhile is not None:
            wait_s = 0.0
        late_s, ending = time.monotonic() + wait_s, False
        while self._hold is None:
            cancelled()
            left_s = max(late_s - time.monotonic(), 0.0)
            try:
                self._hold = self._group.role.acquire(min(left_s, _SLICE_S))
                self.look = self._group.look()
                self.state = GroupState.of(self.look.view)
            except RoleBusyError as busy:
                if left_s > _SLICE_S:
                    continue
                pid = busy.context["pid"]
                if ending or not (self._group.ranks_of(pid) or pid == self._group.owner_pid):
                    raise self._busy(busy, wait_s, ending=ending) from None
                late_s, ending = time.monotonic() + ENDING_S, True

    def _busy(self, busy: RoleBusyError, wait_s: float, *, ending: bool) -> RoleBusyError:
        facts, command = self._group.facts(), self._group.view().command
        told: dict[str, object] = {"doing": facts.controller_in_words(), "waited_s": wait_s}
        if not ending:
            told["unanswered_s"] = facts.controller_unanswered_s if facts.controller_hung else None
            return RoleBusyError(**{**busy.context, **told})
        told["waited_s"] = wait_s + ENDING_S
        ranks = self._group.ranks_of(busy.context["pid"])
        if ranks:
            what = f"which is ending command {command.sequence} ({command.operation.name})"
            told["doing"] = f"{who(ranks[0])}, {what} whose controller is gone"
        return RoleBusyError(**{**busy.context, **told})

    def release(self) -> None:
        """Give the controller role back. Idempotent."""
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.release()

    def turn(self, kind: Kind) -> GroupTodo:
        """Read, ask and store once; return the next thing to do. Does not wait.

        Of what is written in the place of the role's holder no next command can be written meanwhile.
        """
        journal, own = self._group.journal, self._hold is not None
        at = None if own else journal.moment()  # another process may write meanwhile
        with ExitStack() as standing:
            known, move = self._asked(kind)
            if move.command is not None and known.role is not Role.OWN:
                hold = self._group.role.try_to_stand_in()
                if hold is None:
                    return GroupTodo.WAIT  # another process does it
                standing.callback(hold.release)
                known, move = self._asked(kind)
            self.replaced = move.replaced
            chosen = (move.todo, known.dead, move.replaced) if move.todo in _OF_PROCESSES else None
            if chosen not in (None, self._chosen) and move.command is None:
                journal.moved(self.look.view, self.state, known, move, at or journal.moment())
            self._chosen = chosen
            self.state = self._store(kind, known, move)
            return move.todo

    def _asked(self, kind: Kind) -> tuple[Known, GroupMove]:
        self.look = self._group.look()
        known = kind.known(self.look, self.state, own=self._hold is not None)
        return known, advance(self.state, self.look.view, known)

    def _store(self, kind: Kind, known: Known, move: GroupMove) -> GroupState:
        """Store arguments, record, committed word, command word, journal; return what is remembered then.

        Raises
        ------
        RoleBusyError
            If a process stays where it was about to write in the place of a stopped controller.
        """
        command, given = move.command, None
        if command is None and move.committed is None:
            return move.state
        group, view = self._group, self.look.view
        journal, told = group.journal, kind.stores(view, move)
        at = journal.moment()
        if command is not None and not command.operation.is_decision:
            command.pack()  # a number that does not fit is refused before anything is written
            group.role.await_stand_in()
        if command is not None and move.arguments is not None:
            given = structs.replace(
                kind.arguments(move.arguments),
                before=move.arguments.before,
                restores=move.arguments.restores,
                issued_ns=monotonic_ns(),
            )
            command = _store_arguments(group, command, given)
        if move.committed is not None:
            committed, record = move.committed, _record_of(group, kind, view, move)
            if record is None:
                # The command must come to its end, and what was not known is known no better.
                committed = view.committed._replace(sequence=committed.sequence, held=committed.held)
            else:
                write_record(group.segment, view.command.epoch, record)
            group.write_committed(committed)
        if command is not None:
            group.write_command(command)
        journal.moved(view, self.state, known, move, at)
        if command is not None and given is not None:
            asked = {"operation": command.operation.name, "request_id": given.request_id}
            if given.traceparent is not None:
                asked["traceparent"] = given.traceparent
            journal.note(kinds.COMMAND_ISSUED, command, at, **asked)
            kind.wrote(command, given)
            return replace(move.state, command=command)
        # What is written in the place of the role's holder, that holder tells once it goes on.
        if command is not None and command.operation.is_decision and known.role is Role.OWN:
            decision = command.operation.name
            by = {} if command.decider is Decider.CONTROLLER else {"decider": command.decider.name}
            journal.note(kinds.DECISION, command, at, operation=decision, **by, **told)
            _log.info("command.decided", epoch=command.epoch, sequence=command.sequence, decision=decision)
        journal.write()
        return move.state

    def run(self, kind: Kind) -> GroupTodo:
        """Walk until something is to be done that is not the shell's; blocks as long as `kind` waits."""
        while True:
            todo = self.turn(kind)
            if todo is GroupTodo.TELL_PREPARED:
                kind.tell_prepared(self.look.view)
            elif todo in (GroupTodo.WAIT, GroupTodo.READ_REPORTS):
                self.wait(kind)
            elif todo is not GroupTodo.LOOK and (todo is not GroupTodo.END or kind.is_written):
                return todo

    def wait(self, kind: Kind) -> None:
        """Wait until a status says more than that its participant is at work, it rings, or `kind` looks."""
        timeout_s, look = kind.wait_s(), self.look
        until_s = time.monotonic() + timeout_s
        self.woken = self._group.wait(look, timeout_s)
        if self._group.meanwhile is not None:
            return
        while self.woken and (again := self._group.goes_on(look)) is not None:
            look, left_s = again, until_s - time.monotonic()
            # Words that come faster than this turns keep no look away.
            self.woken = left_s > 0 and self._group.wait(look, left_s)

    def run_without_waiting(self, kind: Kind) -> GroupTodo:
        """Do all that can be done now, with the role where that is free; return what is left to be done."""
        while True:
            todo = self.turn(kind)
            if todo is GroupTodo.TAKE_ROLE:
                with suppress(RoleBusyError, SegmentReplacedError):  # another does it, or no rank hears it
                    self._hold = self._group.role.acquire(0)
                if self._hold is None:
                    return todo
            elif todo in (GroupTodo.GIVE_ROLE_BACK, GroupTodo.HELD):
                self.release()
                return todo
            elif todo is GroupTodo.END:
                kind.ended(self.look.view)
            elif todo is not GroupTodo.LOOK:
                return todo


def _store_arguments(group: GroupView, command: CommandWord, arguments: CommandArguments) -> CommandWord:
    """Store the arguments of a command; return its word, with the sequence under which they stand.

    Two sequences are skipped if arguments stand under the next already: their controller died before it
    wrote the word, so no rank has seen it and none may find other arguments under it. The slot of the
    sequence in between holds the arguments of the last command, which say what the group is owed.
    """
    while True:
        with suppress(SlotReusedError):
            group.write_arguments(command, arguments)
            return command
        command = command._replace(sequence=command.sequence + len(group.segment.layout.arguments))
        command.pack()


def _record_of(group: GroupView, kind: Kind, view: View, move: GroupMove) -> CommittedRecord | None:
    """Return the record of the committed word; None: what stays committed is not known."""
    word, said = move.committed, move.record
    if word is None or said is None:
        return None
    if not said.of_command:
        tensor_set = group.known_record(view).tensor_set
        return CommittedRecord(word.sequence, hold=group.hold(view), tensor_set=tensor_set)
    try:
        return committed_by(group, view, said.version, kind.arguments(None))
    except CommittedRecordError as error:
        _log.error(log.RECORD_MISSING, error=str(error))
        return None


def again_and_again(turn: Callable[[], bool], closing: Event, pauses_s: tuple[float, float, float]) -> None:
    """Call `turn` until `closing` is set; one that failed (False) is waited for, twice as long each time.

    `pauses_s`: behind a turn that worked, behind the first that failed, and the longest.
    """
    usual_s, first_s, longest_s = pauses_s
    pause_s = usual_s
    while not closing.wait(pause_s):
        pause_s = usual_s if turn() else min(max(pause_s * 2, first_s), longest_s)


def access_to_a_living_group(
    name: str, *, wait_s: float, directory: str | Path | None, **options: Any
) -> GroupAccess:
    """Attach to a group; wait up to `wait_s` seconds for one all of whose ranks live and have joined.

    Raises
    ------
    SegmentMissingError and others
        As :class:`GroupAccess`, where that is so at the end.
    """
    deadline_s = time.monotonic() + wait_s
    while True:
        left_s = deadline_s - time.monotonic()
        try:
            access = GroupAccess(name, directory=directory, **options)
        except SegmentMissingError:
            if left_s <= 0:
                raise
        else:
            group = access.group
            view, lives = group.view(), map(group.liveness.look, range(group.participants))
            joined = all(status.epoch == view.command.epoch != 0 for status in view.statuses)
            if left_s <= 0 or (joined and set(lives) == {Life.ALIVE}):
                return access
            access.close()
        time.sleep(_ANEW_S)
