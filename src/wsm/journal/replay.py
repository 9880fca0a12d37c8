"""Ask the core again what a journal says that it answered, and name in order what cannot have been.

The core is the judge: each input of a journal is asked again (:mod:`.inputs`), and what is recorded beside
it, words among them, is what the core answers. What the core does not know is held against the tables:

* A transition is a row of its table, from the state that the entries before it lead to, and the joint rules
  allow it. A word claims the states that the machines are in.
* One action runs at a time, one of the plan when the core says so. A version is served that was loaded, and
  loaded that was asked for, behind a commit, and with all that a step needs.
* Time never goes back; neither does the epoch, nor within one epoch the sequence. An interruption is told by
  another thread than the loop's, so where it stands among the others says nothing.
* A new process and a new epoch begin with nothing resident. A command is decided once.

A journal in memory that has dropped entries begins in the middle of things: the core is asked again from a
join on, and the states are those that the first word at rest claims. After a finding the rest of that life is
not looked at, since everything behind it follows from it. What is missing at the end, or where a process
ended without saying so, is no finding: a kill leaves the same.

Pure, and written for one participant at a time: what they owe each other is the protocol's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from wsm.errors import WsmError
from wsm.journal import entry as kinds
from wsm.journal.entry import CONTROLLER, JournalEntry
from wsm.journal.inputs import RankAgain, answer_in, ask_controller, own_tables
from wsm.states.errors import IllegalTransitionError
from wsm.states.joint import START, JointState, serving, step
from wsm.states.phases import Phase, Todo
from wsm.states.table import CHARTS, Chart, Guard
from wsm.states.vocabulary import Admission, KVState, WeightState
from wsm.states.words import StatusCode

_CHARTS: dict[str, Chart] = {chart.machine.value: chart for chart in CHARTS}
_AT_REST = [
    JointState(weights, kv)
    for weights in (WeightState.NORMAL, WeightState.CLEARED)
    for kv in (KVState.NORMAL, KVState.CLEARED)
]
_PLAN = frozenset({Phase.WORKING, Phase.VOTING})
_ACTS = (Todo.RUN, Todo.REJOIN)  # of a new epoch: what is held is given back first

#: Behind a commit of a rank that serves, before the version that it serves.
_MAY_COME_BETWEEN = frozenset({kinds.WORD_WRITTEN, kinds.INTERRUPTED, kinds.INPUT, kinds.ENDED})


@dataclass(frozen=True)
class ImpossibleEntry:
    """An entry that cannot have been.

    `index`: its place among the entries, from 0. `entry`: the entry. `reason`: which rule it breaks, or what
    the core answers. `of_core`: whether the core of this build answers otherwise than was recorded.
    """

    index: int
    entry: JournalEntry
    reason: str
    of_core: bool

    def __str__(self) -> str:
        entry = self.entry
        who = "a controller" if entry.rank == CONTROLLER else f"rank {entry.rank}"
        where = f"{entry.kind}, {who}, epoch {entry.epoch}, sequence {entry.sequence}"
        return f"entry {self.index} ({where}): {self.reason}"


class Replay:
    """Entries of one or several participants, taken in one after the other.

    `version`: of this build; empty: builds are told apart by their tables alone. `entries`, `inputs`: how
    many were taken in; how many of them the core was asked again. `findings`: what cannot have been, in
    order; per participant at most one for each process and epoch. `gaps`: what is missing, in order: of
    processes that another one followed without having said that they end, of files that could not be written.
    Controllers come and go, and say it never. `other_builds`: processes that ran other tables, or another
    version; the core may answer otherwise there.
    """

    def __init__(self, version: str = "") -> None:
        self.entries = self.inputs = 0
        self.findings: list[ImpossibleEntry] = []
        self.gaps: list[str] = []
        self.other_builds: list[str] = []
        self._version = version
        self._processes: dict[int, _Process] = {}

    def take(self, entry: JournalEntry) -> ImpossibleEntry | None:
        """Take in the next entry; return what is wrong with it."""
        process = self._processes.get(entry.rank)
        if entry.kind == kinds.STARTED:
            if not (entry.rank == CONTROLLER or process is None or process.ended):
                self.gaps.append(f"{process}, and another process took its place (entry {self.entries})")
            self._compare_builds(entry)
        elif entry.kind == kinds.SHORTAGE_MET and entry.facts.get("lines_lost"):
            self.gaps.append(f"rank {entry.rank} could not write lines before entry {self.entries}")
            process = None
        if process is None or entry.kind == kinds.STARTED:
            process = self._processes[entry.rank] = _Process(entry.rank)
        before = process.inputs
        reason, of_core = process.take(entry)
        self.inputs += process.inputs - before
        found = None if reason is None else ImpossibleEntry(self.entries, entry, reason, of_core)
        if found is not None:
            self.findings.append(found)
        self.entries += 1
        return found

    def _compare_builds(self, entry: JournalEntry) -> None:
        here = {"version": self._version, "tables": own_tables()}
        there = {name: entry.facts.get(name) for name in here}
        if not self._version:
            del here["version"], there["version"]
        if there["tables"] is not None and there != here:
            then, now = (" ".join(f"{name} {value}" for name, value in one.items()) for one in (there, here))
            self.other_builds.append(f"entry {self.entries}: rank {entry.rank} ran {then}, and this is {now}")

    @property
    def impossible(self) -> ImpossibleEntry | None:
        """The first entry that cannot have been."""
        return self.findings[0] if self.findings else None

    @property
    def states(self) -> dict[int, JointState]:
        """Where each rank was in the end; ranks of which the journal does not tell it are absent."""
        ranks = {rank: one.joint for rank, one in self._processes.items() if rank != CONTROLLER}
        return {rank: joint for rank, joint in ranks.items() if joint is not None}

    @property
    def open_ends(self) -> dict[int, str]:
        """Where the journal of each participant breaks off that does not end between two commands."""
        why = "it runs still, was killed, or the file was cut short, as by a full disk"
        return {
            rank: f"{process}{'' if process.ended else f'; {why}'}"
            for rank, process in self._processes.items()
            if rank != CONTROLLER and not (process.ended and process.is_idle)
        }


def replay(entries: Iterable[JournalEntry]) -> Replay:
    """Take in entries, each participant's in the order of its writing; participants may be interleaved."""
    found = Replay()
    for entry in entries:
        found.take(entry)
    return found


def _as_read(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts as they come out of a line."""
    read: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(facts))
    return read


class _ImpossibleError(Exception):
    """Says why an entry cannot be."""


class _Process:
    """What the entries of one process have told so far."""

    def __init__(self, rank: int) -> None:
        self.inputs = 0
        self.ended = False
        self.joint: JointState | None = None
        self._rank = rank
        self._pid: int | None = None
        self._at_ns = self._epoch = self._sequence = self._seen = self._admitted = 0
        self._core: RankAgain | None = None
        self._admission = Admission.OPEN
        self._running: str | None = None
        self._at: str = ""  # how far the command at hand is; empty: none is
        self._joined: bool | None = None  # in this epoch; None where the journal begins later
        self._failed = False
        self._asked: str | None = None
        self._loaded: str | None = None
        self._version: str | None = None
        self._must_serve = self._may_serve = False
        self._decided: set[tuple[int, int]] = set()
        self._spoilt = False

    def __str__(self) -> str:
        who = f"rank {self._rank}" if self._pid is None else f"rank {self._rank} (process {self._pid})"
        verb = "leaves" if self.ended else "ends"
        if self.is_idle:
            return f"{who} {verb} between two commands"
        where = self._running or self._at
        return f"{who} {verb} in {where} of command {self._sequence}, epoch {self._epoch}"

    @property
    def is_idle(self) -> bool:
        """Whether no command is at hand."""
        return self._running is None and not self._at

    def take(self, entry: JournalEntry) -> tuple[str | None, bool]:
        """Take in the next entry; return why it cannot be, or None, and whether the core says so."""
        if self._spoilt and not entry.epoch > self._epoch:
            return None, False
        self._spoilt = True
        try:
            self._order(entry)
            if entry.kind in _RULES:
                _RULES[entry.kind](self, entry)
            self._require_served(entry)
            difference = self._ask(entry)
        except _ImpossibleError as error:
            return str(error), False
        except KeyError as error:
            return f"it lacks the fact {error}", False
        self._spoilt = difference is not None
        return difference, self._spoilt

    def _ask(self, entry: JournalEntry) -> str | None:
        """Ask the core again; return what it answers if that is another answer than is recorded."""
        facts = entry.facts
        if entry.kind not in (kinds.INPUT, kinds.WORD_WRITTEN):
            return None
        if "joins" in facts:
            if self._core is not None:
                return "the rank had joined this epoch already"
            self._core = RankAgain()
        if self._rank != CONTROLLER and self._core is None:
            return None  # behind what is missing
        self.inputs += 1
        plain = _as_read(facts)
        try:
            answer = _as_read(ask_controller(plain) if self._core is None else self._core.ask(plain))
        except WsmError as error:
            return str(error)
        except (msgspec.ValidationError, KeyError, TypeError, ValueError, IndexError) as error:
            return f"it is no input that this build writes ({type(error).__name__}: {error})"
        recorded = answer_in(plain)
        return None if recorded == answer else f"the core answers {answer}, recorded is {recorded}"

    def _order(self, entry: JournalEntry) -> None:
        if entry.kind not in kinds.KINDS:
            raise _ImpossibleError(f"there is no kind {entry.kind!r}")
        if self.ended:
            raise _ImpossibleError("the process had said that it ends")
        if entry.kind == kinds.INTERRUPTED:
            return
        if entry.at_ns < self._at_ns:
            # A controller may write to the file once another one has the role: no role waits for a file.
            of_earlier_holder = (entry.epoch, entry.sequence) <= (self._epoch, self._sequence)
            if self._rank == CONTROLLER and (of_earlier_holder or entry.kind == kinds.INPUT):
                return
            raise _ImpossibleError(f"its time lies {self._at_ns - entry.at_ns} ns before the entry before it")
        if entry.epoch < self._epoch:
            raise _ImpossibleError(f"the epoch went back from {self._epoch} to {entry.epoch}")
        if entry.epoch > self._epoch > 0:
            self._begin_anew()
        elif 0 < entry.sequence < self._sequence:
            raise _ImpossibleError(f"the sequence went back from {self._sequence} to {entry.sequence}")
        self._at_ns, self._epoch = entry.at_ns, entry.epoch
        self._sequence = entry.sequence or self._sequence

    def _begin_anew(self) -> None:
        """Nothing is held: a living process has lost it, and a new one never had anything."""
        self.joint, self._core = START, None
        self._running, self._at, self._seen, self._admitted = None, "", 0, 0
        self._joined = False
        self._asked = self._loaded = self._version = None
        self._must_serve = self._failed = False

    def _started(self, entry: JournalEntry) -> None:
        self._begin_anew()
        self._pid = entry.facts.get("pid")

    def _ended(self, _entry: JournalEntry) -> None:
        self.ended = True

    def _command_seen(self, entry: JournalEntry) -> None:
        operation = entry.facts["operation"]
        move = None if self._core is None else self._core.move
        taken_in = move and (move.state.operation.name, move.state.sequence)
        if taken_in not in (None, (operation, entry.sequence)):
            raise _ImpossibleError(f"{operation} was seen, and the core took in {taken_in}")
        if self._seen == entry.sequence:
            raise _ImpossibleError("the command was seen before")
        self._seen, self._at = entry.sequence, Phase.BEGINNING.value
        self._asked = self._loaded = None

    def _command_admitted(self, entry: JournalEntry) -> None:
        self._asked, self._admitted = entry.facts["version"], entry.sequence

    def _command_failed(self, _entry: JournalEntry) -> None:
        self._failed = True

    def _transition(self, entry: JournalEntry) -> None:
        facts = entry.facts
        chart = _CHARTS.get(str(facts["machine"]))
        if chart is None:
            raise _ImpossibleError(f"there is no machine {facts['machine']!r}")
        event = next((one for one in chart.events if one.value == facts["event"]), None)
        named = {one.name: one for one in chart.states}
        source, dest = named.get(str(facts["source"])), named.get(str(facts["dest"]))
        if event is None or source is None or dest is None:
            told = f"{facts['source']} {facts['event']} {facts['dest']}"
            raise _ImpossibleError(f"{told} names what {facts['machine']} has not")
        if isinstance(dest, Admission):
            was: Any = self._admission
        else:
            was = source if self.joint is None else self.joint.of(chart.machine)
        if was is not source:
            raise _ImpossibleError(f"it starts in {source.name}, and {facts['machine']} was {was.name}")
        kept = facts.get("guard") == Guard.KEPT.value
        row = chart.find(source, event, kept=kept)
        guard = None if row is None or row.guard is None else row.guard.value
        if row is None or row.dest is not dest or guard != facts.get("guard"):
            told = f"{source.name} {event.value} {dest.name}"
            raise _ImpossibleError(f"the table has no row {told} with that guard")
        if isinstance(dest, Admission):
            self._admission = dest
        elif self.joint is not None:
            try:
                _, self.joint = step(self.joint, event, kept=kept, kv_kept=bool(facts.get("kv_kept", True)))
            except IllegalTransitionError as error:
                raise _ImpossibleError(str(error)) from error
        if dest is WeightState.CLEARED:
            self._version = None

    def _action_started(self, entry: JournalEntry) -> None:
        name = str(entry.facts["name"])
        if self._running is not None:
            raise _ImpossibleError(f"action {name!r} started while {self._running!r} was running")
        move = None if self._core is None else self._core.move
        if move is not None and move.state.phase in _PLAN and move.todo not in _ACTS:
            raise _ImpossibleError(f"action {name!r} began, and the core did not say so")
        self._running = name

    def _action_ended(self, entry: JournalEntry) -> None:
        name = str(entry.facts["name"])
        running, self._running = self._running, None
        if running is None and entry.kind == kinds.ACTION_FAILED and name.startswith("undo_"):
            return  # what fails in an undo has a name of its own, and was never started as an action
        if running != name and not (running is None and self._joined is None):
            which = "none" if running is None else repr(running)
            raise _ImpossibleError(f"action {name!r} ended, and {which} was running")
        loaded = entry.facts.get("version")
        if loaded is not None:
            if self._asked not in (None, loaded):
                asked = f"the command asks for version {self._asked}"
                raise _ImpossibleError(f"version {loaded} was loaded, and {asked}")
            self._loaded = loaded

    def _word_written(self, entry: JournalEntry) -> None:
        facts = entry.facts
        code = str(facts["code"])
        if facts["word"] != "status":
            if code == "RUNNING":
                self._require_serving("a step was entered")
            return
        if code not in StatusCode.__members__:
            raise _ImpossibleError(f"there is no code {code!r}")
        self._claims(facts.get("weights"), facts.get("kv"))
        if self._running is not None and code != "FAILED":  # what is staged beside is stopped later
            raise _ImpossibleError(f"the word says {code} while action {self._running!r} is running")
        if (code in ("FAILED", "REFUSED")) is not self._failed and self._core is not None:
            which = "a" if self._failed else "no"
            raise _ImpossibleError(f"the word says {code}, and {which} failure was written down")
        self._failed = False
        if self._joined is False and code != "ATTACHED":
            raise _ImpossibleError(f"the word says {code} before the rank has joined the epoch")
        self._require_told(entry, code)
        self._joined = True
        over = StatusCode[code].is_terminal or code == "ATTACHED"
        self._at = "" if over else code
        if code == "DONE_COMMITTED":
            self._version, self._loaded = self._loaded or self._version, None
            self._may_serve, self._must_serve = True, self._serves and self._version is not None

    def _require_told(self, entry: JournalEntry, code: str) -> None:
        """A command is seen before it is worked for, and admitted before it is committed."""
        at_work = StatusCode.DRAINING <= StatusCode[code] <= StatusCode.PREPARED
        if self._joined is None:
            self._seen = self._admitted = entry.sequence
        elif at_work and self._seen != entry.sequence:
            raise _ImpossibleError(f"the word says {code} of a command that was not seen")
        elif code == "DONE_COMMITTED" and self._admitted != entry.sequence:
            raise _ImpossibleError("the command was committed, and it was not admitted")

    def _claims(self, weights: object, kv: object) -> None:
        """Hold the states that a word claims against those of the machines."""
        if self.joint is None:
            at_rest = [one for one in _AT_REST if (one.weights.name, one.kv.name) == (weights, kv)]
            self.joint = at_rest[0] if at_rest else None
            return
        for machine, claim, state in (("weights", weights, self.joint.weights), ("kv", kv, self.joint.kv)):
            if claim not in (None, state.name):
                raise _ImpossibleError(f"the word claims {machine} {claim}, and it was {state.name}")

    def _served_version(self, entry: JournalEntry) -> None:
        version = entry.facts["version"]
        self._require_serving(f"version {version} was served")
        if self.joint is not None and not self._may_serve:
            raise _ImpossibleError(f"version {version} was served, and no commit came before it")
        if self._version not in (None, version):
            raise _ImpossibleError(f"version {version} was served, and version {self._version} was loaded")
        self._version, self._may_serve, self._must_serve = version, False, False

    def _require_served(self, entry: JournalEntry) -> None:
        if self._must_serve and entry.kind not in _MAY_COME_BETWEEN:
            raise _ImpossibleError("the commit before it serves a version, which was not written down")

    def _decision(self, entry: JournalEntry) -> None:
        command = (entry.epoch, entry.sequence)
        if command in self._decided:
            raise _ImpossibleError("the command was decided before, and a decision is final")
        self._decided.add(command)

    @property
    def _serves(self) -> bool:
        """Whether a step may begin, as far as is known."""
        held = self._admission is Admission.HELD
        return self.joint is not None and serving(self.joint.weights, self.joint.kv) and not held

    def _require_serving(self, what: str) -> None:
        if self.joint is not None and not self._serves:
            held = " while the group was held" if self._admission is Admission.HELD else f" with {self.joint}"
            raise _ImpossibleError(what + held)


_RULES: dict[str, Callable[[_Process, JournalEntry], None]] = {
    kinds.STARTED: _Process._started,
    kinds.ENDED: _Process._ended,
    kinds.COMMAND_SEEN: _Process._command_seen,
    kinds.COMMAND_ADMITTED: _Process._command_admitted,
    kinds.COMMAND_FAILED: _Process._command_failed,
    kinds.TRANSITION: _Process._transition,
    kinds.ACTION_STARTED: _Process._action_started,
    kinds.ACTION_FINISHED: _Process._action_ended,
    kinds.ACTION_FAILED: _Process._action_ended,
    kinds.WORD_WRITTEN: _Process._word_written,
    kinds.SERVED_VERSION: _Process._served_version,
    kinds.DECISION: _Process._decision,
}
