"""The daily exploration: at least a million worlds on two processes, and no rule is broken in any of them."""

from __future__ import annotations

import pytest

from explorer.dialogue import as_text
from explorer.scope import Survey
from explorer.search import explore

MILLION = 1_000_000


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(1800)  # six minutes on two quiet cores, and cores may be shared
def test_a_million_worlds_of_many_kinds_break_no_rule() -> None:
    states = 0
    for scope in Survey.DAILY.scopes:
        found = explore(scope, processes=2)
        assert found.violation is None, as_text(found.violation, scope)
        assert found.complete
        states += found.states
    assert states >= MILLION


def test_the_surveys_mix_everything_that_can_happen() -> None:
    for survey in Survey:
        scopes = survey.scopes
        assert any(scope.ranks > 2 for scope in scopes)
        assert any(scope.fine for scope in scopes)
        assert any(scope.stale_reads for scope in scopes)
        assert any(scope.rank_crashes and scope.controller_crashes for scope in scopes)
        assert any(scope.broken_steps for scope in scopes)
        assert any(scope.hangs and scope.controller_stops for scope in scopes)
