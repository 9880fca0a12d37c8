"""The plans that the committed diagrams show: those of an engine that has everything."""

from __future__ import annotations

import pytest

from wsm.actions.options import PlanOptions
from wsm.actions.plan import derive_plans
from wsm.actions.surfaces import GroupKind
from wsm.states.diagram import PlanSummary, render_all, summarise


@pytest.fixture(scope="session")
def plans() -> tuple[PlanSummary, ...]:
    everything = PlanOptions(
        has_graphs=True,
        has_draft_graphs=True,
        has_deepep=True,
        auxiliaries=("mtp",),
        group_kinds=tuple(GroupKind),
        shut_down_groups=True,
        routing_replay=True,
    )
    return summarise(derive_plans(everything))


@pytest.fixture(scope="session")
def rendered(plans: tuple[PlanSummary, ...]) -> dict[str, str]:
    return render_all(plans)
