"""What the committed diagrams show: an engine that has everything."""

from __future__ import annotations

import pytest

from drawing.engine import engine_with_everything
from drawing.files import every_text
from wsm.actions.base import Plans
from wsm.actions.plan import derive_plans


@pytest.fixture(scope="session")
def plans() -> Plans:
    return derive_plans(engine_with_everything())


@pytest.fixture(scope="session")
def rendered() -> dict[str, str]:
    return every_text()
