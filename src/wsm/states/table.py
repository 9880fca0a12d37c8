"""The tables of what a rank holds, and of its admission: every transition that there is, and nothing else.

Theory of operation
-------------------
A rank holds two things that a command can take away and bring back: its weights and its KV cache. Each
has a table here. A row says: in this state, when this happens and that holds, be there. What is not in
a table is refused, visibly, and changes nothing.

**The tables are the single source.** The `transitions` machines (:mod:`.machine`), the static checks
(:mod:`.check`), which go through all joint states, the check of journals (:mod:`wsm.journal.replay`)
and every diagram are made from these rows. A row that changes changes all of them, and must change the
literal table in the tests by hand: that is the review.

**A machine decides, it never works.** Entering CLEARING frees nothing; it says that freeing has begun.
The worker runs the plan outside of the machine, one action per turn, and brings back how that ended as an
event (``cleared``, ``prepared``, ``rebuilt``, ``fail``). So a plan that raises half-way leaves no machine
half-way.

**Failure has one outcome per group.** An update that fails on a rank moves neither machine: the rank says
FAILED, which is a phase of the command (:mod:`.phases`) and its word, and must not choose between its old
weights and none, because its peers might choose otherwise. The group's decision arrives as ``abort`` and
brings the outcome with it: *kept*, if no rank touched its weights and this rank held a version, or *dropped*.
Dropping is a visible teardown through CLEARING, since it can fail like any other. A teardown that fails ends
in FAULTED (``fail``): what is still held is unknown, so nothing may serve, and the way out is to clear again;
teardowns are idempotent. The KV cache has no ``fail``: where its teardown fails the weights carry the fault.

**Clearing twice is no error.** CLEARED takes ``clear`` and stays, so that one FAULTED rank is repaired by
clearing the whole group.

**Each half can go and come alone.** A command names what it is about by tags. One about the KV cache leaves
the weights' machine where it is, NORMAL or CLEARED; one about the weights leaves the KV cache's. What is
NORMAL beside something CLEARED is held and does not serve. A clear of one half that fails on one rank is
gone on with on every rank, that half and no other. A teardown of the KV cache that fails even then takes the
weights to FAULTED all the same: FAULTED says that it is unknown what is held.

**A new epoch begins with nothing.** What a rank held belonged to an incarnation of the group that is gone.
It gives all of it back in the old epoch, by the same rows as in any teardown, and only then takes ``lost``,
which has a row in CLEARED alone. Where that fails the rank is FAULTED, never joins, and its process is
replaced.

**Admission says one thing: whether a rank may step.** It has a table of its own, which knows nothing of the
other two, nor they of it: a held rank counts as what it has in memory. Only the group's decision moves it, or
a new epoch, which begins as the committed word says.

**There is no boot state.** A worker starts in CLEARED, and its first load is an ordinary update.

Which states of the two may stand side by side, and which event of the one needs what of the other, is in
:mod:`.joint`. This module knows what a table is made of (rows, guards, charts) and the rows; it knows no
words, no plan's content, no time, and not `transitions`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from wsm.states.errors import require_bools
from wsm.states.vocabulary import Admission, AdmissionEvent, KVEvent, KVState, WeightEvent, WeightState

State = WeightState | KVState | Admission
Event = WeightEvent | KVEvent | AdmissionEvent


class MachineName(enum.Enum):
    """The machines of a rank, by the name that stands in journals."""

    WEIGHTS = "weights"
    KV = "kv"
    ADMISSION = "admission"


class Guard(enum.Enum):
    """What decides between two rows of the same state and event: the group's outcome.

    KEPT: no rank touched its weights, and this rank held a version. DROPPED: the opposite.
    """

    KEPT = "kept"
    DROPPED = "dropped"

    def holds(self, *, kept: bool) -> bool:
        """Whether the guard lets its row through.

        Raises
        ------
        wsm.errors.BadInputError
            If `kept` is not a bool. `transitions` compares with ``==``: any other truthy value would fail
            both guards, and the event would vanish.
        """
        require_bools(kept=kept)
        return kept is (self is Guard.KEPT)


@dataclass(frozen=True)
class Row:
    """One transition.

    `dest`: where it ends; the source again where an event is taken in without a change. Which plans run on it
    follows from the commands (:func:`.check.plans_on`).
    """

    source: State
    event: Event
    dest: State
    guard: Guard | None = None
    note: str = ""


@dataclass(frozen=True)
class Chart:
    """A table with what the checks and the diagrams must know about it besides its rows.

    `meanings`: its states in the order in which they are shown, each in one line. `working`: states in which
    work is going on, with the event that says that it succeeded. `deciding`: states that only a decision of
    the group ends.
    """

    machine: MachineName
    rows: tuple[Row, ...]
    events: tuple[Event, ...]
    initial: State
    meanings: Mapping[State, str]
    working: Mapping[State, Event]
    deciding: frozenset[State] = frozenset()
    _index: dict[tuple[State, Event], tuple[Row, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        index: dict[tuple[State, Event], tuple[Row, ...]] = {}
        for row in self.rows:
            key = (row.source, row.event)
            index[key] = (*index.get(key, ()), row)
        object.__setattr__(self, "_index", index)

    @property
    def states(self) -> tuple[State, ...]:
        """Its states."""
        return tuple(self.meanings)

    def rows_for(self, state: State, event: Event) -> tuple[Row, ...]:
        """Return the rows of one pair, in the table's order; none where the event is refused."""
        return self._index.get((state, event), ())

    def find(self, state: State, event: Event, *, kept: bool = False) -> Row | None:
        """Return the row that an event takes, or None where it is refused.

        Raises
        ------
        wsm.errors.BadInputError
            If `kept` is not a bool and a guard depends on it.
        """
        for row in self._index.get((state, event), ()):
            if row.guard is None or row.guard.holds(kept=kept):
                return row
        return None

    def legal(self, state: State) -> tuple[Event, ...]:
        """Return the events that are not refused in a state, in the order in which they are shown."""
        return tuple(event for event in self.events if self.rows_for(state, event))


_W, _E = WeightState, WeightEvent
_K, _F = KVState, KVEvent

WEIGHT_TABLE: tuple[Row, ...] = (
    # clear
    Row(
        _W.NORMAL,
        _E.CLEAR,
        _W.CLEARING,
        note="every rank stands; discard where a rank had not begun when the group chose to drop",
    ),
    Row(_W.CLEARING, _E.CLEARED, _W.CLEARED, note="the memory is measured to be free"),
    Row(_W.CLEARING, _E.FAIL, _W.FAULTED, note="a teardown action raised, or memory is still held"),
    Row(
        _W.CLEARING,
        _E.ABORT,
        _W.CLEARING,
        note="a clear that failed elsewhere: a rank that has begun goes on to clear",
    ),
    Row(_W.CLEARED, _E.CLEAR, _W.CLEARED, note="nothing to do"),
    Row(_W.CLEARED, _E.ABORT, _W.CLEARED, note="nothing to take back"),
    # update
    Row(_W.CLEARED, _E.UPDATE, _W.UPDATING, note="the boot load is an update like any other"),
    Row(
        _W.NORMAL,
        _E.UPDATE,
        _W.UPDATING,
        note="without giving memory back first; hot where the new weights stand beside the old already",
    ),
    Row(_W.UPDATING, _E.PREPARED, _W.PREPARED, note="all that can fail is done and verified"),
    Row(_W.UPDATING, _E.ABORT, _W.NORMAL, Guard.KEPT, note="what was begun is undone; as before the command"),
    # decision
    Row(_W.PREPARED, _E.COMMIT, _W.NORMAL, note="all ranks are PREPARED with matching manifests"),
    Row(_W.PREPARED, _E.ABORT, _W.NORMAL, Guard.KEPT, note="what was done is undone; as before the command"),
    *(
        Row(
            state,
            _E.ABORT,
            _W.CLEARING,
            Guard.DROPPED,
            note="some rank's weights are not whole, or this one held none",
        )
        for state in (_W.UPDATING, _W.PREPARED)
    ),
    # the KV cache was to go alone, and did not
    *(
        Row(state, _E.FAIL, _W.FAULTED, note="a teardown of the KV cache alone failed")
        for state in (_W.NORMAL, _W.CLEARED)
    ),
    # repair
    Row(_W.FAULTED, _E.CLEAR, _W.CLEARING, note="teardown is idempotent"),
    # a new epoch
    Row(_W.CLEARED, _E.LOST, _W.CLEARED, note="a new epoch; all that was held was given back before"),
)

KV_TABLE: tuple[Row, ...] = (
    Row(_K.NORMAL, _F.CLEAR, _K.CLEARING, note="release begins, beside that of the weights or alone"),
    Row(_K.CLEARING, _F.CLEARED, _K.CLEARED, note="blocks and prefix tree are gone"),
    Row(_K.CLEARING, _F.CLEAR, _K.CLEARING, note="asked again: release is idempotent"),
    Row(_K.CLEARED, _F.CLEAR, _K.CLEARED, note="nothing to do"),
    Row(
        _K.CLEARED,
        _F.UPDATE,
        _K.UPDATING,
        note="rebuild begins, for weights that are loaded, or over those that are there",
    ),
    Row(_K.NORMAL, _F.UPDATE, _K.UPDATING, note="blocks of the old weights are forgotten, memory is kept"),
    Row(_K.UPDATING, _F.REBUILT, _K.NORMAL, note="a cache without blocks of other weights stands"),
    Row(_K.UPDATING, _F.CLEAR, _K.CLEARING, note="the command is being dropped"),
    Row(_K.CLEARED, _F.LOST, _K.CLEARED, note="a new epoch; all that was held was given back before"),
)

WEIGHT_CHART = Chart(
    machine=MachineName.WEIGHTS,
    rows=WEIGHT_TABLE,
    events=tuple(_E),
    initial=_W.CLEARED,
    meanings={
        _W.NORMAL: "holds a committed version, verified; serves beside a KV cache that is NORMAL too",
        _W.CLEARING: "gives its memory back",
        _W.CLEARED: "holds no weights; a new process starts here",
        _W.UPDATING: "loads and verifies; ends by prepared or by the group's decision",
        _W.PREPARED: "new weights are verified; only a decision or a new epoch counts",
        _W.FAULTED: "a teardown failed; serves nothing until it is cleared",
    },
    working={_W.CLEARING: _E.CLEARED, _W.UPDATING: _E.PREPARED},
    deciding=frozenset({_W.PREPARED}),
)

KV_CHART = Chart(
    machine=MachineName.KV,
    rows=KV_TABLE,
    events=tuple(_F),
    initial=_K.CLEARED,
    meanings={
        _K.NORMAL: "blocks can be written and read",
        _K.CLEARING: "gives its memory back",
        _K.CLEARED: "holds nothing; a new process starts here",
        _K.UPDATING: "is being rebuilt, or emptied for new weights",
    },
    working={_K.CLEARING: _F.CLEARED, _K.UPDATING: _F.REBUILT},
)

_A, _G = Admission, AdmissionEvent

ADMISSION_TABLE: tuple[Row, ...] = (
    Row(_A.OPEN, _G.HOLD, _A.HELD, note="all ranks stand at one step, decided; or its epoch begins held"),
    Row(_A.HELD, _G.RELEASE, _A.OPEN, note="decided, of a group that can serve; or its epoch begins open"),
)

ADMISSION_CHART = Chart(
    machine=MachineName.ADMISSION,
    rows=ADMISSION_TABLE,
    events=tuple(_G),
    initial=_A.OPEN,
    meanings={
        _A.OPEN: "steps may begin where weights and KV cache are NORMAL",
        _A.HELD: "no step begins, whatever is in memory; only a decision of the group ends it",
    },
    working={},
)

#: Of what a rank holds. An event of the one may need the other to be somewhere (:mod:`.joint`).
MEMORY_CHARTS = (WEIGHT_CHART, KV_CHART)

CHARTS = (*MEMORY_CHARTS, ADMISSION_CHART)
