"""The door to the machines: records, threads, and the traps of `transitions` behind it."""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable
from itertools import product
from typing import Any, get_type_hints

import pytest
from transitions import Machine

from wsm.errors import BadInputError, InternalError
from wsm.states import machine as machine_module
from wsm.states.errors import (
    IllegalTransitionError,
)
from wsm.states.joint import START, JointState, step
from wsm.states.machine import Facts, LifeCycle, TransitionRecord
from wsm.states.table import CHARTS, Event, Guard
from wsm.states.vocabulary import KVEvent, KVState, WeightEvent, WeightState


def fire_into(life: LifeCycle, event: WeightEvent | KVEvent, **flags: bool) -> TransitionRecord:
    return life.fire(event, at_ns=1, epoch=1, sequence=1, **flags)


def test_the_life_of_a_serving_rank_from_boot_to_the_next_version(
    life: LifeCycle, fire: Callable[..., object]
) -> None:
    for _ in range(3):
        fire(WeightEvent.UPDATE)
        fire(KVEvent.UPDATE)
        fire(KVEvent.REBUILT)
        fire(WeightEvent.PREPARED)
        assert not life.serving
        fire(WeightEvent.COMMIT)
        assert life.serving
        fire(WeightEvent.CLEAR)
        assert not life.serving
        fire(KVEvent.CLEAR)
        fire(KVEvent.CLEARED)
        fire(WeightEvent.CLEARED)
        assert life.joint == START


def test_a_failed_teardown_serves_nothing_until_it_is_cleared_again(
    life: LifeCycle, fire: Callable[..., object]
) -> None:
    fire(WeightEvent.UPDATE)
    fire(WeightEvent.ABORT, kept=False)
    fire(WeightEvent.FAIL)
    assert life.weights is WeightState.FAULTED
    assert not life.can(WeightEvent.UPDATE)
    fire(WeightEvent.CLEAR)
    fire(WeightEvent.CLEARED)
    assert life.joint == START


def test_a_record_tells_the_whole_transition(life: LifeCycle) -> None:
    life.fire(WeightEvent.UPDATE, at_ns=5, epoch=3, sequence=8, cause="update r-17")
    record = life.fire(WeightEvent.ABORT, at_ns=7, epoch=3, sequence=8, kept=False, cause="rank 1 failed")
    assert record == TransitionRecord(
        machine="weights",
        source="UPDATING",
        event="abort",
        dest="CLEARING",
        guard="dropped",
        at_ns=7,
        epoch=3,
        sequence=8,
        cause="rank 1 failed",
        kv_kept=True,
    )


def test_states_are_the_members_that_callers_compare_with(
    life: LifeCycle, fire: Callable[..., object]
) -> None:
    # The code of NORMAL is 0, which is false: nothing on the way may ask "is there a state?" by its truth.
    fire(WeightEvent.UPDATE)
    fire(KVEvent.UPDATE)
    fire(KVEvent.REBUILT)
    fire(WeightEvent.PREPARED)
    fire(WeightEvent.COMMIT)
    assert life.weights is WeightState.NORMAL
    assert life.kv is KVState.NORMAL
    fire(WeightEvent.CLEAR)
    assert life.weights is WeightState.CLEARING


def test_the_state_cannot_be_assigned(life: LifeCycle) -> None:
    for name in ("weights", "kv", "joint", "serving"):
        with pytest.raises(AttributeError):
            setattr(life, name, WeightState.NORMAL)


def test_asking_what_can_happen_changes_nothing(life: LifeCycle) -> None:
    for event in (*WeightEvent, *KVEvent):
        life.can(event)
        life.can(event, kept=True)
    assert not life.view().records
    assert life.joint == START


def test_the_machine_is_asked_what_can_happen_as_it_is_when_it_happens() -> None:
    for facts, event in product(everything(Facts), (*WeightEvent, *KVEvent)):
        put(ANY, facts.joint)
        can = ANY.can(event, kept=facts.kept)
        assert ANY.joint == facts.joint
        assert can is (taken_by_the_machine(facts.joint, event, kept=facts.kept, kv_kept=True) is not None), (
            facts,
            event,
        )


def test_only_the_events_of_the_tables_exist_on_the_machines(life: LifeCycle) -> None:
    edges = life.edges()
    assert set(edges) == {"weights", "kv", "admission"}
    events = {edge.event for machine in edges.values() for edge in machine}
    assert not [event for event in events if event.startswith("to_")], "auto transitions pass every rule"


def test_two_machines_move_apart(life: LifeCycle, fire: Callable[..., object]) -> None:
    # Both take `update`; two machines on one model, or two regions of one machine, would share it.
    fire(WeightEvent.UPDATE)
    assert (life.weights, life.kv) == (WeightState.UPDATING, KVState.CLEARED)
    fire(KVEvent.UPDATE)
    assert (life.weights, life.kv) == (WeightState.UPDATING, KVState.UPDATING)


def test_an_event_that_a_guard_stops_is_not_reported_as_taken(
    life: LifeCycle, fire: Callable[..., object]
) -> None:
    # With a queue, `transitions` answers True for it.
    fire(WeightEvent.UPDATE)
    with pytest.raises(IllegalTransitionError):
        fire(WeightEvent.ABORT, kept=True)
    assert life.weights is WeightState.UPDATING


def test_a_guard_is_asked_with_a_real_bool_only() -> None:
    for value in (2, "yes", [1], None, ""):
        with pytest.raises(BadInputError, match="must be True or False"):
            Guard.KEPT.holds(kept=value)  # type: ignore[arg-type] - the trap


ANY = LifeCycle()


def put(life: LifeCycle, there: JointState) -> None:
    """Put the live machines somewhere, reachable or not."""
    life._machines[WeightEvent].model.state = there.weights
    life._machines[KVEvent].model.state = there.kv
    life._at = life._at._replace(joint=there)


def states_of(life: LifeCycle) -> tuple[object, object]:
    """Where the models of `transitions` are."""
    return life._machines[WeightEvent].model.state, life._machines[KVEvent].model.state


def taken_by_the_machine(before: JointState, event: Event, *, kept: bool, kv_kept: bool) -> JointState | None:
    """Where the live machines go from a state, reachable or not; None if they refuse and stay."""
    put(ANY, before)
    try:
        fire_into(ANY, event, kept=kept, kv_kept=kv_kept)
    except IllegalTransitionError:
        assert ANY.joint == before
        assert states_of(ANY) == before[:2]
        return None
    assert states_of(ANY) == ANY.joint[:2]
    return ANY.joint


def taken_by_the_tables(before: JointState, event: Event, *, kept: bool, kv_kept: bool) -> JointState | None:
    try:
        return step(before, event, kept=kept, kv_kept=kv_kept)[1]
    except IllegalTransitionError:
        return None


def test_the_machines_go_where_the_tables_and_the_joint_rules_lead_from_every_state_and_nowhere_else() -> (
    None
):
    for facts, event, kv_kept in product(everything(Facts), (*WeightEvent, *KVEvent), (False, True)):
        before, kept = facts.joint, facts.kept
        after = taken_by_the_machine(before, event, kept=kept, kv_kept=kv_kept)
        expected = taken_by_the_tables(before, event, kept=kept, kv_kept=kv_kept)
        assert after == expected, (before, event, kept, kv_kept)


def everything(kind: Any) -> list[Any]:
    """All values of a flag, an enumeration, or a record of such; any other kind has no end."""
    if kind is bool:
        return [False, True]
    if issubclass(kind, enum.Enum):
        return list(kind)
    fields = get_type_hints(kind)
    assert fields, f"a condition looks at {kind}, of which no proof can go through all values"
    return [kind(*values) for values in product(*map(everything, fields.values()))]


def test_a_condition_sees_a_closed_record_of_flags_and_states() -> None:
    assert len(everything(Facts)) == len(WeightState) * len(KVState) * 2**3


def test_without_the_joint_rules_the_machines_would_go_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    stale = JointState(WeightState.UPDATING, KVState.NORMAL, kv_stale=True, had_version=True)
    assert taken_by_the_machine(stale, WeightEvent.PREPARED, kept=False, kv_kept=True) is None
    monkeypatch.setattr(machine_module.joint, "objection", lambda _joint, _row: None)
    after = taken_by_the_machine(stale, WeightEvent.PREPARED, kept=False, kv_kept=True)
    assert after is not None
    assert after.weights is WeightState.PREPARED


def test_a_machine_that_leaves_its_table_is_noticed(
    monkeypatch: pytest.MonkeyPatch, life: LifeCycle, fire: Callable[..., object]
) -> None:
    wrong = Machine.set_state

    def elsewhere(self: Machine, state: object, model: object = None) -> None:
        wrong(self, "FAULTED", model)

    monkeypatch.setattr(Machine, "set_state", elsewhere)
    with pytest.raises(InternalError, match="FAULTED, its table says UPDATING"):
        fire(WeightEvent.UPDATE)


def test_a_machine_that_refuses_what_its_table_allows_is_noticed(
    monkeypatch: pytest.MonkeyPatch, life: LifeCycle, fire: Callable[..., object]
) -> None:
    def refuse(*_: object, **__: object) -> bool:
        raise machine_module.MachineError("no")

    monkeypatch.setattr("transitions.core.Event._trigger", refuse)
    with pytest.raises(InternalError, match="a refusal"):
        fire(WeightEvent.UPDATE)
    assert life.joint == START


def test_a_second_thread_is_refused_while_the_first_is_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    life = LifeCycle()
    inside, leave = threading.Event(), threading.Event()
    really = Machine.set_state

    def slowly(self: Machine, state: object, model: object = None) -> None:
        inside.set()
        assert leave.wait(10)
        really(self, state, model)

    monkeypatch.setattr(Machine, "set_state", slowly)
    first = threading.Thread(target=fire_into, args=(life, WeightEvent.UPDATE))
    first.start()
    try:
        assert inside.wait(10)
        with pytest.raises(InternalError, match="one thread at a time"):
            fire_into(life, KVEvent.UPDATE)
    finally:
        leave.set()
        first.join()
    assert life.weights is WeightState.UPDATING
    fire_into(life, KVEvent.UPDATE)


def test_one_thread_after_the_other_may_drive(life: LifeCycle) -> None:
    threads = [
        threading.Thread(target=fire_into, args=(life, event))
        for event in (WeightEvent.UPDATE, KVEvent.UPDATE, KVEvent.REBUILT)
    ]
    for thread in threads:
        thread.start()
        thread.join()
    assert life.kv is KVState.NORMAL


def test_a_refused_event_leaves_the_door_open(life: LifeCycle, fire: Callable[..., object]) -> None:
    for _ in range(3):
        with pytest.raises(IllegalTransitionError):
            fire(WeightEvent.COMMIT)
    fire(WeightEvent.UPDATE)
    assert life.weights is WeightState.UPDATING


def test_firing_writes_no_log_line_of_the_library(
    life: LifeCycle, fire: Callable[..., object], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        fire(WeightEvent.UPDATE)
    assert not [line for line in caplog.records if line.name.startswith("transitions")]


def test_every_life_cycle_has_machines_of_its_own() -> None:
    one, other = LifeCycle(), LifeCycle()
    fire_into(one, WeightEvent.UPDATE)
    assert other.joint == START


def test_no_event_is_hidden_by_an_attribute_of_the_model() -> None:
    for chart in CHARTS:
        assert not {event.value for event in chart.events} & machine_module.ChartMachine(chart).taken_names()
