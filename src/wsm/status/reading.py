"""From a segment, mapped or copied, to the facts of its group: words, slots, rings, locks and ``/proc``.

Judges nothing, writes nothing, asks no process. Whatever is damaged becomes a fact, never an error.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias, TypeVar

from wsm.clock import monotonic_ns
from wsm.command import ARGUMENTS_KIND, AT_HAND_KIND, AtHand, CommandArguments, FailureReport, RankReport
from wsm.committed_record import NOTHING_COMMITTED, CommittedRecord, CommittedRecordError, committed_record
from wsm.errors import WsmError
from wsm.journal import entry as kinds
from wsm.journal.entry import JournalEntry
from wsm.signals.layout import lock_path
from wsm.signals.lock_file import LockFile, open_lock_file
from wsm.signals.owner_settings import settings_in
from wsm.signals.ownership import CONTROLLER_BYTE, FIRST_PARTICIPANT_BYTE, OWNER_BYTE
from wsm.signals.presence import (
    Occupant,
    Presence,
    ProcessIdentity,
    is_stopped,
    own_pid_namespace,
    read_occupant,
    read_presence,
)
from wsm.signals.segment import Segment, SegmentImage
from wsm.states.decide import CONTROLLER_GRACE_S
from wsm.states.errors import WordFormatError
from wsm.states.holding import UNKNOWN_HOLD, Hold
from wsm.states.vocabulary import KVState, WeightState
from wsm.states.words import CommandWord, CommittedWord, Decider, StatusCode, StatusWord, StepWord, code_name
from wsm.status.facts import (
    ALIVE,
    DEAD,
    NEVER,
    NO_STATUS,
    NO_STEP,
    STOPPED,
    UNKNOWN,
    ActionFacts,
    FailureFacts,
    ForeignPid,
    GroupStatus,
    RankStatus,
)

_Parsed = TypeVar("_Parsed")
_Word = TypeVar("_Word", CommandWord, CommittedWord, StatusWord, StepWord)

#: The codes under which rank 0's report names the version of a command that names none itself.
_NAMING = (StatusCode.DRAINING, StatusCode.PREPARED, StatusCode.DONE_COMMITTED)


Source: TypeAlias = Segment | SegmentImage


def facts_with_locks(
    name: str,
    path: Path,
    image: SegmentImage,
    *,
    with_journal: bool = True,
    known: GroupStatus | None = None,
) -> GroupStatus:
    """Read as :func:`read_facts`, with what the lock file beside the segment `path` says, if it is there.

    The kernel knows who has the controller role.
    """
    with contextlib.ExitStack() as stack:
        lock_file = None
        with contextlib.suppress(WsmError):
            lock_file = open_lock_file(lock_path(path))
        if lock_file is not None:
            stack.callback(lock_file.close)
        return read_facts(name, image, lock_file=lock_file, with_journal=with_journal, known=known)


def facts_of_file(name: str, path: Path) -> GroupStatus:
    """Read the facts of the group whose segment, or a copy of it, lies at `path`; never raises for them."""
    try:
        image = SegmentImage.read(path)
    except WsmError as error:
        return GroupStatus(name, problem=str(error))
    return read_facts(name, image)


def read_facts(
    name: str,
    source: Source,
    *,
    lock_file: LockFile | None = None,
    with_journal: bool = True,
    known: GroupStatus | None = None,
) -> GroupStatus:
    """Read everything that is known of a group. Does not block.

    Parameters
    ----------
    name : str
        The name of the group.
    source : Segment or SegmentImage
        Its memory, or a copy.
    lock_file : LockFile or None
        The lock file of the living group; None: nothing is known of its locks.
    with_journal : bool
        Whether the rings are read, too: milliseconds where all else takes microseconds.
    known : GroupStatus or None
        The status that was read of this segment before: the rings are searched for the version that served
        once for each command.
    """
    settings = settings_in(source.settings)
    reader = _Reader(source, lock_file, tuple(read_journal(source)) if with_journal else ())
    layout = source.layout
    command = reader.word("command word", CommandWord, layout.command)
    committed, record_lost = reader.committed()
    hold = Hold.known(committed.hold)
    ranks = tuple(reader.rank(rank, command) for rank in range(source.participants))
    data = source.arguments(command.sequence).read(command.epoch, command.sequence, ARGUMENTS_KIND)
    arguments = None if data is None else _parsed(CommandArguments.from_bytes, data)
    owner, supervisor = source.owner, source.supervisor
    owner_life = NEVER if owner is None else reader.life_of(owner, OWNER_BYTE)
    supervisor_life = NEVER
    if supervisor is not None:
        supervisor_life = owner_life if supervisor == owner else _life_of(supervisor)
    controller_pid = None if lock_file is None else lock_file.holder(CONTROLLER_BYTE)
    if controller_pid == 0:
        controller_pid = ForeignPid(0)
    served = committed.version
    if served is None and _some_cleared(ranks):
        same = known is not None and (known.command, known.committed) == (command, committed)
        if known is not None and same and _some_cleared(known.ranks):
            served = known.served_version
        else:
            entries = reader.journal or read_journal(source)
            told = [one.facts.get("version") for one in entries if one.kind == kinds.SERVED_VERSION]
            served = told[-1] if told and isinstance(told[-1], str) else None
    facts = GroupStatus(
        name,
        damaged=tuple(reader.damaged),
        run_id=source.run_id,
        command=command,
        arguments=arguments,
        asked_version=_asked_version(source, command, arguments),
        committed=committed,
        record_lost=record_lost,
        lease_left_s=None if hold is None else hold.left_s(reader.now_ns),
        served_version=served,
        served_bases=_bases(source, served, committed),
        role_known=lock_file is not None,
        controller_pid=controller_pid,
        controller_stopped=bool(controller_pid) and is_stopped(controller_pid or 0),
        owner_pid=None if owner is None else _pid_of(owner),
        owner_lives=owner_life in (ALIVE, STOPPED),
        supervisor_pid=_pid_of(supervisor) if supervisor and supervisor_life in (ALIVE, STOPPED) else None,
        supervisor_life=supervisor_life,
        ranks=ranks,
        awaited=settings.awaited,
        logs=settings.logs,
        obeys_engine_alone=settings.loop is not None and not settings.loop.polls,
        read_at_ns=reader.now_ns,
        journal=reader.journal,
    )
    waited_s = _unanswered_s(facts, None if arguments is None else reader.age_s(arguments.issued_ns))
    hung = waited_s is not None and waited_s > CONTROLLER_GRACE_S
    return replace(facts, controller_unanswered_s=waited_s, controller_hung=hung)


def _unanswered_s(group: GroupStatus, command_age_s: float | None) -> float | None:
    """Return for how many seconds the command has waited for a word of the role's holder; None: for none.

    Negative while the holder has time left.
    """
    command, arguments = group.command, group.arguments
    if group.controller_pid is None:
        return None
    told = [rank.since_s for rank in group.ranks if rank.since_s is not None]
    if group.is_over:
        return min(told, default=None) if group.is_unwritten else None
    due = [rank.since_s for rank in group.ranks if group.has_failed(rank) and rank.since_s is not None]
    deadline_s = None if arguments is None else arguments.deadline_s
    left_s = None if deadline_s is None else deadline_s - (command_age_s or 0.0)
    if all(group.answer(rank) is StatusCode.PREPARED for rank in group.ranks):
        left_s = group.decision_left_s
        if command.decider is Decider.CONTROLLER:
            due = told
    if command.operation.is_decision or (left_s is None and not due):
        return None
    return min(due) if due else -(left_s or 0.0)


class _Reader:
    """Reads one segment or copy, and keeps what is damaged."""

    def __init__(self, source: Source, lock_file: LockFile | None, journal: tuple[JournalEntry, ...]) -> None:
        self.damaged: list[str] = []
        self.journal = journal
        self._source = source
        self._lock_file = lock_file
        self.now_ns = monotonic_ns()

    def word(self, what: str, kind: type[_Word], index: int) -> _Word:
        """Read a word; a damaged one is noted, and read as one that says nothing."""
        word = self._source.words[index]
        try:
            return kind.unpack(word)
        except WordFormatError:
            self.damaged.append(f"the {what} is {word:#018x}, which it cannot be")
            return kind.unpack(0)

    def committed(self) -> tuple[CommittedRecord, str]:
        """Read what the group has committed; and why that is not known, if it is not."""
        word = self.word("committed word", CommittedWord, self._source.layout.committed)
        try:
            return committed_record(self._source), ""
        except WordFormatError:
            return NOTHING_COMMITTED, ""
        except CommittedRecordError as error:
            return CommittedRecord(word.sequence, hold=UNKNOWN_HOLD if word.held else None), str(error)

    def rank(self, rank: int, command: CommandWord) -> RankStatus:
        source, layout = self._source, self._source.layout
        status = self.word(f"status word of rank {rank}", StatusWord, layout.status[rank])
        step = NO_STEP
        if rank < source.world_size:
            step = self.word(f"step word of rank {rank}", StepWord, layout.step[rank])
        occupant = read_occupant(source.words, layout.occupant[rank])
        presence = read_presence(source.words, layout.heartbeat[rank])
        if status.epoch == 0:
            status = NO_STATUS
        said = source.at_hand[rank].read(status.epoch, 0, AT_HAND_KIND) if status.epoch else None
        at_hand = None if said is None else AtHand.from_bytes(said)
        return RankStatus(
            rank=rank,
            helper=rank >= source.world_size,
            life=self._life(rank, occupant),
            pid=None if occupant is None else _pid_of(occupant.identity),
            status=status,
            step_word=step,
            code=code_name(command.operation, status.code),
            weights=WeightState(status.weights).name,
            kv=KVState(status.kv).name,
            heartbeat=presence.heartbeat,
            since_s=self.age_s(presence.told_at_ns),
            beat_s=self.age_s(presence.beat_at_ns),
            plan=None if at_hand is None else at_hand.plan,
            action=self._action(at_hand, status, presence),
            failure=self._failure(rank),
            staged_bytes=self._staged_bytes(rank, command),
        )

    def _staged_bytes(self, rank: int, command: CommandWord) -> int:
        """Return what a rank has prepared of a command that its controller does not decide."""
        if command.operation.is_decision or command.decider is Decider.CONTROLLER:
            return 0
        data = self._source.reports[rank].read(command.epoch, command.sequence, StatusCode.PREPARED)
        report = None if data is None else _reported(data)
        return 0 if report is None else report.bytes

    def _life(self, rank: int, occupant: Occupant | None) -> str:
        if occupant is None:
            return NEVER
        if not occupant.present:
            return DEAD
        return self.life_of(occupant.identity, FIRST_PARTICIPANT_BYTE + rank)

    def life_of(self, identity: ProcessIdentity, byte: int) -> str:
        """Return what is known of a process that has a byte of the lock file while it lives."""
        life = _life_of(identity)
        if life in (ALIVE, STOPPED) or self._lock_file is None:
            return life
        # Another pid namespace, a hidden /proc, or dead indeed: the byte lock knows.
        return DEAD if self._lock_file.holder(byte) is None else ALIVE

    def age_s(self, at_ns: int) -> float | None:
        """Seconds since a time of the host's monotonic clock; None: not known."""
        # A time of a boot before this one, or of another host, may lie in the future.
        return (self.now_ns - at_ns) / 1e9 if 0 < at_ns <= self.now_ns else None

    def _action(self, at_hand: AtHand | None, status: StatusWord, presence: Presence) -> ActionFacts | None:
        """Return the action that a rank is inside of, or that its status word says it comes to."""
        if at_hand is None or at_hand.action is None:
            return None
        seconds = self.age_s(presence.since_ns)
        if seconds is None and status.code is not StatusCode.RUNNING:
            return None
        return ActionFacts(at_hand.action, at_hand.deadline_s, seconds, at_hand.collective)

    def _failure(self, rank: int) -> FailureFacts | None:
        last = self._source.errors[rank].last()
        if last is None:
            return None
        (epoch, sequence, kind), data = last
        report = _parsed(functools.partial(FailureReport.from_bytes, rank), data)
        if report is None:
            return None
        told = [
            one.at_ns
            for one in self.journal
            if (one.kind, one.rank, one.epoch, one.sequence) == (kinds.COMMAND_FAILED, rank, epoch, sequence)
        ]
        age_s = self.age_s(told[-1]) if told else None
        return FailureFacts(epoch, sequence, kind == StatusCode.REFUSED, report, age_s)


def _pid_of(identity: ProcessIdentity) -> int | None:
    """Return the pid of a process, marked where it is one of another pid namespace."""
    if identity.pid_namespace in (0, own_pid_namespace()) or not identity.pid:
        return identity.pid or None
    foreign = ForeignPid(identity.pid)
    foreign.namespace = identity.pid_namespace
    return foreign


def _life_of(identity: ProcessIdentity) -> str:
    if not identity.is_visible:
        return UNKNOWN
    if not identity.is_known_alive:
        return DEAD
    return STOPPED if identity.is_stopped else ALIVE


def _parsed(parse: Callable[[bytes], _Parsed], data: bytes) -> _Parsed | None:
    """Return what `data` says; None if this build cannot read it."""
    try:
        return parse(data)
    except WsmError:
        return None


@functools.lru_cache(maxsize=64)
def _reported(data: bytes) -> RankReport | None:
    """Read a report; the same bytes are read at each look."""
    return _parsed(functools.partial(RankReport.from_bytes, 0), data)


def _asked_version(source: Source, command: CommandWord, arguments: CommandArguments | None) -> str | None:
    if arguments is None or arguments.clears or arguments.version is not None:
        return None if arguments is None else arguments.version
    slots = [source.reports[0].read(command.epoch, command.sequence, code) for code in _NAMING]
    named = [report for data in slots if data is not None and (report := _reported(data)) is not None]
    return named[0].version if named else None


def _some_cleared(ranks: tuple[RankStatus, ...]) -> bool:
    return any(rank.weights == "CLEARED" for rank in ranks)


def _bases(source: Source, version: str | None, committed: CommittedRecord) -> tuple[str, ...]:
    """Return what some rank put `version` on: as it reported it, or prepared it and died before it did."""
    for rank in range(source.participants):
        prepared = source.reports[rank].last()
        slots = [source.last_commits[rank].last()]
        if prepared is not None and prepared[0][1:] == (committed.load_sequence, StatusCode.PREPARED):
            slots.append(prepared)
        for last in slots:
            report = None if last is None else _reported(last[1])
            if report is not None and report.bases and report.version == version:
                return report.bases
    return ()


def read_journal(source: Source) -> list[JournalEntry]:
    """Return what stands in the rings, by time; broken lines are left out."""
    entries = [entry for ring in source.journals for entry in ring.entries()]
    return sorted(entries, key=lambda one: one.at_ns)
