"""The group as a controller sees it: read its words and slots, write the two words that are the controller's.

Between :mod:`wsm.signals` (memory) and :mod:`wsm.states` (rules). A process that writes here has that role.
:class:`GroupAccess` shares one attached segment between a controller and its commands, which may outlive it.

What a controller asked, decided and found, whom it lost and how it ended, :class:`ControllerJournal` writes
down. The last lines of all holders of the role stand in the group's segment, in the order of their writing;
with a directory they go to ``controller.ndjson`` in it, too, which all controllers of the group append to. A
file that cannot be written any more ends the file, never the command; the next writer ends what is torn then.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

from wsm import log
from wsm.clock import Clock, SystemClock
from wsm.command import ARGUMENTS_KIND, CommandArguments, CommandArgumentsError
from wsm.committed_record import CommittedRecord, CommittedRecordError, record_of, write_record
from wsm.declared_plans import PLANS_KIND, DeclaredPlans
from wsm.group_segment import journal_directory_of
from wsm.report import FailureReport, RankReport
from wsm.shared_directory import ForeignPathError, open_to_append
from wsm.signals.errors import SegmentClosedError, SlotReusedError
from wsm.signals.liveness import ControllerRole, DeathWatch, Life, Liveness
from wsm.signals.presence import Presence, read_presence
from wsm.signals.segment import Segment
from wsm.signals.slot import LineRing
from wsm.signals.waiting import Alarm, ViewReader, Watch, wait, wake
from wsm.states import journal as kinds
from wsm.states.holding import Hold
from wsm.states.journal import CONTROLLER, CONTROLLERS_FILE, JournalEntry
from wsm.states.rerun import asked as facts_of
from wsm.states.view import View
from wsm.states.words import CommandWord, CommittedWord, Decider, StatusCode, is_at_work
from wsm.status.facts import CacheProcess, GroupFacts, GroupStatus
from wsm.status.reading import read_facts
from wsm.status.text import status_of

_log = log.logger("controller")

_MAX_TEXT = 2 * 1024


class ControllerJournal:
    """The journal of the process that has the controller role.

    Parameters
    ----------
    ring : LineRing
        In the segment; only written while the role is held.
    directory : path or None
        Where the file is; None: nowhere.
    clock : Clock or None
        For the times; None is the host's, which the ranks' journals share.
    begins : bool
        Whether the file says first that a process begins here: in a directory where no owner says when its
        group begins, and with it the numbers of commands.
    """

    def __init__(
        self,
        ring: LineRing,
        directory: str | Path | None = None,
        clock: Clock | None = None,
        *,
        begins: bool = False,
    ) -> None:
        self._ring = ring
        self._path = None if directory is None else Path(directory) / CONTROLLERS_FILE
        self._clock = clock or SystemClock()
        self._begins = begins
        self._waits = False
        self._lines: list[str] = []
        self._keeps_open = False
        self._descriptor: int | None = None

    def moment(self) -> tuple[int, int]:
        """Return the time now, for an entry that is written once what it tells of can be seen by others."""
        return self._clock.monotonic_ns(), self._clock.wall_ns()

    def note(self, kind: str, command: CommandWord, at: tuple[int, int] | None = None, **facts: Any) -> None:
        """Write one entry; `at` is its :meth:`moment`, by default now."""
        shown = {key: fact[:_MAX_TEXT] if isinstance(fact, str) else fact for key, fact in facts.items()}
        at = at or self.moment()
        line = self._kept(kind, command, at, shown)
        with contextlib.suppress(ValueError):  # the segment was closed under a command that outlived it
            self._ring.append(line)
        self.write()

    def asked(
        self, function: str, view: View, answer: object, at: tuple[int, int] | None = None, **known: object
    ) -> None:
        """Keep what the core was asked and what it answered, for the file alone; written with the next entry.

        To be called behind the word that says the answer, with the moment before it, so that a word waits for
        no file; without an entry that follows lines would pile up. Parameters as of
        :func:`wsm.states.rerun.asked`.
        """
        if self._path is not None:
            at = at or self.moment()
            self._kept(kinds.INPUT, view.command, at, facts_of(function, view, answer, **known))

    @contextlib.contextmanager
    def words_first(self) -> Iterator[None]:
        """Write nothing to the file before the block ends: of several words none waits for a file."""
        self._waits = True
        try:
            yield
        finally:
            self._waits = False
            self.write()

    @contextlib.contextmanager
    def open_for_a_command(self) -> Iterator[None]:
        """Open the file once until the block ends, with the first line that is written in it.

        Not for longer: controllers come and go, and the file may be moved away between two commands.
        """
        self._keeps_open = True
        try:
            yield
        finally:
            self._keeps_open = False
            self._close()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def write(self) -> None:
        """Write to the file what is kept for it, all in one write."""
        lines, path = self._lines, self._path
        if self._waits or path is None or not lines:
            return
        self._lines = []
        try:
            self._append(path, "\n".join(lines).encode())
        except (OSError, ForeignPathError) as error:
            self._path = None
            _log.error(log.JOURNAL_ENDED, error=str(error))
            self._close()
        if not self._keeps_open:
            self._close()

    def _append(self, path: Path, lines: bytes) -> None:
        if self._descriptor is None:
            try:
                self._descriptor = open_to_append(path, reads=True)
            except FileNotFoundError:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._descriptor = open_to_append(path, reads=True)
        # A full disk or a kill may have cut its last writer short, within a line.
        size = os.fstat(self._descriptor).st_size
        torn = size > 0 and os.pread(self._descriptor, 1, size - 1) != b"\n"
        data = b"\n" * torn + lines + b"\n"
        if os.write(self._descriptor, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def _kept(self, kind: str, command: CommandWord, at: tuple[int, int], facts: dict[str, Any]) -> str:
        """Make a line, keep it for the file if there is one, and return it."""
        if self._begins and self._path is not None:
            self._begins = False
            self._kept(kinds.STARTED, command._replace(sequence=0), at, {"pid": os.getpid()})
        line = JournalEntry(kind, *at, CONTROLLER, command.epoch, command.sequence, facts).to_line()
        if self._path is not None:
            self._lines.append(line)
        return line


class Look(NamedTuple):
    """What was seen before a wait.

    Parameters
    ----------
    view : View
        The words.
    statuses : tuple of int
        The status words as they stand in memory.
    rings : int
        How often the alarm had rung before.
    """

    view: View
    statuses: tuple[int, ...]
    rings: int


class GroupView:
    """A group's words, seen by a controller.

    Parameters
    ----------
    segment : Segment
        Attached.
    journal_directory : path or None
        Where ``controller.ndjson`` is appended to; None: beside the ranks' journals, as the segment's owner
        said. Where that said nothing, the last lines stand in the segment alone.

    Attributes
    ----------
    role : ControllerRole
        The right to write here.
    journal : ControllerJournal
        What commands write down, in the segment and beside the ranks' journals.
    participants : int
        Number of ranks and helpers.

    Raises
    ------
    wsm.signals.errors.SegmentTruncatedError
        If the segment's file was cut short: by what reads words or processes anew, and by what writes. What
        takes a view, or a command of one, relies on the reading that this came from.
    """

    def __init__(self, segment: Segment, journal_directory: str | Path | None = None) -> None:
        self.role = ControllerRole(segment)
        self._segment = segment
        owners = journal_directory_of(segment)
        directory = Path(journal_directory).absolute() if journal_directory else owners
        self.journal = ControllerJournal(segment.controller_journal, directory, begins=directory != owners)
        self._layout = segment.layout
        self.participants = segment.layout.participants
        self._reader = ViewReader(segment)
        self._liveness = Liveness(segment)
        self._watching = threading.Lock()  # a transaction's thread and callers of status() look at once
        self._plans: dict[bytes, DeclaredPlans] = {}  # equal on most ranks, and in every epoch
        self._epoch_of_equal_plans = 0
        self._arguments: tuple[bytes, CommandArguments | None] = (b"", None)  # those that were read last
        self._reports: dict[tuple[int, StatusCode], tuple[bytes, RankReport]] = {}  # likewise
        self._facts: GroupFacts | None = None  # those that were read last
        self._alarm = Alarm()
        self._deaths: DeathWatch | None = None

    @property
    def segment(self) -> Segment:
        """The group's segment, seen to be whole; to be asked for anew before each access."""
        self._segment.require_whole()
        return self._segment

    def view(self) -> View:
        """Read every word once."""
        return self.look().view

    def facts(self) -> GroupFacts:
        """Read what is known of the group now, its journals aside. Does not block."""
        segment = self.segment
        known = self._facts
        self._facts = read_facts(
            segment.name, segment, lock_file=segment.lock_file, with_journal=False, known=known
        )
        return self._facts

    def status(self) -> GroupStatus:
        """Return what programs get of :meth:`facts`.

        Raises
        ------
        wsm.states.errors.WordFormatError
            If a word is damaged.
        """
        self.view()
        return status_of(self.facts())

    def look(self) -> Look:
        """Read every word once, for a decision and for a later :meth:`wait`."""
        rings = self._alarm.rings
        self._segment.require_whole()
        read = self._reader.read()
        return Look(read.view, read.statuses, rings)

    def wait(self, look: Look, timeout_s: float) -> bool:
        """Wait until a status says more than that its participant is at work, or it rang.

        Blocks up to `timeout_s` seconds; returns whether it was not those that ended the wait. A participant
        writes a word for each action, and each wakes this process, mostly for nothing.
        """
        deadline_s, seen = time.monotonic() + timeout_s, look.statuses
        while True:
            watches = list(map(Watch, self._layout.status, repeat(False), seen))
            left_s = deadline_s - time.monotonic()
            if not wait(self._segment, watches, left_s, alarm=self._alarm, heard=look.rings):
                return False
            before, words = seen, self._segment.words
            seen = tuple([words[index] for index in self._layout.status])
            says_more = any(new != old and not is_at_work(new) for old, new in zip(before, seen, strict=True))
            if says_more or self._alarm.rings != look.rings:
                return True
            if time.monotonic() >= deadline_s:  # words that come faster than this turns keep no look away
                return False

    def watch_deaths(self) -> None:
        """From now on let the death of a participant end :meth:`wait`. Cheap if it does so already.

        Without a descriptor or a thread for it deaths are seen by looking, and the next call tries again.
        """
        with self._watching, contextlib.suppress(OSError, RuntimeError):
            if self._deaths is None:
                self._deaths = DeathWatch(self._liveness, range(self.participants), self._alarm.ring)
            self._deaths.refresh()

    def ring(self) -> None:
        """End a wait of another thread: something outside the words has changed."""
        self._alarm.ring()

    def life(self, participant: int) -> Life:
        """Whether the participant's process lives now."""
        with self._watching:
            return self._liveness.look(participant)

    def has_place(self, participant: int) -> bool:
        """Whether a process has that place still; one that is dying has given it back."""
        with self._watching:
            return self._liveness.has_place(participant)

    def stopped(self, participant: int) -> bool:
        """Whether the participant's process lives and is stopped (SIGSTOP, a debugger). Reads ``/proc``."""
        with self._watching:
            return self._liveness.is_stopped(participant)

    def presence(self, participant: int) -> Presence:
        """Read what the participant is doing, and since when."""
        return read_presence(self._segment.words, self._layout.heartbeat[participant])

    def pid(self, participant: int) -> int | None:
        """Pid of the process that has or had that place; None if there never was one."""
        with self._watching:
            return self._liveness.pid(participant)

    @property
    def owner_pid(self) -> int | None:
        """Pid of the process that owns the segment; None if there is none, or it is this process."""
        owner = self.segment.owner
        return None if owner is None or owner.pid == os.getpid() else owner.pid

    def ranks_of(self, pid: int) -> list[int]:
        """Return the participants whose place the process has, as errors call them; none for this process."""
        known = range(self.participants) if pid and pid != os.getpid() else ()
        return [self.named(one) for one in known if self.pid(one) == pid and self.life(one) is Life.ALIVE]

    def lost(self) -> list[int]:
        """Return the participants whose processes are gone."""
        with self._watching:
            look, every = self._liveness.look, range(self.participants)
            return [self.named(index) for index in every if look(index) is Life.DEAD]

    def named(self, participant: int) -> int:
        """Return a participant's number, so that errors call it what it is."""
        return participant if participant < self._segment.world_size else CacheProcess(participant)

    def open(self, view: View, command: CommandWord, arguments: CommandArguments) -> CommandWord:
        """Write a command, its arguments first, then its word; return the word that was written.

        `view` is what :func:`wsm.states.decide.next_command` made the command of.

        Two sequences are skipped if arguments stand under the next already: their controller died before it
        wrote the word, so no rank has seen it and none may find other arguments under it. The slot of the
        sequence in between holds the arguments of the last command, which say what the group is owed.

        Raises
        ------
        wsm.signals.errors.RoleBusyError
            If a process is about to decide the last command in the place of its controller, and stays there.
        """
        self.role.await_stand_in()
        self._segment.require_whole()
        following, command = command, command._replace(owes=arguments.restores)
        while True:
            command.pack()  # a sequence that does not fit is refused before anything is written
            slot = self._segment.arguments(command.sequence)
            data = arguments.to_bytes()
            try:
                slot.write(command.epoch, command.sequence, ARGUMENTS_KIND, data)
            except SlotReusedError:
                command = command._replace(sequence=command.sequence + len(self._layout.arguments))
            else:
                self._arguments = data, arguments
                journal, operation = self.journal, command.operation.name
                begun = journal.moment()
                self.write_command(command)
                by = {} if command.decider is Decider.CONTROLLER else {"decider": command.decider.name}
                journal.asked("next_command", view, following, begun, operation=operation, **by)
                asked = {"operation": operation, "request_id": arguments.request_id}
                if arguments.traceparent is not None:
                    asked["traceparent"] = arguments.traceparent
                journal.note(kinds.COMMAND_ISSUED, command, begun, **asked)
                return command

    def write_command(self, command: CommandWord) -> None:
        """Store the command word and wake every process that waits for it."""
        self._segment.require_whole()
        self._segment.words[self._layout.command] = command.pack()
        wake(self._segment, self._layout.command)

    def wake(self) -> None:
        """Wake every process that waits for the command word."""
        wake(self._segment, self._layout.command)

    def committed(self, view: View) -> CommittedRecord:
        """Read what the group has committed, as the committed word of `view` says.

        Raises
        ------
        wsm.committed_record.CommittedRecordError
            If that record is not there.
        """
        found = record_of(self._segment, view.committed)
        if found is None:
            raise CommittedRecordError(sequence=view.committed.sequence)
        return found

    def known_version(self, view: View) -> str | None:
        """Return the committed version; None also where its record is not there, which is logged."""
        try:
            return self.committed(view).version
        except CommittedRecordError as error:
            _log.error(log.RECORD_MISSING, error=str(error))
            return None

    def hold(self, view: View) -> Mapping[str, Any] | None:
        """Return the hold that the group stands under; empty where only the word says that there is one."""
        if not view.committed.held:
            return None
        try:
            return self.committed(view).hold
        except CommittedRecordError:
            return {}

    def known_hold(self, view: View) -> Hold | None:
        """Return what is known of the hold that the group stands under; None: nothing, or it is open."""
        try:
            return Hold.of(self.hold(view) or {})
        except ValueError:
            return None

    def commit(self, view: View, record: CommittedRecord) -> None:
        """Say that the group has committed something else: the record first, then the word that names it."""
        write_record(self.segment, view.command.epoch, record)
        self.write_committed(record.word)

    def write_committed(self, committed: CommittedWord) -> None:
        """Store the committed word; its record stands there already. No process waits for that word."""
        self._segment.require_whole()
        self._segment.words[self._layout.committed] = committed.pack()

    def arguments(self, command: CommandWord) -> CommandArguments | None:
        """Read the arguments of a command; None if they are gone, or of another build."""
        data = self._segment.arguments(command.sequence).read(command.epoch, command.sequence, ARGUMENTS_KIND)
        if data is None:
            return None
        if data != self._arguments[0]:
            try:
                self._arguments = data, CommandArguments.from_bytes(data)
            except CommandArgumentsError:
                return None
        return self._arguments[1]

    def plans(self, rank: int, epoch: int) -> DeclaredPlans | None:
        """Read which plans a rank derived, as it said when it joined the epoch; None if it has not.

        Raises
        ------
        wsm.declared_plans.DeclaredPlansError
            If another build of wsm wrote them.
        """
        data = self.segment.plans(rank).read(epoch, 0, PLANS_KIND)
        if data is None:
            return None
        if data not in self._plans:
            self._plans = {**self._plans, data: DeclaredPlans.from_bytes(data)}
        return self._plans[data]

    def ranks_of_other_plans(self, epoch: int) -> list[int]:
        """Return the ranks that derived other plans than rank 0; all have joined the epoch."""
        if epoch == self._epoch_of_equal_plans:
            return []
        found = {rank: self.plans(rank, epoch) for rank in range(self._segment.world_size)}
        if len({id(plan) for plan in found.values()}) > 1:
            plans = {rank: plan.collectives() for rank, plan in found.items() if plan is not None}
            others = [rank for rank, plan in plans.items() if plan != plans.get(0, plan)]
            if others:
                return others
        if None not in found.values():
            self._epoch_of_equal_plans = epoch
        return []

    def report(self, rank: int, command: CommandWord, code: StatusCode) -> RankReport | None:
        """Read what a rank reported when it reached `code`; None if it is not there."""
        segment = self._segment
        loaded = code is StatusCode.DONE_COMMITTED  # a commit that loads nothing is reported like the rest
        for slot in (*([segment.last_commit(rank)] * loaded), segment.report(rank)):
            data = slot.read(command.epoch, command.sequence, code)
            if data is not None:
                known = self._reports.get((rank, code))
                if known is None or known[0] != data:
                    known = self._reports[rank, code] = data, RankReport.from_bytes(rank, data)
                return known[1]
        return None

    def last_commit(self, rank: int) -> RankReport | None:
        """Read what a rank reported of its last load in this epoch, whatever was commanded since.

        None if there was none; so, too, for the moment in which the rank writes the report of another one.
        """
        last = self.segment.last_commit(rank).last()
        fits = last is not None and last[0][0] == self.view().command.epoch
        return RankReport.from_bytes(rank, last[1]) if last is not None and fits else None

    def failure(self, rank: int, command: CommandWord) -> tuple[FailureReport, bool] | None:
        """Read why a rank failed or refused a command, and whether it refused; None if it did neither."""
        for code in (StatusCode.REFUSED, StatusCode.FAILED):
            data = self._segment.error(rank).read(command.epoch, command.sequence, code)
            if data is not None:
                failure = replace(FailureReport.from_bytes(rank, data), rank=self.named(rank))
                return failure, code is StatusCode.REFUSED
        return None

    def close(self) -> None:
        """Let go of the processes that are watched."""
        self.journal.write()
        with self._watching:
            if self._deaths is not None:
                self._deaths.close()
            self._liveness.close()


class GroupAccess:
    """The segment of one group, attached, until its last user is done with it. Safe for threads.

    Parameters
    ----------
    name : str
        The group.
    directory : path or None
        Where the segment lies; ``/dev/shm`` by default.
    journal_directory : path or None
        Where ``controller.ndjson`` is appended to.

    Raises
    ------
    wsm.signals.errors.SegmentMissingError
        If there is no such group. Other errors of :meth:`wsm.signals.segment.Segment.attach` likewise.
    """

    def __init__(
        self,
        name: str,
        *,
        directory: str | Path | None = None,
        journal_directory: str | Path | None = None,
    ) -> None:
        self.directory = directory
        self._segment = Segment.attach(name, directory=directory)
        self.group = GroupView(self._segment, journal_directory)
        self._counting = threading.Lock()
        self._uses = 1
        self._closed = False

    def begin_use(self) -> None:
        """Keep the segment until :meth:`end_use`.

        Raises
        ------
        SegmentClosedError
            If the controller was closed.
        """
        with self._counting:
            if self._closed:
                raise SegmentClosedError(path=str(self._segment.path))
            self._uses += 1

    def end_use(self) -> None:
        """Let go of the segment with its last user: the controller, or a command that outlives it."""
        with self._counting:
            self._uses -= 1
            if self._uses == 0:
                self.group.close()
                self._segment.close()

    def close(self) -> None:
        """End the controller's own use. Idempotent."""
        with self._counting:
            was_closed, self._closed = self._closed, True
        if not was_closed:
            self.end_use()
