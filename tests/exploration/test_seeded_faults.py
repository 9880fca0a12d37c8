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


@pytest.mark.slow_but
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


#: Bounds beside those of the faults, within which no rule is broken either.
OTHERS = (
    "commands=0 steps=0 failures=1 rank_crashes=2 operations=update starts=serving",
    "commands=2 failures=1 operations=clear starts=cleared,serving",
    "commands=2 operations=hold,update starts=serving",
    "commands=2 steps=0 failures=1 operations=clear,update starts=serving restores=True",
    "commands=2 steps=0 leases=1 operations=hold,clear starts=serving",
    "commands=2 steps=0 rank_crashes=1 operations=hold,update starts=serving",
    "commands=3 steps=0 operations=hold,release starts=serving owners=True",
    "commands=3 steps=0 operations=hold,release,clear starts=serving",
    "commands=3 steps=0 rank_crashes=1 operations=clear,update starts=serving",
    "failures=1 operations=update starts=serving",
    "helpers=1 operations=hot_update starts=serving",
    "helpers=1 steps=0 failures=1 operations=clear starts=serving halves=True",
    "helpers=1 steps=0 failures=1 operations=update starts=serving",
    "helpers=1 steps=0 operations=update starts=cleared halves=True",
    "rank_crashes=1 operations=hold starts=serving",
    "ranks=1 commands=2 steps=0 failures=2 rank_crashes=1 operations=hold,clear starts=serving",
    "ranks=3 steps=0 broken_steps=1 operations=update starts=cleared",
    "ranks=3 steps=2 operations=hot_update starts=serving",
    "steps=0 controller_losses=1 operations=hot_update starts=serving deciders=2",
    "steps=0 controller_stops=2 operations=hot_update starts=serving deciders=2 fine=True",
    "steps=0 failures=2 rank_crashes=1 operations=clear,update starts=serving",
    "steps=0 give_ups=1 controller_crashes=1 operations=update starts=cleared fine=True",
    "steps=0 hangs=1 operations=update starts=serving",
    "steps=0 operations=update starts=serving fine=True",
    "steps=0 rank_crashes=1 controller_crashes=1 operations=hold starts=serving",
    "steps=0 rank_crashes=1 operations=update starts=cleared halves=True",
    "steps=0 rank_crashes=2 operations=clear starts=serving",
)


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
    """Bounds without those that lie within others."""
    found: list[Scope] = []
    for scope in sorted(
        {*map(Scope.from_text, (*OTHERS, *(fault.scope for fault in FAULTS)))}, key=Scope.as_text
    ):
        if not any(lies_within(scope, other) for other in found):
            found = [other for other in found if not lies_within(other, scope)] + [scope]
    return [scope.as_text() for scope in found]


@pytest.mark.slow
@pytest.mark.parametrize("scope", largest_scopes())
def test_nothing_is_caught_where_nothing_is_seeded(scope: str) -> None:
    found = explore(Scope.from_text(scope))
    assert found.violation is None
    assert found.complete
