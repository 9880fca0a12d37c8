"""One replica of a fleet: a real group behind a ``wsm serve`` of its own."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.forkserver import FOR_COMMANDS
from tests.leftovers import group_name
from wsm.fleet import Replica

# The groups are those of the command line's tests; pytest finds neither them nor the model by itself.
sys.path.insert(0, str(Path(__file__).parent.parent / "cli"))
from commanded_group import LivingGroup
from small_model import publish

__all__ = ["ServedReplica", "publish", "until"]

PATIENCE_S = 60.0


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class ServedReplica:
    """A group of two rank processes and its server."""

    def __init__(self, directory: Path, store: Path, *options: object, **group: Any) -> None:
        directory.mkdir()
        snapshot = {"directory": str(store), "shared_directory": str(directory)}
        self._make_group = partial(LivingGroup, group_name("fleet"), directory, snapshot=snapshot, **group)
        self.group = self._make_group()
        self.group.start()
        self._receipts = directory / "http.sqlite"
        self._options = options
        self.url = self._start("0")

    def _start(self, port: str) -> str:
        named = ("serve", self.group.name, "--http", port, "--receipts", self._receipts, *self._options)
        self.server = FOR_COMMANDS.start("-m", "wsm", *named, stderr=None, text=True)
        said = self.server.stdout.readline()
        assert "is commanded at" in said
        return said.split()[4].rstrip(";")

    @property
    def replica(self) -> Replica:
        return Replica(self.url, group=self.group.name)

    def restart_group(self, version: int) -> None:
        """Start all ranks anew, with a version that their keeper restores."""
        self.group.close()
        self.group = self._make_group()
        self.group.start()
        self.group.serve(version)

    def kill_server(self) -> None:
        self.server.kill()
        self.server.communicate()

    def restart_server(self) -> None:
        self._start(self.url.rpartition(":")[2])

    def freeze(self) -> None:
        self.server.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.server.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        self.server.send_signal(signal.SIGCONT)

    def close(self) -> None:
        if self.server.returncode is None:  # else a test has killed it
            self.thaw()
            self.kill_server()
        self.group.close()
