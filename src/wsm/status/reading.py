"""From a segment, mapped or copied, to the facts of its group: words, slots, rings, locks and ``/proc``.

Judges nothing, writes nothing, asks no process. Whatever is damaged becomes a fact, never an error.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from wsm.clock import monotonic_ns
from wsm.command import ARGUMENTS_KIND, CommandArguments
from wsm.committed_record import CommittedRecord, CommittedRecordError, committed_record
from wsm.declared_plans import PLANS_KIND, DeclaredAction, DeclaredPlan, DeclaredPlans
from wsm.errors import WsmError
from wsm.report import FailureReport, RankReport
from wsm.signals.layout import SETTINGS_KEY, Layout
from wsm.signals.lock_file import LockFile
from wsm.signals.ownership import CONTROLLER_BYTE, FIRST_PARTICIPANT_BYTE
from wsm.signals.presence import Occupant, Presence, ProcessIdentity, is_stopped, read_occupant, read_presence
from wsm.signals.segment import SegmentImage
from wsm.signals.slot import LineRing, PayloadSlot
from wsm.states import journal as kinds
from wsm.states.errors import WordFormatError
from wsm.states.holding import Hold
from wsm.states.journal import JournalEntry, read_ndjson
from wsm.states.vocabulary import KVState, WeightState
from wsm.states.words import CommandWord, CommittedWord, Decider, StatusCode, StatusWord, StepWord
from wsm.status.facts import (
    ALIVE,
    DEAD,
    NEVER,
    STOPPED,
    UNKNOWN,
    ActionFacts,
    Awaited,
    FailureFacts,
    GroupFacts,
    RankFacts,
)

_Word = TypeVar("_Word", CommandWord, CommittedWord, StatusWord, StepWord)

#: Under which codes rank 0's report names the version of a command that names none itself.
_NAMING = (StatusCode.DRAINING, StatusCode.PREPARED, StatusCode.DONE_COMMITTED)


class Source(Protocol):
    """What is read: a :class:`wsm.signals.segment.Segment`, or a copy of one."""

    world_size: int
    run_id: str
    words: memoryview[int]

    @property
    def layout(self) -> Layout:
        """Indexes into `words`."""

    @property
    def participants(self) -> int:
        """Number of ranks and helpers."""

    @property
    def owner(self) -> ProcessIdentity | None:
        """The process that owns the segment."""

    @property
    def supervisor(self) -> ProcessIdentity | None:
        """The process that replaces ranks."""

    @property
    def records(self) -> tuple[PayloadSlot, ...]:
        """Slots for what the group has committed."""

    @property
    def settings(self) -> PayloadSlot:
        """Slot for what the owner says of the whole group."""

    def arguments(self, sequence: int) -> PayloadSlot:
        """Slot for the arguments of a command."""

    def report(self, participant: int) -> PayloadSlot:
        """Slot for what a participant reports."""

    def last_commit(self, participant: int) -> PayloadSlot:
        """Slot for what a participant reports of a commit."""

    def error(self, participant: int) -> PayloadSlot:
        """Slot for why a participant failed."""

    def plans(self, participant: int) -> PayloadSlot:
        """Slot for a participant's plans."""

    def journals(self) -> list[LineRing]:
        """Rings of all participants, and behind them that of the controllers."""


def facts_of_file(name: str, path: Path) -> GroupFacts:
    """Read the facts of the group whose segment, or a copy of it, lies at `path`; never raises for them."""
    try:
        image = SegmentImage.read(path)
    except WsmError as error:
        return GroupFacts(name, problem=str(error))
    return read_facts(name, image)


def read_facts(
    name: str,
    source: Source,
    *,
    lock_file: LockFile | None = None,
    with_journal: bool = True,
    known: GroupFacts | None = None,
) -> GroupFacts:
    """Read everything that is known of a group. Does not block.

    Parameters
    ----------
    name : str
        What the group is called.
    source : Segment or SegmentImage
        Its memory, or a copy.
    lock_file : LockFile or None
        Of the living group; None: what locks say cannot be known.
    with_journal : bool
        Whether the rings are read, too: milliseconds where all else takes microseconds.
    known : GroupFacts or None
        What was read of this segment before. Which version served is looked for in the rings once for each
        command.
    """
    reader = _Reader(source, lock_file, tuple(read_journal(source)) if with_journal else ())
    layout = source.layout
    command = reader.word("command word", CommandWord, layout.command)
    committed, record_lost = reader.committed()
    ranks = tuple(reader.rank(rank, command) for rank in range(source.participants))
    arguments = None if command is None else _arguments(source, command)
    owner, supervisor = source.owner, source.supervisor
    controller_pid = None if lock_file is None else lock_file.holder(CONTROLLER_BYTE)
    served = committed.version
    if served is None and _some_cleared(ranks):
        if (
            known is not None
            and (known.command, known.committed) == (command, committed)
            and _some_cleared(known.ranks)
        ):
            served = known.served_version
        else:
            served = _served_before(reader.journal or tuple(read_journal(source)))
    return GroupFacts(
        name,
        damaged=tuple(reader.damaged),
        run_id=source.run_id,
        command=command,
        arguments=arguments,
        asked_version=None if command is None else _asked_version(source, command, arguments),
        committed=committed,
        record_lost=record_lost,
        lease_left_s=reader.lease_left_s(committed),
        served_version=served,
        served_bases=_bases(source, served, committed),
        role_known=lock_file is not None,
        controller_pid=controller_pid,
        controller_stopped=bool(controller_pid) and is_stopped(controller_pid or 0),
        owner_pid=None if owner is None else owner.pid,
        owner_lives=owner is not None and owner.is_known_alive,
        supervisor_pid=None if supervisor is None else supervisor.pid or None,
        supervisor_life=NEVER if supervisor is None else _life_of(supervisor),
        ranks=ranks,
        awaited=_awaited(source),
        obeys_engine_alone=_said(source, "loop").get("polls") is False,
        journal=reader.journal,
    )


def _awaited(source: Source) -> Awaited | None:
    said = _said(source, "awaited")
    return Awaited(tuple(map(int, said["ranks"])), str(said["where"]), str(said["seen"])) if said else None


def _said(source: Source, name: str) -> Mapping[str, Any]:
    """Return what the owner says under a name; empty where it says nothing, or nothing that can be read."""
    data = source.settings.read(*SETTINGS_KEY)
    try:
        said = None if data is None else json.loads(data).get(name)
    except (ValueError, AttributeError):
        return {}
    return said if isinstance(said, dict) else {}


class _Reader:
    """Reads one segment or copy, and keeps what is damaged."""

    def __init__(self, source: Source, lock_file: LockFile | None, journal: tuple[JournalEntry, ...]) -> None:
        self.damaged: list[str] = []
        self.journal = journal
        self._source = source
        self._lock_file = lock_file
        self._now_ns = monotonic_ns()

    def word(self, what: str, kind: type[_Word], index: int) -> _Word | None:
        word = self._source.words[index]
        try:
            return kind.unpack(word)
        except WordFormatError:
            self.damaged.append(f"the {what} is {word:#018x}, which it cannot be")
            return None

    def committed(self) -> tuple[CommittedRecord, str]:
        """Read what the group has committed; and why that is not known, if it is not."""
        word = self.word("committed word", CommittedWord, self._source.layout.committed)
        if word is None:
            return CommittedRecord(0), ""
        try:
            return committed_record(self._source), ""
        except CommittedRecordError as error:
            return CommittedRecord(word.sequence, hold={} if word.held else None), str(error)

    def lease_left_s(self, committed: CommittedRecord) -> float | None:
        """Seconds until the lease of a hold runs out; None: it has none, or nothing is known of it."""
        try:
            return Hold.of(committed.hold or {}).left_s(self._now_ns)
        except ValueError:
            return None

    def rank(self, rank: int, command: CommandWord | None) -> RankFacts:
        source, layout = self._source, self._source.layout
        status = self.word(f"status word of rank {rank}", StatusWord, layout.status[rank])
        step = None
        if rank < source.world_size:
            step = self.word(f"step word of rank {rank}", StepWord, layout.step[rank])
        occupant = read_occupant(source.words, layout.occupant[rank])
        presence = read_presence(source.words, layout.heartbeat[rank])
        if status is not None and status.epoch == 0:
            status = None  # zero words say nothing
        plan = None if status is None else self._plan(rank, status, presence)
        return RankFacts(
            rank=rank,
            helper=rank >= source.world_size,
            life=self._life(rank, occupant),
            pid=None if occupant is None else occupant.identity.pid or None,
            status=status,
            step=step,
            weights=self._state(WeightState, rank, None if status is None else status.weights),
            kv=self._state(KVState, rank, None if status is None else status.kv),
            heartbeat=presence.heartbeat,
            told_s=self._age_s(presence.told_at_ns),
            beat_s=self._age_s(presence.beat_at_ns),
            plan=None if plan is None else plan.name,
            action=None if status is None else self._action(plan, status, presence),
            failure=self._failure(rank),
            staged_bytes=0 if command is None else self._staged_bytes(rank, command),
        )

    def _staged_bytes(self, rank: int, command: CommandWord) -> int:
        """Return what a rank has prepared of a command that its controller does not decide."""
        if command.operation.is_decision or command.decider is Decider.CONTROLLER:
            return 0
        data = self._source.report(rank).read(command.epoch, command.sequence, StatusCode.PREPARED)
        try:
            return 0 if data is None else RankReport.from_bytes(rank, data).bytes
        except WsmError:
            return 0

    def _life(self, rank: int, occupant: Occupant | None) -> str:
        if occupant is None:
            return NEVER
        if not occupant.present:
            return DEAD
        life = _life_of(occupant.identity)
        if life in (ALIVE, STOPPED) or self._lock_file is None:
            return life
        # Another pid namespace, a hidden /proc, or dead indeed: the byte lock knows.
        holder = self._lock_file.holder(FIRST_PARTICIPANT_BYTE + rank)
        return DEAD if holder is None else ALIVE

    def _state(self, kind: type[WeightState | KVState], rank: int, code: int | None) -> str:
        if code is None:
            return "CLEARED"
        try:
            return kind(code).name
        except ValueError:
            self.damaged.append(f"the status word of rank {rank} names state {code}, which there is not")
            return "unknown"

    def _age_s(self, at_ns: int) -> float | None:
        # A time of a boot before this one, or of another host, may lie in the future.
        return (self._now_ns - at_ns) / 1e9 if 0 < at_ns <= self._now_ns else None

    def _plan(self, rank: int, status: StatusWord, presence: Presence) -> DeclaredPlan | None:
        if presence.doing.plan is None:
            return None
        data = self._source.plans(rank).read(status.epoch, 0, PLANS_KIND)
        try:
            return None if data is None else _declared(data).at(presence.doing.plan)
        except WsmError:
            return None

    def _action(
        self, plan: DeclaredPlan | None, status: StatusWord, presence: Presence
    ) -> ActionFacts | None:
        if plan is None:
            return None
        inside = None if presence.doing.action is None else plan.at(presence.doing.action)
        if inside is not None:
            return _action_facts(inside, self._age_s(presence.since_ns))
        named = plan.numbered(status.action) if status.code is StatusCode.RUNNING else None
        return None if named is None else _action_facts(named, None)

    def _failure(self, rank: int) -> FailureFacts | None:
        last = self._source.error(rank).last()
        if last is None:
            return None
        (epoch, sequence, kind), data = last
        try:
            report = FailureReport.from_bytes(rank, data)
        except WsmError:
            return None
        told = [
            one.at_ns
            for one in self.journal
            if (one.kind, one.rank, one.epoch, one.sequence) == (kinds.COMMAND_FAILED, rank, epoch, sequence)
        ]
        age_s = self._age_s(told[-1]) if told else None
        return FailureFacts(epoch, sequence, kind == StatusCode.REFUSED, report, age_s)


@functools.lru_cache(maxsize=16)
def _declared(data: bytes) -> DeclaredPlans:
    """Read plans, which are equal on most ranks and in every epoch."""
    return DeclaredPlans.from_bytes(data)


def _action_facts(action: DeclaredAction, seconds: float | None) -> ActionFacts:
    return ActionFacts(action.name, action.deadline_s, seconds)


def _life_of(identity: ProcessIdentity) -> str:
    if not identity.is_visible:
        return UNKNOWN
    if not identity.is_known_alive:
        return DEAD
    return STOPPED if identity.is_stopped else ALIVE


def _arguments(source: Source, command: CommandWord) -> CommandArguments | None:
    data = source.arguments(command.sequence).read(command.epoch, command.sequence, ARGUMENTS_KIND)
    try:
        return None if data is None else CommandArguments.from_bytes(data)
    except WsmError:
        return None


def _asked_version(source: Source, command: CommandWord, arguments: CommandArguments | None) -> str | None:
    if arguments is None or arguments.clears or arguments.version is not None:
        return None if arguments is None else arguments.version
    for code in _NAMING:
        data = source.report(0).read(command.epoch, command.sequence, code)
        try:
            if data is not None:
                return RankReport.from_bytes(0, data).version
        except WsmError:
            return None
    return None


def _some_cleared(ranks: tuple[RankFacts, ...]) -> bool:
    return any(rank.weights == "CLEARED" for rank in ranks)


def _bases(source: Source, version: str | None, committed: CommittedRecord) -> tuple[str, ...]:
    """Return what some rank put `version` on: as it reported it, or prepared it and died before it did."""
    for rank in range(source.participants):
        prepared = source.report(rank).last()
        slots = [source.last_commit(rank).last()]
        if prepared is not None and prepared[0][1:] == (committed.load_sequence, StatusCode.PREPARED):
            slots.append(prepared)
        for last in slots:
            held, bases = (None, ()) if last is None else _reported(last[1])
            if bases and held == version:
                return bases
    return ()


@functools.lru_cache(maxsize=64)
def _reported(data: bytes) -> tuple[str | None, tuple[str, ...]]:
    """Read which version a report names, and what it was put on; the same bytes are read at each look."""
    try:
        report = RankReport.from_bytes(0, data)
    except WsmError:
        return None, ()
    return report.version, report.bases


def _served_before(journal: tuple[JournalEntry, ...]) -> str | None:
    """Return the version that a rank said it serves, last."""
    told = [one.facts.get("version") for one in journal if one.kind == kinds.SERVED_VERSION]
    return told[-1] if told and isinstance(told[-1], str) else None


def read_journal(source: Source) -> list[JournalEntry]:
    """Return what stands in the rings, by time; broken lines are left out."""
    entries: list[JournalEntry] = []
    for ring in source.journals():
        for line in ring.lines():
            # Without its line feed a line counts as torn, and is skipped where it cannot be read.
            entries += read_ndjson([line])
    return sorted(entries, key=lambda one: one.at_ns)
