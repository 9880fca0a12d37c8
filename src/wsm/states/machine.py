"""The live state machines of one rank, and the one door through which events reach them.

The only module that knows the `transitions` library; everybody else sees :class:`LifeCycle`. What
`transitions` does well is kept (it decides the next state from rows and guards), what it does surprisingly
is shut out here:

* ``queued=True`` answers True even where a guard said no, and drops what is queued when one event raises. So
  nothing is ever queued: observers run after the machine is at rest, and what the machine did is compared
  with its table's row every time.
* ``on_exception``, ``finalize_event`` and ``ignore_invalid_triggers`` swallow errors, so none is set. Besides
  the guards there are no callbacks: one that raises leaves a machine moved or not, depending on its kind.
* From a second thread a queued event would run later, on the first thread. Overlapping calls are refused.
* A model's state can be assigned by anybody who has the model. The models are private.
* ``auto_transitions`` would add ``to_NORMAL()`` and its like, past every rule.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from transitions import Machine, MachineError

from wsm.states import joint
from wsm.states.chart import Chart, Event, Guard, Row
from wsm.states.errors import ConcurrentFireError, IllegalTransitionError, MachineDisagreesError
from wsm.states.joint import JointState
from wsm.states.record import TransitionRecord
from wsm.states.table import KV_CHART, WEIGHT_CHART
from wsm.states.vocabulary import KVEvent, KVState, WeightEvent, WeightState

Observer = Callable[[TransitionRecord], None]


class Edge(NamedTuple):
    """One transition as the live machine knows it, by names."""

    source: str
    event: str
    dest: str
    guard: str | None


class _Model:
    """What `transitions` keeps the state on; it binds a method per event to it, which nobody calls."""

    state: Any


class ChartMachine:
    """One chart as a machine of `transitions`. Private to :class:`LifeCycle` and to the static checks.

    Parameters
    ----------
    chart : Chart
        What it is built from.
    """

    def __init__(self, chart: Chart) -> None:
        self.chart = chart
        self._model = _Model()
        self._machine = Machine(
            self._model,
            states=list(chart.states),
            initial=chart.initial,
            transitions=[_transition(row) for row in chart.rows],
            auto_transitions=False,
            send_event=True,
            queued=True,
        )

    @property
    def state(self) -> Any:
        """Where it is: a member of the chart's states."""
        return self._model.state

    def take(self, row: Row, *, kept: bool) -> None:
        """Let the machine decide, and compare what it did with the row that the table says.

        Raises
        ------
        MachineDisagreesError
            If it refused, or went elsewhere.
        """
        try:
            self._machine.events[row.event.value].trigger(self._model, kept=kept)
        except MachineError as error:
            raise self._disagreement(row, f"a refusal ({error})") from error
        if self._model.state is not row.dest:
            raise self._disagreement(row, str(self._model.state.name))

    def edges(self) -> frozenset[Edge]:
        """Return every edge as `transitions` itself reports it."""
        found = set()
        for event in self._machine.events.values():
            for source, transitions in event.transitions.items():
                for transition in transitions:
                    guards = [_name_of(condition.func) for condition in transition.conditions]
                    found.add(Edge(source, event.name, str(transition.dest), guards[0] if guards else None))
        return frozenset(found)

    def taken_names(self) -> frozenset[str]:
        """Return the names that an event must not have: calling it would do something else than fire."""
        bound = {name for event in self.chart.events for name in (event.value, f"may_{event.value}")}
        return frozenset(dir(_Model)) | (frozenset(vars(self._model)) - bound)

    def _disagreement(self, row: Row, found: str) -> MachineDisagreesError:
        return MachineDisagreesError(
            machine=self.chart.region.value, event=row.event.value, expected=row.dest.name, found=found
        )


def _transition(row: Row) -> dict[str, Any]:
    return {
        "trigger": row.event.value,
        "source": row.source,
        "dest": row.dest,
        "conditions": [] if row.guard is None else [_condition(row.guard)],
    }


def _condition(guard: Guard) -> Callable[[Any], bool]:
    def holds(event_data: Any) -> bool:
        return guard.holds(kept=event_data.kwargs["kept"])

    holds.__name__ = guard.value
    return holds


def _name_of(function: Any) -> str:
    return str(function.__name__)


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
        self._joint = joint.START
        self._observers = tuple(observers)
        self._undelivered: deque[TransitionRecord] = deque()
        self._delivering = False
        self._inside = threading.Lock()

    @property
    def weights(self) -> WeightState:
        """Where the weights are."""
        state: WeightState = self._weights.state
        return state

    @property
    def kv(self) -> KVState:
        """Where the KV cache is."""
        state: KVState = self._kv.state
        return state

    @property
    def joint(self) -> JointState:
        """Where both are, and what their states alone do not tell."""
        return self._joint._replace(weights=self.weights, kv=self.kv)

    @property
    def serving(self) -> bool:
        """Whether the rank may run a step."""
        return joint.serving(self.weights, self.kv)

    def can(self, event: Event, *, kept: bool = False) -> bool:
        """Whether :meth:`fire` would take the event in now. Without side effects.

        Raises
        ------
        FlagError
            If `kept` is not a bool.
        """
        try:
            joint.step(self.joint, event, kept=kept)
        except IllegalTransitionError:
            return False
        return True

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
        event : WeightEvent or KVEvent
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
        FlagError
            If a flag is not a bool. Nothing was changed.
        ConcurrentFireError
            If another thread is in here. Nothing was changed by this call.
        """
        if not self._inside.acquire(blocking=False):
            raise ConcurrentFireError(event=event.value)
        try:
            row, after = joint.step(self.joint, event, kept=kept, kv_kept=kv_kept)
            machine = self._weights if isinstance(event, WeightEvent) else self._kv
            machine.take(row, kept=kept)
            self._joint = after
        finally:
            self._inside.release()
        record = TransitionRecord(
            machine.chart.region.value,
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
        if self._observers:
            self._deliver(record)
        return record

    def lose(
        self, *, at_ns: int, epoch: int, sequence: int, cause: str = "a new epoch"
    ) -> tuple[TransitionRecord, ...]:
        """Take in that a new epoch has begun: both are CLEARED, the KV cache first. Never refused.

        The parameters are those of :meth:`fire`. Returns both records.
        """
        return tuple(
            self.fire(event, at_ns=at_ns, epoch=epoch, sequence=sequence, cause=cause)
            for event in (KVEvent.LOST, WeightEvent.LOST)
        )

    def edges(self) -> dict[str, frozenset[Edge]]:
        """Return the edges of the live machines by name, for the proof that a drawing shows these."""
        return {machine.chart.region.value: machine.edges() for machine in (self._weights, self._kv)}

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
