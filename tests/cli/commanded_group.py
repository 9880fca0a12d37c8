"""A group of real rank processes that live in plain memory."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml
from small_model import RANKS, publish

from tests.forkserver import WITHOUT_PADDLE, Forked
from wsm import Controller, GroupStatus, load_config
from wsm.group_segment import own_group

COMMANDED_RANK = Path(__file__).parent / "commanded_rank.py"
PATIENCE_S = 60.0


class LivingGroup:
    """A group whose ranks are processes; this process owns its segment.

    Versions 1 and 2 are published in `snapshots`. Options of the configuration may be given besides.
    `engine`: the program of a rank, and its arguments behind the configuration and the rank.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        *,
        engine: Sequence[object] = (COMMANDED_RANK,),
        **options: Any,
    ) -> None:
        self.name = name
        self._program, *self._arguments = map(str, engine)
        self.snapshots = directory / "snapshots"
        self.journals = directory / "journals"
        self.config_file = directory / "wsm.yaml"
        self.config_file.write_text(
            yaml.safe_dump(
                {
                    "name": name,
                    "ranks": RANKS,
                    "snapshot": {"directory": str(self.snapshots), "shared_directory": str(directory)},
                    "journal_directory": str(self.journals),
                    **options,
                }
            )
        )
        for version in (1, 2):
            publish(self.snapshots, version)
        self.segment = own_group(load_config(self.config_file))
        self.processes: list[Forked] = []

    def start(self) -> None:
        for rank in range(RANKS):
            command = (self._program, self.config_file, rank, *self._arguments)
            self.processes.append(WITHOUT_PADDLE.start(*command, stderr=None, text=True))
        for process in self.processes:
            assert process.stdout.readline() == "attached\n"
        self.until(lambda status: status.over)

    @property
    def is_whole(self) -> bool:
        """Whether every rank lives and the segment is where it was."""
        return not self.segment.inode_changed() and all(each.poll() is None for each in self.processes)

    def stop(self, rank: int) -> None:
        """Stop a rank's process, which hangs then."""
        self.processes[rank].send_signal(signal.SIGSTOP)

    def resume(self, rank: int) -> None:
        self.processes[rank].send_signal(signal.SIGCONT)

    def kill(self, rank: int) -> None:
        self.processes[rank].kill()
        self.processes[rank].wait()

    def until(self, condition: Callable[[GroupStatus], bool]) -> GroupStatus:
        """Wait until the group's status fulfils a condition."""
        with Controller(self.name) as controller:
            wait_until(lambda: condition(controller.status()))
            return controller.status()

    def serve(self, version: int = 1) -> None:
        with Controller(self.name) as controller:
            controller.update(version, force=True)

    def close(self) -> None:
        for process in self.processes:
            process.close()
        if not self.segment.is_closed:
            self.segment.unlink()
            self.segment.close()


def wait_until(condition: Callable[[], bool]) -> None:
    """Look again and again."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)
