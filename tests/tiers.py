"""The tiers of tests: pure, of groups in one thread, of processes.

``pytest.mark.processes`` stands at what starts processes; the other two follow from what a file of tests
uses. ``make test-pure`` plays the first tier before each commit. One limit counts for all, by which a test
hangs: on cores that others use, a pure test may take as long as another one does elsewhere.
"""

from __future__ import annotations

import pytest

#: Names by which a file of tests, or its fixtures, has all ranks of a group in the test's thread.
_GROUPS = frozenset({"LocalGroup", "LoneRank", "lone", "make_lone"})


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by mark
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its tier."""
    for item in items:
        if item.get_closest_marker("processes") is None:
            fixtures, module = getattr(item, "fixturenames", ()), getattr(item, "module", object)
            item.add_marker("pure" if _GROUPS.isdisjoint({*fixtures, *vars(module)}) else "groups")
