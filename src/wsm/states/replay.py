"""Hold a journal against the tables, and name in order what no participant can have done.

Each entry is taken in by the same tables and joint rules that drive the machines:

* A transition is a row of its table, from the state that the entries before it lead to, and the joint
  rules allow it. A command begins with the events of its operation.
* A word follows from the word before it and from what was done since: the rows of the command table
  (:mod:`.phases`) lead from one to the other, each action of the plan has its word before it begins, and a
  failure its reason. The word claims the states that the machines are in.
* A version is served that was loaded, and loaded that was asked for; it is served where a commit ends with
  all that a step needs, and nowhere else. No step is entered while the group is held.
* Time never goes back; neither does the epoch, nor within one epoch the sequence. An interruption is told by
  another thread than the loop's, so where it stands among the others says nothing.
* A new process and a new epoch begin with nothing resident. A command is decided once.

A journal in memory that has dropped entries begins in the middle of things: a state that is not known yet is
believed the first time, and so is the end of an action whose start is missing. After a finding the rest of
that life is not looked at, since everything behind it follows from it. What is missing at the end, or where
a process ended without saying so, is no finding: a kill leaves the same.

Pure, and written for one participant at a time: what they owe each other is the protocol's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from wsm.states import journal as kinds
from wsm.states.errors import IllegalTransitionError
from wsm.states.joint import START, JointState, serving, step
from wsm.states.journal import CONTROLLER, JournalEntry
from wsm.states.phases import (
    LOOKS,
    OUTCOMES,
    Effect,
    LookRow,
    OutcomeRow,
    Phase,
    RankState,
    When,
)
from wsm.states.phases import Event as Happened
from wsm.states.rank import OF_THE_RANK
from wsm.states.table import CHARTS, Chart, Event, Guard, State
from wsm.states.vocabulary import Admission, KVEvent, KVState, WeightEvent, WeightState
from wsm.states.words import Operation, StatusCode

_CHARTS: dict[str, Chart] = {chart.machine.value: chart for chart in CHARTS}
_AT_REST = (WeightState.NORMAL, WeightState.CLEARED)
_OF_A_HOLD = (StatusCode.PREPARED, StatusCode.DONE_COMMITTED)
_BEGINNING, _PARKING = frozenset({Phase.BEGINNING}), frozenset({Phase.PARKING})
_PLAN = frozenset({Phase.WORKING, Phase.VOTING})

#: What may stand between a commit and the version that it serves; nothing may follow an end.
_MAY_COME_BETWEEN = frozenset({kinds.WORD_WRITTEN, kinds.INTERRUPTED, kinds.INPUT, kinds.ENDED})

#: What a journal tells of a rank's conditions: the operation of its command, and whether it takes steps.
_TOLD = frozenset({When.HOT, When.IN_PLACE, When.CLEARS, When.RELEASES, When.IS_HELPER})

#: Decisions that only a hot update can get, and those that it cannot.
_OF_HOT = frozenset({When.HOT_ABORTED, When.HOT_COMMITTED})
_OF_OTHERS = frozenset({When.ABORTED, When.COMMITTED})

#: The rows of each phase, in the groups of which the first one that holds is taken.
_ROWS: dict[Phase, list[tuple[LookRow | OutcomeRow, ...]]] = {
    phase: [
        tuple(row for row in LOOKS if row.phase is phase),
        *[tuple(row for row in OUTCOMES if row.phase is phase and row.event is event) for event in Happened],
    ]
    for phase in Phase
}


@dataclass(frozen=True)
class ImpossibleEntry:
    """An entry that is no behaviour of the tables.

    Parameters
    ----------
    index : int
        Its place among the entries, from 0.
    entry : JournalEntry
        The entry.
    reason : str
        Which rule it breaks.
    """

    index: int
    entry: JournalEntry
    reason: str

    def __str__(self) -> str:
        entry = self.entry
        return (
            f"entry {self.index} ({entry.kind}, rank {entry.rank}, epoch {entry.epoch}, "
            f"sequence {entry.sequence}): {self.reason}"
        )


class Replay:
    """Entries of one or several participants, taken in one after the other.

    Attributes
    ----------
    entries : int
        How many were taken in.
    findings : list of ImpossibleEntry
        What cannot have been, in order; per participant at most one for each process and epoch.
    gaps : list of str
        Processes that another one followed without having said that they end, in order. Controllers come
        and go, and say it never.
    """

    def __init__(self) -> None:
        self.entries = 0
        self.findings: list[ImpossibleEntry] = []
        self.gaps: list[str] = []
        self._histories: dict[int, _History] = {}

    def take(self, entry: JournalEntry) -> ImpossibleEntry | None:
        """Take in the next entry; return what is wrong with it."""
        history = self._histories.get(entry.rank)
        may_end_untold = entry.rank == CONTROLLER or history is None or history.ended
        if entry.kind == kinds.STARTED and not may_end_untold:
            self.gaps.append(f"{history}, and another process took its place (entry {self.entries})")
        lacks_lines = entry.kind == kinds.SHORTAGE_MET and bool(entry.facts.get("lines_lost"))
        if lacks_lines:
            self.gaps.append(f"rank {entry.rank} could not write lines before entry {self.entries}")
        if history is None or entry.kind == kinds.STARTED or lacks_lines:
            history = self._histories[entry.rank] = _History(entry.rank)
        reason = history.take(entry)
        found = None if reason is None else ImpossibleEntry(self.entries, entry, reason)
        if found is not None:
            self.findings.append(found)
        self.entries += 1
        return found

    @property
    def impossible(self) -> ImpossibleEntry | None:
        """The first entry that cannot have been."""
        return self.findings[0] if self.findings else None

    @property
    def states(self) -> dict[int, JointState]:
        """Where each rank was in the end; ranks of which the journal does not tell both are absent."""
        found = {rank: history.joint for rank, history in self._histories.items() if rank != CONTROLLER}
        return {rank: joint for rank, joint in found.items() if joint is not None}

    @property
    def open_ends(self) -> dict[int, str]:
        """Where the journal of each participant breaks off that does not end between two commands."""
        why = "it runs still, was killed, or the file was cut short, as by a full disk"
        return {
            rank: f"{history}{'' if history.ended else f'; {why}'}"
            for rank, history in self._histories.items()
            if rank != CONTROLLER and not history.is_whole
        }


def replay(entries: Iterable[JournalEntry]) -> Replay:
    """Hold entries against the tables; those of different participants may be interleaved in any way.

    Parameters
    ----------
    entries : iterable of JournalEntry
        In the order in which each participant wrote them.
    """
    found = Replay()
    for entry in entries:
        found.take(entry)
    return found


class _History:
    """What the entries of one process have told so far."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._pid: int | None = None
        self._at_ns = 0
        self._epoch = 0
        self._sequence = 0
        self._weights: WeightState | None = None
        self._kv: KVState | None = None
        self._kv_stale = False
        self._held = False
        self._admission: Admission | None = None
        self._running: str | None = None
        self._whole = False
        self._decided = (0, 0)
        self._progress = _CommandProgress()
        self._spoilt = False
        self.ended = False

    def __str__(self) -> str:
        who = f"rank {self._rank}" if self._pid is None else f"rank {self._rank} (process {self._pid})"
        phase = None if self._progress.phase is None else self._progress.phase.value
        where = phase if self._running is None else self._running
        verb = "leaves" if self.ended else "ends"
        if where is None:
            return f"{who} {verb} between two commands"
        return f"{who} {verb} in {where} of command {self._sequence}, epoch {self._epoch}"

    @property
    def is_whole(self) -> bool:
        """Whether the process has said that it ends, and no command was at hand then."""
        return self.ended and self._running is None and self._progress.phase is None

    @property
    def joint(self) -> JointState | None:
        """Where the rank is, or None while the entries have not told it."""
        if self._weights is None or self._kv is None:
            return None
        return JointState(self._weights, self._kv, self._kv_stale, self._held)

    def take(self, entry: JournalEntry) -> str | None:
        """Take in the next entry; return why it cannot be, or None where it can."""
        if self._spoilt and not entry.epoch > self._epoch:
            return None
        self._spoilt = False
        reason = self._reason(entry)
        self._spoilt = reason is not None
        return reason

    def _reason(self, entry: JournalEntry) -> str | None:
        if entry.kind not in kinds.KINDS:
            return f"there is no kind {entry.kind!r}"
        if self.ended:
            return "the process had said that it ends"
        try:
            reason = self._out_of_order(entry)
            if reason is None and entry.kind in _RULES:
                reason = _RULES[entry.kind](self, entry)
            return reason or self._progress.not_yet_served(entry)
        except KeyError as error:
            return f"it lacks the fact {error}"

    def _out_of_order(self, entry: JournalEntry) -> str | None:
        if entry.kind in (kinds.INTERRUPTED, kinds.INPUT):
            return None
        if entry.at_ns < self._at_ns:
            return f"its time lies {self._at_ns - entry.at_ns} ns before the entry before it"
        if entry.epoch < self._epoch:
            return f"the epoch went back from {self._epoch} to {entry.epoch}"
        if entry.epoch > self._epoch > 0:
            self._begin_anew()
        elif 0 < entry.sequence < self._sequence:
            return f"the sequence went back from {self._sequence} to {entry.sequence}"
        self._at_ns, self._epoch = entry.at_ns, entry.epoch
        self._sequence = entry.sequence or self._sequence
        return None

    def _begin_anew(self) -> None:
        """Nothing is held: a living process has lost it, and a new one never had anything."""
        self._move(START)
        self._running = None
        self._whole = True
        self._progress = _CommandProgress(joined=False)

    def _move(self, joint: JointState) -> None:
        self._weights, self._kv, self._kv_stale, self._held = joint

    def _started(self, entry: JournalEntry) -> str | None:
        self._begin_anew()
        self._admission = Admission.OPEN
        self._pid = entry.facts.get("pid")
        return None

    def _ended(self, _entry: JournalEntry) -> str | None:
        self.ended = True
        return None

    def _command_seen(self, entry: JournalEntry) -> str | None:
        return self._progress.seen(entry.sequence, str(entry.facts["operation"]))

    def _command_admitted(self, entry: JournalEntry) -> str | None:
        return self._progress.admitted(entry.sequence, entry.facts["version"])

    def _command_failed(self, _entry: JournalEntry) -> str | None:
        self._progress.has_cause = True
        return None

    def _shortage_met(self, _entry: JournalEntry) -> str | None:
        self._progress.forget()
        self._running, self._whole = None, False
        return None

    def _transition(self, entry: JournalEntry) -> str | None:
        facts = entry.facts
        chart = _CHARTS.get(str(facts["machine"]))
        if chart is None:
            return f"there is no machine {facts['machine']!r}"
        event = _named(chart.events, value=facts["event"])
        source, dest = (_named(chart.states, name=facts[role]) for role in ("source", "dest"))
        if event is None or source is None or dest is None:
            return f"{facts['source']} {facts['event']} {facts['dest']} names what {facts['machine']} has not"
        if self._believe(source) is not source:
            return f"it starts in {source.name}, and {facts['machine']} was {self._believe(source).name}"
        self._progress.fired(event)
        reason = self._follow(chart, source, event, dest, entry)
        if self._weights is WeightState.CLEARED:
            self._progress.weights_are_gone()
        return reason

    def _believe(self, state: Any) -> State:
        """Return the known state of the machine that `state` belongs to; an unknown one is believed."""
        if isinstance(state, WeightState):
            if self._weights is None:
                self._weights = state
                # How an update began that was under way already is not known: believe what it says of that.
                self._held = state in (WeightState.UPDATING, WeightState.PREPARED)
            return self._weights
        if isinstance(state, Admission):
            self._admission = self._admission or state
            return self._admission
        self._kv = state if self._kv is None else self._kv
        return self._kv

    def _follow(
        self, chart: Chart, source: State, event: Event, dest: State, entry: JournalEntry
    ) -> str | None:
        kept = entry.facts.get("guard") == Guard.KEPT.value
        row = chart.find(source, event, kept=kept)
        guard = None if row is None or row.guard is None else row.guard.value
        if row is None or row.dest is not dest or guard != entry.facts.get("guard"):
            return f"the table has no row {source.name} {event.value} {dest.name} with that guard"
        if isinstance(dest, Admission):
            self._admission = dest
            return None
        joint = self.joint
        if joint is None:  # the other machine is not known yet, so the joint rules cannot be asked
            if isinstance(dest, KVState):
                self._kv = dest
            else:
                under_way = dest in (WeightState.UPDATING, WeightState.PREPARED)
                began = event is WeightEvent.UPDATE
                self._held = source is WeightState.NORMAL if began else self._held and under_way
                self._weights = dest
            return None
        try:
            _, after = step(joint, event, kept=kept, kv_kept=bool(entry.facts.get("kv_kept", True)))
        except IllegalTransitionError as error:
            return str(error)
        self._move(after)
        return None

    def _action_started(self, entry: JournalEntry) -> str | None:
        name = str(entry.facts["name"])
        if self._running is not None:
            return f"action {name!r} started while {self._running!r} was running"
        self._running = name
        self._whole = True
        self._progress.action_started(name)
        return None

    def _action_ended(self, entry: JournalEntry) -> str | None:
        name = str(entry.facts["name"])
        first, self._whole = not self._whole, True
        running, self._running = self._running, None
        if running != name and not (running is None and first):
            return f"action {name!r} ended, and {'none' if running is None else repr(running)} was running"
        return self._progress.action_ended(entry)

    def _action_failed(self, entry: JournalEntry) -> str | None:
        # What fails in an undo is journalled under a name of its own, and was never started as an action.
        if self._running is None and str(entry.facts["name"]).startswith("undo_"):
            return None
        return self._action_ended(entry)

    def _word_written(self, entry: JournalEntry) -> str | None:
        facts = entry.facts
        if facts["word"] == "status":
            return self._status_written(entry)
        if facts["code"] == "RUNNING":
            return self._must_serve("a step was entered")
        self._progress.has_cause = False
        return self._progress.stands(facts) if facts["code"] == "PARKED" else None

    def _status_written(self, entry: JournalEntry) -> str | None:
        facts = entry.facts
        for machine, state in (("weights", self._weights), ("kv", self._kv)):
            claim = facts.get(machine)
            if claim is not None and state is not None and claim != state.name:
                return f"the word claims {machine} {claim}, and it was {state.name}"
        if self._running is not None and facts["code"] != "FAILED":  # what is staged beside is stopped later
            return f"the word says {facts['code']} while action {self._running!r} is running"
        if facts["code"] not in StatusCode.__members__:
            return f"there is no code {facts['code']!r}"
        code, joint = StatusCode[facts["code"]], self.joint
        kept_faulted = self._progress.holds and code in _OF_A_HOLD
        if joint is not None and not (kept_faulted or _ends_in(code, joint.weights)):
            return f"the word says {code.name} with {joint}"
        open_still = self._admission is not Admission.HELD
        serves = joint is not None and serving(joint.weights, joint.kv) and open_still
        return self._progress.said(entry, code, serves=serves)

    def _served_version(self, entry: JournalEntry) -> str | None:
        reason = self._must_serve(f"version {entry.facts['version']} was served")
        return reason or self._progress.served(entry.facts["version"])

    def _decision(self, entry: JournalEntry) -> str | None:
        command = (entry.epoch, entry.sequence)
        if command == self._decided:
            return "the command was decided before, and a decision is final"
        self._decided = command
        return None

    def _must_serve(self, what: str) -> str | None:
        if self._admission is Admission.HELD:
            return f"{what} while the group was held"
        joint = self.joint
        if joint is None or serving(joint.weights, joint.kv):
            return None
        return f"{what} with {joint}"


class _CommandProgress:
    """How far a rank is with its commands, as far as its words and the entries between them tell.

    Between two words a rank may have passed through phases without a word of their own, so this is a set
    of phases; None: the journal begins in the middle, and has not told it yet.

    Parameters
    ----------
    joined : bool
        Whether the rank may be in its epoch already.
    """

    def __init__(self, *, joined: bool = True) -> None:
        self._phases: frozenset[Phase] | None = None if joined else frozenset()
        self._sequence = 0
        self._operation = Operation.NONE
        self._steps: bool | None = None
        self._parked_at: int | None = None
        self._next = 0
        self._announced: int | None = None
        self._objection: str | None = None  # void where the epoch has ended: its leaving is told by no entry
        self._asked: str | None = None
        self._loaded: str | None = None
        self._version: str | None = None
        self._may_serve = self._must_serve = False
        self.has_cause = False

    @property
    def holds(self) -> bool:
        """Whether the command at hand is a hold, which is legal whatever the rank has in memory."""
        return self._operation is Operation.HOLD

    @property
    def phase(self) -> Phase | None:
        """The phase of the command at hand; None between two commands, or where it is not known."""
        if not self._phases or Phase.IDLE in self._phases:
            return None
        return next(phase for phase in Phase if phase in self._phases)

    def seen(self, sequence: int, operation: str) -> str | None:
        """Take in that the rank saw a command."""
        if operation not in Operation.__members__:
            return f"there is no operation {operation!r}"
        if self._phases is not None and Phase.IDLE not in self._phases:
            return f"a command was seen while the rank was {self._where()}"
        if sequence <= self._sequence:
            return f"command {sequence} was over already"
        self._take_up(sequence, Operation[operation], Phase.BEGINNING)
        return None

    def _take_up(self, sequence: int, operation: Operation, *phases: Phase) -> None:
        self._phases, self._sequence, self._operation = frozenset(phases), sequence, operation
        self._next, self._announced, self._objection = 0, None, None
        self._asked = self._loaded = self._parked_at = None

    def forget(self) -> None:
        """Take in that some lines may be missing: believe what the next words say."""
        self._phases = self._objection = None
        self._must_serve = False

    def admitted(self, sequence: int, version: str | None) -> str | None:
        """Take in that the command is legal here, and which version it means."""
        if self._phases is not None and (self._phases != _BEGINNING or sequence != self._sequence):
            return f"a command was admitted while the rank was {self._where()}"
        self._asked = version
        return None

    def fired(self, event: Event) -> None:
        """Take in an event of the machines: where all stand it is one that the command begins with."""
        if self._phases != _PARKING or self._operation is Operation.NONE:
            return
        wrong: tuple[Event, ...] = (WeightEvent.UPDATE, KVEvent.UPDATE)
        if self._operation is not Operation.CLEAR:
            wrong = (WeightEvent.CLEAR, KVEvent.CLEAR)
        if event in wrong:
            self._objection = f"{self._operation.name} does not begin with {event.value!r}"

    def weights_are_gone(self) -> None:
        """Take in that no version is held."""
        self._version = None

    def action_started(self, name: str) -> None:
        """Take in that an action begins; one of the plan has its word first."""
        if self._phases and self._phases <= _PLAN and self._announced != self._next:
            self._objection = self._objection or f"action {name!r} began without the word that says so"

    def action_ended(self, entry: JournalEntry) -> str | None:
        """Take in that an action ended, and which version it has loaded."""
        if entry.kind == kinds.ACTION_FINISHED and self._phases and self._phases <= _PLAN:
            self._next, self._phases = self._next + 1, frozenset({Phase.WORKING})
        loaded = entry.facts.get("version")
        if loaded is None:
            return None
        if self._asked is not None and loaded != self._asked:
            return f"version {loaded} was loaded, and the command asks for version {self._asked}"
        self._loaded = loaded
        return None

    def stands(self, facts: Any) -> str | None:
        """Take in that the rank stands, which it says once for each step that it stands behind."""
        if self._phases is not None:
            phases = self._silently(self._phases) & {Phase.DRAINING, Phase.PARKING}
            if not phases:
                return f"the rank parked while it was {self._where()}"
            self._phases = frozenset({Phase.PARKING})
        return self._parked(facts)

    def said(self, entry: JournalEntry, code: StatusCode, *, serves: bool) -> str | None:
        """Take in a status word."""
        if code is StatusCode.ATTACHED:
            joined, self._phases, self._steps = self._phases, frozenset({Phase.IDLE}), "step" in entry.facts
            return "the rank had joined this epoch already" if joined else None
        reason = self._objection or self._of_no_command(entry, code)
        if reason is not None:
            return reason
        after = self._after(code)
        if not after:
            return f"the word cannot say {code.name} while the rank is {self._where()}"
        reason = self._numbers(entry.facts, code)
        self._phases, self.has_cause = after, False
        if code is StatusCode.DONE_COMMITTED:
            self._version = self._loaded if self._loaded is not None else self._version
            self._may_serve, self._must_serve = True, serves and self._version is not None
        return reason

    def _of_no_command(self, entry: JournalEntry, code: StatusCode) -> str | None:
        """Say that a word belongs to no command that the rank can have at hand."""
        if self._phases is None:
            if entry.sequence != self._sequence:
                self._sequence, self._operation = entry.sequence, Operation.NONE
        elif not self._phases:
            return f"the word says {code.name} before the rank has joined the epoch"
        elif entry.sequence != self._sequence:
            if Phase.IDLE not in self._phases or entry.sequence < self._sequence:
                return f"command {entry.sequence} was not seen"
            # It was aborted before the rank saw it, or a shortage cut its beginning short.
            began = {Phase.BEGINNING} if code is StatusCode.FAILED else {Phase.STOPPING, Phase.SETTLING}
            self._take_up(entry.sequence, Operation.NONE, *began)
        return None

    def _numbers(self, facts: Any, code: StatusCode) -> str | None:
        """Hold the numbers of a word against what was done."""
        believed = self._phases is None
        if (code in (StatusCode.FAILED, StatusCode.REFUSED)) is not self.has_cause and not believed:
            found = "a" if self.has_cause else "no"
            return f"the word says {code.name}, and {found} failure was written down"
        if code is StatusCode.PARKING and "step" in facts:
            return self._parked(facts)
        if code is StatusCode.RUNNING:
            if not believed and facts["action"] != self._next:
                return f"the word names action {facts['action']}, and action {self._next} was next"
            if self._announced == facts["action"]:
                return f"action {facts['action']} was announced before"
            self._next = self._announced = facts["action"]
        return None

    def _parked(self, facts: Any) -> str | None:
        if self._parked_at is not None and facts["step"] <= self._parked_at:
            return f"the rank stood behind step {self._parked_at} already"
        self._parked_at = facts["step"]
        return None

    def served(self, version: str) -> str | None:
        """Take in that a version is served: the one that was loaded last, right behind its commit."""
        if not self._may_serve and self._phases is not None:
            return f"version {version} was served, and no commit came before it"
        self._may_serve = self._must_serve = False
        if self._version is not None and version != self._version:
            return f"version {version} was served, and version {self._version} was loaded"
        self._version = version
        return None

    def not_yet_served(self, entry: JournalEntry) -> str | None:
        """Say that a commit is not followed by the version that it serves."""
        if not self._must_serve or entry.kind in (
            kinds.WORD_WRITTEN,
            kinds.INTERRUPTED,
            kinds.INPUT,
            kinds.ENDED,
        ):
            return None
        self._must_serve = False
        return "the commit before it serves a version, which was not written down"

    def _where(self) -> str:
        if not self._phases:
            return "outside of the epoch"
        return " or ".join(phase.value for phase in Phase if phase in self._phases)

    def _after(self, code: StatusCode) -> frozenset[Phase]:
        """Return where the rank may be once it has said `code`."""
        phases = frozenset(Phase) if self._phases is None else self._silently(self._phases)
        return frozenset(
            phase if row.to is None else row.to
            for phase in phases
            for row in self._rows(phase)
            if row.says is code
        )

    def _silently(self, phases: frozenset[Phase]) -> frozenset[Phase]:
        """Return where the rank may have gone by rows that say nothing, and that no entry tells of."""
        found = phases
        while True:
            more = frozenset(
                row.to
                for phase in found
                for row in self._rows(phase)
                if isinstance(row, LookRow) and _is_silent(row) and row.to is not None
            )
            if more <= found:
                return found
            found |= more

    def _rows(self, phase: Phase) -> Iterator[LookRow | OutcomeRow]:
        """Yield the rows that the rank may take, up to the first one that it must take."""
        for rows in _ROWS[phase]:
            for row in rows:
                known, may = self._conditions(row.when)
                if may:
                    yield row
                    if known:
                        break

    def _conditions(self, when: tuple[When, ...]) -> tuple[bool, bool]:
        """Return whether the journal knows all conditions of a row, and whether they may hold."""
        operation = self._operation
        if operation is Operation.NONE:
            return not when, True
        state = RankState(0, 0, operation=operation, steps=self._steps is not False)
        told = _TOLD if self._steps is not None else _TOLD - {When.IS_HELPER}
        never = _OF_OTHERS if operation.is_hot else _OF_HOT
        may = not never & set(when) and all(OF_THE_RANK[one](state) for one in when if one in told)
        return told >= set(when), may


def _is_silent(row: LookRow) -> bool:
    return row.says is None and row.change is not Effect.TAKES_COMMAND


def _ends_in(code: StatusCode, weights: WeightState) -> bool:
    """Whether a word may say `code` with the weights there."""
    if code is StatusCode.DONE_FAULTED:
        return weights is WeightState.FAULTED
    if code is StatusCode.PREPARED:
        return weights in (*_AT_REST, WeightState.PREPARED)
    return not code.is_terminal or weights in _AT_REST


def _named(members: tuple[Any, ...], **attribute: object) -> Any:
    """Return the member whose name or value is the given one, or None."""
    ((key, wanted),) = attribute.items()
    return next((member for member in members if getattr(member, key) == wanted), None)


_RULES: dict[str, Callable[[_History, JournalEntry], str | None]] = {
    kinds.STARTED: _History._started,
    kinds.ENDED: _History._ended,
    kinds.COMMAND_SEEN: _History._command_seen,
    kinds.COMMAND_ADMITTED: _History._command_admitted,
    kinds.COMMAND_FAILED: _History._command_failed,
    kinds.SHORTAGE_MET: _History._shortage_met,
    kinds.TRANSITION: _History._transition,
    kinds.ACTION_STARTED: _History._action_started,
    kinds.ACTION_FINISHED: _History._action_ended,
    kinds.ACTION_FAILED: _History._action_failed,
    kinds.WORD_WRITTEN: _History._word_written,
    kinds.SERVED_VERSION: _History._served_version,
    kinds.DECISION: _History._decision,
}
