"""The part of the fault campaign that is played on every change, and a short run for what grows."""

from __future__ import annotations

import pytest

from campaign.command import SLICES
from campaign.conductor import list_cases, play_all
from campaign.endurance import endure
from campaign.families import sample

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.mark.timeout(600)  # five minutes on two quiet cores would be far too long already; they may be busy
@pytest.mark.parametrize(
    ("kind", "ranks", "family"), [pytest.param(*group, marks=[pytest.mark.paddle]) for group in SLICES["ci"]]
)
def test_every_fault_of_the_slice_has_an_outcome_that_the_tables_name(kind, ranks, family):
    cases = sample(list_cases(kind, ranks, family), SLICES["ci"][kind, ranks, family])
    results = play_all(cases, jobs=2, tell=lambda result: None)
    bad = [result for result in results if not result.good]
    assert not bad, "\n".join(f"{result.case}: {result.problems} {result.leftovers}" for result in bad)
    assert {str(case) for case in cases} <= {result.case for result in results}
    assert sum(result.checked for result in results) > len(cases)


def test_a_hundred_cycles_let_nothing_grow():
    run = endure("memory", 120)
    assert not run.grown
    assert run.first.shared_files >= 2
