"""The tiers of tests: pure, of groups in one thread, of processes; and what of them is slow.

``pytest.mark.processes`` stands at what starts processes; the other two follow from what a file of tests
uses. ``make test-pure`` plays the first tier before each commit. One limit counts for all, by which a test
hangs: on cores that others use, a pure test may take as long as another one does elsewhere.

``pytest.mark.slow`` stands at what ``make test`` leaves to ``make test-slow``. ``pytest.mark.slow_but``
leaves the cases of a test to it, except those of the names that it gives (``*`` stands for any text), or
else the first.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

import pytest

#: Names by which a file of tests, or its fixtures, has all ranks of a group in the test's thread.
_GROUPS = frozenset({"LocalGroup", "LoneRank", "lone", "make_lone"})


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by mark
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with its tier, and slow cases."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("processes") is None:
            fixtures, module = getattr(item, "fixturenames", ()), getattr(item, "module", object)
            item.add_marker("pure" if _GROUPS.isdisjoint({*fixtures, *vars(module)}) else "groups")
        if item.get_closest_marker("slow_but") is not None and (case := _case_of(item)) is not None:
            cases.setdefault(item.nodeid.removesuffix(f"[{case}]"), []).append(item)
    named_by_user = any("::" in argument for argument in config.args)
    for test, of_test in cases.items():
        quick = [item for item in of_test if _is_named(item)]
        if not quick and not named_by_user and _names(of_test[0]):
            raise pytest.UsageError(f"{test} has no case of the names that its slow_but gives")
        for item in of_test:
            if item not in (quick or of_test[:1]):
                item.add_marker("slow")


def _case_of(item: pytest.Item) -> str | None:
    call = getattr(item, "callspec", None)
    return None if call is None else call.id


def _names(item: pytest.Item) -> Iterable[str]:
    mark = item.get_closest_marker("slow_but")
    return () if mark is None else mark.args


def _is_named(item: pytest.Item) -> bool:
    case = _case_of(item)
    return case is not None and any(case == name or fnmatchcase(case, name) for name in _names(item))
