"""Real processes and real segments for the tests of signals, ended and removed afterwards."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.forkserver import WITHOUT_PADDLE, Forked
from tests.leftovers import group_name
from wsm.shared_directory import SHARED_MEMORY, private_directory
from wsm.signals import waiting
from wsm.signals.segment import Segment

PATIENCE_S = 30.0

PRELUDE = """
import os, sys, time
from wsm.signals.errors import *
from wsm.signals.liveness import ControllerRole
from wsm.signals.liveness import Life, Liveness, register
from wsm.signals.segment import Segment
from wsm.signals import waiting
from wsm.signals.waiting import Watch, wait, wake

def say(*what):
    print(*what, flush=True)

def heard():
    return sys.stdin.readline().strip()
"""


class Child:
    """A process of its own that says lines and is told lines."""

    def __init__(self, process: subprocess.Popen[bytes] | Forked) -> None:
        self._process = process
        self._rest = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def says(self) -> str:
        """The next line; fails the test, with what the process wrote to stderr, if none comes."""
        deadline = time.monotonic() + PATIENCE_S
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._process.stdout], [], [], max(deadline - time.monotonic(), 0))
            data = os.read(self._process.stdout.fileno(), 65536) if ready else b""
            if not data:
                self.kill()
                pytest.fail(f"the process said nothing more; stderr: {self._process.stderr.read().decode()}")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    def tell(self, line: str = "") -> None:
        self._process.stdin.write(line.encode() + b"\n")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def leave_zombie(self) -> None:
        """End it without reaping it."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def ends(self) -> int:
        return self._process.wait(PATIENCE_S)

    def errors(self) -> str:
        return self._process.stderr.read().decode()

    def close(self) -> None:
        self.kill()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            stream.close()


def started_anew(code: str, *arguments: str, prefix: tuple[str, ...]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*prefix, sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


@pytest.fixture
def launch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Child]]:
    """`launch(code, *arguments)`; `prefix` is a command that starts it, `anew` says that nothing forks it."""
    children: list[Child] = []

    def start(code: str, *arguments: str, prefix: tuple[str, ...] = (), anew: bool = False) -> Child:
        code = PRELUDE + textwrap.dedent(code)
        if prefix or anew:
            children.append(Child(started_anew(code, *arguments, prefix=prefix)))
        else:
            program = tmp_path_factory.mktemp("child") / "child.py"
            program.write_text(code)
            children.append(Child(WITHOUT_PADDLE.start(program, *arguments, stderr=subprocess.PIPE)))
        return children[-1]

    yield start
    for child in children:
        child.close()


@pytest.fixture
def name() -> Iterator[str]:
    """A name of a segment that no other test uses; its files are gone afterwards."""
    name = group_name("segment")
    yield name
    for place in (private_directory(), SHARED_MEMORY):
        for path in place.glob(f"*{name}*"):
            path.unlink()


@pytest.fixture
def path(name: str) -> Path:
    return private_directory() / f"wsm.{name}"


@pytest.fixture
def segment(name: str) -> Iterator[Segment]:
    """A segment for two ranks and a helper, owned by this process."""
    with Segment.create_or_adopt(
        name, world_size=2, helpers=1, run_id="run", configuration_digest=7
    ) as segment:
        yield segment


@pytest.fixture
def eventually() -> Callable[[Callable[[], object]], None]:
    """Ask a question until the answer is true."""

    def ask(question: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not question():
            if time.monotonic() > deadline:
                pytest.fail("it never came true")
            time.sleep(0.001)

    return ask


@pytest.fixture(params=[pytest.param(True, marks=pytest.mark.needs("futex_waitv")), False])
def by_kernel(request, monkeypatch):
    """Whether the kernel watches the words; else they are looked at again."""
    monkeypatch.setattr(waiting, "has_wait_any", lambda: request.param)
    return request.param
