"""A living group, and two ways to run a command line: in this process, and as a process."""

from __future__ import annotations

import contextlib
import functools
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import click.testing
import pytest

from examples.commands import EXAMPLES
from tests.forkserver import FOR_COMMANDS
from tests.leftovers import group_name
from wsm import Controller, log
from wsm.cli import main
from wsm.strategies.snapshot.source import SnapshotConfig
from wsm.testing import InMemoryRunner, LocalGroup

# Processes that tests start import the same modules; they have no pytest to find them.
sys.path.insert(0, str(Path(__file__).parent))
from command_line import SEPARATE, Ended, Run, Start
from commanded_group import PATIENCE_S, LivingGroup
from small_model import SPECS, publish


@pytest.fixture(scope="module")
def shared_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], LivingGroup]]:
    """Return the group that tests share: the last one, if it is as good as new, else a new one."""
    groups: list[LivingGroup] = []

    def take() -> LivingGroup:
        if not groups or not groups[-1].is_whole:
            for spoiled in groups:
                spoiled.close()
            groups.append(LivingGroup(group_name("cli"), tmp_path_factory.mktemp("group")))
            groups[-1].start()
        return groups[-1]

    yield take
    for living in groups:
        living.close()


@pytest.fixture
def group(shared_group: Callable[[], LivingGroup]) -> LivingGroup:
    """A cleared group of two ranks, with versions 1 and 2 published. A test may spoil it."""
    living = shared_group()
    for rank in range(len(living.processes)):
        living.resume(rank)  # a test that failed may have left one stopped
    with Controller(living.name) as controller:
        controller.clear()
    return living


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalGroup]:
    """Two ranks in this thread, not loaded, called `tested`; versions 1 and 2 lie in ``snapshots``."""
    monkeypatch.setenv("WSM_DIRECTORY", str(tmp_path))
    for version in (1, 2):
        publish(tmp_path / "snapshots", version)
    configuration = {
        "snapshot": SnapshotConfig(directory=str(tmp_path / "snapshots"), device_ids=(0, 1)),
        "journal_directory": str(tmp_path / "journals"),
    }
    runners = (lambda _: InMemoryRunner(SPECS), tmp_path)
    with LocalGroup(*runners, load=None, configuration=configuration) as group:
        yield group


@pytest.fixture
def wsm(commands_run: Callable[[click.Group], Run]) -> Run:
    """Run a command line in this process: ``wsm("status", name)``."""
    return commands_run(main.wsm)


@pytest.fixture
def example(commands_run: Callable[[click.Group], Run]) -> Run:
    """Run a command line of the examples in this process: ``example("rollout", "--name", name)``."""
    return commands_run(EXAMPLES)


@pytest.fixture
def commands_run() -> Iterator[Callable[[click.Group], Run]]:
    """Run command lines in this process; what they did to the log is undone."""
    root = logging.getLogger(log.ROOT)
    before = (root.handlers[:], root.propagate, root.level)

    def run_here(commands: click.Group, *arguments: object) -> Ended:
        with click.testing.CliRunner(**SEPARATE).isolation() as (out, err, *_):
            code = main.run([str(argument) for argument in arguments], commands)
            return Ended(code, out.getvalue().decode(), err.getvalue().decode())

    yield lambda commands: functools.partial(run_here, commands)
    root.handlers[:], root.propagate = before[:2]
    root.setLevel(before[2])


@pytest.fixture
def start_wsm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start a command line as a process: that of wsm forked from one that has imported it, others anew."""
    monkeypatch.setenv("COLUMNS", "80")
    with contextlib.ExitStack() as undo:

        def start(*arguments: object, program: str = "wsm") -> Any:
            if program == "wsm":
                forked = FOR_COMMANDS.start("-m", program, *arguments, stderr=subprocess.PIPE, text=True)
                return undo.enter_context(forked)
            process = subprocess.Popen(
                [sys.executable, "-m", program, *map(str, arguments)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            undo.enter_context(process)
            undo.callback(process.kill)
            return process

        yield start


@pytest.fixture
def wsm_process(start_wsm: Start) -> Run:
    """Run a command line as a process to its end."""

    def run_there(*arguments: object) -> Ended:
        process = start_wsm(*arguments)
        out, err = process.communicate(timeout=PATIENCE_S)
        return Ended(process.returncode, out, err)

    return run_there
