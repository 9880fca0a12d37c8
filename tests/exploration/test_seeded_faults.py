"""Every seeded fault is caught, by a shortest way; and nothing is caught where nothing is seeded."""

from __future__ import annotations

import contextlib

import pytest
from seeded_faults import FAULTS, Fault, hunt, seeded

from explorer import dialogue
from explorer.errors import ScenarioError
from explorer.scope import Budget, Scope
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
    told = dialogue.read(dialogue.as_text(found.violation, found.scope))
    with seeded(fault):
        assert dialogue.replay(told).broken == found.violation.broken
    # Without the fault, somebody does not do what the way says, or nothing comes of it.
    with contextlib.suppress(ScenarioError):
        assert not dialogue.replay(told).broken


def lies_within(small: Scope, large: Scope) -> bool:
    """Whether every order of events within some bounds is possible within others."""
    alike = (
        "ranks",
        "helpers",
        "afters",
        "owners",
        "requests",
        "restores",
        "halves",
        "long_plans",
        "fine",
        "symmetric",
    )
    return (
        all(getattr(small, name) == getattr(large, name) for name in alike)
        and all(small.budget(budget) <= large.budget(budget) for budget in Budget)
        and set(small.operations) <= set(large.operations)
        and set(small.starts) <= set(large.starts)
    )


def largest_scopes() -> list[str]:
    """Bounds of the faults, without those that lie within others."""
    found: list[Scope] = []
    for scope in sorted({Scope.from_text(fault.scope) for fault in FAULTS}, key=Scope.as_text):
        if not any(lies_within(scope, other) for other in found):
            found = [other for other in found if not lies_within(other, scope)] + [scope]
    return [scope.as_text() for scope in found]


@pytest.mark.slow
@pytest.mark.parametrize("scope", largest_scopes())
def test_nothing_is_caught_where_nothing_is_seeded(scope: str) -> None:
    found = explore(Scope.from_text(scope))
    assert found.violation is None
    assert found.complete


def test_the_faults_of_the_model_are_here_and_more_than_a_dozen_of_our_own() -> None:
    assert sum(fault.of_model for fault in FAULTS) >= 22
    assert sum(not fault.of_model for fault in FAULTS) >= 12
