"""Static checks of all tables: faults that `transitions` would show at run time, if at all.

It accepts unknown states, rows that can never be taken, events that collide with a model's methods, and
states without a way out. Each check takes tables and yields findings, so that the tests can seed a fault and
see it found. Run by the tests and by ``wsm diagrams --check``; nothing is checked when a worker starts, since
the tables cannot change between a release and its start.

The checks of weights and KV cache together go through every joint state that one rank can be in
(:func:`explore`): a few dozen states, milliseconds. What ranks do to each other is the protocol's, and is
explored elsewhere.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import TypeAlias, TypeVar

from wsm.states import command_events, phases
from wsm.states.command_events import Asked, CacheChange, Course
from wsm.states.errors import IllegalTransitionError
from wsm.states.fleet import fleet_faults
from wsm.states.group import PERMITS, ROWS, CommandStage, GroupRow, GroupWhen, Writes, by_stage, processes_of
from wsm.states.joint import FORBIDDEN, START, JointState, chart_of, serving, step
from wsm.states.machine import ChartMachine, Edge
from wsm.states.phases import (
    ABORTABLE,
    HOT_ABORTABLE,
    LOOKS,
    MEANINGS,
    OUTCOMES,
    LookRow,
    OutcomeRow,
    Phase,
    Todo,
    When,
)
from wsm.states.plan_key import OF_ADMISSION, PLANS, REQUESTS, PlanKey
from wsm.states.rank import OF_THE_RANK, OF_THE_WORDS
from wsm.states.table import CHARTS, Chart, Event, MachineName, Row, State
from wsm.states.vocabulary import ALL_TAGS, KVEvent, KVState, Tag, WeightEvent, WeightState, sentence_of
from wsm.states.words import Operation

Node = TypeVar("Node")

#: Values of the events that end a decision, and everything.
_ABORT, _COMMIT, _LOST = "abort", "commit", "lost"


@dataclass(frozen=True)
class TableFault:
    """What the check has found wrong; `where`: which machine, state or event."""

    check: str
    where: str
    problem: str

    def __str__(self) -> str:
        return f"{self.check}: {self.where}: {self.problem}"


def check_everything() -> list[TableFault]:
    """Run every check of all tables, each alone and all together; an empty list is good news."""
    fleet = [TableFault("fleet", "a replica", problem) for problem in fleet_faults()]
    return [*check_tables(), *check_phases(), *check_group(), *fleet]


def check_tables(charts: Sequence[Chart] = CHARTS) -> list[TableFault]:
    """Run every check of single charts, and the checks of both together; an empty list is good news."""
    findings = [finding for chart in charts for finding in check_chart(chart)]
    return findings or list(check_joint(explore()))


def check_chart(chart: Chart) -> list[TableFault]:
    """Run every check that looks at one chart alone."""
    findings = list(_only_known_names(chart))
    # The other checks look names up; with unknown ones they would only repeat the finding, or raise.
    return findings or [finding for check in _CHECKS for finding in check(chart)]


def check_joint(edges: Sequence[JointEdge]) -> Iterator[TableFault]:
    """Look at every joint state that can be reached: it must be allowed, and there must be a way on."""
    onward: dict[JointState, list[JointState]] = {}
    for edge in edges:
        onward.setdefault(edge.source, []).append(edge.dest)
    for joint in states_of(edges):
        reason = FORBIDDEN.get((joint.weights, joint.kv))
        if reason is not None:
            yield TableFault("joint pair", str(joint), f"can be reached, although {reason}")
        ahead = reached(joint, lambda state: onward.get(state, ()))
        if START not in ahead:
            yield TableFault("joint dead end", str(joint), "no way to holding nothing")
        if not any(serving(later.weights, later.kv) for later in ahead):
            yield TableFault("joint dead end", str(joint), "no way to serving")


def _only_known_names(chart: Chart) -> Iterator[TableFault]:
    for row in chart.rows:
        for role, state in (("source", row.source), ("destination", row.dest)):
            if not _among(state, chart.states):
                yield _found("unknown state", chart, row, f"{role} {state!r} is no state of this machine")
        if not _among(row.event, chart.events):
            yield _found("unknown event", chart, row, f"{row.event!r} is no event of this machine")


def _every_event_is_taken(chart: Chart) -> Iterator[TableFault]:
    used = {row.event for row in chart.rows}
    for event in chart.events:
        if event not in used:
            yield _found("unused event", chart, event, "no row takes it")


def _one_row_per_case(chart: Chart) -> Iterator[TableFault]:
    for state in chart.states:
        for event in chart.events:
            rows = chart.rows_for(state, event)
            for kept in (True, False):
                admitting = [row for row in rows if row.guard is None or row.guard.holds(kept=kept)]
                if len(admitting) > 1:
                    yield _found(
                        "ambiguous rows",
                        chart,
                        rows[0],
                        f"{len(admitting)} rows for kept={kept}, only the first would ever be taken",
                    )
                if rows and not admitting:
                    yield _found("gap between guards", chart, rows[0], f"no row for kept={kept}")


def _every_state_is_reachable(chart: Chart) -> Iterator[TableFault]:
    seen = reached(chart.initial, lambda here: (row.dest for row in chart.rows if row.source is here))
    for state in chart.states:
        if state not in seen:
            yield _found("unreachable state", chart, state, f"no way leads there from {chart.initial.name}")


def _no_state_is_a_trap(chart: Chart) -> Iterator[TableFault]:
    for state in chart.states:
        if not any(row.source is state and row.dest is not state for row in chart.rows):
            yield _found("trap state", chart, state, "nothing leads out")


def _work_succeeds_or_fails(chart: Chart) -> Iterator[TableFault]:
    for state, success in chart.working.items():
        taken = {row.event for row in chart.rows if row.source is state}
        if success not in taken:
            yield _found("no success", chart, state, f"work is done there and {success.value!r} has no row")
        if not {event.value for event in taken} - {success.value, _LOST}:
            yield _found("no failure", chart, state, "work is done there, and no row ends it when it fails")


def _decisions_decide(chart: Chart) -> Iterator[TableFault]:
    for state in chart.deciding:
        taken = {row.event.value for row in chart.rows if row.source is state}
        if taken != {_COMMIT, _ABORT}:
            yield _found(
                "decision",
                chart,
                state,
                f"it takes {sorted(taken)}; only a decision may end it",
            )


def _a_new_epoch_begins_with_nothing(chart: Chart) -> Iterator[TableFault]:
    if chart.machine is MachineName.ADMISSION:  # it is as the committed word says
        return
    lost = [row for row in chart.rows if row.event.value == _LOST]
    for row in lost:
        if row.source is not chart.initial or row.dest is not chart.initial or row.guard is not None:
            yield _found(
                "new epoch", chart, row, f"{_LOST!r} is taken in {chart.initial.name} alone, and stays"
            )
    if not lost:
        yield _found("new epoch", chart, chart.initial, f"{_LOST!r} is not taken")


def _only_a_teardown_repairs(chart: Chart) -> Iterator[TableFault]:
    """What a FAULTED rank still holds is unknown: a row may leave it there, or give it back, and no more."""
    for row in chart.rows:
        if row.source is WeightState.FAULTED and row.dest not in (row.source, WeightState.CLEARING):
            yield _found("unknown memory", chart, row, "only a teardown leads out of FAULTED")


def _work_has_a_plan(chart: Chart) -> Iterator[TableFault]:
    if chart.machine is not MachineName.WEIGHTS:  # the KV cache's work is part of the weights' plans
        return
    for row in chart.rows:
        if row.dest in chart.working and row.source is not row.dest and not plans_on(row):
            yield _found(
                "no plan", chart, row, f"work begins in {row.dest.name} and no command runs a plan there"
            )


def _no_event_is_a_method(chart: Chart) -> Iterator[TableFault]:
    taken = ChartMachine(chart).taken_names()
    for event in chart.events:
        if event.value in taken:
            yield _found("name collision", chart, event, "the model has an attribute of this name")


def _the_machine_is_the_table(chart: Chart) -> Iterator[TableFault]:
    table = {
        Edge(row.source.name, row.event.value, row.dest.name, row.guard and row.guard.value)
        for row in chart.rows
    }
    machine = ChartMachine(chart).edges()
    for edge in sorted(table ^ machine, key=str):
        side = "the table" if edge in table else "the machine"
        yield TableFault(
            "machine", f"{chart.machine.value} {edge.source} {edge.event}", f"only {side} has it"
        )


def _among(wanted: State | Event, known: Iterable[State | Event]) -> bool:
    """Whether the very member is known; members of two enumerations with one code compare equal."""
    return any(wanted is each for each in known)


def _found(check: str, chart: Chart, what: Row | State | Event, problem: str) -> TableFault:
    where = f"{what.source.name} {what.event.value}" if isinstance(what, Row) else what.name
    return TableFault(check, f"{chart.machine.value} {where}", problem)


_CHECKS: tuple[Callable[[Chart], Iterator[TableFault]], ...] = (
    _every_event_is_taken,
    _one_row_per_case,
    _every_state_is_reachable,
    _no_state_is_a_trap,
    _work_succeeds_or_fails,
    _decisions_decide,
    _a_new_epoch_begins_with_nothing,
    _only_a_teardown_repairs,
    _work_has_a_plan,
    _no_event_is_a_method,
    _the_machine_is_the_table,
)


EVENTS: tuple[Event, ...] = (*WeightEvent, *KVEvent)


@dataclass(frozen=True)
class JointEdge:
    """One way from a joint state to another; `kv_kept`: the KV policy under which it leads there."""

    source: JointState
    row: Row
    dest: JointState
    kv_kept: bool


def outgoing(joint: JointState) -> Iterator[JointEdge]:
    """Iterate over everything that can happen in a joint state, for all flags that an event can carry."""
    found: set[JointEdge] = set()
    for event, kept, kv_kept in product(EVENTS, (True, False), (True, False)):
        try:
            row, after = step(joint, event, kept=kept, kv_kept=kv_kept)
        except IllegalTransitionError:
            continue
        edge = JointEdge(joint, row, after, kv_kept or event is not WeightEvent.UPDATE)
        if edge not in found:
            found.add(edge)
            yield edge


def reached(start: Node, onward: Callable[[Node], Iterable[Node]]) -> tuple[Node, ...]:
    """Return everything that can be reached, the start included, nearest first."""
    seen, waiting = {start: None}, deque([start])
    while waiting:
        for there in onward(waiting.popleft()):
            if there not in seen:
                seen[there] = None
                waiting.append(there)
    return tuple(seen)


def explore(start: JointState = START) -> tuple[JointEdge, ...]:
    """Return every edge that can be reached, nearest first; always in the same order."""
    states = reached(start, lambda joint: (edge.dest for edge in outgoing(joint)))
    return tuple(edge for joint in states for edge in outgoing(joint))


def states_of(edges: Iterable[JointEdge]) -> tuple[JointState, ...]:
    """Return every joint state that the edges touch, once, in their order."""
    return tuple(dict.fromkeys(state for edge in edges for state in (edge.source, edge.dest)))


#: What can come of each thing to do. What is not here is looked at again, or is a step, which moves no phase.
EVENTS_OF: dict[Todo, frozenset[phases.Event]] = {
    Todo.BEGIN: frozenset({phases.Event.BEGAN, phases.Event.REFUSED}),
    Todo.DRAIN: frozenset({phases.Event.DRAINED, phases.Event.FAILED}),
    Todo.ACCEPT: frozenset({phases.Event.ACCEPTED, phases.Event.FAILED}),
    Todo.RUN: frozenset({phases.Event.ACTION_DONE, phases.Event.FAILED}),
    Todo.LEAVE_VOTE: frozenset({phases.Event.FAILED}),
    Todo.FINISH: frozenset({phases.Event.FINISHED, phases.Event.FAILED}),
    Todo.STAGE: frozenset({phases.Event.STAGED, phases.Event.FAILED}),
    Todo.COMMIT: frozenset({phases.Event.COMMITTED}),
    Todo.UNDO: frozenset({phases.Event.STOPPED}),
    Todo.KEEP: frozenset({phases.Event.KEPT, phases.Event.FAULTED}),
    Todo.DROP: frozenset({phases.Event.CLEARED, phases.Event.FAULTED}),
}

#: Phases in which something was promised to the group, with the events that would break the promise.
PROMISES: dict[Phase, frozenset[phases.Event]] = {
    Phase.VOTING: frozenset({phases.Event.EXPIRED}),
    Phase.PREPARED: frozenset({phases.Event.EXPIRED, phases.Event.FAILED}),
    Phase.STAGED: frozenset({phases.Event.EXPIRED, phases.Event.FAILED}),
    Phase.COMMITTING: frozenset({phases.Event.EXPIRED, phases.Event.FAILED}),
    Phase.STOPPED: frozenset({phases.Event.EXPIRED, phases.Event.FAILED}),
}


@dataclass(frozen=True)
class PhaseTables:
    """Both tables, the rows of each in the order in which they are asked."""

    looks: Sequence[LookRow] = LOOKS
    outcomes: Sequence[OutcomeRow] = OUTCOMES

    @property
    def rows(self) -> list[LookRow | OutcomeRow]:
        """All rows."""
        return [*self.looks, *self.outcomes]


def check_phases(tables: PhaseTables | None = None) -> list[TableFault]:
    """Run every check; an empty list is good news."""
    tables = tables or PhaseTables()
    return [finding for check in _PHASE_CHECKS for finding in check(tables)]


def _every_phase_has_an_answer(tables: PhaseTables) -> Iterator[TableFault]:
    for phase in Phase:
        rows = [row for row in tables.looks if row.phase is phase]
        if not rows or rows[-1].when:
            yield _in_phase("no answer", phase, "its last row has conditions, so a look may find nothing")
        if phase not in MEANINGS:
            yield _in_phase("unexplained phase", phase, "it has no meaning in one line")


def _every_row_can_be_taken(tables: PhaseTables) -> Iterator[TableFault]:
    for table in (tables.looks, tables.outcomes):
        asked: list[tuple[Phase, phases.Event | None, frozenset[When]]] = []
        for row in table:
            event = row.event if isinstance(row, OutcomeRow) else None
            when = frozenset(row.when)
            if any((row.phase, event) == earlier[:2] and earlier[2] <= when for earlier in asked):
                yield _in_phase("row that is never taken", row.phase, f"an earlier row hides {_name(row)}")
            asked.append((row.phase, event, when))


def _every_thing_to_do_has_its_outcomes(tables: PhaseTables) -> Iterator[TableFault]:
    known = {(row.phase, row.event) for row in tables.outcomes}
    told: set[tuple[Phase, phases.Event]] = set()
    for row in tables.looks:
        phase = row.to or row.phase
        told |= {(phase, event) for event in EVENTS_OF.get(row.todo, ())}
    # A deadline passes without a thing to do, and is told as a failure.
    told |= {(row.phase, phases.Event.FAILED) for row in tables.outcomes if row.event is phases.Event.EXPIRED}
    for phase, event in sorted(told - known, key=str):
        yield _in_phase("no outcome", phase, f"{event.name} may come of what is done there, and has no row")
    for phase, event in sorted(told & known, key=str):
        if [row for row in tables.outcomes if (row.phase, row.event) == (phase, event)][-1].when:
            yield _in_phase("no outcome", phase, f"the last row of {event.name} has conditions")
    for phase, event in sorted(known - told, key=str):
        if event is not phases.Event.EXPIRED:
            yield _in_phase("idle outcome", phase, f"nothing that is done there leads to {event.name}")


def _idle_is_reached_from_everywhere(tables: PhaseTables) -> Iterator[TableFault]:
    def onward(phase: Phase) -> Iterator[Phase]:
        return (row.to for row in tables.rows if row.phase is phase and row.to is not None)

    for phase in set(Phase) - {Phase.IDLE}:
        if Phase.IDLE not in reached(phase, onward):
            yield _in_phase("trap", phase, "no way leads back to IDLE but a new epoch")
        if phase not in reached(Phase.IDLE, onward):
            yield _in_phase("unreachable phase", phase, "no way leads there from IDLE")


def _promises_are_kept(tables: PhaseTables) -> Iterator[TableFault]:
    for row in tables.outcomes:
        if row.event in PROMISES.get(row.phase, ()):
            yield _in_phase("broken promise", row.phase, f"{row.event.name} must not end it")


def _an_abort_comes_first(tables: PhaseTables) -> Iterator[TableFault]:
    for phase in Phase:
        wanted = [When.HOT_ABORTED] * (phase in HOT_ABORTABLE) + [When.ABORTED] * (phase in ABORTABLE)
        rows = [row for row in tables.looks if row.phase is phase]
        first = [row.when[0] for row in rows[: len(wanted)] if len(row.when) == 1]
        heard = {each for row in rows for each in row.when} & {When.ABORTED, When.HOT_ABORTED}
        if phase is not Phase.IDLE and (first != wanted or heard != set(wanted)):
            names = ", ".join(each.name for each in wanted) or "no ABORT"
            yield _in_phase("abort", phase, f"it must ask for {names} before all else")


def _ends_say_so(tables: PhaseTables) -> Iterator[TableFault]:
    for row in tables.outcomes:
        terminal = row.says is not None and row.says.is_terminal
        if (row.to is Phase.IDLE) is not terminal:
            yield _in_phase(
                "last word",
                row.phase,
                f"{_name(row)} says {row.says and row.says.name} and goes to {row.to.name}",
            )


def _conditions_are_known(tables: PhaseTables) -> Iterator[TableFault]:
    for condition in When:
        if (condition in OF_THE_RANK) is (condition in OF_THE_WORDS):
            yield TableFault(
                "condition",
                condition.name,
                "it must be about the rank or about the words, not both or neither",
            )
    for row in tables.outcomes:
        for condition in row.when:
            if condition not in OF_THE_RANK:
                yield _in_phase(
                    "condition", row.phase, f"{_name(row)} depends on {condition.name}, which needs words"
                )
    used = {condition for row in tables.rows for condition in row.when}
    for condition in When:
        if condition not in used:
            yield TableFault("unused condition", condition.name, "no row has it")


def check_group(rows: Sequence[GroupRow] = ROWS) -> Iterator[TableFault]:
    """Look at the group's side: each stage has an answer, and no process writes more than it may."""
    for stage, asked in by_stage(rows).items():
        if not asked or asked[-1].when:
            yield _at_stage("no answer", stage, "its last row has conditions, so a look may find nothing")
        for place, row in enumerate(asked):
            if any(set(earlier.when) <= set(row.when) for earlier in asked[:place]):
                yield _at_stage("row that is never taken", stage, f"an earlier row hides {_name(row)}")
    for row in rows:
        for may in processes_of(row):
            if row.writes is not None and row.writes not in PERMITS[may]:
                problem = f"{_name(row)} stores {row.writes.value}, and is taken where one may {may.value}"
                yield _at_stage("row that writes too much", row.stage, problem)
    for condition in set(GroupWhen) - {each for row in rows for each in row.when}:
        yield TableFault("unused condition", condition.name, "no row has it")
    for writes in set(Writes) - {row.writes for row in rows}:
        yield TableFault("idle word", writes.name, "no row stores it")


def _at_stage(check: str, stage: CommandStage, problem: str) -> TableFault:
    return TableFault(check, f"stage {stage.name}", problem)


def _name(row: LookRow | OutcomeRow | GroupRow) -> str:
    conditions = ", ".join(condition.name for condition in row.when) or "always"
    what = row.event.name if isinstance(row, OutcomeRow) else row.todo.name
    return f"{what} ({conditions})"


def _in_phase(check: str, phase: Phase, problem: str) -> TableFault:
    return TableFault(check, f"phase {phase.name}", problem)


_PHASE_CHECKS: tuple[Callable[[PhaseTables], Iterator[TableFault]], ...] = (
    _every_phase_has_an_answer,
    _every_row_can_be_taken,
    _every_thing_to_do_has_its_outcomes,
    _idle_is_reached_from_everywhere,
    _promises_are_kept,
    _an_abort_comes_first,
    _ends_say_so,
    _conditions_are_known,
)


@dataclass(frozen=True)
class CommandMoment:
    """Where a rank is in a command: its phase, its machines, and what decides about its ways on.

    `operation`: what the rank took in.
    `asked`: the command; None: none is at hand.
    `torn`: whether a teardown has begun, which is never taken back.
    `ends`: by which way out it ends, once the group has found that: KEEP or DROP.
    `discards`: whether a discard plan is under way.
    `passing`: whether more events are fired in the same call, so that nothing else can happen here.
    """

    phase: Phase
    joint: JointState
    operation: Operation = Operation.NONE
    asked: Asked | None = None
    torn: bool = False
    ends: Todo | None = None
    discards: bool = False
    passing: bool = False


_HALVES = tuple(frozenset({tag}) for tag in Tag)
#: What comes of things to do that move no machine.
_SIMPLE = {
    Todo.DRAIN: phases.Event.DRAINED,
    Todo.STAGE: phases.Event.STAGED,
    Todo.UNDO: phases.Event.STOPPED,
}
#: Conditions that depend on what was asked, with what they want.
_OF_THE_REQUEST: dict[When, frozenset[Operation]] = {
    When.CLEARS: frozenset({Operation.CLEAR}),
    When.RELEASES: frozenset({Operation.RELEASE}),
    When.HOT: frozenset({Operation.HOT_UPDATE}),
    When.HOT_ABORTED: frozenset({Operation.HOT_UPDATE}),
    When.HOT_COMMITTED: frozenset({Operation.HOT_UPDATE}),
    When.IN_PLACE: frozenset(REQUESTS) - {Operation.HOT_UPDATE},
    When.ABORTED: frozenset(REQUESTS) - {Operation.HOT_UPDATE},
    When.COMMITTED: frozenset({Operation.UPDATE, *OF_ADMISSION}),
}


@functools.cache
def moments() -> frozenset[CommandMoment]:
    """Return every moment of every command, from every state at rest, as the three tables lead there.

    What other ranks say may be anything; any event may be refused, which fails the command there.
    """
    return frozenset(reached(CommandMoment(Phase.IDLE, START), _ahead_of))


def _ahead_of(moment: CommandMoment) -> Iterator[CommandMoment]:
    asked = moment.asked
    if moment.passing:
        return
    if asked is None:
        yield from _taken_in(moment.joint)
        return
    for look in LOOKS:
        if look.phase is moment.phase and not look.broken and _asks_for(look.when, asked.request):
            here = replace(moment, phase=look.to or look.phase)
            yield here
            yield from _done(here, asked, look.todo)
    for event in (phases.Event.FAILED, phases.Event.EXPIRED):
        yield from _told(moment, asked, event, Course.led(moment.joint, command_events.fail))


def _taken_in(joint: JointState) -> Iterator[CommandMoment]:
    """Iterate over the commands that may come; of one that was aborted before, only that is read."""
    for request in REQUESTS:
        about = (frozenset[Tag](),) if request.is_of_admission else (ALL_TAGS,)
        halves = _HALVES if request in (Operation.CLEAR, Operation.UPDATE) else ()
        for tags, keeps in product((*halves, *about), (False, True)):
            asked = Asked(request, tags, joint, keeps_kv=keeps)
            yield CommandMoment(Phase.BEGINNING, joint, request, asked)
            if request is Operation.HOT_UPDATE:
                yield CommandMoment(Phase.SETTLING, joint, Operation.HOT_ABORT, asked, ends=Todo.KEEP)
            else:
                yield CommandMoment(Phase.STOPPING, joint, Operation.ABORT, asked)
    yield CommandMoment(Phase.STOPPING, joint, Operation.ABORT, Asked(Operation.CLEAR, frozenset(), joint))


def _done(moment: CommandMoment, asked: Asked, todo: Todo) -> Iterator[CommandMoment]:
    joint, stays = moment.joint, Course(moment.joint)
    if todo in _SIMPLE:
        yield from _told(moment, asked, _SIMPLE[todo], stays)
    elif todo is Todo.BEGIN:
        legal = command_events.objection(asked, stays) is None
        yield from _told(moment, asked, phases.Event.BEGAN if legal else phases.Event.REFUSED, stays)
    elif todo is Todo.ACCEPT and asked.request is not Operation.HOT_UPDATE:  # that parks for the commit alone
        begun = replace(asked, begun=True)
        course = Course.led(joint, partial(command_events.begin, begun))
        yield from _told(replace(moment, asked=begun), begun, phases.Event.ACCEPTED, course)
    elif todo is Todo.RUN:
        change = CacheChange.RELEASED if asked.request is Operation.CLEAR else CacheChange.READY
        for course in (stays, Course.led(joint, partial(command_events.followed, change))):
            yield from _told(moment, asked, phases.Event.ACTION_DONE, course)
    elif todo is Todo.FINISH:
        with suppress(IllegalTransitionError):  # not all actions are run yet
            course = Course.led(joint, partial(command_events.finish, asked))
            yield from _told(moment, asked, phases.Event.FINISHED, course)
    elif todo is Todo.COMMIT:
        yield from _committed(moment, asked)
    elif (todo is Todo.DROP or (todo is Todo.KEEP and not moment.torn)) and moment.ends in (None, todo):
        yield from _left(replace(moment, ends=todo), asked)


def _told(
    moment: CommandMoment, asked: Asked, event: phases.Event, course: Course
) -> Iterator[CommandMoment]:
    """Iterate over the rows of an event that comes behind a course, and over the failures within it."""
    rows = [
        row
        for row in OUTCOMES
        if row.phase is moment.phase and row.event is event and _asks_for(row.when, asked.request)
    ]
    if event is phases.Event.FINISHED:  # the first row that holds is taken, and CLEARS is known
        rows = rows[:1]
    torn = moment.torn or command_events.is_torn(course.joint)
    for row in rows:
        there = replace(moment, phase=row.to, joint=course.joint, torn=torn)
        yield CommandMoment(Phase.IDLE, course.joint) if row.to is Phase.IDLE else there
    if rows and event is not phases.Event.FAILED:
        for joint in (moment.joint, *(to for _, to in course.fired)):
            failed = Course.led(joint, command_events.fail)
            yield from _told(moment, asked, phases.Event.FAILED, failed)


def _committed(moment: CommandMoment, asked: Asked) -> Iterator[CommandMoment]:
    """Iterate over a commit; the flip of a hot update begins, ends and commits in one call."""
    course = Course(moment.joint)
    if asked.request is Operation.HOT_UPDATE:
        command_events.begin(asked, course)
        command_events.finish(asked, course)
    command_events.commit(course)
    yield from _passed(moment, course)
    yield CommandMoment(Phase.IDLE, course.joint)


def _left(moment: CommandMoment, asked: Asked) -> Iterator[CommandMoment]:
    """Iterate over a way out: its events, then its discard plan, which succeeds or fails."""
    if not moment.discards:
        course = Course(moment.joint)
        way_out = command_events.keep if moment.ends is Todo.KEEP else command_events.drop
        plan = way_out(asked, course).plan
        yield from _passed(moment, course)
        discards = replace(moment, joint=course.joint, discards=True)
        yield CommandMoment(Phase.IDLE, course.joint) if plan is None else discards
        return
    released = Course.led(moment.joint, partial(command_events.followed, CacheChange.RELEASED))
    yield replace(moment, joint=released.joint)
    for end in (command_events.freed, command_events.not_freed):
        yield CommandMoment(Phase.IDLE, Course.led(moment.joint, end).joint)


def _passed(moment: CommandMoment, course: Course) -> Iterator[CommandMoment]:
    return (replace(moment, joint=to, passing=True) for _, to in course.fired)


def _asks_for(conditions: Iterable[When], request: Operation) -> bool:
    return all(request in _OF_THE_REQUEST.get(condition, REQUESTS) for condition in conditions)


def plans_on(row: Row) -> tuple[PlanKey, ...]:
    """Return the plans that run on an edge: commands, and ways out of them, begin to work by it."""
    return tuple(key for key in PLANS if key in _plans_by_row().get(row, ()))


@functools.cache
def _plans_by_row() -> Mapping[Row, set[PlanKey]]:
    found: dict[Row, set[PlanKey]] = {}
    for moment in moments():
        for course, plan in _planned(moment):
            row = _into_work(moment.joint, course)
            if row is not None and plan is not None:
                found.setdefault(row, set()).add(plan)
    return found


def _planned(moment: CommandMoment) -> Iterator[tuple[Course, PlanKey | None]]:
    """Iterate over what may begin here, the command's own work or a way out, with the plan that it runs."""
    asked, joint = moment.asked, moment.joint
    if asked is None or moment.passing or moment.discards:
        return
    if joint == asked.before and command_events.objection(asked, Course(joint)) is None:
        yield Course.led(joint, partial(command_events.begin, asked)), asked.plan
    if moment.phase is Phase.SETTLING:
        for way_out in (command_events.drop,) if moment.torn else (command_events.drop, command_events.keep):
            course = Course(joint)
            yield course, way_out(asked, course).plan


def _into_work(before: JointState, course: Course) -> Row | None:
    """Return the first row of a course that leads into work."""
    for event, after in course.fired:
        chart = chart_of(event)
        source, dest = before.of(chart.machine), after.of(chart.machine)
        if dest in chart.working:
            return next(row for row in chart.rows_for(source, event) if row.dest is dest)
        before = after
    return None


Pair: TypeAlias = tuple[WeightState, KVState]
#: What is asked for, and what it is about; None: no command is at hand.
Command: TypeAlias = tuple[Operation, frozenset[Tag] | None]


@functools.cache
def beside(phase: Phase) -> Mapping[Command, frozenset[Pair]]:
    """Return which states of weights and KV cache stand beside a phase, by the command; all others never do.

    Tags of a command whose arguments cannot be read are empty. A command that was aborted before it was read
    is ABORT or HOT_ABORT.
    """
    found: dict[Command, frozenset[Pair]] = {}
    for moment in moments():
        if moment.phase is phase:
            command = (moment.operation, None if moment.asked is None else moment.asked.tags)
            found[command] = found.get(command, frozenset()) | {moment.joint[:2]}
    return found


def stands_beside(
    phase: Phase, operation: Operation, tags: frozenset[Tag] | None, joint: JointState
) -> str | None:
    """Say why the states cannot be where they are in this phase of a command; None if they can.

    Not asked of a rank that leaves its epoch: it has no command any more. `tags` None: not known (yet).
    """
    for (asked, about), pairs in beside(phase).items():
        if asked is operation and (about is None or tags in (None, about)) and joint[:2] in pairs:
            return None
    of = "" if tags is None else f" of {sentence_of(tags)}"
    return f"{joint} never stand beside {phase.name} of {operation.name}{of}"
