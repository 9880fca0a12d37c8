"""The live state machines of one rank, and the one door through which events reach them.

The only module that knows the `transitions` library; all others see :class:`LifeCycle`. The library decides:
the guard of a row and the joint rules about it (:func:`wsm.states.joint.objection`) are the conditions of its
transition, so a machine takes what the tables allow, and nothing else. The tables are asked behind it, for
the record and for the text of a refusal. :func:`wsm.states.joint.step` says the same without a machine, for
the explorer; a test goes through every state, event and flag and holds both together.

What `transitions` does surprisingly is shut out here:

* With ``queued=True`` it answers True even where a condition said no, and drops what is queued when one event
  raises. So nothing is queued.
* A row whose condition says no is passed over for the next row of the same event. The guards of such rows
  exclude each other, so none is taken in the place of another; a test tries it with every fact.
* ``on_exception``, ``finalize_event`` and ``ignore_invalid_triggers`` swallow errors, so none is set. Besides
  the conditions there are no callbacks: one that raises leaves a machine moved or not, depending on its kind.
* Overlapping calls from two threads would be taken in one after the other, in any order. They are refused.
* A model's state can be assigned wherever the model is known. The models are private.
* ``auto_transitions`` would add ``to_NORMAL()`` and its like, past every rule.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from transitions import Machine, MachineError

from wsm.errors import InternalError
from wsm.states import joint
from wsm.states.errors import IllegalTransitionError, require_bools
from wsm.states.joint import JointState
from wsm.states.table import ADMISSION_CHART, KV_CHART, WEIGHT_CHART, Chart, Event, Row, State
from wsm.states.vocabulary import Admission, AdmissionEvent, KVEvent, KVState, WeightEvent, WeightState

if logging.getLogger("transitions").level == logging.NOTSET:
    # It reports every callback at INFO; a host that wants that sets the level before or after, and it holds.
    logging.getLogger("transitions").setLevel(logging.WARNING)


class TransitionRecord(NamedTuple):
    """One transition that happened.

    `source`, `dest`: names of states; the same where the event was taken in without a change. `guard`: value
    of the guard that let it through. `at_ns`: monotonic clock of the host, as the caller read it. `kv_kept`:
    whether the KV policy keeps the old weights' blocks; tells something for ``update`` of weights only.
    """

    machine: str
    source: str
    event: str
    dest: str
    guard: str | None
    at_ns: int
    epoch: int
    sequence: int
    cause: str
    kv_kept: bool = True


class Edge(NamedTuple):
    """One transition as the live machine knows it, by names."""

    source: str
    event: str
    dest: str
    guard: str | None


class Facts(NamedTuple):
    """All that a condition may look at: flags and states alone, so that a proof goes through all of them."""

    joint: JointState
    kept: bool


#: How many transitions a life cycle remembers.
_RECORDS = 256

#: Name of the condition that every transition has; a guard has the name of its value.
_JOINT_RULES = "joint_rules"


class _Model:
    """What `transitions` keeps the state on; it binds a method per event to it, and none is called."""

    state: Any


class ChartMachine:
    """One chart as a machine of `transitions`. Private to :class:`LifeCycle` and to the static checks."""

    def __init__(self, chart: Chart) -> None:
        self.chart = chart
        self.model = _Model()
        self._machine = Machine(
            self.model,
            states=list(chart.states),
            initial=chart.initial,
            transitions=[_transition(row) for row in chart.rows],
            auto_transitions=False,
            send_event=True,
            queued=False,
        )

    def take(self, event: Event, facts: Facts) -> bool:
        """Let the machine decide; return whether it took the event in."""
        try:
            return bool(self._machine.events[event.value].trigger(self.model, facts=facts))
        except MachineError:  # no row of this state takes the event
            return False

    def edges(self) -> frozenset[Edge]:
        """Return every edge as `transitions` itself reports it."""
        found = set()
        for event in self._machine.events.values():
            for source, transitions in event.transitions.items():
                for transition in transitions:
                    names = [getattr(condition.func, "__name__", "") for condition in transition.conditions]
                    guard = next((name for name in names if name != _JOINT_RULES), None)
                    found.add(Edge(source, event.name, str(transition.dest), guard))
        return frozenset(found)

    def taken_names(self) -> frozenset[str]:
        """Return the names that an event must not have: calling it would do something else than fire."""
        bound = {name for event in self.chart.events for name in (event.value, f"may_{event.value}")}
        return frozenset(dir(_Model)) | (frozenset(vars(self.model)) - bound)


def _transition(row: Row) -> dict[str, Any]:
    guard = row.guard
    conditions = [_condition(_JOINT_RULES, lambda facts: joint.objection(facts.joint, row) is None)]
    if guard is not None:
        conditions.insert(0, _condition(guard.value, lambda facts: guard.holds(kept=facts.kept)))
    return {"trigger": row.event.value, "source": row.source, "dest": row.dest, "conditions": conditions}


def _condition(name: str, holds: Callable[[Facts], bool]) -> Callable[[Any], bool]:
    def condition(event_data: Any) -> bool:
        return holds(event_data.kwargs["facts"])

    condition.__name__ = name
    return condition


class _At(NamedTuple):
    """Where a rank is, and what follows from that."""

    joint: JointState
    admission: Admission
    whole: bool
    serving: bool


def _at(known: JointState, admission: Admission) -> _At:
    whole = joint.serving(known.weights, known.kv)
    return _At(known, admission, whole, whole and admission is Admission.OPEN)


class LifeCycleView(NamedTuple):
    """The machines of a rank at one moment, for readers.

    `edges`: every transition that there is, by machine, as `transitions` itself reports them. `records`: what
    happened last, the newest at the end; 256 at most.
    """

    weights: WeightState
    kv: KVState
    admission: Admission
    edges: Mapping[str, frozenset[Edge]]
    records: tuple[TransitionRecord, ...]


class LifeCycle:
    """Where one rank is, and the one way to change that.

    One thread at a time. An event costs about ten microseconds; a serving loop fires none.
    """

    def __init__(self) -> None:
        self._machines: dict[type[Event], ChartMachine] = {
            WeightEvent: ChartMachine(WEIGHT_CHART),
            KVEvent: ChartMachine(KV_CHART),
            AdmissionEvent: ChartMachine(ADMISSION_CHART),
        }
        self._at = _at(joint.START, Admission.OPEN)
        self._records: deque[TransitionRecord] = deque(maxlen=_RECORDS)
        self._inside = threading.Lock()

    #: Where the weights are, where the KV cache is, and whether steps may begin whatever is held. Fields of
    #: what the last event has led to, read without a call of Python: a rank asks at every look.
    weights: WeightState = property(attrgetter("_at.joint.weights"))  # type: ignore[assignment]  # it is read only
    kv: KVState = property(attrgetter("_at.joint.kv"))  # type: ignore[assignment]  # it is read only
    admission: Admission = property(attrgetter("_at.admission"))  # type: ignore[assignment]  # it is read only
    #: Where weights and KV cache are, and what their states alone do not tell.
    joint: JointState = property(attrgetter("_at.joint"))  # type: ignore[assignment]  # it is read only
    #: Whether weights and KV cache are there, all that a step needs in memory.
    whole: bool = property(attrgetter("_at.whole"))  # type: ignore[assignment]  # it is read only
    #: Whether the rank may run a step.
    serving: bool = property(attrgetter("_at.serving"))  # type: ignore[assignment]  # it is read only

    def can(self, event: Event, *, kept: bool = False) -> bool:
        """Whether :meth:`fire` would take the event in now. Without side effects.

        Raises
        ------
        wsm.errors.BadInputError
            If `kept` is not a bool.
        """
        require_bools(kept=kept)
        ask = getattr(self._machines[type(event)].model, f"may_{event.value}")
        return bool(ask(facts=Facts(self.joint, kept)))

    def fire(
        self,
        event: Event,
        *,
        at_ns: int,
        epoch: int,
        sequence: int,
        kept: bool = False,
        kv_kept: bool = True,
        cause: str = "",
    ) -> TransitionRecord:
        """Take in one event.

        `at_ns`: monotonic clock, in ns; goes into the record. `kept`: for ``abort``: no rank touched its
        weights, and this one held a version. `kv_kept`: for ``update`` of the weights: False says that the
        blocks of the old weights must not survive, and ``prepared`` is refused until the KV cache was rebuilt
        or forgotten.

        Raises
        ------
        IllegalTransitionError
            If the table has no row for it. Nothing was changed.
        JointRuleError
            If weights and KV cache would not go together. Nothing was changed.
        wsm.errors.BadInputError
            If a flag is not a bool. Nothing was changed.
        wsm.errors.InternalError
            If another thread is in here. Nothing was changed by this call.
        """
        if not self._inside.acquire(blocking=False):
            raise InternalError(
                f"{event.value!r} was fired while another event was being taken in; one thread at a time may "
                "drive a life cycle, the one that runs the event loop",
                code="concurrent-fire",
                event=event.value,
            )
        try:
            require_bools(kept=kept, kv_kept=kv_kept)
            machine = self._machines[type(event)]
            source: State = machine.model.state
            if not machine.take(event, Facts(self.joint, kept)):
                raise self._refusal(machine, event, kept=kept)
            row = machine.chart.find(source, event, kept=kept)
            if row is None or machine.model.state is not row.dest:
                raise _disagreement(machine, event, row, found=str(machine.model.state.name))
            admission = row.dest if isinstance(row.dest, Admission) else self.admission
            self._at = _at(joint.follow(self.joint, row, kv_kept=kv_kept), admission)
            guard = None if row.guard is None else row.guard.value
            record = TransitionRecord(
                machine.chart.machine.value,
                row.source.name,
                event.value,
                row.dest.name,
                guard,
                at_ns,
                epoch,
                sequence,
                cause,
                kv_kept,
            )
            self._records.append(record)
            return record
        finally:
            self._inside.release()

    def view(self) -> LifeCycleView:
        """Return what a reader may know."""
        return LifeCycleView(self.weights, self.kv, self.admission, self.edges(), tuple(self._records))

    def edges(self) -> dict[str, frozenset[Edge]]:
        """Return the edges of the live machines by name, for the proof that a drawing shows these."""
        return {machine.chart.machine.value: machine.edges() for machine in self._machines.values()}

    def _refusal(self, machine: ChartMachine, event: Event, *, kept: bool) -> Exception:
        row = machine.chart.find(machine.model.state, event, kept=kept)
        if row is None:
            return joint.no_row(machine.chart, machine.model.state, event)
        if not isinstance(event, AdmissionEvent):
            try:
                joint.step(self.joint, event, kept=kept)
            except IllegalTransitionError as error:
                return error
        return _disagreement(machine, event, row, found="a refusal")


def _disagreement(machine: ChartMachine, event: Event, row: Row | None, *, found: str) -> InternalError:
    name, expected = machine.chart.machine.value, "no transition" if row is None else row.dest.name
    return InternalError(
        f"the {name} machine answered {event.value!r} with {found}, its table says {expected}; this is a bug "
        "in wsm, or a version of transitions that wsm was not tested with",
        code="machine-disagrees",
        machine=name,
        event=event.value,
        expected=expected,
        found=found,
    )
