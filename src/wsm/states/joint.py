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

What is real and no state of the two machines is a phase of the command (:mod:`.phases`): a rank that FAILED
or STOPPED stands where the failure found it, STAGING and STAGED stand beside what serves, and a rank that was
asked for the KV cache alone is PREPARED with its KV cache UPDATING. :func:`.check.beside` finds what stands
beside which phase, of which command.

This module is pure and knows nothing of the machines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from wsm.states.errors import IllegalTransitionError, JointRuleError, require_bools
from wsm.states.table import KV_CHART, WEIGHT_CHART, Chart, Event, Guard, MachineName, Row, State
from wsm.states.vocabulary import Admission, AdmissionEvent, KVEvent, KVState, WeightEvent, WeightState


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
        starts_there = not self.source or row.source in self.source
        return starts_there and self.event is row.event and self.guard in (None, row.guard)


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
