"""Each process that runs tests has shared memory of its own, and no file of tests leaves anything behind.

``WSM_DIRECTORY`` names it for this process and for all that its tests start, so what lies there is ours to
answer for, whatever else runs on this machine. FastDeploy's words lie in ``/dev/shm`` all the same: one that
appeared while a file of tests ran, and that no living process holds, is that file's, unless another session
runs beside it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.forkserver import SERVERS
from wsm.shared_directory import SHARED_MEMORY, VARIABLE, private_directory
from wsm.signals.fastdeploy import EngineWordKind

PATIENCE_S = 10.0

#: Every process that this session starts has it in its environment, and none of another session.
SESSION = "WSM_TEST_SESSION"
os.environ.setdefault(SESSION, secrets.token_hex(4))

_WORDS = tuple(f"{kind.value}." for kind in EngineWordKind)


def mark() -> str:
    """Return what tells this process' tests from all others: no other session or worker has it."""
    return f"t{os.environ[SESSION]}{os.environ.get('PYTEST_XDIST_WORKER', '')}"


def group_name(stem: str = "group") -> str:
    """Return a name for a group, which no other has and which says whose it is."""
    return f"test-{stem}-{mark()}-{secrets.token_hex(4)}"


_directory = str(SHARED_MEMORY / f"wsm-{os.geteuid()}-{mark()}")
#: A test may run pytest itself, which then works in the directory of that test.
_is_inner = os.environ.get(VARIABLE) == _directory
os.environ[VARIABLE] = _directory


@pytest.fixture(scope="session", autouse=True)
def own_shared_memory() -> Iterator[None]:
    """Remove the directory at the end."""
    yield
    if not _is_inner:
        shutil.rmtree(_directory, ignore_errors=True)


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """Fail the file of tests that leaves processes or shared memory: blame is exact, and never forgiven."""
    names, children = shared_names(), set(_children())
    yield
    left = [child for child in _children() if child not in children]
    assert not left, f"tests of this file left processes behind: {[_describe(child) for child in left]}"
    abandoned = leftovers(names)
    # What was killed may still be going, and a trainer of another session coming: look again for a while.
    deadline = time.monotonic() + PATIENCE_S
    while abandoned and time.monotonic() < deadline:
        time.sleep(0.1)
        abandoned = leftovers(names)
    assert not abandoned, f"tests of this file left shared memory behind: {abandoned}"


def leftovers(before: Iterable[str]) -> list[str]:
    """Return the names in shared memory that a file of tests has to answer for.

    Parameters
    ----------
    before : iterable of str
        The names that were there when it began.
    """
    appeared = sorted(shared_names() - set(before))
    words = [name for name in appeared if name.startswith(_WORDS) and mark() not in name]
    ours = [name for name in appeared if name not in words]
    words = [name for name in words if not _is_in_use(name)]
    return ours if words and _other_sessions() else [*ours, *words]


def shared_names() -> set[str]:
    """Return what lies in our own shared memory, and the names of FastDeploy's words."""
    words = {entry.name for entry in SHARED_MEMORY.iterdir() if entry.name.startswith(_WORDS)}
    return words | {entry.name for entry in private_directory().iterdir()}


def _children() -> list[psutil.Process]:
    """Return what this process has started; trackers and the fork servers live as long as it does."""
    return [child for child in psutil.Process().children(recursive=True) if not _ends_with_us(child)]


def _ends_with_us(process: psutil.Process) -> bool:
    if process.pid in SERVERS:
        return True
    endings = "multiprocessing.resource_tracker", "multiprocessing.forkserver"
    try:
        return any(ending in part for part in process.cmdline() for ending in endings)
    except psutil.NoSuchProcess:
        return True


def _other_sessions() -> list[str]:
    """Return the tests, campaigns and groups that somebody else runs on this machine now."""
    return [_describe(process) for process in psutil.process_iter() if _is_of_another_session(process)]


def _is_of_another_session(process: psutil.Process) -> bool:
    try:
        words = " ".join(process.cmdline())
        ours = process.environ().get(SESSION) == os.environ[SESSION]
        above = process in psutil.Process().parents()
    except psutil.Error:  # ended while we looked, or not ours to look at
        return False
    return not ours and not above and any(word in words for word in ("pytest", "wsm", "campaign"))


def _is_in_use(name: str) -> bool:
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


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid}: {' '.join(process.cmdline())[:200]}"
    except psutil.NoSuchProcess:
        return f"{process.pid}: ended"
