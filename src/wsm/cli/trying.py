"""``wsm try``: a group of two processes on numpy in front of the reader; nothing of it is left behind.

Its ranks run this module: ``python -m wsm.cli.trying CONFIG RANK SUPERVISOR_PID``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from pathlib import Path

import click

from wsm.cli._base import command, show, tell, wrong_usage
from wsm.config import WsmConfig, load_config
from wsm.controller import Controller
from wsm.controller.keeper import Keeper, ProcessEnd
from wsm.ending import Ending, end_with
from wsm.errors import GroupError
from wsm.group_segment import own_new_group
from wsm.signals.segment import Segment
from wsm.status import GroupStatus
from wsm.strategies import TensorSpec, publish_snapshot
from wsm.testing import InMemoryRunner
from wsm.worker import HOLD, Worker

_SPECS = tuple(TensorSpec(f"layers.{layer}.weight", "F32", (512, 512)) for layer in range(4))
_RANKS, _VERSIONS = 2, (1, 2)

#: Seconds for ranks to start, and for a lost one to be replaced; a look at them takes so many.
_PATIENCE_S, _LOOK_S = 60.0, 0.02

#: Seconds that an idle rank waits between two steps.
_STEP_S = 0.002


class _Ranks:
    """The processes of the ranks, for the keeper; they end with this one."""

    def __init__(self, config_file: Path) -> None:
        self._line = [sys.executable, "-m", __spec__.name, str(config_file)]
        self.running: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, participant: int, epoch: int) -> None:  # noqa: ARG002 - the keeper says it
        self.running[participant] = subprocess.Popen(  # noqa: S603 - our own module under our own interpreter
            [*self._line, str(participant), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the supervisor, which ends the ranks in order
        )

    def ended(self) -> Collection[int]:
        return [rank for rank, process in self.running.items() if process.poll() is not None]

    def end(self, participant: int) -> ProcessEnd:
        process = self.running[participant]
        process.kill()
        return ProcessEnd(process.pid, process.wait())

    def wait(self, timeout_s: float) -> None:
        time.sleep(timeout_s)

    def end_all(self) -> None:
        for rank in self.running:
            self.end(rank)


@command
@click.option("--name", default="try", show_default=True, help="What the group is called while it lives.")
def trying(*, name: str) -> None:
    """Show a group at work: two processes with weights in host memory, commanded by this command line.

    They load a version, then another one while they serve; one of them is killed, and replaced. It takes some
    seconds and needs no extra. Ctrl-C ends it at any time. No process and no file is left behind.

    Examples
    --------
      wsm try
          what follows can be typed in a second terminal meanwhile
      wsm status try
          from there
    """
    ending = Ending()
    with ending.heeded(), contextlib.ExitStack() as undo:
        directory = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="wsm-try-")))
        own = {"directory": str(directory / "snapshots"), "shared_directory": str(directory)}
        config_file = directory / "wsm.yaml"
        config_file.write_text(json.dumps({"name": name, "ranks": _RANKS, "snapshot": own}))
        with wrong_usage():
            config = load_config(config_file)
        for version in _VERSIONS:
            shard = {spec.name: (spec, bytes([version]) * spec.nbytes) for spec in _SPECS}
            publish_snapshot(own["directory"], version, dict.fromkeys(range(_RANKS), shard), durable=False)
        segment = own_new_group(config)
        undo.callback(segment.close)
        undo.callback(segment.unlink)
        ranks = _Ranks(config_file)
        undo.callback(ranks.end_all)
        for rank in range(_RANKS):
            ranks.start(rank, epoch=1)
        with ending.interrupting():
            _show_group(config, segment, ranks)
    ending.check()


def _show_group(config: WsmConfig, segment: Segment, ranks: _Ranks) -> None:
    name = config.name
    with Controller(name) as controller, Keeper(config, segment, ranks, tell=tell) as keeper:
        _wait(controller, keeper, lambda now: now.over)
        _run("update", name, "--version", "1")
        _run("update", name, "--version", "2", "--hot")
        _run("status", name)
        lost = ranks.running[1].pid
        _show_line(f"kill -9 {lost}")
        os.kill(lost, signal.SIGKILL)
        _wait(controller, keeper, lambda now: now.epoch > 1)
        _run("explain", name)
        _wait(controller, keeper, lambda now: now.serving and keeper.recoveries > 0)
        _run("status", name)
    show("that was all: the ranks end now; 'wsm --help' has the other commands")


def _run(*words: str) -> None:
    """Run a command line of this program, as it is shown."""
    from wsm.cli.main import wsm  # noqa: PLC0415 - which names this module

    _show_line(f"wsm {' '.join(words)}")
    wsm.main(args=words, prog_name="wsm", standalone_mode=False)


def _show_line(line: str) -> None:
    show("")
    show(f"$ {line}")


def _wait(controller: Controller, keeper: Keeper, until: Callable[[GroupStatus], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not until(controller.status()):
        keeper.check()
        if time.monotonic() > deadline:
            raise GroupError(
                f"after {_PATIENCE_S:g} s: {controller.status().sentence()}; this host is too busy"
            )
        time.sleep(_LOOK_S)


def _serve(config_file: str, rank: str, supervisor: str) -> None:
    """Run one rank: the loop of an engine, with a model in host memory."""
    end_with(int(supervisor))
    runner = InMemoryRunner(_SPECS)
    runner.requests.submit(sys.maxsize)
    with Worker.from_config(config_file, runner, rank=int(rank)) as worker:
        while True:
            if worker.poll() is HOLD:
                continue
            with worker.step():
                runner.requests.advance()
            worker.wait(_STEP_S)


if __name__ == "__main__":
    _serve(*sys.argv[1:])
