"""What a table of transitions is made of: rows, guards, and the chart that holds them together.

Responsible for the shape of the tables and for looking rows up; the rows themselves are in
:mod:`wsm.states.table`. It knows neither `transitions` nor how anything is drawn.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from wsm.states.errors import FlagError
from wsm.states.vocabulary import KVEvent, KVState, PlanName, WeightEvent, WeightState

State = WeightState | KVState
Event = WeightEvent | KVEvent


class Region(enum.Enum):
    """The two orthogonal regions of a rank's life cycle, one machine each."""

    WEIGHTS = "weights"
    KV = "kv"


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
        FlagError
            If `kept` is not a bool. `transitions` compares with ``==``: any other truthy value would fail
            both guards, and the event would vanish.
        """
        if type(kept) is not bool:
            raise FlagError(flag="kept", value=kept)
        return kept is (self is Guard.KEPT)


@dataclass(frozen=True)
class Row:
    """One transition.

    Parameters
    ----------
    source : State
        Where it starts.
    event : Event
        What happens.
    dest : State
        Where it ends; the source again where an event is taken in without a change.
    guard : Guard or None
        What must hold; None: nothing.
    note : str
        What it means, for a reviewer.
    plans : tuple of PlanName
        The work that it starts: the first one usually, another one as the note says.
    """

    source: State
    event: Event
    dest: State
    guard: Guard | None = None
    note: str = ""
    plans: tuple[PlanName, ...] = ()

    def admits(self, *, kept: bool) -> bool:
        """Whether the row's guard, if it has one, holds."""
        return self.guard is None or self.guard.holds(kept=kept)


@dataclass(frozen=True)
class Chart:
    """A table with what the checks and the diagrams must know about it besides its rows.

    Parameters
    ----------
    region : Region
        Whose life it describes.
    rows : tuple of Row
        The table.
    states, events : tuple
        Every state and event that there is, in the order in which they are shown.
    initial : State
        Where a new process starts.
    meanings : mapping of State to str
        What it means to be there, in one line.
    working : mapping of State to Event
        States in which work is going on, with the event that says that it succeeded.
    deciding : frozenset of State
        States that only a decision of the group ends.
    final : frozenset of State
        States that are never left, except by a new epoch.
    """

    region: Region
    rows: tuple[Row, ...]
    states: tuple[State, ...]
    events: tuple[Event, ...]
    initial: State
    meanings: Mapping[State, str]
    working: Mapping[State, Event]
    deciding: frozenset[State] = frozenset()
    final: frozenset[State] = frozenset()
    _index: dict[tuple[State, Event], tuple[Row, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        index: dict[tuple[State, Event], tuple[Row, ...]] = {}
        for row in self.rows:
            key = (row.source, row.event)
            index[key] = (*index.get(key, ()), row)
        object.__setattr__(self, "_index", index)

    def rows_for(self, state: State, event: Event) -> tuple[Row, ...]:
        """Return the rows of one pair, in the table's order; none where the event is refused."""
        return self._index.get((state, event), ())

    def find(self, state: State, event: Event, *, kept: bool = False) -> Row | None:
        """Return the row that an event takes, or None where it is refused.

        Raises
        ------
        FlagError
            If `kept` is not a bool and a guard depends on it.
        """
        return next((row for row in self.rows_for(state, event) if row.admits(kept=kept)), None)

    def legal(self, state: State) -> tuple[Event, ...]:
        """Return the events that are not refused in a state, in the order in which they are shown."""
        return tuple(event for event in self.events if self.rows_for(state, event))
