"""What holds for every test: Hypothesis profiles, and that a session leaves nothing behind.

Processes and shared memory outlive a test that forgets them; the check at the end of the session makes
the forgetting visible. It knows nothing about single packages.
"""

from __future__ import annotations

import faulthandler
import json
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import hypothesis
import psutil
import pytest

import wsm
from tests import needs
from tests.gpu.machine import missing_for_gpu_tests
from wsm.states.journal import read_ndjson
from wsm.states.replay import replay
from wsm.states.rerun import Rerun

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - not a place for our files: the place that is checked
PATIENCE_S = 10.0
EXIT_S = 60.0

#: Every process that this session starts has it in its environment, and none of another session.
MARK = "WSM_TEST_SESSION"
os.environ.setdefault(MARK, secrets.token_hex(8))

hypothesis.settings.register_profile("development", max_examples=50, deadline=None)
hypothesis.settings.register_profile("ci", max_examples=50, deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.register_profile("thorough", max_examples=2000, deadline=None)
hypothesis.settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE", "ci" if needs.in_ci() else "development")
)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(needs)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Name the thread for which Python waits at its exit, and end: a failed test may have left one behind."""
    if not hasattr(config, "workerinput"):  # a process of pytest-xdist waits for the others to be done
        faulthandler.dump_traceback_later(EXIT_S, exit=True)


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
# So does nohup with the hangup. What is handled here is in its usual state in every program that is started.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda _number, _frame: None)


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
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
    if abandoned and (others := _other_sessions()):
        # The kernel does not tell who made a file: with others about, blame is for whoever runs alone.
        terminal = request.config.pluginmanager.get_plugin("terminalreporter")
        terminal.write_line(f"\nleft in {SHARED_MEMORY}, by these tests or by {others[0]}: {abandoned}")
        return
    assert not abandoned, f"tests left shared memory behind: {abandoned}"


@pytest.fixture(autouse=True)
def journals_are_possible(request: pytest.FixtureRequest) -> Iterator[None]:
    """What the ranks of a test wrote down, killed ones included, is as tables and core have it."""
    damaged = request.node.get_closest_marker("damages_journals") is not None
    has_files = "tmp_path" in request.fixturenames and not damaged
    directory = request.getfixturevalue("tmp_path") if has_files else None
    yield
    for path in [] if directory is None else sorted(directory.rglob("journals/*.ndjson")):
        with path.open() as lines:
            entries = read_ndjson(lines)
        rerun = Rerun(wsm.__version__)
        for entry in entries:
            rerun.take(entry)
        found = [*replay(entries).findings, *rerun.differences]
        assert not found, f"{path}: {', '.join(map(str, found))}"


def _other_sessions() -> list[str]:
    """Tests, campaigns and groups that somebody else runs on this machine now."""
    own = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    own |= {parent.pid for parent in psutil.Process().parents()}
    return [
        _describe(process)
        for process in psutil.process_iter()
        if process.pid not in own and _is_foreign(process)
    ]


def _is_foreign(process: psutil.Process) -> bool:
    try:
        ours = process.environ().get(MARK) == os.environ[MARK]
        return not ours and any(word in " ".join(process.cmdline()) for word in ("pytest", "wsm", "campaign"))
    except psutil.Error:  # ended while we looked, or not ours to look at
        return False


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
        return str(path) in maps or any(_is_open(fd, path) for fd in (process / "fd").iterdir())
    except OSError:  # ended while we looked, or not ours to look at
        return False


def _is_open(descriptor: Path, path: Path) -> bool:
    try:
        return descriptor.readlink() == path
    except OSError:  # this one was closed while we looked; the process may hold the file by another
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


@pytest.fixture
def plain(tmp_path: Path) -> Callable[..., Path]:
    """Write a safetensors file without help of wsm: ``plain(name, {tensor: (dtype, shape, bytes)})``."""

    def write(
        name: str,
        tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]],
        *,
        directory: Path | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Path:
        fields: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
        position, data = 0, b""
        for key, (dtype, shape, content) in tensors.items():
            end = position + len(content)
            fields[key] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, end]}
            position, data = end, data + content
        text = json.dumps(fields).encode()
        path = (directory or tmp_path) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(len(text).to_bytes(8, "little") + text + data)
        return path

    return write
