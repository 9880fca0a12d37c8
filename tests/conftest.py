"""What holds for every test: Hypothesis profiles, and that a session leaves nothing behind.

Processes and shared memory outlive a test that forgets them; the check at the end of the session makes
the forgetting visible. It knows nothing about single packages.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import psutil
import pytest

from tests.gpu.machine import missing_for_gpu_tests

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - not a place for our files: the place that is checked
PATIENCE_S = 10.0

hypothesis.settings.register_profile("development", max_examples=50, deadline=None)
hypothesis.settings.register_profile("ci", max_examples=50, deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.register_profile("thorough", max_examples=2000, deadline=None)
hypothesis.settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "development")
)


@pytest.hookimpl(trylast=True)  # when pytest has chosen by mark
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose tests that need a GPU only where their mark asks for them; refuse where there is none."""
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if "gpu" not in str(config.option.markexpr):
        config.hook.pytest_deselected(items=on_gpu)
        items[:] = [item for item in items if item not in on_gpu]
    elif on_gpu and (lacking := missing_for_gpu_tests()) is not None:
        message = f"{len(on_gpu)} of the tests that were asked for need a GPU, and cannot run here: {lacking}"
        raise pytest.UsageError(message)


# A shell starts background jobs with Ctrl-C ignored, and every process that a test starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    before = _shared_names()
    yield
    children = [
        child for child in psutil.Process().children(recursive=True) if not _is_resource_tracker(child)
    ]
    assert not children, f"tests left processes behind: {[_describe(child) for child in children]}"
    # A group of another session on this machine may be coming or going right now: look again for a while.
    deadline = time.monotonic() + PATIENCE_S
    while (abandoned := _abandoned(before)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not abandoned, f"tests left shared memory behind: {abandoned}"


def _abandoned(before: set[str]) -> list[str]:
    """Names that appeared during the session and belong to no group that lives."""
    appeared = sorted(_shared_names() - before)
    living = [name for name in appeared if _is_in_use(name)]
    return [name for name in appeared if not any(name.startswith(segment) for segment in living)]


def _shared_names() -> set[str]:
    return {entry.name for entry in SHARED_MEMORY.iterdir() if "wsm" in entry.name}


def _is_in_use(name: str) -> bool:
    """Whether a living process holds the file: then it belongs to another session on this machine."""
    return any(_holds(process, SHARED_MEMORY / name) for process in Path("/proc").glob("[0-9]*"))


def _holds(process: Path, path: Path) -> bool:
    try:
        maps = (process / "maps").read_text()
        return str(path) in maps or any(fd.readlink() == path for fd in (process / "fd").iterdir())
    except OSError:  # ended while we looked, or not ours to look at
        return False


def _is_resource_tracker(process: psutil.Process) -> bool:
    """multiprocessing starts one per process on its own; it ends with us."""
    try:
        return any("resource_tracker" in part or "forkserver" in part for part in process.cmdline())
    except psutil.NoSuchProcess:
        return True


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid}: {' '.join(process.cmdline())[:200]}"
    except psutil.NoSuchProcess:
        return f"{process.pid}: ended"
