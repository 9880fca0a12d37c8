"""Every seeded fault is caught, by a shortest way; and nothing is caught where nothing is seeded."""

from __future__ import annotations

import contextlib

import pytest
from seeded_faults import FAULTS, Fault, hunt, seeded

from explorer import dialogue
from explorer.errors import ScenarioError
from explorer.scope import Scope
from explorer.search import explore

#: Far more than any of them needs; a way of this length is no example of anything.
LONGEST_WAY = 60


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_seeded_fault_is_caught_and_the_way_there_can_be_gone_again(
    fault: Fault, record_property: pytest.FixtureRequest
) -> None:
    found = hunt(fault)
    assert found.violation is not None, f"{fault.name} was missed in {found.states} worlds"
    assert 0 < len(found.violation.moves) <= LONGEST_WAY
    record_property("moves", len(found.violation.moves))
    record_property("broken", found.violation.broken)
    trace = dialogue.render(found.violation, found.scope.ranks)
    assert max(map(len, trace.splitlines())) <= dialogue.WIDTH
    assert "BROKEN:" in trace
    told = dialogue.read(dialogue.as_text(found.violation, found.scope))
    with seeded(fault):
        assert dialogue.replay(told).broken == found.violation.broken
    # Without the fault, somebody does not do what the way says, or nothing comes of it.
    with contextlib.suppress(ScenarioError):
        assert not dialogue.replay(told).broken


@pytest.mark.parametrize("scope", sorted({fault.scope for fault in FAULTS}))
def test_nothing_is_caught_where_nothing_is_seeded(scope: str) -> None:
    found = explore(Scope.from_text(scope))
    assert found.violation is None
    assert found.complete


def test_the_sixteen_faults_of_the_model_are_here_and_more_than_a_dozen_of_our_own() -> None:
    assert sum(fault.of_model for fault in FAULTS) == 16
    assert sum(not fault.of_model for fault in FAULTS) >= 12
