"""What holds for every test: profiles of Hypothesis, possible journals, and nothing that is left behind."""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests import durations, needs, tiers
from tests.gpu.machine import missing_for_gpu_tests
from tests.leftovers import (  # fixtures of every session and of every file of tests
    nothing_is_left_behind,  # noqa: F401
    own_shared_memory,  # noqa: F401
)
from wsm.journal.entry import read_ndjson
from wsm.journal.replay import replay

EXIT_S = 60.0

#: Every client of httpx that a test makes would read the certificates of all authorities: 20 ms on a core.
os.environ.setdefault("SSL_CERT_FILE", str(Path(__file__).parent / "authority.pem"))

# Hypothesis fails a test whose examples are drawn slowly, which on busy cores says nothing about the test.
_UNTIMED = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("development", _UNTIMED, max_examples=50)
# Continuous integration draws new examples each time, from a seed that .ci/run prints.
hypothesis.settings.register_profile("ci", _UNTIMED, max_examples=50, print_blob=True)
hypothesis.settings.register_profile("thorough", _UNTIMED, max_examples=2000)
hypothesis.settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE", "ci" if needs.in_ci() else "development")
)


pytest_addoption = durations.add_options


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(needs)
    config.pluginmanager.register(durations)
    config.pluginmanager.register(tiers)


def pytest_collection() -> None:
    """Look for no garbage among what stays until the end: tests, and the modules that they import."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Name the thread for which Python waits at its exit, and end: a failed test may have left one behind."""
    if not hasattr(config, "workerinput"):  # a process of pytest-xdist waits for the others to be done
        faulthandler.dump_traceback_later(EXIT_S, exit=True)


@pytest.hookimpl(trylast=True)  # when pytest has chosen by mark
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose tests that need a GPU only where their mark asks for them; refuse where there is none."""
    on_gpu = {item: mark for item in items if (mark := item.get_closest_marker("gpu")) is not None}
    if "gpu" not in str(config.option.markexpr):
        config.hook.pytest_deselected(items=list(on_gpu))
        items[:] = [item for item in items if item not in on_gpu]
        return
    for framework in {mark.kwargs.get("framework", "paddle") for mark in on_gpu.values()}:
        if (lacking := missing_for_gpu_tests(framework)) is not None:
            asked = f"{len(on_gpu)} of the tests that were asked for need a GPU"
            raise pytest.UsageError(f"{asked}, and cannot run here: {lacking}")


# A shell starts background jobs with Ctrl-C ignored, and every process that a test starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
# So does nohup with the hangup. What is handled here is in its usual state in every program that is started.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda _number, _frame: None)


#: Directories of tests whose journals were looked at, or are damaged on purpose.
_seen: set[Path] = set()


@pytest.fixture(autouse=True)
def journals_are_possible(request: pytest.FixtureRequest) -> Iterator[None]:
    """What the ranks of a test wrote down, killed ones included, is as tables and core have it."""
    directory = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    yield
    if directory is not None:
        _seen.add(directory)
        if request.node.get_closest_marker("damages_journals") is None:
            _require_possible(directory)


@pytest.fixture(scope="module", autouse=True)
def shared_journals_are_possible(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The same of the groups that the tests of one file share."""
    before = _made(tmp_path_factory)
    yield
    for directory in _made(tmp_path_factory) - before - _seen:
        _require_possible(directory)


def _made(tmp_path_factory: pytest.TempPathFactory) -> set[Path]:
    return {path for path in tmp_path_factory.getbasetemp().iterdir() if not path.is_symlink()}


def _require_possible(directory: Path) -> None:
    for path in sorted(directory.rglob("journals/*.ndjson")):
        with path.open() as lines:
            entries = read_ndjson(lines)
        found = replay(entries).findings
        assert not found, f"{path}: {', '.join(map(str, found))}"


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
