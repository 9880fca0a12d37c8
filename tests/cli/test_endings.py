"""Signals and closed terminals end the commands that run for long, at any moment, and nothing is left."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from command_line import Start

from tests.leftovers import group_name
from wsm.shared_directory import private_directory

PATIENCE_S = 30.0

#: Gives a program the terminal on its standard input as its own, as a shell does.
_WITH_TERMINAL = (
    "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)

pytestmark = [pytest.mark.processes]


def until(question: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not question():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def named(name: str) -> list[str]:
    """Files in shared memory and processes of the group `name`."""
    found = [path.name for path in private_directory().iterdir() if name in path.name]
    found += [
        f"process {process.pid}"
        for process in psutil.process_iter(["cmdline"])
        if f"wsm.{name}.run" in " ".join(process.info["cmdline"] or ())
    ]
    return found


def ranks_of(name: str) -> list[psutil.Process]:
    ranks = []
    for found in named(name):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended since it was found
            if found.startswith("process "):
                ranks.append(psutil.Process(int(found.split()[1])))
    return ranks


@contextlib.contextmanager
def in_a_terminal(program: str, *arguments: object) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run a program in a terminal of its own; yield the process and the other end of the terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", _WITH_TERMINAL, "-m", program, *map(str, arguments)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()
        with contextlib.suppress(OSError):
            os.close(ours)


def read_until(terminal: int, text: str) -> None:
    said = ""
    while text not in said:
        said += os.read(terminal, 4096).decode(errors="replace")


def test_a_signal_ends_the_imports_of_a_command_without_a_word(start_wsm: Start) -> None:
    def handles(process: subprocess.Popen[str], number: int) -> bool:
        status = Path(f"/proc/{process.pid}/status").read_text()
        caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
        return bool(int(caught, 16) >> (number - 1) & 1)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        command = start_wsm("status", program="wsm_entry")
        until(lambda command=command: handles(command, signal.SIGHUP))
        command.send_signal(number)
        out, err = command.communicate(timeout=PATIENCE_S)
        assert (command.returncode, out, err) == (128 + number, "", "")


@pytest.mark.slow
def test_closed_streams_change_no_exit_code_and_no_file_takes_their_numbers() -> None:
    def ends_with(*arguments: str) -> int:
        command = ["/bin/sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, *arguments]
        return subprocess.run(command, check=False, timeout=PATIENCE_S).returncode

    opening = (
        "import os, sys, wsm.cli.main, wsm_entry; "
        "wsm.cli.main.main = lambda: sys.exit(os.open('/proc/self/stat', os.O_RDONLY)); wsm_entry.main()"
    )
    assert ends_with("-c", opening) > 2
    assert ends_with("-m", "wsm_entry", "status", "nobody") == 2


@pytest.mark.slow
@pytest.mark.paddle
def test_a_closed_terminal_ends_a_group_and_leaves_nothing() -> None:
    name = group_name("closed")
    with in_a_terminal("examples.rollout", "--name", name) as (rollout, terminal):
        read_until(terminal, f"{name} serves version 1")
        os.close(terminal)
        assert rollout.wait(PATIENCE_S) == 129
    assert named(name) == []


@pytest.mark.slow
@pytest.mark.paddle
def test_signals_end_a_group_that_a_stopped_rank_keeps_from_starting(start_wsm: Start) -> None:
    name = f"starting-{os.getpid()}"
    rollout = start_wsm("--name", name, program="examples.rollout")
    until(lambda: len(ranks_of(name)) == 2)
    stopped = ranks_of(name)[1]
    stopped.suspend()
    try:
        rollout.terminate()
        until(lambda: len(ranks_of(name)) == 1)  # the other one has ended
        rollout.send_signal(signal.SIGINT)  # kills the one that stands still
        assert rollout.wait(PATIENCE_S) == 143
        assert named(name) == []
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):  # else it would outlive this test
            stopped.resume()


@pytest.mark.slow
@pytest.mark.paddle
def test_a_signal_ends_a_demo_while_its_group_starts(start_wsm: Start, tmp_path: Path) -> None:
    demo = start_wsm("--out", tmp_path / "out", program="examples.demo")
    until(lambda: ranks_of(f"demo-{demo.pid}"))
    demo.terminate()
    _, err = demo.communicate(timeout=PATIENCE_S)
    assert (demo.returncode, err) == (143, "error: interrupted\n")
    assert named(f"demo-{demo.pid}") == []


@pytest.mark.slow
@pytest.mark.paddle
def test_a_demo_ends_with_a_terminal_of_which_nobody_tells_it(tmp_path: Path) -> None:
    """As under ``make``, which leads the session, gets the signal alone and waits for the demo."""
    ours, theirs = pty.openpty()
    demo = subprocess.Popen(
        [sys.executable, "-m", "examples.demo", "--out", str(tmp_path / "out")],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        read_until(ours, "train")
        os.close(ours)
        assert demo.wait(PATIENCE_S) == 129
    finally:
        demo.kill()
        demo.wait()
    assert named(f"demo-{demo.pid}") == []
