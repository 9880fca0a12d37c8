"""The group as a controller sees it: read its words and slots, write the two words that are the controller's.

Between :mod:`wsm.signals` (memory) and :mod:`wsm.states` (rules). A process that writes here has that role.
:class:`GroupAccess` shares one attached segment between a controller and its commands, which may outlive it.
Which version a command brings, and the record of its commit, is read off its arguments and reports here.

What a controller asked, decided and found, whom it lost and how it ended, :class:`ControllerJournal` writes
down. The last lines of all holders of the role stand in the group's segment, in the order of their writing;
with a directory they go to ``controller.ndjson`` in it, too, which all controllers of the group append to. A
file that cannot be written any more ends the file, never the command; the next writer ends what is torn then.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import structs

from wsm import log
from wsm.clock import SystemClock
from wsm.command import (
    ARGUMENTS_KIND,
    AT_HAND_KIND,
    AtHand,
    CommandArguments,
    CommandArgumentsError,
    FailureReport,
    RankReport,
    ReportFormatError,
)
from wsm.committed_record import (
    NOTHING_COMMITTED,
    CommittedRecord,
    CommittedRecordError,
    content_digest,
    record_of,
    write_record,
)
from wsm.journal import entry as kinds
from wsm.journal.entry import CONTROLLER, CONTROLLERS_FILE, JournalEntry, LineFile, LineRing
from wsm.journal.inputs import moved as facts_of
from wsm.shared_directory import ForeignPathError
from wsm.signals.errors import SegmentClosedError
from wsm.signals.liveness import ControllerRole, DeathWatch, Life, Liveness
from wsm.signals.owner_settings import settings_in
from wsm.signals.presence import Presence, read_presence
from wsm.signals.segment import Segment
from wsm.signals.waiting import Alarm, ViewReader, Watch, wait, wake
from wsm.states import holding
from wsm.states.group import GroupMove, GroupState, Known
from wsm.states.holding import UNKNOWN_HOLD, Hold
from wsm.states.view import View
from wsm.states.vocabulary import After, Tag
from wsm.states.words import CommandWord, CommittedWord, StatusCode, is_at_work
from wsm.status.facts import CacheProcess, GroupStatus
from wsm.status.reading import read_facts
from wsm.status.text import status_of

_log = log.logger("controller")

_MAX_TEXT = 2 * 1024


class ControllerJournal:
    """The journal of the process that has the controller role.

    `ring`: in the segment; only written while the role is held. `directory`: where the file is; None:
    nowhere. `begins`: whether the file says first that a process begins here: in a directory where no owner
    says when its group begins, and with it the numbers of commands.
    """

    def __init__(
        self,
        ring: LineRing,
        directory: str | Path | None = None,
        *,
        begins: bool = False,
    ) -> None:
        self._ring = ring
        self._file = None if directory is None else LineFile(Path(directory) / CONTROLLERS_FILE)
        self._clock = SystemClock()  # which the ranks' journals share
        self._begins = begins
        self._waits = False
        self._lines: list[str] = []
        self._keeps_open = False

    def moment(self) -> tuple[int, int]:
        """Return the time now, for an entry that is written once what it tells of can be seen by others."""
        return self._clock.monotonic_ns(), self._clock.wall_ns()

    def note(self, kind: str, command: CommandWord, at: tuple[int, int] | None = None, **facts: Any) -> None:
        """Write one entry; `at` is its :meth:`moment`, by default now."""
        for key, fact in facts.items():
            if isinstance(fact, str):
                facts[key] = fact[:_MAX_TEXT]
        line = self._kept(kind, command, at or self.moment(), facts)
        with contextlib.suppress(ValueError):  # the segment was closed under a command that outlived it
            self._ring.append(line)
        self.write()

    def moved(
        self, view: View, state: GroupState, known: Known, move: GroupMove, at: tuple[int, int]
    ) -> None:
        """Keep what the core was asked and what it answered, for the file alone; written with the next entry.

        To be called behind the words that say the answer, so that no word waits for a file, with the moment
        before them.
        """
        if self._file is not None:
            self._kept(kinds.INPUT, view.command, at, facts_of(view, state, known, move))

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
            if self._file is not None:
                self._file.close()

    def write(self) -> None:
        """Write to the file what is kept for it, all in one write."""
        lines, file = self._lines, self._file
        if self._waits or file is None or not lines:
            return
        self._lines = []
        try:
            file.append(lines)
        except (OSError, ForeignPathError) as error:
            self._file = None
            _log.error(log.JOURNAL_ENDED, error=str(error))
        if not self._keeps_open:
            file.close()

    def _kept(self, kind: str, command: CommandWord, at: tuple[int, int], facts: dict[str, Any]) -> str:
        """Make a line, keep it for the file if there is one, and return it."""
        if self._begins and self._file is not None:
            self._begins = False
            self._kept(kinds.STARTED, command._replace(sequence=0), at, {"pid": os.getpid()})
        line = JournalEntry(kind, *at, CONTROLLER, command.epoch, command.sequence, facts).to_line()
        if self._file is not None:
            self._lines.append(line)
        return line


class Look(NamedTuple):
    """What was seen before a wait; `rings`: how often the alarm had rung before."""

    view: View
    statuses: tuple[int, ...]
    rings: int


class GroupView:
    """A group's words, seen by a controller.

    `journal_directory`: where ``controller.ndjson`` is appended to; None: beside the ranks' journals, as the
    segment's owner said. Where that said nothing, the last lines stand in the segment alone. `journal`: what
    commands write down, in the segment and beside the ranks' journals. `participants`: number of ranks and
    helpers. `meanwhile`: as of :class:`wsm.Controller`.

    Raises
    ------
    wsm.signals.errors.SegmentTruncatedError
        If the segment's file was cut short: by what reads words or processes anew, and by what writes. What
        takes a view, or a command of one, relies on the reading that this came from.
    """

    def __init__(
        self,
        segment: Segment,
        journal_directory: str | Path | None = None,
        *,
        meanwhile: Callable[[float], object] | None = None,
    ) -> None:
        self.meanwhile = meanwhile
        self.role = ControllerRole(segment)
        self._segment = segment
        owners = settings_in(segment.settings).journals
        directory = Path(journal_directory).absolute() if journal_directory else owners
        self.journal = ControllerJournal(segment.controller_journal, directory, begins=directory != owners)
        self._layout = segment.layout
        self.participants = segment.layout.participants
        self._reader = ViewReader(segment)
        self.liveness = Liveness(segment)
        self._watching = threading.Lock()  # for deaths
        self._epoch_of_equal_plans = 0
        self._arguments: tuple[bytes, CommandArguments | None] = (b"", None)  # those that were read last
        self._reports: dict[tuple[int, StatusCode], tuple[bytes, RankReport]] = {}  # likewise
        self._facts: GroupStatus | None = None  # those that were read last
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

    def facts(self) -> GroupStatus:
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
        """Wait until a status changes, or it rings; up to `timeout_s` seconds. Return whether it did."""
        if self.meanwhile is not None:
            self.meanwhile(timeout_s)
            return True
        watches = list(map(Watch, self._layout.status, repeat(False), look.statuses))
        return wait(self._segment, watches, timeout_s, alarm=self._alarm, heard=look.rings)

    def goes_on(self, look: Look) -> Look | None:
        """Return `look` with the statuses as they are now, if those say only that ranks are at work.

        A participant writes a word for each action, and each wakes this process, mostly for nothing.
        """
        now = tuple(map(self._segment.words.__getitem__, self._layout.status))
        for old, new in zip(look.statuses, now, strict=True):
            if new != old and not is_at_work(new):
                return None
        return look._replace(statuses=now) if self._alarm.rings == look.rings else None

    def watch_deaths(self) -> None:
        """From now on let the death of a participant end :meth:`wait`. Cheap if it does so already.

        Without a descriptor or a thread for it deaths are seen by looking, and the next call tries again.
        """
        if self.meanwhile is not None:
            return
        with self._watching, contextlib.suppress(OSError, RuntimeError):
            if self._deaths is None:
                self._deaths = DeathWatch(self.liveness, range(self.participants), self._alarm.ring)
            self._deaths.refresh()

    def ring(self) -> None:
        """End a wait of another thread: something outside the words has changed."""
        self._alarm.ring()

    def presence(self, participant: int) -> Presence:
        """Read what the participant is doing, and since when."""
        return read_presence(self._segment.words, self._layout.heartbeat[participant])

    @property
    def owner_pid(self) -> int | None:
        """Pid of the process that owns the segment; None if there is none, or it is this process."""
        owner = self.segment.owner
        return None if owner is None or owner.pid == os.getpid() else owner.pid

    def ranks_of(self, pid: int) -> list[int]:
        """Return the participants whose place the process has, as errors call them; none for this process."""
        known = range(self.participants) if pid and pid != os.getpid() else ()
        look, pid_of = self.liveness.look, self.liveness.pid
        return [self.named(one) for one in known if pid_of(one) == pid and look(one) is Life.ALIVE]

    def lost(self) -> list[int]:
        """Return the participants whose processes are gone."""
        lives = list(map(self.liveness.look, range(self.participants)))
        if Life.DEAD not in lives:
            return []
        return [self.named(index) for index, life in enumerate(lives) if life is Life.DEAD]

    def named(self, participant: int) -> int:
        """Return a participant's number, so that errors call it what it is."""
        return participant if participant < self._segment.world_size else CacheProcess(participant)

    def write_arguments(self, command: CommandWord, arguments: CommandArguments) -> None:
        """Store the arguments of a command that is written next.

        Raises
        ------
        wsm.signals.errors.SlotReusedError
            If other arguments stand under its number.
        """
        data = arguments.to_bytes()
        self.segment.arguments(command.sequence).write(command.epoch, command.sequence, ARGUMENTS_KIND, data)
        self._arguments = data, arguments

    def write_command(self, command: CommandWord) -> None:
        """Store the command word and wake every process that waits for it."""
        with self._between_words():
            self._segment.require_whole()
            self._segment.words[self._layout.command] = command.pack()
            wake(self._segment, self._layout.command)

    @contextlib.contextmanager
    def _between_words(self) -> Iterator[None]:
        meanwhile = self.meanwhile or bool
        meanwhile(0.0)
        yield
        meanwhile(0.0)

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

    def known_record(self, view: View) -> CommittedRecord:
        """Return what is committed; a record of nothing where that cannot be read, which is logged."""
        found = record_of(self._segment, view.committed)
        if found is None:
            _log.error(log.RECORD_MISSING, error=str(CommittedRecordError(sequence=view.committed.sequence)))
        return found or NOTHING_COMMITTED

    def hold(self, view: View) -> Hold | None:
        """Return the hold that the group stands under; without a name where only the word tells of it."""
        return (self.known_record(view).hold or UNKNOWN_HOLD) if view.committed.held else None

    def known_hold(self, view: View) -> Hold | None:
        """Return what is known of the hold that the group stands under; None: nothing, or it is open."""
        return Hold.known(self.hold(view))

    def revise_hold(self, view: View, hold: Hold) -> None:
        """Write the record of the hold that the group stands under anew; for the holder of the role."""
        record = structs.replace(self.committed(view), hold=hold)
        write_record(self.segment, view.command.epoch, record)

    def write_committed(self, committed: CommittedWord) -> None:
        """Store the committed word; its record stands there already. No process waits for that word."""
        with self._between_words():
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

    def at_hand(self, rank: int, epoch: int) -> AtHand | None:
        """Read what a rank says in an epoch of its plans and of the action that it is at; None: nothing."""
        data = self.segment.at_hand[rank].read(epoch, 0, AT_HAND_KIND)
        return None if data is None else AtHand.from_bytes(data)

    def ranks_of_other_plans(self, epoch: int) -> list[int]:
        """Return the ranks that derived other plans than rank 0; all have joined the epoch."""
        if epoch == self._epoch_of_equal_plans:
            return []
        found = {rank: self.at_hand(rank, epoch) for rank in range(self._segment.world_size)}
        plans = {rank: said.plans for rank, said in found.items() if said is not None}
        others = [rank for rank, digest in plans.items() if digest != plans.get(0, digest)]
        if not others and len(plans) == len(found):
            self._epoch_of_equal_plans = epoch
        return others

    def report(self, rank: int, command: CommandWord, code: StatusCode) -> RankReport | None:
        """Read what a rank reported when it reached `code`; None if it is not there."""
        segment = self._segment
        loaded = code is StatusCode.DONE_COMMITTED  # a commit that loads nothing is reported like the rest
        for slot in (*([segment.last_commits[rank]] * loaded), segment.reports[rank]):
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
        last = self.segment.last_commits[rank].last()
        fits = last is not None and last[0][0] == self.view().command.epoch
        return RankReport.from_bytes(rank, last[1]) if last is not None and fits else None

    def failure(self, rank: int, command: CommandWord) -> tuple[FailureReport, bool] | None:
        """Read why a rank failed or refused a command, and whether it refused; None if it did neither."""
        for code in (StatusCode.REFUSED, StatusCode.FAILED):
            data = self._segment.errors[rank].read(command.epoch, command.sequence, code)
            if data is not None:
                failure = structs.replace(FailureReport.from_bytes(rank, data), rank=self.named(rank))
                return failure, code is StatusCode.REFUSED
        return None

    def close(self) -> None:
        """Let go of the processes that are watched."""
        self.journal.write()
        with self._watching:
            if self._deaths is not None:
                self._deaths.close()
            self.liveness.close()


class GroupAccess:
    """The segment of one group, attached, until its last user is done with it. Safe for threads.

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
        meanwhile: Callable[[float], object] | None = None,
    ) -> None:
        self.directory = directory
        self._segment = Segment.attach(name, directory=directory)
        self.group = GroupView(self._segment, journal_directory, meanwhile=meanwhile)
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


# -- what a command's arguments and the reports of its ranks say ---------------------------------------


def loads(arguments: CommandArguments) -> bool:
    """Whether a commit of the command brings weights."""
    return Tag.WEIGHTS in arguments.tags and not arguments.of_admission


def known_arguments(group: GroupView, view: View) -> CommandArguments:
    """Return the arguments of the command at hand; where they are damaged, what the ranks have said of them.

    That is what it loads, and whether the group is held behind it. A hold is without a name then.
    """
    found = group.arguments(view.command)
    if found is not None:
        return found
    gone = CommandArguments("its arguments are gone")
    for report in _reports(group, view):
        if report.held is not None:
            after = After.HELD if report.held else After.SERVE
            if report.loads:
                return structs.replace(gone, after=after)
            # A KV cache alone has been worked at by actions; a hold or a release has built none.
            built = "kv_bytes" in report.facts
            tags = frozenset({Tag.KV_CACHE}) if built else frozenset[Tag]()
            return structs.replace(gone, after=after, tags=tags, of_admission=not built)
    return gone


def _reports(group: GroupView, view: View) -> Iterator[RankReport]:
    """Iterate over the reports of the command; a committed rank has overwritten the PREPARED one."""
    for rank in range(group.participants):
        for code in (StatusCode.PREPARED, StatusCode.DONE_COMMITTED):
            with contextlib.suppress(ReportFormatError):
                report = group.report(rank, view.command, code)
                if report is not None:
                    yield report


def commanded_version(group: GroupView, view: View, arguments: CommandArguments) -> str | None:
    """Return the version that a decided commit brings; None while neither arguments nor a report says it.

    That is the one that was asked for, or else the one that the ranks found and agreed on.
    """
    if not loads(arguments):
        return group.committed(view).version  # what was committed stays; it may be none that is held now
    if arguments.version is not None:
        return arguments.version
    return next((report.version for report in _reports(group, view) if report.version is not None), None)


def brought(group: GroupView, view: View, arguments: CommandArguments) -> tuple[str | None, bool]:
    """Return the version that a decided commit brings, and whether that is known by now."""
    with contextlib.suppress(CommittedRecordError):
        version = commanded_version(group, view, arguments)
        return version, version is not None or not loads(arguments)
    return None, True


def committed_by(
    group: GroupView, view: View, version: str | None, arguments: CommandArguments
) -> CommittedRecord:
    """Return the record of a decided commit; one that loads nothing keeps what was loaded before."""
    sequence = view.command.sequence
    hold: Hold | None = None
    if holding.held_after(arguments.after, held=view.committed.held):
        hold = arguments.hold or group.hold(view) or UNKNOWN_HOLD
    if not loads(arguments):
        return structs.replace(group.committed(view), sequence=sequence, version=version, hold=hold)
    reports = {report.rank: report for report in _reports(group, view)}
    digests, sets = set[str](), set[str | None]()
    for report in reports.values():
        if report.manifest_digest is not None:
            digests.add(report.manifest_digest)
            said = report.facts.get("tensor_set")
            sets.add(said if isinstance(said, str) else None)
    before = group.known_record(view)
    if sets <= {None}:  # it did not go through models of the kind that need one
        sets = {before.tensor_set}
    load = arguments.load_options()
    if arguments.partial:  # a restore loads what it was put on as well
        with contextlib.suppress(CommittedRecordError):
            load = {**group.committed(view).load, **load}
    meant = content_digest(list(reports.values()), version, before)
    other, known = meant not in (None, before.content_digest), group.known_hold(view)
    closed = holding.keeps_closed(known, version, loads=True, restores=arguments.restores, other=other)
    if hold is not None and closed is None:
        hold = structs.replace(hold, closed=None)
    return CommittedRecord(
        sequence,
        version,
        digests.pop() if len(digests) == 1 else None,
        sequence,
        hold,
        load=load,
        tensor_set=sets.pop() if len(sets) == 1 else None,
        content_digest=meant,
    )
