"""From a copy of a segment to the facts of its group: words, slots, rings, and ``/proc``.

Judges nothing. Whatever is damaged becomes a fact, never an error.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TypeVar

from wsm.command import ARGUMENTS_KIND, CommandArguments
from wsm.declared_plans import PLANS_KIND, DeclaredAction, DeclaredPlan, DeclaredPlans
from wsm.errors import WsmError
from wsm.report import FailureReport
from wsm.signals.identity import Occupant, is_stopped, read_occupant
from wsm.signals.image import SegmentImage
from wsm.signals.presence import Presence, read_presence
from wsm.states.errors import WordFormatError
from wsm.states.journal import JournalEntry, read_ndjson
from wsm.states.vocabulary import KVState, WeightState
from wsm.states.words import CommandWord, CommittedWord, StatusCode, StatusWord, StepWord
from wsm.status.facts import ActionFacts, FailureFacts, GroupFacts, RankFacts

_Word = TypeVar("_Word", CommandWord, CommittedWord, StatusWord, StepWord)


def facts_of_file(name: str, path: Path) -> GroupFacts:
    """Read the facts of the group whose segment, or a copy of it, lies at `path`; never raises for them."""
    try:
        image = SegmentImage.read(path)
    except WsmError as error:
        return GroupFacts(name, problem=str(error))
    return read_facts(name, image)


def read_facts(name: str, image: SegmentImage, *, controller_pid: int | None = None) -> GroupFacts:
    """Read the facts of a copy.

    Parameters
    ----------
    name : str
        What the group is called.
    image : SegmentImage
        The copy.
    controller_pid : int or None
        Who has the controller role, for a caller that can know.
    """
    reader = _Reader(image)
    layout = image.layout
    command = reader.word("command word", CommandWord, layout.command)
    committed = reader.word("committed-version word", CommittedWord, layout.committed)
    ranks = tuple(reader.rank(rank) for rank in range(image.participants))
    owner = image.owner
    return GroupFacts(
        name,
        damaged=tuple(reader.damaged),
        run_id=image.run_id,
        command=command,
        committed=committed or CommittedWord(0, None),
        request_id=None if command is None else _request_id(image, command),
        controller_pid=controller_pid,
        controller_stopped=controller_pid is not None and is_stopped(controller_pid),
        owner_pid=None if owner is None else owner.pid,
        owner_lives=owner is not None and owner.is_known_alive,
        ranks=ranks,
        journal=tuple(_journal(image)),
    )


class _Reader:
    """Reads one copy, and keeps what is damaged."""

    def __init__(self, image: SegmentImage) -> None:
        self.damaged: list[str] = []
        self._image = image
        self._now_ns = time.monotonic_ns()

    def word(self, what: str, kind: type[_Word], index: int) -> _Word | None:
        word = self._image.words[index]
        try:
            return kind.unpack(word)
        except WordFormatError:
            self.damaged.append(f"the {what} is {word:#018x}, which it cannot be")
            return None

    def rank(self, rank: int) -> RankFacts:
        image, layout = self._image, self._image.layout
        status = self.word(f"status word of rank {rank}", StatusWord, layout.status[rank])
        step = None
        if rank < image.world_size:
            step = self.word(f"step word of rank {rank}", StepWord, layout.step[rank])
        occupant = read_occupant(image.words, layout.occupant[rank])
        presence = read_presence(image.words, layout.heartbeat[rank])
        if status is not None and status.epoch == 0:
            status = None  # zero words say nothing
        plan = None if status is None else self._plan(rank, status, presence)
        return RankFacts(
            rank=rank,
            helper=rank >= image.world_size,
            life=_life(occupant),
            pid=None if occupant is None else occupant.identity.pid or None,
            status=status,
            step=step,
            weights=self._state(WeightState, rank, None if status is None else status.weights),
            kv=self._state(KVState, rank, None if status is None else status.kv),
            told_s=self._age_s(presence.told_at_ns),
            beat_s=self._age_s(presence.beat_at_ns),
            plan=None if plan is None else plan.name,
            action=None if status is None else self._action(plan, status, presence),
            failure=self._failure(rank),
        )

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
        data = self._image.plans(rank).read(status.epoch, 0, PLANS_KIND)
        try:
            return None if data is None else DeclaredPlans.from_bytes(data).at(presence.doing.plan)
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
        last = self._image.error(rank).last()
        if last is None:
            return None
        (epoch, sequence, kind), data = last
        try:
            report = FailureReport.from_bytes(rank, data)
        except WsmError:
            return None
        return FailureFacts(epoch, sequence, kind == StatusCode.REFUSED, report)


def _action_facts(action: DeclaredAction, seconds: float | None) -> ActionFacts:
    return ActionFacts(action.name, action.deadline_s, seconds)


def _life(occupant: Occupant | None) -> str:
    if occupant is None:
        return "never"
    identity = occupant.identity
    if occupant.present and not identity.is_visible:
        return "unknown"
    if not occupant.present or not identity.is_known_alive:
        return "dead"
    return "stopped" if identity.is_stopped else "alive"


def _request_id(image: SegmentImage, command: CommandWord) -> str | None:
    data = image.arguments(command.sequence).read(command.epoch, command.sequence, ARGUMENTS_KIND)
    try:
        return None if data is None else CommandArguments.from_bytes(data).request_id
    except WsmError:
        return None


def _journal(image: SegmentImage) -> list[JournalEntry]:
    """Return what stands in the rings, by time; broken lines are left out."""
    entries: list[JournalEntry] = []
    for ring in image.journals():
        for line in ring.lines():
            # Without its line feed a line counts as torn, and is skipped where it cannot be read.
            entries += read_ndjson([line])
    return sorted(entries, key=lambda one: one.at_ns)
