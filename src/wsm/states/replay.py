"""One rank's life as its journal tells it, entry by entry; says why an entry cannot follow.

* A transition is a row of its table, from the state that the entries before it lead to, and the joint
  rules allow it.
* Time never goes back; neither does the epoch, nor within one epoch the sequence. An interruption is told by
  another thread than the loop's, so where it stands among the others says nothing.
* A new process and a new epoch begin with empty hands.
* One action at a time, and none finishes or fails that was not started.
* A version is served, a step is run, and a word claims states, only while that is true.
* A command is decided once.

A ring that has dropped entries begins in the middle of things: a state that is not known yet is believed the
first time, and so is the end of an action whose start is missing. Pure, and written for one rank: what
ranks owe each other is the protocol's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from wsm.states import journal as kinds
from wsm.states.errors import IllegalTransitionError
from wsm.states.joint import START, JointState, serving, step
from wsm.states.journal import STARTED, JournalEntry
from wsm.states.table import CHARTS, Chart, Event, Guard, State
from wsm.states.vocabulary import KVState, WeightEvent, WeightState

_CHARTS: dict[str, Chart] = {chart.region.value: chart for chart in CHARTS}


class RankHistory:
    """What the entries of one rank have told so far."""

    def __init__(self) -> None:
        self._at_ns = 0
        self._epoch = 0
        self._sequence = 0
        self._weights: WeightState | None = None
        self._kv: KVState | None = None
        self._kv_stale = False
        self._held = False
        self._running: str | None = None
        self._whole = False
        self._decided: set[tuple[int, int]] = set()

    @property
    def joint(self) -> JointState | None:
        """Where the rank is, or None while the entries have not told it."""
        if self._weights is None or self._kv is None:
            return None
        return JointState(self._weights, self._kv, self._kv_stale, self._held)

    def take(self, entry: JournalEntry) -> str | None:
        """Take in the next entry; return why it cannot be, or None where it can."""
        if entry.kind not in kinds.KINDS:
            return f"there is no kind {entry.kind!r}"
        reason = self._out_of_order(entry)
        if reason is None and entry.kind in _RULES:
            try:
                reason = _RULES[entry.kind](self, entry)
            except KeyError as error:
                reason = f"it lacks the fact {error}"
        return reason

    def _out_of_order(self, entry: JournalEntry) -> str | None:
        if entry.kind == kinds.INTERRUPTED:
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

    def _move(self, joint: JointState) -> None:
        self._weights, self._kv, self._kv_stale, self._held = joint

    def _started(self, _entry: JournalEntry) -> str | None:
        self._begin_anew()
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
        return self._follow(chart, source, event, dest, entry)

    def _believe(self, state: Any) -> State:
        """Return the known state of the machine that `state` belongs to; an unknown one is believed."""
        if isinstance(state, WeightState):
            if self._weights is None:
                self._weights = state
                # How an update began that was under way already is not known: believe what it says of that.
                self._held = state in (WeightState.UPDATING, WeightState.PREPARED)
            return self._weights
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
        if self._running is not None:
            return f"action {entry.facts['name']!r} started while {self._running!r} was running"
        self._running = str(entry.facts["name"])
        self._whole = True
        return None

    def _action_ended(self, entry: JournalEntry) -> str | None:
        name = str(entry.facts["name"])
        first, self._whole = not self._whole, True
        running, self._running = self._running, None
        if running == name or (running is None and first):
            return None
        return f"action {name!r} ended, and {'none' if running is None else repr(running)} was running"

    def _action_failed(self, entry: JournalEntry) -> str | None:
        # What fails in an undo is journalled under a name of its own, and was never started as an action.
        if self._running is None and str(entry.facts["name"]).startswith("undo_"):
            return None
        return self._action_ended(entry)

    def _word_written(self, entry: JournalEntry) -> str | None:
        if entry.facts["word"] == "step" and entry.facts.get("code") == "RUNNING":
            return self._must_serve("a step was entered")
        for machine, state in (("weights", self._weights), ("kv", self._kv)):
            claim = entry.facts.get(machine)
            if claim is not None and state is not None and claim != state.name:
                return f"the word claims {machine} {claim}, and it was {state.name}"
        return None

    def _served_version(self, entry: JournalEntry) -> str | None:
        return self._must_serve(f"version {entry.facts['version']} was served")

    def _decision(self, entry: JournalEntry) -> str | None:
        command = (entry.epoch, entry.sequence)
        if command in self._decided:
            return "the command was decided before, and a decision is final"
        self._decided.add(command)
        return None

    def _must_serve(self, what: str) -> str | None:
        joint = self.joint
        if joint is None or serving(joint.weights, joint.kv):
            return None
        return f"{what} with {joint}"


def _named(members: tuple[Any, ...], **attribute: object) -> Any:
    """Return the member whose name or value is the given one, or None."""
    ((key, wanted),) = attribute.items()
    return next((member for member in members if getattr(member, key) == wanted), None)


_RULES: dict[str, Callable[[RankHistory, JournalEntry], str | None]] = {
    kinds.STARTED: RankHistory._started,
    kinds.TRANSITION: RankHistory._transition,
    kinds.ACTION_STARTED: RankHistory._action_started,
    kinds.ACTION_FINISHED: RankHistory._action_ended,
    kinds.ACTION_FAILED: RankHistory._action_failed,
    kinds.WORD_WRITTEN: RankHistory._word_written,
    kinds.SERVED_VERSION: RankHistory._served_version,
    kinds.DECISION: RankHistory._decision,
}


@dataclass(frozen=True)
class ImpossibleEntry:
    """The first entry that is no behaviour of the tables.

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


@dataclass(frozen=True)
class Replay:
    """What came of holding a journal against the tables.

    Parameters
    ----------
    entries : int
        How many were taken in; all of them if nothing was impossible.
    states : dict of int to JointState
        Where each rank was in the end; ranks of which the journal does not tell both states are absent.
    impossible : ImpossibleEntry or None
        The first impossible entry.
    """

    entries: int
    states: dict[int, JointState]
    impossible: ImpossibleEntry | None


def replay(entries: Iterable[JournalEntry]) -> Replay:
    """Re-drive the tables with the entries of one or several ranks.

    Parameters
    ----------
    entries : iterable of JournalEntry
        In the order in which each rank wrote them; different ranks may be interleaved in any way.
    """
    histories: dict[int, RankHistory] = {}
    count, impossible = 0, None
    for entry in entries:
        if entry.kind == STARTED or entry.rank not in histories:
            histories[entry.rank] = RankHistory()
        reason = histories[entry.rank].take(entry)
        if reason is not None:
            impossible = ImpossibleEntry(count, entry, reason)
            break
        count += 1
    states = {rank: joint for rank, history in histories.items() if (joint := history.joint) is not None}
    return Replay(count, states, impossible)
