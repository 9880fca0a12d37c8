"""How long tests take: each run says it in ``durations.json``, and begins with the files that take longest.

Which ones these are is in ``tests/durations.json``, seconds by file: pytest-xdist gives out files in the
order in which they stand, and a long one that comes last is waited for alone. ``python -m tests.durations``
writes it anew from the last run of all tests.

``--part 2/3`` plays the second of three parts of what was chosen, by the tests' names: the tests that take
long are played in parts that turn with the date (.ci/run), all of them by ``make test-slow``.
"""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
#: Seconds of each test of the last run, by its name; this machine's, and not kept in git.
OF_TESTS = ROOT / "durations.json"
#: Seconds of each file of tests.
OF_FILES = ROOT / "tests" / "durations.json"

_seconds: defaultdict[str, float] = defaultdict(float)


def add_options(parser: pytest.Parser) -> None:
    """Let a run be one part of several."""
    parser.addoption(
        "--part", metavar="K/N", type=_part, help="play part K of N of the tests chosen, K from 1 on"
    )


@pytest.hookimpl(trylast=True)  # when pytest has chosen by mark
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose the part, and begin with the longest files; the tests of a file stay in their order."""
    if (part := config.getoption("--part")) is not None:
        which, parts = part
        others = [item for item in items if zlib.crc32(item.nodeid.encode()) % parts != which - 1]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]
    known: dict[str, float] = json.loads(OF_FILES.read_text())
    items.sort(key=lambda item: -known.get(_file_of(item.nodeid), 0.0))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up setup, test and teardown; the report may come from another process."""
    _seconds[report.nodeid] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write what this run has seen; a process of pytest-xdist leaves that to the one that started it."""
    if not hasattr(session.config, "workerinput") and _seconds:
        seconds = {test: round(taken, 3) for test, taken in sorted(_seconds.items())}
        OF_TESTS.write_text(json.dumps(seconds, indent=1) + "\n")


def _part(text: str) -> tuple[int, int]:
    which, parts = map(int, text.split("/"))
    if not 1 <= which <= parts:
        raise ValueError(text)
    return which, parts


def _file_of(test: str) -> str:
    return test.partition("::")[0]


def main() -> None:
    """Write the seconds of each file, of those that take one at least, from the last run."""
    files: defaultdict[str, float] = defaultdict(float)
    for test, seconds in json.loads(OF_TESTS.read_text()).items():
        files[_file_of(test)] += seconds
    kept = {name: round(files[name]) for name in sorted(files) if files[name] >= 1}
    OF_FILES.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
