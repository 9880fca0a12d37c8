"""Static checks of the tables of :mod:`.phases`: rows never taken, phases without a way on, broken promises.

Each check takes the rows and yields findings, so that the tests can seed a fault and see it found. Run by the
tests and by ``wsm diagrams --check``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from wsm.states.check import Finding
from wsm.states.phases import (
    ABORTABLE,
    HOT_ABORTABLE,
    LOOKS,
    MEANINGS,
    OF_THE_RANK,
    OF_THE_WORDS,
    OUTCOMES,
    Event,
    Look,
    Outcome,
    When,
)
from wsm.states.rank_state import Phase, Todo

#: What can come of each thing to do. What is not here is looked at again, or is a step, which moves no phase.
EVENTS_OF: dict[Todo, frozenset[Event]] = {
    Todo.BEGIN: frozenset({Event.BEGAN, Event.REFUSED}),
    Todo.DRAIN: frozenset({Event.DRAINED, Event.FAILED}),
    Todo.ACCEPT: frozenset({Event.ACCEPTED, Event.FAILED}),
    Todo.RUN: frozenset({Event.ACTION_DONE, Event.FAILED}),
    Todo.FORSAKEN: frozenset({Event.FAILED}),
    Todo.FINISH: frozenset({Event.FINISHED, Event.FAILED}),
    Todo.STAGE: frozenset({Event.STAGED, Event.FAILED}),
    Todo.COMMIT: frozenset({Event.COMMITTED}),
    Todo.UNDO: frozenset({Event.STOPPED}),
    Todo.KEEP: frozenset({Event.KEPT, Event.FAULTED}),
    Todo.DROP: frozenset({Event.CLEARED, Event.FAULTED}),
}

#: Phases in which something was promised to the group, with the events that would break the promise.
PROMISES: dict[Phase, frozenset[Event]] = {
    Phase.VOTING: frozenset({Event.EXPIRED}),
    Phase.PREPARED: frozenset({Event.EXPIRED, Event.FAILED}),
    Phase.STAGED: frozenset({Event.EXPIRED, Event.FAILED}),
    Phase.COMMITTING: frozenset({Event.EXPIRED, Event.FAILED}),
    Phase.STOPPED: frozenset({Event.EXPIRED, Event.FAILED}),
}


@dataclass(frozen=True)
class Tables:
    """Both tables, as they are checked together.

    Parameters
    ----------
    looks : sequence of Look
        In the order in which they are asked.
    outcomes : sequence of Outcome
        In the order in which they are asked.
    """

    looks: Sequence[Look] = LOOKS
    outcomes: Sequence[Outcome] = OUTCOMES

    @property
    def rows(self) -> list[Look | Outcome]:
        """All rows."""
        return [*self.looks, *self.outcomes]


def check_phases(tables: Tables | None = None) -> list[Finding]:
    """Run every check; an empty list is good news."""
    tables = tables or Tables()
    return [finding for check in _CHECKS for finding in check(tables)]


def _every_phase_has_an_answer(tables: Tables) -> Iterator[Finding]:
    for phase in Phase:
        rows = [row for row in tables.looks if row.phase is phase]
        if not rows or rows[-1].when:
            yield _found("no answer", phase, "its last row has conditions, so a look may find nothing")
        if phase not in MEANINGS:
            yield _found("unexplained phase", phase, "it has no meaning in one line")


def _every_row_can_be_taken(tables: Tables) -> Iterator[Finding]:
    for table in (tables.looks, tables.outcomes):
        asked: list[tuple[Phase, Event | None, frozenset[When]]] = []
        for row in table:
            event = row.event if isinstance(row, Outcome) else None
            when = frozenset(row.when)
            if any((row.phase, event) == earlier[:2] and earlier[2] <= when for earlier in asked):
                yield _found("row that is never taken", row.phase, f"an earlier row hides {_name(row)}")
            asked.append((row.phase, event, when))


def _every_thing_to_do_has_its_outcomes(tables: Tables) -> Iterator[Finding]:
    known = {(row.phase, row.event) for row in tables.outcomes}
    told: set[tuple[Phase, Event]] = set()
    for row in tables.looks:
        phase = row.to or row.phase
        told |= {(phase, event) for event in EVENTS_OF.get(row.todo, ())}
    # A deadline passes without a thing to do, and is told as a failure.
    told |= {(row.phase, Event.FAILED) for row in tables.outcomes if row.event is Event.EXPIRED}
    for phase, event in sorted(told - known, key=str):
        yield _found("no outcome", phase, f"{event.name} may come of what is done there, and has no row")
    for phase, event in sorted(told & known, key=str):
        if [row for row in tables.outcomes if (row.phase, row.event) == (phase, event)][-1].when:
            yield _found("no outcome", phase, f"the last row of {event.name} has conditions")
    for phase, event in sorted(known - told, key=str):
        if event is not Event.EXPIRED:
            yield _found("idle outcome", phase, f"nothing that is done there leads to {event.name}")


def _idle_is_reached_from_everywhere(tables: Tables) -> Iterator[Finding]:
    edges = {(row.phase, row.to) for row in tables.rows if row.to is not None}
    for phase in Phase:
        if phase is Phase.IDLE:
            continue
        if Phase.IDLE not in _ahead(phase, edges):
            yield _found("trap", phase, "no way leads back to IDLE but a new epoch")
        if phase not in _ahead(Phase.IDLE, edges):
            yield _found("unreachable phase", phase, "no way leads there from IDLE")


def _ahead(start: Phase, edges: set[tuple[Phase, Phase]]) -> set[Phase]:
    seen: set[Phase] = set()
    waiting = [start]
    while waiting:
        here = waiting.pop()
        for source, dest in edges:
            if source is here and dest not in seen:
                seen.add(dest)
                waiting.append(dest)
    return seen


def _promises_are_kept(tables: Tables) -> Iterator[Finding]:
    for row in tables.outcomes:
        if row.event in PROMISES.get(row.phase, ()):
            yield _found("broken promise", row.phase, f"{row.event.name} must not end it")


def _an_abort_comes_first(tables: Tables) -> Iterator[Finding]:
    for phase in Phase:
        wanted = [When.HOT_ABORTED] * (phase in HOT_ABORTABLE) + [When.ABORTED] * (phase in ABORTABLE)
        rows = [row for row in tables.looks if row.phase is phase]
        first = [row.when[0] for row in rows[: len(wanted)] if len(row.when) == 1]
        heard = {each for row in rows for each in row.when} & {When.ABORTED, When.HOT_ABORTED}
        if phase is not Phase.IDLE and (first != wanted or heard != set(wanted)):
            names = ", ".join(each.name for each in wanted) or "no ABORT"
            yield _found("abort", phase, f"it must ask for {names} before all else")


def _ends_say_so(tables: Tables) -> Iterator[Finding]:
    for row in tables.outcomes:
        terminal = row.says is not None and row.says.is_terminal
        if (row.to is Phase.IDLE) is not terminal:
            yield _found(
                "last word",
                row.phase,
                f"{_name(row)} says {row.says and row.says.name} and goes to {row.to.name}",
            )


def _conditions_are_known(tables: Tables) -> Iterator[Finding]:
    for condition in When:
        if (condition in OF_THE_RANK) is (condition in OF_THE_WORDS):
            yield Finding(
                "condition",
                condition.name,
                "it must be about the rank or about the words, not both or neither",
            )
    for row in tables.outcomes:
        for condition in row.when:
            if condition not in OF_THE_RANK:
                yield _found(
                    "condition", row.phase, f"{_name(row)} depends on {condition.name}, which needs words"
                )
    used = {condition for row in tables.rows for condition in row.when}
    for condition in When:
        if condition not in used:
            yield Finding("unused condition", condition.name, "no row has it")


def _name(row: Look | Outcome) -> str:
    conditions = ", ".join(condition.name for condition in row.when) or "always"
    what = row.todo.name if isinstance(row, Look) else row.event.name
    return f"{what} ({conditions})"


def _found(check: str, phase: Phase, problem: str) -> Finding:
    return Finding(check, f"phase {phase.name}", problem)


_CHECKS: tuple[Callable[[Tables], Iterator[Finding]], ...] = (
    _every_phase_has_an_answer,
    _every_row_can_be_taken,
    _every_thing_to_do_has_its_outcomes,
    _idle_is_reached_from_everywhere,
    _promises_are_kept,
    _an_abort_comes_first,
    _ends_say_so,
    _conditions_are_known,
)
