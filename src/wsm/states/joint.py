"""The three tables together: which states stand side by side, and which event needs what.

The tables of :mod:`.table` say what weights and KV cache may do alone. Two kinds of rules join them:

* :data:`FORBIDDEN`: pairs of states that never stand side by side;
* :data:`NEEDS`: what an event of the one needs the other to be.

And two facts that no pair of states can tell, because they are about how a rank came there:

* While new weights are loaded, a KV cache that is still NORMAL was computed by the old ones. Unless the
  command's KV policy keeps its blocks, it is *stale* from the ``update`` of the weights until it is rebuilt
  or forgotten, or the old weights are kept. A stale cache keeps a rank from PREPARED, so it never meets the
  new weights.
* An aborted update goes back to NORMAL only where it came from NORMAL: a rank that *had no version* has
  nothing to keep, whatever it is told.

Weights and KV cache may be taken away and brought back one by one. So NORMAL may rest beside CLEARED, on
either side: it is in memory, and :func:`serving` is false. What keeps such a half from serving is that
function alone, which asks for both. A KV cache that outlives its weights meets the next ones as any old cache
does: stale, unless it is kept.

**Beside the phases.** What is real and no state of the two machines is a phase of the command
(:mod:`.phases`): a rank that FAILED or STOPPED stands where the failure found it, STAGING and STAGED stand
beside what serves, and a rank that was asked for the KV cache alone is PREPARED with its KV cache UPDATING.
:data:`BESIDE` says which states may stand beside which phase, of which command; :func:`stands_beside` asks.
The static checks go through every command and hold the rows to what the tables lead to, in both directions;
the explorer asks after every move.

This module is pure and knows nothing of the machines.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from wsm.states.errors import IllegalTransitionError, JointRuleError, require_bools
from wsm.states.phases import Phase
from wsm.states.table import KV_CHART, WEIGHT_CHART, Chart, Event, Guard, MachineName, Row, State
from wsm.states.vocabulary import (
    ALL_TAGS,
    Admission,
    AdmissionEvent,
    KVEvent,
    KVState,
    Tag,
    WeightEvent,
    WeightState,
    sentence_of,
)
from wsm.states.words import Operation


class JointState(NamedTuple):
    """Where one rank is.

    `kv_stale`: whether the KV cache holds what weights computed that are being replaced. `had_version`:
    whether the update under way came from NORMAL, so that there is a version to go back to.
    """

    weights: WeightState
    kv: KVState
    kv_stale: bool = False
    had_version: bool = False

    def __str__(self) -> str:
        return f"weights {self.weights.name}, KV cache {self.kv.name}{' (stale)' if self.kv_stale else ''}"

    def of(self, machine: MachineName) -> State:
        """Return one side."""
        return self.weights if machine is MachineName.WEIGHTS else self.kv


#: Where a new process starts.
START = JointState(WeightState.CLEARED, KVState.CLEARED)

_NOTHING_TO_COME = "all that can fail lies behind a PREPARED rank, its KV cache included"

#: Pairs that never stand side by side, with the reason.
FORBIDDEN: dict[tuple[WeightState, KVState], str] = {
    (WeightState.PREPARED, KVState.CLEARING): _NOTHING_TO_COME,
    (WeightState.PREPARED, KVState.UPDATING): _NOTHING_TO_COME,
}


@dataclass(frozen=True)
class Need:
    """What an event of one machine needs the other machine to be.

    `states`: states of the other machine in which it is legal. `guard`: only for rows with this guard; None:
    for every row of the event. `source`: only for rows that start in one of these; empty: for every row of
    the event.
    """

    event: Event
    states: frozenset[State]
    why: str
    guard: Guard | None = None
    source: frozenset[State] = frozenset()

    def concerns(self, row: Row) -> bool:
        """Whether a row is one that this is asked of."""
        return (
            self.event is row.event
            and self.guard in (None, row.guard)
            and (not self.source or any(row.source is each for each in self.source))
        )


_NOT_AT_WORK = frozenset({KVState.NORMAL, KVState.CLEARED})
_BUILT_AT_REST = (
    "a cache is built beside weights that are there, absent or on their way, never beside a teardown"
)

_NOTHING_HELD_IN_A_NEW_EPOCH = "a new epoch begins with nothing held; give back what is left first"

_BUILDABLE = frozenset({WeightState.NORMAL, WeightState.CLEARED, WeightState.UPDATING})

#: What an event needs of the other machine.
NEEDS: tuple[Need, ...] = (
    Need(
        WeightEvent.CLEARED,
        _NOT_AT_WORK,
        "CLEARED is said when all that was to go is free, and the KV cache is still at work; finish it first",
    ),
    Need(
        WeightEvent.PREPARED,
        _NOT_AT_WORK,
        "all that can fail is behind a PREPARED rank, and the KV cache is still at work; finish it first",
    ),
    Need(
        WeightEvent.ABORT,
        _NOT_AT_WORK,
        "kept means as before the command, and the KV cache is still at work; finish it first",
        Guard.KEPT,
    ),
    Need(
        WeightEvent.FAIL,
        frozenset({KVState.CLEARING}),
        "weights that are at rest fail only with a KV cache that is being released beside them",
        source=frozenset({WeightState.NORMAL, WeightState.CLEARED}),
    ),
    Need(WeightEvent.LOST, frozenset({KVState.CLEARED}), _NOTHING_HELD_IN_A_NEW_EPOCH),
    Need(KVEvent.LOST, frozenset({WeightState.CLEARED}), _NOTHING_HELD_IN_A_NEW_EPOCH),
    Need(KVEvent.UPDATE, _BUILDABLE, _BUILT_AT_REST),
    Need(KVEvent.REBUILT, _BUILDABLE, _BUILT_AT_REST),
    Need(
        KVEvent.CLEAR,
        frozenset(WeightState) - {WeightState.PREPARED},
        "after PREPARED only the group's decision counts",
    ),
)

#: Why a rank that had no version cannot keep one.
NOTHING_HELD = "this update began without a version to go back to; abort it with kept=False"

#: Why a stale KV cache keeps a rank from PREPARED.
STALE = (
    "the KV cache was computed by the weights that are replaced; rebuild it, or command the KV policy keep"
)


def serving(weights: WeightState, kv: KVState) -> bool:
    """Whether a rank in these states has all that a step needs in memory."""
    return weights is WeightState.NORMAL and kv is KVState.NORMAL


def chart_of(event: Event) -> Chart:
    """Return the chart that an event of what is held belongs to."""
    return WEIGHT_CHART if isinstance(event, WeightEvent) else KV_CHART


def objection(joint: JointState, row: Row) -> str | None:
    """Say why the joint rules refuse a row that starts where `joint` is, or None where they do not."""
    if isinstance(row.event, AdmissionEvent):
        return None  # it asks for nothing that is held
    other = joint.kv if isinstance(row.event, WeightEvent) else joint.weights
    for need in NEEDS:
        if need.event is row.event and other not in need.states and need.concerns(row):
            return need.why
    if row.event is WeightEvent.PREPARED and joint.kv_stale:
        return STALE
    if row.guard is Guard.KEPT and not joint.had_version:
        return NOTHING_HELD
    if isinstance(row.dest, KVState):
        return FORBIDDEN.get((joint.weights, row.dest))
    return FORBIDDEN.get((row.dest, joint.kv)) if isinstance(row.dest, WeightState) else None


def follow(joint: JointState, row: Row, *, kv_kept: bool) -> JointState:
    """Return where a row leads, whether the joint rules like it or not.

    `kv_kept`: whether the command's KV policy keeps the blocks of the old weights; looked at only for the
    ``update`` of the weights.
    """
    if isinstance(row.dest, Admission):
        return joint
    if isinstance(row.dest, KVState):
        return joint._replace(kv=row.dest, kv_stale=False)
    if row.event is WeightEvent.UPDATE:
        stale = joint.kv is KVState.NORMAL and not kv_kept
        return JointState(row.dest, joint.kv, stale, had_version=row.source is WeightState.NORMAL)
    under_way = row.dest in (WeightState.UPDATING, WeightState.PREPARED)
    return JointState(row.dest, joint.kv, joint.kv_stale and under_way, joint.had_version and under_way)


def no_row(chart: Chart, state: State, event: Event) -> IllegalTransitionError:
    """Return the error for an event that no row of its chart takes in a state."""
    machine, legal = chart.machine.value, tuple(each.value for each in chart.legal(state))
    return IllegalTransitionError(
        f"{event.value!r} is refused while {machine} is {state.name}; legal there: {', '.join(legal)}",
        machine=machine,
        state=state.name,
        event=event.value,
        legal=legal,
    )


def step(
    joint: JointState, event: Event, *, kept: bool = False, kv_kept: bool = True
) -> tuple[Row, JointState]:
    """Take in one event by the tables and the joint rules.

    `kept`: for ``abort``: the group's outcome, see :class:`wsm.states.table.Guard`. `kv_kept`: for ``update``
    of the weights: the command's KV policy, see :func:`follow`.

    Raises
    ------
    IllegalTransitionError
        If the event has no row there.
    JointRuleError
        If it has one and the joint rules refuse it.
    wsm.errors.BadInputError
        If a flag is not a bool.
    """
    require_bools(kept=kept, kv_kept=kv_kept)
    chart = chart_of(event)
    state = joint.of(chart.machine)
    row = chart.find(state, event, kept=kept)
    if row is None:
        raise no_row(chart, state, event)
    why = objection(joint, row)
    if why is not None:
        machine = chart.machine.value
        raise JointRuleError(
            f"{event.value!r} is refused while {machine} is {state.name} ({joint}): {why}",
            machine=machine,
            state=state.name,
            event=event.value,
            joint=str(joint),
            why=why,
        )
    return row, follow(joint, row, kv_kept=kv_kept)


@dataclass(frozen=True)
class Beside:
    """States of weights and KV cache that may stand beside phases of a command.

    `commands`: for which commands; empty: for each, and beside none. `weights`, `kv`: each of the one beside
    each of the other.
    """

    phases: tuple[Phase, ...]
    commands: frozenset[tuple[Operation, frozenset[Tag]]]
    weights: tuple[WeightState, ...]
    kv: tuple[KVState, ...]
    why: str


_WEIGHTS, _CACHE = frozenset({Tag.WEIGHTS}), frozenset({Tag.KV_CACHE})
#: What a rank is told whose arguments cannot be read.
NO_TAGS: frozenset[Tag] = frozenset()

#: What a command asks for, and what it is about.
Command = tuple[Operation, frozenset[Tag]]
Pair = tuple[WeightState, KVState]


def _commands(*operations: Operation, tags: tuple[frozenset[Tag], ...]) -> frozenset[Command]:
    return frozenset((operation, each) for operation in operations for each in tags)


_ANY: frozenset[Command] = frozenset()
_CLEARS_BOTH = _commands(Operation.CLEAR, tags=(ALL_TAGS,))
_CLEARS_WEIGHTS = _commands(Operation.CLEAR, tags=(_WEIGHTS,))
_CLEARS_KV = _commands(Operation.CLEAR, tags=(_CACHE,))
_LOADS_BOTH = _commands(Operation.UPDATE, tags=(ALL_TAGS,))
_LOADS_WEIGHTS = _commands(Operation.UPDATE, tags=(_WEIGHTS,))
_LOADS = _LOADS_BOTH | _LOADS_WEIGHTS
_BRINGS_KV = _commands(Operation.UPDATE, tags=(_CACHE,))
_HOT = _commands(Operation.HOT_UPDATE, tags=(ALL_TAGS,))
_UPDATES = _LOADS | _BRINGS_KV | _HOT
#: They move nothing in memory, and are legal whatever is there; a release only where that can serve.
_HOLDS = _commands(Operation.HOLD, tags=(NO_TAGS,))
_RELEASES = _commands(Operation.RELEASE, tags=(NO_TAGS,))
_OF_ADMISSION = _HOLDS | _RELEASES
#: The rank read the command when it was aborted already.
_CALLED_OFF = _commands(Operation.ABORT, tags=(ALL_TAGS, _WEIGHTS, _CACHE, NO_TAGS))
_CALLED_OFF_HOT = _commands(Operation.HOT_ABORT, tags=(ALL_TAGS,))
_CALLED_OFF_KV = _commands(Operation.ABORT, tags=(_CACHE,))

_P, _W, _K = Phase, WeightState, KVState
_STOPS = (_P.STOPPING, _P.STOPPED, _P.SETTLING)
_WAY_OF_ADMISSION = (_P.DRAINING, _P.PARKING, _P.WORKING, _P.VOTING, _P.PREPARED, _P.COMMITTING)

#: Which states stand beside which phase, of which command. Everything else never does.
BESIDE: tuple[Beside, ...] = (
    Beside(
        (_P.IDLE, _P.BEGINNING, _P.FAILED, *_STOPS),
        _ANY,
        (_W.NORMAL, _W.CLEARED),
        (_K.NORMAL, _K.CLEARED),
        "at rest: nothing has begun, or all is over",
    ),
    Beside(
        (_P.IDLE, _P.BEGINNING, _P.FAILED, *_STOPS),
        _ANY,
        (_W.FAULTED,),
        (_K.NORMAL, _K.CLEARING, _K.CLEARED),
        "a teardown failed; what is held is unknown",
    ),
    # on the way to the step at which all stand, as before the command
    Beside(
        (_P.DRAINING, _P.PARKING),
        _CLEARS_BOTH | _CLEARS_WEIGHTS | _CLEARS_KV | _LOADS,
        (_W.NORMAL, _W.CLEARED),
        (_K.NORMAL, _K.CLEARED),
        "as before the command",
    ),
    Beside(
        (_P.DRAINING, _P.PARKING),
        _CLEARS_BOTH,
        (_W.FAULTED,),
        (_K.NORMAL, _K.CLEARING, _K.CLEARED),
        "a FAULTED rank is repaired by clearing both",
    ),
    Beside(
        (_P.DRAINING, _P.PARKING),
        _BRINGS_KV,
        (_W.NORMAL, _W.CLEARED),
        (_K.CLEARED,),
        "only a KV cache that is missing is brought",
    ),
    Beside(
        (_P.STAGING, _P.STAGED, _P.DRAINING, _P.PARKING),
        _HOT,
        (_W.NORMAL,),
        (_K.NORMAL,),
        "a hot update stages beside what serves, and parks for the commit alone",
    ),
    # hold and release leave what is in memory where it is
    Beside(
        _WAY_OF_ADMISSION,
        _HOLDS,
        (_W.NORMAL, _W.CLEARED),
        (_K.NORMAL, _K.CLEARED),
        "a hold keeps what is there",
    ),
    Beside(
        _WAY_OF_ADMISSION,
        _HOLDS,
        (_W.FAULTED,),
        (_K.NORMAL, _K.CLEARING, _K.CLEARED),
        "and repairs nothing",
    ),
    Beside(
        _WAY_OF_ADMISSION,
        _RELEASES,
        (_W.NORMAL,),
        (_K.NORMAL,),
        "only what can serve is released",
    ),
    # the plan is run, or was until it failed
    Beside(
        (_P.WORKING, _P.VOTING, *_STOPS),
        _CLEARS_BOTH,
        (_W.CLEARING, _W.CLEARED),
        (_K.CLEARING, _K.CLEARED),
        "both are given back",
    ),
    Beside((_P.FAILED,), _CLEARS_BOTH, (_W.CLEARED,), (_K.CLEARING,), "no weights were held"),
    Beside(
        (_P.WORKING, _P.VOTING, *_STOPS),
        _CLEARS_WEIGHTS,
        (_W.CLEARING, _W.CLEARED),
        (_K.NORMAL, _K.CLEARED),
        "the weights are given back, the KV cache stays as it is",
    ),
    Beside(
        (_P.WORKING, _P.VOTING, _P.FAILED, *_STOPS),
        _CLEARS_KV,
        (_W.NORMAL, _W.CLEARED),
        (_K.CLEARING, _K.CLEARED),
        "the KV cache is given back, the weights stay as they are",
    ),
    Beside(
        (_P.WORKING, _P.VOTING, _P.FAILED, *_STOPS),
        _LOADS,
        (_W.UPDATING,),
        (_K.NORMAL, _K.UPDATING, _K.CLEARED),
        "weights are loaded, beside a KV cache that stays, is rebuilt, or is away",
    ),
    Beside(
        (_P.WORKING, _P.VOTING, _P.PREPARED, _P.COMMITTING, _P.FAILED, *_STOPS),
        _BRINGS_KV,
        (_W.NORMAL, _W.CLEARED),
        (_K.UPDATING,),
        "the KV cache alone is brought: PREPARED is said by the phase and its word, no machine says it",
    ),
    # the decision is awaited, or has come
    Beside(
        (_P.PREPARED, _P.COMMITTING, _P.FAILED, *_STOPS),
        _LOADS_BOTH,
        (_W.PREPARED,),
        (_K.NORMAL,),
        "verified; FAILED only where what was done could not be remembered",
    ),
    Beside(
        (_P.PREPARED, _P.COMMITTING, _P.FAILED, *_STOPS),
        _LOADS_WEIGHTS,
        (_W.PREPARED,),
        (_K.NORMAL, _K.CLEARED),
        "the same beside a KV cache that is away",
    ),
    Beside((_P.COMMITTING,), _LOADS_BOTH | _HOT, (_W.NORMAL,), (_K.NORMAL,), "committed"),
    Beside((_P.COMMITTING,), _LOADS_WEIGHTS, (_W.NORMAL,), (_K.NORMAL, _K.CLEARED), "committed"),
    Beside((_P.COMMITTING,), _BRINGS_KV, (_W.NORMAL, _W.CLEARED), (_K.NORMAL,), "committed"),
    Beside(
        (_P.COMMITTING,),
        _HOT,
        (_W.UPDATING, _W.PREPARED),
        (_K.NORMAL,),
        "the flip",
    ),
    Beside((_P.COMMITTING,), _HOT, (_W.UPDATING,), (_K.UPDATING,), "the flip forgets the old blocks"),
    # the way back
    Beside(
        (_P.SETTLING,),
        _CLEARS_BOTH | _UPDATES | _OF_ADMISSION | _CALLED_OFF | _CALLED_OFF_HOT,
        (_W.CLEARING,),
        (_K.NORMAL, _K.CLEARING, _K.CLEARED),
        "the discard plan gives back what is left",
    ),
    Beside(
        (_P.SETTLING,),
        _UPDATES | _OF_ADMISSION | _CALLED_OFF,
        (_W.CLEARED,),
        (_K.CLEARING,),
        "the same where no weights are left",
    ),
    Beside(
        (_P.SETTLING,),
        _LOADS | _BRINGS_KV | _CALLED_OFF_KV,
        (_W.NORMAL,),
        (_K.CLEARING,),
        "a KV cache that was built is given back, and weights are kept",
    ),
    Beside((_P.SETTLING,), _LOADS, (_W.UPDATING,), (_K.CLEARING,), "the same before the weights go back"),
    Beside(
        (_P.SETTLING,),
        _LOADS | _BRINGS_KV,
        (_W.CLEARING,),
        (_K.UPDATING,),
        "the weights are dropped before the KV cache that was rebuilt beside them",
    ),
)


@functools.cache
def _beside(phase: Phase, operation: Operation, tags: frozenset[Tag] | None) -> frozenset[Pair]:
    return beside(phase, operation, tags)


def beside(
    phase: Phase, operation: Operation, tags: frozenset[Tag] | None, rows: Iterable[Beside] = BESIDE
) -> frozenset[Pair]:
    """Return the pairs that may stand beside a phase of a command; `tags` None: whatever it is about."""
    return frozenset(
        (weights, kv)
        for row in rows
        if phase in row.phases and (not row.commands or _is_among(row.commands, operation, tags))
        for weights in row.weights
        for kv in row.kv
    )


def stands_beside(
    phase: Phase, operation: Operation, tags: frozenset[Tag] | None, joint: JointState
) -> str | None:
    """Say why the states cannot be where they are in this phase of a command; None if they can.

    Not asked of a rank that leaves its epoch: it has no command any more.

    `operation`: what it took in: CLEAR, UPDATE, HOT_UPDATE; ABORT or HOT_ABORT if the command was aborted
    before it was read; NONE where there is none. `tags`: what the command is about, as far as it was missing
    or held; empty: its arguments cannot be read; None: not known (yet).
    """
    if joint[:2] in _beside(phase, operation, tags):
        return None
    about = "" if tags is None else f" of {sentence_of(tags)}"
    return f"{joint} never stand beside {phase.name} of {operation.name}{about}"


def _is_among(commands: frozenset[Command], operation: Operation, tags: frozenset[Tag] | None) -> bool:
    return any(each[0] is operation and tags in (None, each[1]) for each in commands)
