"""The inputs of a participant as its journal file keeps them, and the core run again with them.

A rank's inputs are the words that it has read (:class:`.view.View`), and what :class:`.phases.Happened`; a
controller's are the views that it has judged, with what else it knew. :class:`InputLog` turns those that
mattered into facts of ``input`` entries: an input whose answer changed the state, a word, or the thing to do.
Of a view it keeps the words that differ from those of the last view that was written; steps that were entered
in a row are one input, and to serve, to join a step or to wait is no thing to do: a rank that follows its
peers is told so at each step, and writes nothing. Time is no input of the core: an expired deadline is.

:class:`Rerun` takes the entries of journals back in, asks the core again, and says where its answer differs
from the one that was recorded. Each participant is followed by itself, from a join on. Inputs that a kill or
a shortage took away are a gap, and end what can be followed until the next join.

Pure; knows no files.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from wsm.errors import WsmError
from wsm.states import decide, epochs, phases
from wsm.states import journal as kinds
from wsm.states import rank as protocol
from wsm.states.decide import Duty, Role
from wsm.states.journal import CONTROLLER, JournalEntry
from wsm.states.phases import Event, Happened, Move, RankState, Todo
from wsm.states.table import CHARTS
from wsm.states.view import View
from wsm.states.words import (
    WORDS_VERSION,
    CommandWord,
    CommittedWord,
    Decider,
    Operation,
    StatusWord,
    StepWord,
)

#: Not worth a line: what leads to nothing but steps, and to another look.
_NOTHING_TO_DO = frozenset({Todo.SERVE, Todo.JOIN, Todo.WAIT, Todo.LOOK})

Facts = dict[str, Any]
MakeFacts = Callable[[], Facts]


def tables_digest() -> str:
    """Return a digest of the three tables: builds with equal ones answer alike."""
    rows = (*(row for chart in CHARTS for row in chart.rows), *phases.LOOKS, *phases.OUTCOMES)
    return hashlib.sha256("\n".join(map(repr, rows)).encode()).hexdigest()[:16]


#: The digest of this build, made once.
own_tables = functools.cache(tables_digest)


class InputLog:
    """Says which inputs of one rank are to be written, and as which facts.

    The facts are made when they are asked for, in the order of the inputs: no word waits for them.
    """

    def __init__(self) -> None:
        self._read: View | None = None  # what the last look that was written had read
        self._entered: Happened | None = None
        self._told: tuple[object, ...] = ()

    def joined(self, move: Move, view: View) -> list[MakeFacts]:
        """Return the facts of a join; the first look behind it is written whole."""
        rank, steps = move.state.rank, move.state.steps
        self._read, self._entered, self._told = None, None, ()
        words = {"command": _hex(view.command), "status": _hex(view.statuses[rank])}
        held = {"held": True} if move.state.held else {}
        own = {"step": _hex(view.steps[rank])} if steps else {}
        found = {"rank": rank, **words, **own, **held}
        return [lambda: {"join": found, "words": WORDS_VERSION, "answer": _answer(move)}]

    def looked(self, before: RankState, view: View, move: Move) -> list[MakeFacts]:
        """Return the facts of a look; empty where it changed nothing."""
        told = (move.todo, move.state.phase, move.state.action)
        quiet = move.todo in _NOTHING_TO_DO or told == self._told
        if move.state is before and move.step is None and move.status is None and quiet:
            return []
        self._told = told
        since, self._read = self._read, view
        return [*self._steps(), lambda: {"look": _words(view, since=since), "answer": _answer(move)}]

    def happened(self, happened: Happened, move: Move) -> list[MakeFacts]:
        """Return the facts of what happened; steps are kept until something else does."""
        if happened.event is Event.ENTERED:
            self._entered = Happened(Event.ENTERED, happened.weights, happened.kv, step=move.state.step)
            return []
        self._told = ()
        return [*self._steps(), lambda: {"happened": _of_happened(happened), "answer": _answer(move)}]

    def _steps(self) -> list[MakeFacts]:
        entered, self._entered = self._entered, None
        return [] if entered is None else [lambda: {"happened": _of_happened(entered)}]


def asked(function: str, view: View, answer: object, **known: object) -> Facts:
    """Return the facts of a judgement of a controller, with the whole view.

    Parameters
    ----------
    function : str
        A key of :data:`JUDGEMENTS`.
    view : View
        What it was judged by.
    answer : word or None
        What came of it.
    **known : JSON values
        What else the function was told.
    """
    words = _words(view)
    return {"asked": function, "view": words, "words": WORDS_VERSION, "with": known, "answer": _shown(answer)}


#: What a controller asks the core, by name.
JUDGEMENTS: Final[Mapping[str, Callable[[View, Mapping[str, Any]], object]]] = {
    "next_command": lambda view, known: decide.next_command(
        view, Operation[known["operation"]], Decider[known.get("decider", "CONTROLLER")]
    ),
    "committed": lambda view, known: decide.committed(view, known["version"], held=known.get("held")),
    "decision": lambda view, known: decide.decision(
        view, agree=known["agree"], give_up=known["give_up"], verdict=known.get("verdict")
    ),
    "next_epoch": lambda view, _known: epochs.next_epoch(view),
    "goal": lambda view, known: epochs.goal(
        _as_owing(view, known),
        asked=known["asked"],
        committed=known["committed"],
        served=known["served"],
        of_admission=known.get("of_admission", False),
    ),
    "completed_commit": lambda view, known: epochs.completed_commit(
        view, known["goal"], held=known.get("held")
    ),
    "duty": lambda view, known: decide.duty(
        view, Role[known["role"]], expired=known["expired"], leased=known.get("leased", False)
    ),
    "goal_word": lambda view, known: epochs.goal_word(view, known["goal"]),
}


@dataclass(frozen=True)
class Difference:
    """An input to which the core answers otherwise than was recorded.

    Parameters
    ----------
    index : int
        The place of its entry, from 0.
    entry : JournalEntry
        The entry.
    answer : str
        What the core answers now.
    """

    index: int
    entry: JournalEntry
    answer: str

    def __str__(self) -> str:
        who = "the controller" if self.entry.rank == CONTROLLER else f"rank {self.entry.rank}"
        where = f"epoch {self.entry.epoch}, sequence {self.entry.sequence}"
        return f"entry {self.index} ({who}, {where}): {self.answer}"


class Rerun:
    """Journals run through the core again, entry by entry.

    Attributes
    ----------
    inputs : int
        How many were taken in.
    differences : list of Difference
        Where the core answers otherwise; per participant the first one behind each join.
    gaps : list of str
        What could not be followed, and why.
    other_builds : list of str
        Processes that ran other tables, or another version; differences are to be expected there.

    Parameters
    ----------
    version : str
        Of this build.
    """

    def __init__(self, version: str) -> None:
        self.inputs = 0
        self.differences: list[Difference] = []
        self.gaps: list[str] = []
        self.other_builds: list[str] = []
        self._version = version
        self._told_of_other_words: set[int] = set()
        self._index = -1
        self._ranks: dict[int, _Rank] = {}

    def take(self, entry: JournalEntry) -> None:
        """Take in the next entry."""
        self._index += 1
        if entry.kind == kinds.STARTED:
            self._process_begins(entry)
        elif entry.kind == kinds.ENDED:
            self._ranks.pop(entry.rank, None)
        elif entry.kind == kinds.SHORTAGE_MET and self._ranks.pop(entry.rank, None) is not None:
            self.gaps.append(f"entry {self._index}: rank {entry.rank} was short, and may have lost inputs")
        elif entry.kind == kinds.INPUT:
            self._take_input(entry)

    def _process_begins(self, entry: JournalEntry) -> None:
        if self._ranks.pop(entry.rank, None) is not None:
            ended = "ended without saying so; its last inputs may be lost"
            self.gaps.append(f"entry {self._index}: the process of rank {entry.rank} before {ended}")
        build = {"version": self._version, "tables": own_tables()}
        found = {name: entry.facts.get(name) for name in build}
        if found != build and found["tables"] is not None:
            then, now = (f"wsm {one['version']} with tables {one['tables']}" for one in (found, build))
            self.other_builds.append(f"entry {self._index}: rank {entry.rank} ran {then}, and this is {now}")

    def _are_of_other_words(self, entry: JournalEntry) -> None:
        """Leave out what was written in words with other fields; what follows a join is left out with it."""
        self._ranks.pop(entry.rank, None)
        if entry.rank not in self._told_of_other_words:
            self._told_of_other_words.add(entry.rank)
            who = "the controllers" if entry.rank == CONTROLLER else f"rank {entry.rank}"
            why = "words with other fields than those of this build, and cannot be run again"
            self.gaps.append(f"entry {self._index}: inputs of {who} are in {why}")

    def _take_input(self, entry: JournalEntry) -> None:
        begins = "join" in entry.facts or "asked" in entry.facts
        if begins and entry.facts.get("words", 1) != WORDS_VERSION:
            self._are_of_other_words(entry)
            return
        self.inputs += 1
        answer: object
        try:
            if entry.rank == CONTROLLER:
                answer, recorded = _judged(entry.facts), entry.facts["answer"]
            else:
                if "join" in entry.facts:
                    self._ranks[entry.rank] = _Rank()
                if entry.rank not in self._ranks:
                    return  # behind a gap, or a difference
                move = self._ranks[entry.rank].take(entry.facts)
                is_steps = entry.facts.get("happened", {}).get("event") == Event.ENTERED.name
                answer = _answer(move)
                recorded = answer if is_steps else entry.facts["answer"]
        except WsmError as error:
            answer, recorded = str(error), ""
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            answer, recorded = f"it is no input that this build reads ({type(error).__name__}: {error})", ""
        if recorded != answer:
            self._ranks.pop(entry.rank, None)
            said = str(answer) if recorded == "" else f"the core answers {answer}, recorded is {recorded}"
            self.differences.append(Difference(self._index, entry, said))


class _Rank:
    """One rank's state, as its inputs lead to it."""

    def __init__(self) -> None:
        self._state: RankState | None = None
        self._words: dict[str, str] = {}

    def take(self, facts: Mapping[str, Any]) -> Move:
        """Ask the core; raises what it raises."""
        if "join" in facts:
            found = facts["join"]
            steps = "step" in found
            move = protocol.join(
                found["rank"],
                CommandWord.unpack(int(found["command"], 16)),
                StepWord.unpack(int(found.get("step", "0"), 16)),
                StatusWord.unpack(int(found["status"], 16)),
                steps=steps,
                held=found.get("held", False),
            )
        elif "look" in facts:
            self._words |= facts["look"]
            move = protocol.advance(self._here, _view(self._words))
        else:
            told = facts["happened"]
            collective = tuple(told.get("collective", ()))
            happened = Happened(**{**told, "event": Event[told["event"]], "collective": collective})
            move = protocol.take_in(self._here, happened)
        self._state = move.state
        return move

    @property
    def _here(self) -> RankState:
        if self._state is None:
            raise ValueError("it stands before the first join")
        return self._state


def _judged(facts: Mapping[str, Any]) -> object:
    return _shown(JUDGEMENTS[facts["asked"]](_view(facts["view"]), facts["with"]))


def _as_owing(view: View, known: Mapping[str, Any]) -> View:
    """Return a view whose word says what a group is owed; of older builds only the arguments say it."""
    if "restores" not in known:
        return view
    command = view.command
    brings = command.operation.is_commit and not known.get("of_admission", False)
    return replace(view, command=command._replace(owes=known["restores"] and not brings))


def _answer(move: Move) -> Facts:
    shown = {} if move.step is None else {"step": _hex(move.step)}
    if move.status is not None:
        shown["status"] = _hex(move.status)
    return {"todo": move.todo.name, "phase": move.state.phase.name, **shown}


def _of_happened(happened: Happened) -> Facts:
    told: Facts = {"event": happened.event.name, "weights": happened.weights, "kv": happened.kv}
    if happened.collective:
        told["collective"] = list(happened.collective)
    if happened.touched:
        told["touched"] = True
    if not happened.serves:
        told["serves"] = False
    if happened.step:
        told["step"] = happened.step
    if happened.held is not None:
        told["held"] = happened.held
    return told


def _words(view: View, since: View | None = None) -> Facts:
    """Return the words of a view, those alone that differ from an earlier one where it is given.

    In hexadecimal digits: JSON readers keep 53 bits of a number.
    """
    found: Facts = {}
    if since is None or view.command != since.command:
        found["command"] = _hex(view.command)
    if since is None or view.committed != since.committed:
        found["committed"] = _hex(view.committed)
    for index, step in enumerate(view.steps):
        if since is None or step != since.steps[index]:
            found[f"step{index}"] = _hex(step)
    for index, status in enumerate(view.statuses):
        if since is None or status != since.statuses[index]:
            found[f"status{index}"] = _hex(status)
    return found


def _view(words: Mapping[str, str]) -> View:
    def numbered(name: str) -> list[int]:
        count = sum(key.startswith(name) for key in words)
        return [int(words[f"{name}{index}"], 16) for index in range(count)]

    return View(
        CommandWord.unpack(int(words["command"], 16)),
        [StepWord.unpack(word) for word in numbered("step")],
        [StatusWord.unpack(word) for word in numbered("status")],
        CommittedWord.unpack(int(words["committed"], 16)),
    )


def _hex(word: CommandWord | CommittedWord | StepWord | StatusWord) -> str:
    return f"{word.pack():x}"


def _shown(answer: object) -> object:
    if isinstance(answer, CommandWord | CommittedWord | StepWord | StatusWord):
        return _hex(answer)
    return answer.name if isinstance(answer, Operation | Duty) else answer
