"""The loops of README.md and embedding.md, the supervisor of recovery.md: run exactly as they are printed."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml

import wsm
from tests.leftovers import group_name
from wsm.signals.errors import SegmentMissingError
from wsm.signals.layout import segment_path
from wsm.strategies import publish_snapshot
from wsm.strategies.tensor import TensorSpec

pytestmark = pytest.mark.processes

REPOSITORY = Path(__file__).parent.parent.parent
PATIENCE_S = 60.0

#: What an engine brings: it steps now and then, and raises in a step when the test says so.
ENGINE = """
import os, time
from pathlib import Path
from wsm.strategies.tensor import TensorSpec
from wsm.testing import InMemoryRunner

class Engine(InMemoryRunner):
    def execute(self, batch, permit):
        order = Path(f"raise.{rank}")
        if order.exists():
            order.unlink()
            raise RuntimeError("a collective lost its peer")

class Scheduler:
    def next(self):
        time.sleep(0.002)
        return [1]

runner, scheduler, running = Engine([TensorSpec("w", "U8", (16,))]), Scheduler(), True
"""


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (REPOSITORY / page).read_text(), re.DOTALL)


def one(found: list[str], words: str) -> str:
    (block,) = [each for each in found if words in each]
    return block


class Documented:
    """The files of the pages in a directory, and the processes that run them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.name = group_name("recovered")
        content = yaml.safe_load(
            one(blocks("docs/embedding.md", "yaml"), "journal_directory: /var/log/policy")
        )
        content |= {"name": self.name, "journal_directory": str(directory / "journals")}
        content["snapshot"] = {"directory": str(directory / "snapshots")}
        (directory / "wsm.yaml").write_text(yaml.safe_dump(content))
        page = blocks("docs/recovery.md", "python")
        (directory / "supervisor.py").write_text(one(page, "class RankProcesses"))
        self.embed("docs/embedding.md")
        spec = TensorSpec("w", "U8", (16,))
        for version in (1, 2):
            shards = {rank: {"w": (spec, bytes([version + rank]) * 16)} for rank in range(2)}
            publish_snapshot(directory / "snapshots", version, shards, durable=False)
        self.processes: list[subprocess.Popen[bytes]] = []
        self._controller: wsm.Controller | None = None

    def embed(self, page: str) -> None:
        """Write the ranks' program around the loop of a page."""
        first = one(blocks("docs/recovery.md", "python"), "end_with(supervisor)")
        loop = one(blocks(page, "python"), "runner.execute(batch, permit)")
        (self.directory / "rank.py").write_text(first + ENGINE + loop)

    def run(self, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.directory / "output").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, *arguments], cwd=self.directory, stdout=output, stderr=output
            )
        self.processes.append(process)
        return process

    @property
    def controller(self) -> wsm.Controller:
        """Of the group, as soon as all have attached."""

        def attached() -> bool:
            if self._controller is None:
                try:
                    self._controller = wsm.Controller(self.name)
                except SegmentMissingError:
                    return False
            now = self._controller.status()
            return now.epoch > 0 and now.over  # its segment stands a moment before its first epoch

        self.until(attached)
        assert self._controller is not None
        return self._controller

    def until(self, question) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not question():
            assert time.monotonic() < deadline, (self.directory / "output").read_text()
            time.sleep(0.005)

    def until_serving(self, epoch: int) -> list[int]:
        """Wait until the group serves in that epoch; return the pids of its ranks."""

        def serves() -> bool:
            now = self._controller.status()
            return (now.epoch, now.serving, now.controller_pid) == (epoch, True, None)

        self.until(serves)
        return [rank.pid for rank in self._controller.status().ranks]

    def close(self) -> None:
        if self._controller is not None:
            self._controller.close()
        for process in self.processes:
            process.kill()
            process.wait()
        for path in segment_path(self.name).parent.glob(f"{segment_path(self.name).name}*"):
            path.unlink()


@pytest.fixture
def documented(tmp_path):
    made = Documented(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.slow
def test_the_supervisor_of_the_page_replaces_what_dies_and_the_loop_of_its_page_survives(documented):
    supervisor = documented.run("supervisor.py")
    assert documented.controller.update(version=1).version == "1"
    first = documented.until_serving(1)
    # Rank 1 is killed, and the step of rank 0 raises because of that: the loop goes on in the next epoch.
    os.kill(supervisor.pid, signal.SIGSTOP)  # so that both are seen at once
    os.waitpid(supervisor.pid, os.WUNTRACED)  # its threads stop one after the other
    (documented.directory / "raise.0").touch()
    documented.until(lambda: documented.controller.status().ranks[0].step_kind == "broken")
    ended = os.pidfd_open(first[1])  # of all its threads; its state is that of the first one
    try:
        os.kill(first[1], signal.SIGKILL)
        documented.until(lambda: select.select([ended], [], [], 0)[0])
    finally:
        os.close(ended)
    os.kill(supervisor.pid, signal.SIGCONT)
    second = documented.until_serving(2)
    assert second[0] == first[0]
    assert second[1] != first[1]
    assert documented.controller.status().version == "1"
    # A step that raises by itself: its rank is ended and replaced.
    (documented.directory / "raise.1").touch()
    third = documented.until_serving(3)
    assert (third[0], third[1] != second[1]) == (first[0], True)
    assert documented.controller.update(version=2).version == "2"
    assert "its step raised" in (documented.directory / "output").read_text()
    supervisor.kill()
    supervisor.wait()
    documented.until(lambda: not any(map(psutil.pid_exists, third)))


@pytest.mark.slow
def test_without_a_supervisor_rank_0_makes_the_segment_and_a_step_that_raised_ends_no_loop(documented):
    ranks = [documented.run("rank.py", str(rank), str(os.getpid())) for rank in range(2)]
    assert documented.controller.update(version=1).version == "1"
    (documented.directory / "raise.1").touch()
    documented.until(lambda: documented.controller.status().ranks[1].step_kind == "broken")
    beats = documented.controller.status().ranks[1].heartbeat
    documented.until(lambda: documented.controller.status().ranks[1].heartbeat > beats)
    assert [process.poll() for process in ranks] == [None, None]
    assert "a collective lost its peer" in (documented.directory / "output").read_text()


@pytest.mark.slow
def test_the_ten_lines_of_the_readme_serve_what_its_shell_lines_ask_for(documented):
    documented.embed("README.md")
    loop = one(blocks("README.md", "python"), "wsm.Worker.from_config")
    assert len([line for line in loop.splitlines() if line.strip()]) <= 11  # ten, and an import
    for rank in range(2):
        documented.run("rank.py", str(rank), str(os.getpid()))
    assert documented.controller.update(version=1).version == "1"
    asked = one(blocks("README.md", "console"), "wsm update").replace("policy", documented.name)
    asked = asked.replace("--version 7", "--version 2").replace("wsm ", f"{sys.executable} -m wsm_entry ")
    done = subprocess.run(["bash", "-ec", asked], capture_output=True, text=True, check=True)
    assert done.stdout.count(f"{documented.name} serves version 2") == 2  # the update, and explain
    (documented.directory / "raise.1").touch()  # its process ends, to be replaced
    documented.until(lambda: documented.processes[1].poll() is not None)
