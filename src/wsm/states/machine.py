"""The live state machines of one rank, and the one door through which events reach them.

The only module that knows the `transitions` library; all others see :class:`LifeCycle`. The library decides:
the guard of a row and the joint rules about it (:func:`wsm.states.joint.objection`) are the conditions of its
transition, so a machine takes what the tables allow, and nothing else. :func:`wsm.states.joint.step` says the
same without a machine, for the explorer; a test goes through every state, event and flag and holds both
together.

What `transitions` does surprisingly is shut out here:

* With ``queued=True`` it answers True even where a condition said no, and drops what is queued when one event
  raises. So nothing is queued: observers run after the machine is at rest.
* A row whose condition says no is passed over for the next row of the same event. The guards of such rows
  exclude each other, so none is taken in the place of another; :mod:`.check` tries it with every fact.
* ``on_exception``, ``finalize_event`` and ``ignore_invalid_triggers`` swallow errors, so none is set. Besides
  the conditions there are no callbacks: one that raises leaves a machine moved or not, depending on its kind.
* Overlapping calls from two threads would be taken in one after the other, in any order. They are refused.
* A model's state can be assigned wherever the model is known. The models are private.
* ``auto_transitions`` would add ``to_NORMAL()`` and its like, past every rule.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, NamedTuple

from transitions import Machine, MachineError

from wsm.states import joint
from wsm.states.errors import IllegalTransitionError, concurrent_fire, machine_disagrees
from wsm.states.joint import JointState
from wsm.states.journal import TransitionRecord
from wsm.states.table import ADMISSION_CHART, KV_CHART, WEIGHT_CHART, Chart, Event, Guard, Row, State
from wsm.states.vocabulary import Admission, AdmissionEvent, KVEvent, KVState, WeightEvent, WeightState

Observer = Callable[[TransitionRecord], None]


class Edge(NamedTuple):
    """One transition as the live machine knows it, by names."""

    source: str
    event: str
    dest: str
    guard: str | None


class Facts(NamedTuple):
    """All that a condition may look at: flags and states alone, so that a proof can go through all of them.

    Parameters
    ----------
    joint : JointState
        Where weights and KV cache are, and what their states alone do not tell.
    kept : bool
        For ``abort``: the outcome of the group.
    """

    joint: JointState
    kept: bool


#: Name of the condition that every transition has; a guard has the name of its value.
_JOINT_RULES = "joint_rules"


class _Model:
    """What `transitions` keeps the state on; it binds a method per event to it, and none is called.

    Attributes
    ----------
    state : State
        Where the machine is: a member of the chart's states. Only the machine assigns it.
    """

    state: Any


class ChartMachine:
    """One chart as a machine of `transitions`. Private to :class:`LifeCycle` and to the static checks.

    Parameters
    ----------
    chart : Chart
        What it is built from.

    Attributes
    ----------
    model : _Model
        Where it is.
    """

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

    def take(self, event: Event, facts: Facts, expected: State | None) -> bool:
        """Let the machine decide; return whether it moved. Nothing is left to be done behind the move.

        Parameters
        ----------
        expected : State or None
            Where the table leads; None: it has no row.

        Raises
        ------
        wsm.errors.InternalError
            If it went elsewhere.
        """
        try:
            moved = bool(self._machine.events[event.value].trigger(self.model, facts=facts))
        except MachineError:  # no row of this state takes the event
            return False
        if moved and self.model.state is not expected:
            raise machine_disagrees(
                machine=self.chart.machine.value,
                event=event.value,
                expected="no transition" if expected is None else expected.name,
                found=str(self.model.state.name),
            )
        return moved

    def would_go(self, state: State, event: Event, facts: Facts) -> State | None:
        """Return where the machine goes from a state, or None if it refuses; it is where it was afterwards.

        For the static checks and for proofs; unreachable states are taken, too.
        """
        before, self.model.state = self.model.state, state
        try:
            moved = self._machine.events[event.value].trigger(self.model, facts=facts)
            went: State | None = self.model.state if moved else None
        except MachineError:
            went = None
        self.model.state = before
        return went

    def edges(self) -> frozenset[Edge]:
        """Return every edge as `transitions` itself reports it."""
        found = set()
        for event in self._machine.events.values():
            for source, transitions in event.transitions.items():
                for transition in transitions:
                    names = [_name_of(condition.func) for condition in transition.conditions]
                    guard = next((name for name in names if name != _JOINT_RULES), None)
                    found.add(Edge(source, event.name, str(transition.dest), guard))
        return frozenset(found)

    def taken_names(self) -> frozenset[str]:
        """Return the names that an event must not have: calling it would do something else than fire."""
        bound = {name for event in self.chart.events for name in (event.value, f"may_{event.value}")}
        return frozenset(dir(_Model)) | (frozenset(vars(self.model)) - bound)


def _transition(row: Row) -> dict[str, Any]:
    guards = [] if row.guard is None else [_guarded(row.guard)]
    return {
        "trigger": row.event.value,
        "source": row.source,
        "dest": row.dest,
        "conditions": [*guards, _allowed(row)],
    }


def _guarded(guard: Guard) -> Callable[[Any], bool]:
    def holds(event_data: Any) -> bool:
        facts: Facts = event_data.kwargs["facts"]
        return guard.holds(kept=facts.kept)

    holds.__name__ = guard.value
    return holds


def _allowed(row: Row) -> Callable[[Any], bool]:
    def holds(event_data: Any) -> bool:
        facts: Facts = event_data.kwargs["facts"]
        return joint.objection(facts.joint, row) is None

    holds.__name__ = _JOINT_RULES
    return holds


def _name_of(function: Any) -> str:
    return str(function.__name__)


class _At(NamedTuple):
    """Where a rank is, and what follows from that."""

    joint: JointState
    admission: Admission
    whole: bool
    serving: bool


def _at(known: JointState, admission: Admission) -> _At:
    whole = joint.serving(known.weights, known.kv)
    return _At(known, admission, whole, whole and admission is Admission.OPEN)


class LifeCycle:
    """Where one rank is, and the one way to change that.

    One thread at a time. An event costs about ten microseconds; a serving loop fires none.

    Parameters
    ----------
    observers : iterable of callable
        Each is called with every :class:`TransitionRecord`, in the order of the transitions, after the
        machines are at rest; it may fire. What one raises reaches the caller of :meth:`fire` after the
        others were called; the transition stands.
    """

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self._weights = ChartMachine(WEIGHT_CHART)
        self._kv = ChartMachine(KV_CHART)
        self._admission = ChartMachine(ADMISSION_CHART)
        self._by_event: dict[type[Event], ChartMachine] = {
            WeightEvent: self._weights,
            KVEvent: self._kv,
            AdmissionEvent: self._admission,
        }
        self._at = _at(joint.START, self._admission.model.state)
        self._observers = tuple(observers)
        self._undelivered: deque[TransitionRecord] = deque()
        self._delivering = False
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
        if {type(kept)} != {bool}:
            raise joint.flag_error(kept=kept)
        machine = self._by_event[type(event)]
        row = machine.chart.find(machine.model.state, event, kept=kept)
        return row is not None and joint.objection(self.joint, row) is None

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

        Parameters
        ----------
        event : WeightEvent, KVEvent or AdmissionEvent
            What happened; its type says to which machine.
        at_ns : int
            Monotonic clock, in ns; goes into the record.
        epoch, sequence : int
            The command that it belongs to; go into the record.
        kept : bool
            For ``abort``: no rank touched its weights, and this one held a version.
        kv_kept : bool
            For ``update`` of the weights: False says that the blocks of the old weights must not survive, and
            ``prepared`` is refused until the KV cache was rebuilt or forgotten.
        cause : str
            Why; goes into the record.

        Returns
        -------
        TransitionRecord
            What happened.

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
            raise concurrent_fire(event=event.value)
        try:
            if {type(kept), type(kv_kept)} != {bool}:
                raise joint.flag_error(kept=kept, kv_kept=kv_kept)
            before = self.joint
            machine = self._by_event[type(event)]
            row = machine.chart.find(machine.model.state, event, kept=kept)
            there, record = self._at, None
            if row is not None:
                # What may raise for want of memory comes before the move, so that no move goes unrecorded.
                admission = row.dest if isinstance(row.dest, Admission) else there.admission
                there = _at(joint.follow(before, row, kv_kept=kv_kept), admission)
                record = TransitionRecord(
                    machine.chart.machine.value,
                    row.source.name,
                    event.value,
                    row.dest.name,
                    None if row.guard is None else row.guard.value,
                    at_ns,
                    epoch,
                    sequence,
                    cause,
                    kv_kept,
                )
            moved = False
            try:
                moved = machine.take(event, Facts(before, kept), None if row is None else row.dest)
            finally:
                # Also where a shortage or a signal cut it short behind the move.
                came = row is not None and row.source is not row.dest and machine.model.state is row.dest
                if moved or came:
                    self._at = there
        finally:
            self._inside.release()
        if not moved or record is None:
            raise self._refusal(machine, event, kept=kept)
        if self._observers:
            self._deliver(record)
        return record

    def lose(
        self, *, at_ns: int, epoch: int, sequence: int, cause: str = "a new epoch"
    ) -> tuple[TransitionRecord, ...]:
        """Take in that a new epoch has begun, the KV cache first; both are CLEARED by then.

        The parameters are those of :meth:`fire`. Returns both records.

        Raises
        ------
        IllegalTransitionError
            If anything is held still. Nothing was changed.
        """
        return tuple(
            self.fire(event, at_ns=at_ns, epoch=epoch, sequence=sequence, cause=cause)
            for event in (KVEvent.LOST, WeightEvent.LOST)
        )

    def edges(self) -> dict[str, frozenset[Edge]]:
        """Return the edges of the live machines by name, for the proof that a drawing shows these."""
        return {machine.chart.machine.value: machine.edges() for machine in self._machines}

    @property
    def _machines(self) -> tuple[ChartMachine, ...]:
        return self._weights, self._kv, self._admission

    def _refusal(self, machine: ChartMachine, event: Event, *, kept: bool) -> Exception:
        """Return the error that says which rule refused the event."""
        if isinstance(event, AdmissionEvent):
            return joint.no_row(machine.chart, machine.model.state, event)
        try:
            row, _ = joint.step(self.joint, event, kept=kept)
        except IllegalTransitionError as error:
            return error
        return machine_disagrees(
            machine=machine.chart.machine.value, event=event.value, expected=row.dest.name, found="a refusal"
        )

    def _deliver(self, record: TransitionRecord) -> None:
        """Call the observers; what they fire themselves reaches all of them after this record."""
        self._undelivered.append(record)
        if self._delivering:
            return
        self._delivering = True
        raised: list[BaseException] = []
        try:
            while self._undelivered:
                current = self._undelivered.popleft()
                for observer in self._observers:
                    raised += _call(observer, current)
        finally:
            self._delivering = False
        if raised:
            raise raised[0]


def _call(observer: Observer, record: TransitionRecord) -> list[BaseException]:
    try:
        observer(record)
    except BaseException as error:  # noqa: BLE001 - raised by the caller, when all observers were called
        return [error]
    return []
