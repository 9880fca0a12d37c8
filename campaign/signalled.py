"""Plays cases in which the commands themselves get signals, or lose their terminal, at a random moment.

From the first line of a command on, whatever it is about: it must end within seconds, with the exit code of
the first signal, and leave no process, no name in shared memory and no directory. A second signal may follow
at any time. A group that was being commanded must work afterwards.
"""

from __future__ import annotations

import contextlib
import os
import pty
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil

from campaign.asking import HANG_S
from campaign.case import Case
from campaign.environment import victims_environment
from campaign.group import GroupUnderFault
from campaign.leftovers import directory_prefix
from campaign.operations import outcome_of
from campaign.rank_faults import finish, prepare
from campaign.result import Result
from wsm.shared_directory import private_directory

SEEDS = 12

#: Seconds from the last signal in which everything must be over: ranks that hang are waited for, then killed.
_END_S = 60.0
_SECOND_S = 2.0
_LOOK_S = 0.01
_TOKEN = "WSM_CAMPAIGN_SIGNALLED"  # noqa: S105 - no secret: marks a command's processes
_CLOSED = "closed"
_HOW = ("SIGINT", "SIGTERM", "SIGHUP", _CLOSED)

#: Makes the terminal on its standard input a program's own, as a shell does.
_WITH_TERMINAL = (
    "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


class _Command(NamedTuple):
    """A command line, the seconds within which its first signal comes, and what it does to a group."""

    line: tuple[str, ...]
    moment_s: float
    group: bool = False


COMMANDS = {
    "rollout": _Command(("-m", "examples.rollout", "--name", "{name}"), 6.0),
    "demo": _Command(("-m", "examples.demo", "--out", "{directory}/demo"), 9.0),
    "hot-demo": _Command(("-m", "examples.demo", "--hot", "--out", "{directory}/demo"), 9.0),
    "campaign": _Command(("-m", "campaign", "--family", "commands", "--kind", "memory", "--ranks", "2"), 8.0),
    "update": _Command(("-m", "wsm_entry", "update", "{group}", "--force"), 1.2, group=True),
    "clear": _Command(("-m", "wsm_entry", "clear", "{group}"), 1.2, group=True),
    "watch": _Command(("-m", "wsm_entry", "status", "{group}", "--watch"), 1.5, group=True),
}


def cases(kind: str, ranks: int) -> list[Case]:
    """Name the cases: which command, what comes first, and a seed for the rest."""
    return [
        Case(kind, ranks, "signals", f"{command}:{how}:{seed}")
        for command in COMMANDS
        for how in _HOW
        for seed in range(SEEDS // len(_HOW))
    ]


def play(case: Case, group: GroupUnderFault, result: Result) -> None:
    """Play one case."""
    name, how, _ = case.what.split(":")
    command, chance = COMMANDS[name], random.Random(case.what)  # noqa: S311 - the same every time
    before = prepare("in_place", group, result) if command.group else None
    directory = Path(tempfile.mkdtemp(prefix=directory_prefix(os.getpid())))
    words = {"name": f"signalled-{os.getpid()}", "group": group.config.group.name, "directory": directory}
    line = [part.format(**words) for part in command.line]
    try:
        with _Terminal(line, directory.name) as terminal:
            _judge(terminal, how, command, chance, result)
            result.leftovers += _left(terminal.pids, directory.name)
        if before is not None:
            group.until(lambda: group.status().over, "the command is over")
            result.outcome = outcome_of(group.status(), before, group.published)
            finish(group, result)
    finally:
        shutil.rmtree(directory)


def _judge(terminal: _Terminal, how: str, command: _Command, chance: random.Random, result: Result) -> None:
    """Send the signals, and hold the end of the command against what must be."""
    process = terminal.process
    _until(lambda: process.poll() is not None or _handles_signals(process.pid))
    time.sleep(chance.uniform(0.0, command.moment_s))
    if process.poll() is not None:
        result.outcome = "over before"
        result.require(process.returncode == 0, f"it ended with {process.returncode} before any signal")
        return
    began = time.monotonic()
    terminal.send(how)
    if chance.random() < 0.5:
        time.sleep(chance.uniform(0.0, _SECOND_S))
        terminal.send(chance.choice(_HOW))
    ended = _until(lambda: process.poll() is not None, _END_S)
    result.detected_ms = (time.monotonic() - began) * 1e3
    result.outcome = f"ended by {how}"
    result.require(ended, f"it did not end within {_END_S:g} s")
    number = signal.SIGHUP if how == _CLOSED else signal.Signals[how]
    allowed = {128 + number, 0} if command.group else {128 + number}  # one that was just over has succeeded
    result.require(process.poll() in allowed, f"it ended with {process.poll()}, not with {128 + number}")


def _left(pids: list[int], token: str) -> list[str]:
    """Return what outlives the command; what the kernel is just ending is waited for."""
    deadline = time.monotonic() + 1.0
    while (found := _look(pids, token)) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    return found


def _look(pids: list[int], token: str) -> list[str]:
    names = {f"wsm.signalled-{os.getpid()}"}
    names |= {f"wsm.{kind}-{pid}" for kind in ("demo", "campaign") for pid in pids}
    found = [
        f"shared memory: {path.name}"
        for path in private_directory().iterdir()
        if any(path.name == name or path.name.startswith((f"{name}.", f"{name}-")) for name in names)
    ]
    prefixes = tuple(map(directory_prefix, pids))
    found += [
        f"directory: {path.name}"
        for path in Path(tempfile.gettempdir()).iterdir()
        if path.name.startswith(prefixes)
    ]
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(_TOKEN) == token:
                found.append(f"process {process.pid}: {' '.join(process.cmdline())[:120]}")
    return found


def _handles_signals(pid: int) -> bool:
    """Whether a process has begun: Python itself handles no SIGHUP, the first line of a command does."""
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
        caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
        return bool(int(caught, 16) >> (signal.SIGHUP - 1) & 1)
    return False


def _until(question: Callable[[], bool], patience_s: float = HANG_S) -> bool:
    deadline = time.monotonic() + patience_s
    while not question():
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_S)
    return True


class _Terminal:
    """A terminal of its own for one command: what is written there is read, until it is closed."""

    def __init__(self, line: list[str], token: str) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(  # noqa: S603 - our own module under our own interpreter
            [sys.executable, "-c", _WITH_TERMINAL, *line],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**victims_environment(), _TOKEN: token},
        )
        os.close(theirs)
        self.pids = [self.process.pid]
        self._closing = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def send(self, how: str) -> None:
        """Send a signal to the command, or close its terminal; remember whom it had started by then."""
        if self.process.poll() is not None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            self.pids += [child.pid for child in psutil.Process(self.process.pid).children(recursive=True)]
        if how == _CLOSED:
            self.close()
        else:
            self.process.send_signal(signal.Signals[how])

    def close(self) -> None:
        """Close it; what runs there is told so by the kernel. Idempotent."""
        if not self._closing.is_set():
            self._closing.set()
            self._reader.join()  # a terminal that is being read stays open
            os.close(self._ours)

    def __enter__(self) -> _Terminal:  # noqa: PYI034 - typing has Self from Python 3.11 on
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self.close()

    def _read(self) -> None:
        poll = select.poll()
        poll.register(self._ours, select.POLLIN)
        while not self._closing.is_set():
            if poll.poll(_LOOK_S * 1000):
                try:
                    os.read(self._ours, 65536)
                except OSError:  # the process that had it has ended
                    return
