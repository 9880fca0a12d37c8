"""What the core was asked, as the facts of an entry, and the core asked again with them.

A rank's inputs are the words that it has read (:class:`.view.View`), and what :class:`.phases.Happened`; a
process that looks after the group has judged a view, with what else it knew. :class:`RankInputs` keeps those
that mattered: an input whose answer changed the state, a word, or the thing to do. Of a view it keeps the
words that differ from those of the last view that was kept; steps that were entered in a row go with the next
input, and to serve, to join a step or to wait is no thing to do: a rank that follows its peers is told so at
each step, and writes nothing. Time is no input of the core: an expired deadline is.

A word stands in an entry as the list of its fields. Pure.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import MISSING, fields, replace
from typing import Any

import msgspec

from wsm.states import group, joint, phases
from wsm.states import rank as protocol
from wsm.states.group import GroupMove, GroupState, Known
from wsm.states.phases import Event, Happened, Move, RankState, Todo
from wsm.states.table import CHARTS
from wsm.states.view import View
from wsm.states.vocabulary import KVState, WeightState
from wsm.states.words import CommandWord, CommittedWord, StatusWord, StepKind, StepWord
from wsm.typed import resolved

Facts = dict[str, Any]

#: Not worth a line: what leads to nothing but steps, and to another look.
_NOTHING_TO_DO = frozenset({Todo.SERVE, Todo.JOIN, Todo.WAIT, Todo.LOOK})


def tables_digest() -> str:
    """Return a digest of all rows, and of the rules between the machines: builds that differ in one are told.

    Builds with equal ones may still answer otherwise, where a function was changed that a row names.
    """
    rows = (*(row for chart in CHARTS for row in chart.rows), *phases.LOOKS, *phases.OUTCOMES)
    rows += (*joint.NEEDS, *joint.FORBIDDEN.items(), *group.ROWS)
    return hashlib.sha256("\n".join(map(repr, rows)).encode()).hexdigest()[:16]


#: The digest of this build, made once.
own_tables = functools.cache(tables_digest)


class ViewFacts(msgspec.Struct, omit_defaults=True):
    """The words of a view, or those alone that differ from an earlier one."""

    command: CommandWord | None = None
    committed: CommittedWord | None = None
    steps: dict[int, StepWord] = {}
    statuses: dict[int, StatusWord] = {}

    @classmethod
    def of(cls, view: View, since: View | None = None) -> ViewFacts:
        """Return the words that a later entry needs beside those of `since`."""
        if since is None:
            steps, statuses = dict(enumerate(view.steps)), dict(enumerate(view.statuses))
            return cls(view.command, view.committed, steps, statuses)
        return cls(
            None if view.command == since.command else view.command,
            None if view.committed == since.committed else view.committed,
            {i: word for i, word in enumerate(view.steps) if word != since.steps[i]},
            {i: word for i, word in enumerate(view.statuses) if word != since.statuses[i]},
        )

    def on(self, before: View | None) -> View:
        """Return the view that these words make of an earlier one."""
        if before is None:
            before = View(CommandWord.unpack(0), [], [])
        steps = {**dict(enumerate(before.steps)), **self.steps}
        statuses = {**dict(enumerate(before.statuses)), **self.statuses}
        return View(
            self.command or before.command,
            [steps[index] for index in range(len(steps))],
            [statuses[index] for index in range(len(statuses))],
            self.committed or before.committed,
        )


class RankInputs:
    """Says which inputs of one rank are to be written, and as which facts."""

    def __init__(self) -> None:
        self._read: View | None = None  # what the last look that was written had read
        self._entered: Happened | None = None
        self._told: tuple[object, ...] = ()

    def facts(self, before: RankState, source: View | Happened, move: Move) -> Facts:
        """Return the facts of an input; empty where it changed nothing."""
        if isinstance(source, Happened):
            if source.event is Event.ENTERED:
                self._entered = replace(source, step=move.state.step)
                return {}
            self._told = ()
            found: Facts = {"happened": source}
        elif before.epoch != move.state.epoch:
            self._read, self._entered, self._told = source, None, ()
            found = {"joins": move.state.rank, "look": ViewFacts.of(source)}
        else:
            told = _told(move)
            quiet = move.todo in _NOTHING_TO_DO or told == self._told
            if move.state is before and move.step is None and move.status is None and quiet:
                return {}
            found = {"look": ViewFacts.of(source, self._read)}
            self._told, self._read = told, source
        if self._entered is not None:
            found["entered"], self._entered = self._entered, None
        return {**found, "todo": move.todo, "phase": move.state.phase}


def _told(move: Move) -> tuple[object, ...]:
    """Return what a look that leads to no word is written for, once."""
    return move.todo, move.state.phase, move.state.action


def word_facts(move: Move) -> Facts:
    """Return what people are told of the words of a move; nothing of a step that begins."""
    status, step = move.status, move.step
    if status is not None:
        told = {} if step is None else {"step": step.step}
        return {
            "word": "status",
            "code": status.code.name,
            "action": status.action,
            "ready": status.ready,
            "weights": WeightState(status.weights).name,
            "kv": KVState(status.kv).name,
            **told,
        }
    if step is None or step.kind is StepKind.RUNNING:
        return {}
    return {"word": "step", "code": step.kind.name, "step": step.step}


class _RankInput(msgspec.Struct):
    """One input of a rank, as it is read back."""

    joins: int | None = None
    look: ViewFacts | None = None
    happened: Happened | None = None
    entered: Happened | None = None


class RankAgain:
    """One rank's core, asked again input by input, from a join on; `move`: what it answered last."""

    def __init__(self) -> None:
        self.move: Move | None = None
        self._read: View | None = None
        self._told: tuple[object, ...] = ()

    def ask(self, facts: Facts) -> Facts:
        """Return what the core answers, as the entry's facts say it.

        Raises
        ------
        WsmError
            If the core refuses the input.
        msgspec.ValidationError, ValueError
            If it is no input that this build writes.
        """
        asked = msgspec.convert(facts, resolved(_RankInput), str_keys=True)
        if asked.joins is not None and asked.look is not None:
            view, rank = asked.look.on(None), asked.joins
            steps = rank < len(view.steps)
            step = view.steps[rank] if steps else StepWord.unpack(0)
            held = view.committed.held
            self._read = view
            self.move = protocol.join(rank, view.command, step, view.statuses[rank], steps=steps, held=held)
            return _answer(self.move)
        if self.move is None:
            raise ValueError("it stands before the first join")
        state = self.move.state
        if asked.entered is not None:
            state = protocol.take_in(state, asked.entered).state
        if asked.look is not None:
            self._read = asked.look.on(self._read)
            self.move = protocol.advance(state, self._read)
            told = _told(self.move)
            if told == self._told and asked.entered is None:
                raise ValueError("it is the look before it again")
            self._told = told
        elif asked.happened is not None:
            self.move, self._told = protocol.take_in(state, asked.happened), ()
        else:
            raise ValueError("it says neither what was read nor what happened")
        return _answer(self.move)


def _answer(move: Move) -> Facts:
    return {"todo": move.todo.value, "phase": move.state.phase.value, **word_facts(move)}


#: What need not be written: the defaults of the fields that have one.
_DEFAULTS: dict[type, dict[str, object]] = {
    kind: {
        one.name: one.default if one.default_factory is MISSING else one.default_factory()
        for one in fields(kind)
    }
    for kind in (GroupState, Known, GroupMove)
}


def moved(view: View, state: GroupState, known: Known, move: GroupMove) -> Facts:
    """Return the facts of what a process that looks after the group was told to do, and by what it knew."""
    told = {"state": _plain(state), "known": _plain(known)}
    return {"look": ViewFacts.of(view), **told, "answer": _plain(move)}


def _plain(value: GroupState | Known | GroupMove) -> Facts:
    """Return a value as it comes out of a line, without what is as it is by default."""
    told: Facts = {}
    for name, default in _DEFAULTS[type(value)].items():
        there = getattr(value, name)
        if there != default:
            told[name] = _plain(there) if isinstance(there, GroupState) else there
    plain: Facts = msgspec.to_builtins(told, str_keys=True, enc_hook=int)  # a participant that is no rank
    return plain


def ask_controller(facts: Facts) -> Facts:
    """Return what the core answers to such a process, as :meth:`RankAgain.ask`."""
    view = msgspec.convert(facts["look"], resolved(ViewFacts), str_keys=True).on(None)
    state = msgspec.convert(facts["state"], resolved(GroupState), str_keys=True)
    known = msgspec.convert(facts["known"], resolved(Known), str_keys=True)
    return {"answer": _plain(group.advance(state, view, known))}


def answer_in(facts: Facts) -> Facts:
    """Return what was answered then."""
    return {name: facts[name] for name in _ANSWERS if name in facts}


_ANSWERS = ("todo", "phase", "word", "code", "action", "ready", "weights", "kv", "step", "answer")
