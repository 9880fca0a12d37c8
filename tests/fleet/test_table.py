"""The table of a fleet: what one replica counts as, explored with all that may be late or lost."""

from __future__ import annotations

import pytest
from model import CONTENTS, explore

from wsm.states import fleet
from wsm.states.fleet import FleetEvent, FleetState, LookAnswer

ONE, TWO, THREE = CONTENTS


def test_the_table_is_sound_and_a_row_that_is_missing_or_wrong_is_named(monkeypatch) -> None:
    assert fleet.fleet_faults() == []
    whole = dict(fleet.FLEET_TABLE)
    lacking = {pair: dest for pair, dest in whole.items() if pair != (FleetState.STALE, FleetEvent.SERVES)}
    monkeypatch.setattr(fleet, "FLEET_TABLE", lacking)
    assert fleet.fleet_faults() == ["STALE SERVES has no row"]
    lazy = {**whole, (FleetState.READY, FleetEvent.SILENT): FleetState.READY}
    monkeypatch.setattr(fleet, "FLEET_TABLE", lazy)
    assert "READY keeps its proof behind SILENT" in fleet.fleet_faults()


@pytest.mark.slow
def test_two_callers_and_a_watcher_break_no_promise_whatever_is_lost_or_late() -> None:
    worlds, wrong = explore(replicas=2, looks=3)
    assert wrong is None
    assert worlds > 1000


@pytest.mark.slow
def test_three_replicas_break_no_promise_either() -> None:
    assert explore(replicas=3, looks=3)[1] is None


def late_counts(answer, target, look):
    serves = answer is not None and answer.serving and fleet.admits(answer.digest, target)
    return FleetEvent.SERVES if serves else FleetEvent.SILENT if answer is None else FleetEvent.OTHER


FAULTS = {
    "a late answer counts": ("seen", late_counts),
    "generation is not looked at": ("may_step", lambda _generation, _newest: True),
    "allowed is only the new digest": (
        "admits",
        lambda digest, target: target is not None and digest == target.content.digest,
    ),
    "back takes a label without digest": ("way_back", lambda _target, found: found),
    "watch trusts its last look": ("is_routable", lambda proved, _look: proved is not None),
    "silence keeps the proof": (
        "after",
        lambda state, event: state if event is FleetEvent.SILENT else fleet.FLEET_TABLE[state, event],
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_seeded_fault_breaks_a_promise(monkeypatch, fault: str) -> None:
    name, wrong = FAULTS[fault]
    monkeypatch.setattr(fleet, name, wrong)
    looks = 5 if name == "is_routable" else 3
    assert explore(replicas=1 if looks == 5 else 2, looks=looks)[1] is not None


def test_the_next_target_allows_the_content_before_until_all_serve_the_new_one() -> None:
    first = fleet.next_target(None, ONE)
    rolling = fleet.next_target(first, TWO, at_a_time=3)
    settled = fleet.next_target(rolling, TWO, strict=True)
    assert (rolling.allowed, rolling.before) == ((TWO, ONE), ONE)
    assert (settled.allowed, settled.before, settled.generation) == ((TWO,), ONE, 3)
    assert fleet.next_target(settled, TWO) == settled, "the same again is no new target"
    assert fleet.next_target(settled, THREE, strict=True).allowed == (THREE,)


def test_nothing_is_admitted_without_a_target_and_no_answer_of_another_look_proves_anything() -> None:
    target = fleet.next_target(fleet.next_target(None, ONE), TWO)
    assert not fleet.admits(ONE.digest, None)
    assert not fleet.admits(None, target)
    assert fleet.admits(ONE.digest, target)
    for look, generation in ((1, 2), (2, 1)):
        late = LookAnswer(look, generation, TWO.digest, serving=True)
        assert fleet.seen(late, target, 2) is FleetEvent.SILENT
    assert fleet.takes("two", None, target)
    assert not fleet.takes("two", "digest-other", target)
    assert not fleet.takes("three", None, target)
