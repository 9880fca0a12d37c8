"""One arrival per registered strategy: how its good versions come about, and how they are damaged."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from arrivals import ARRIVALS, Arrival, as_parameters


@pytest.fixture(params=as_parameters(sorted(ARRIVALS)))
def arrival(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Arrival]:
    made = ARRIVALS[request.param](tmp_path)
    try:
        yield made
    finally:
        made.close()
