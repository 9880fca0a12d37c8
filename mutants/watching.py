"""A plugin of pytest, for processes that play tests: what failed, and which functions of wsm each test ran.

``MUTANTS_FAILED`` names the file that has the test that is being run, and behind it says how it failed;
``MUTANTS_REACH`` the file that gets every test that passed, with the functions that its own process entered.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

SOURCES = Path(__file__).parent.parent / "src" / "wsm"
FAILED = "MUTANTS_FAILED"
REACH = "MUTANTS_REACH"

_entered: dict[int, CodeType] = {}
_seconds: dict[str, float] = {}
_red: set[str] = set()
#: Of each test: the file and the first line of each function.
_of_tests: dict[str, tuple[str, list[tuple[str, int]]]] = {}


def tier(item: pytest.Item) -> str:
    """Return where a test stands: it needs no process, it starts some, or it is slow."""
    return next((mark for mark in ("slow", "processes") if item.get_closest_marker(mark)), "thread")


def _enter(frame: FrameType, _event: str, _argument: Any) -> None:
    """Note a function when it is entered; its lines are not followed."""
    _entered[id(frame.f_code)] = frame.f_code


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    """Say which test runs now, and what it enters."""
    if path := os.environ.get(FAILED):
        Path(path).write_text(json.dumps({"test": item.nodeid, "tier": tier(item), "how": "never ends"}))
    if REACH in os.environ:
        _entered.clear()
        threading.settrace(_enter)
        sys.settrace(_enter)
    answer = yield
    if REACH in os.environ:
        sys.settrace(None)
        where = [
            (Path(code.co_filename), code.co_firstlineno) for code in list(_entered.values())
        ]  # threads go on
        ours = sorted({(str(p.relative_to(SOURCES)), n) for p, n in where if p.is_relative_to(SOURCES)})
        _of_tests[item.nodeid] = tier(item), ours
    return answer


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up setup, test and teardown, and say what failed first."""
    _seconds[report.nodeid] = _seconds.get(report.nodeid, 0.0) + report.duration
    if not report.failed:
        return
    if (path := os.environ.get(FAILED)) and not _red:
        said = json.loads(Path(path).read_text())
        how = "hangs" if "from pytest-timeout" in str(report.longrepr) else "fails"
        Path(path).write_text(json.dumps({**said, "how": how, "seconds": _seconds[report.nodeid]}))
    _red.add(report.nodeid)


def pytest_sessionfinish() -> None:
    """Write down what each test that passed has entered."""
    if path := os.environ.get(REACH):
        passed = {test: told for test, told in _of_tests.items() if test not in _red}
        Path(path).write_text(
            json.dumps(
                {test: [_seconds[test], *told] for test, told in passed.items()}, separators=(",", ":")
            )
        )
