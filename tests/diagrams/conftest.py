"""The plans that the committed diagrams show: those of an engine that has everything."""

from __future__ import annotations

import pytest

from wsm.actions.plan import derive_plans
from wsm.cli.diagrams import EVERYTHING, every_diagram
from wsm.states.diagram import PlanSummary, summarise


@pytest.fixture(scope="session")
def plans() -> tuple[PlanSummary, ...]:
    return summarise(derive_plans(EVERYTHING))


@pytest.fixture(scope="session")
def rendered() -> dict[str, str]:
    return every_diagram()
