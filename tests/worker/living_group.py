"""A group of real rank processes for a test: started, steered, killed, and held to what it wrote down."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import rank_process

import wsm
from tests.forkserver import WITHOUT_PADDLE, ForkServer
from tests.leftovers import group_name
from wsm.journal.entry import read_ndjson
from wsm.journal.replay import replay
from wsm.signals.presence import PresenceWords
from wsm.signals.segment import Segment
from wsm.strategies import PublishReport, publish_snapshot
from wsm.strategies.tensor import TensorSpec

PROGRAM = Path(__file__).with_name("rank_process.py")
PATIENCE_S = 60.0


def eventually(question: Callable[[], object], what: str = "") -> None:
    """Ask until the answer is true."""
    deadline, pause = time.monotonic() + PATIENCE_S, 0.0002
    while not question():
        if time.monotonic() > deadline:
            pytest.fail(f"it never came true: {what or question}")
        time.sleep(pause)
        pause = min(pause * 2, 0.01)


class Program:
    """A process that writes one JSON object per line."""

    def __init__(self, path: Path, *arguments: str, server: ForkServer = WITHOUT_PADDLE) -> None:
        self.process = server.start(path, *arguments)
        self._rest = b""
        self.other_lines: list[str] = []

    @property
    def pid(self) -> int:
        return self.process.pid

    def says(self, event: str, within_s: float = PATIENCE_S) -> dict[str, Any]:
        """The next object with that event; fails the test, with all that was written, if none comes."""
        deadline = time.monotonic() + within_s
        while True:
            line = self._line(deadline)
            if line is None:
                pytest.fail(f"{event!r} was never said, but:\n" + "\n".join(self.other_lines[-40:]))
            try:
                said = json.loads(line)
            except ValueError:
                said = {}
            if isinstance(said, dict) and said.get("event") == event:
                return said
            self.other_lines.append(line)

    def last_lines(self) -> list[str]:
        """All lines that it writes until it ends."""
        deadline, lines = time.monotonic() + PATIENCE_S, []
        while (line := self._line(deadline)) is not None:
            lines.append(line)
        return lines

    def tell(self, line: str) -> None:
        self.process.stdin.write(line.encode() + b"\n")

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        with contextlib.suppress(ChildProcessError):  # it was ended meanwhile, and reaped
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing is reaped."""
        os.kill(self.pid, number)

    def has_ended(self) -> bool:
        """Whether the process is gone; it is reaped then, and :attr:`code` says how it ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0)
        return self.code is not None

    @property
    def code(self) -> int | None:
        return self.process.returncode

    def close(self) -> None:
        self.process.close()

    def _line(self, deadline: float) -> str | None:
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self.process.stdout], [], [], max(deadline - time.monotonic(), 0))
            data = os.read(self.process.stdout.fileno(), 65536) if ready else b""
            if not data:
                return None
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode(errors="replace")


class LivingGroup:
    """Rank processes in one directory.

    Options of the configuration go into `config`, those of the rank program into `settings`. Most tests look
    at what a failed update itself leaves; those of its restore ask for that.
    """

    def __init__(
        self, directory: Path, ranks: int = 2, *, config: dict[str, Any] | None = None, **settings: Any
    ) -> None:
        self.directory, self.ranks = directory, ranks
        self.name = group_name()
        self.snapshots = directory / "snapshots"
        (directory / "orders").mkdir()
        (directory / "meetings").mkdir()
        self.config = {
            "name": self.name,
            "ranks": ranks,
            "on_failure": "clear",
            "journal_directory": str(directory / "journals"),
            "snapshot": {"directory": str(self.snapshots), "shared_directory": str(directory / "nowhere")},
            **(config or {}),
        }
        self._settings = settings
        self.programs: dict[int, Program] = {}
        self.published: dict[int, PublishReport] = {}
        self.controllers: list[wsm.Controller] = []

    def launch(self, rank: int, *, config: dict[str, Any] | None = None) -> Program:
        settings = {
            "directory": str(self.directory),
            "config": {**self.config, **(config or {})},
            **self._settings,
        }
        program = Program(PROGRAM, json.dumps(settings), str(rank))
        self.programs[rank] = program
        return program

    def start(self) -> LivingGroup:
        for rank in range(self.ranks):
            self.launch(rank)
        for rank in range(self.ranks):
            self.programs[rank].says("ready")
        return self

    def boot(self, version: int = 1) -> wsm.Controller:
        """Start, publish, and update to the first version."""
        self.publish(version)
        self.start()
        controller = self.controller()
        controller.update(version)
        return controller

    def controller(self, **options: Any) -> wsm.Controller:
        controller = wsm.Controller(self.name, directory=self.directory, **options)
        self.controllers.append(controller)
        return controller

    def codes(self) -> list[str]:
        """How far every rank is with the command."""
        return [rank.code for rank in self.controllers[0].status().ranks]

    def publish(self, version: int, *, seed: object = "") -> PublishReport:
        shards = {rank: shard_of(version, rank, seed) for rank in range(self.ranks)}
        self.published[version] = publish_snapshot(
            self.snapshots, version, shards, part_bytes=1024, durable=False, replace=bool(seed)
        )
        return self.published[version]

    def damage(self, version: int = 1) -> tuple[Path, bytes]:
        """Flip a bit in what rank 1 loads; return the file, and what was in it."""
        path = max(self.shard_files(version, 1), key=lambda file: file.stat().st_size)
        whole = path.read_bytes()
        path.write_bytes(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])
        return path, whole

    def shard_files(self, version: int, rank: int) -> list[Path]:
        return sorted((self.snapshots / "versions" / str(version)).glob(f"*tp{rank}.*"))

    def order(self, rank: int, point: str, what: str) -> None:
        path = self.directory / "orders" / f"{rank}.{point}"
        path.with_suffix(f"{path.suffix}.new").write_text(what)
        path.with_suffix(f"{path.suffix}.new").rename(path)

    def revoke(self, rank: int, point: str) -> None:
        for suffix in ("", ".reached"):
            (self.directory / "orders" / f"{rank}.{point}{suffix}").unlink(missing_ok=True)

    def await_held(self, rank: int, point: str) -> None:
        """Wait until the rank has come to the point where it was ordered to hold."""
        path = self.directory / "orders" / f"{rank}.{point}.reached"
        eventually(path.exists, f"rank {rank} at {point}")

    def seems_inside_since_the_host_began(self, rank: int) -> None:
        """Let the action of a rank that holds be overdue for others; a real one would have to be quick."""
        with Segment.attach(self.name, directory=self.directory) as segment:
            PresenceWords(segment.words, segment.layout.heartbeat[rank]).inside(1)

    def steps_of(self, rank: int) -> list[tuple[int, int, str]]:
        return [step for _, step in self.steps_by_epoch(rank)]

    def steps_by_epoch(self, rank: int) -> list[tuple[int, tuple[int, int, str]]]:
        """The steps that the rank has entered so far, in one look: it steps on meanwhile."""
        path = self.directory / f"steps.{rank}"
        text = path.read_text() if path.exists() else ""
        lines = text[: text.rfind("\n") + 1].splitlines()  # the last one may be being written
        return [
            (int(epoch), (int(step), int(version), digest))
            for step, version, digest, epoch in map(str.split, lines)
        ]

    def await_steps(self, more: int = 20) -> None:
        """Wait until the group has run some more steps: it serves, and it serves together."""
        wanted = [len(self.steps_of(rank)) + more for rank in range(self.ranks)]
        eventually(
            lambda: all(len(self.steps_of(rank)) >= count for rank, count in enumerate(wanted)),
            "every rank steps on",
        )

    def assert_steps_are_pure(self, versions: Sequence[int] = ()) -> None:
        """Every step ran with one version on all ranks, and with that version's bytes."""
        version_of: dict[tuple[int, int], int] = {}
        for rank in range(self.ranks):
            last = (1, self._settings.get("steps_before", 0))
            for epoch, (step, version, digest) in self.steps_by_epoch(rank):
                expected = (epoch, last[1] + 1 if epoch == last[0] else 1)
                assert (epoch, step) == expected, f"rank {rank} went from {last} to {epoch, step}"
                last = (epoch, step)
                assert version_of.setdefault(last, version) == version, f"step {last} ran with two versions"
                assert digest == self.published[version].digests[rank], f"step {step}: not version {version}"
        assert set(versions) <= set(version_of.values())

    def assert_journals_are_possible(self) -> None:
        for rank in range(self.ranks):
            with (self.directory / "journals" / f"rank{rank}.ndjson").open() as lines:
                assert replay(read_ndjson(lines)).impossible is None

    def rest(self) -> None:
        """Let nobody begin a step, and wait until all have ended the same one."""
        for program in self.programs.values():
            program.tell("rest")
        for program in self.programs.values():
            program.says("resting")
        controller = self.controller()
        eventually(lambda: len({rank.step for rank in controller.status().ranks}) == 1, "all in one step")

    def work(self) -> None:
        """Let steps be begun again."""
        for program in self.programs.values():
            program.tell("work")

    def stop(self) -> list[dict[str, Any]]:
        """End every rank in good order, between two steps; return what each says about itself."""
        self.rest()
        for program in self.programs.values():
            program.tell("stop")
        return [self.programs[rank].says("ended") for rank in range(self.ranks)]

    def close(self) -> None:
        for path in (self.directory / "orders").glob("*"):
            path.unlink()
        for controller in self.controllers:
            controller.close()
        for program in self.programs.values():
            program.close()


def shard_of(version: int, rank: int, seed: object = "") -> dict[str, tuple[TensorSpec, bytes]]:
    """Bytes that no other version, rank or seed has."""
    return {
        spec.name: (spec, _bytes(f"{version} {rank} {seed} {spec.name}", spec.nbytes))
        for spec in rank_process.SPECS
    }


def _bytes(text: str, count: int) -> bytes:
    return (text.encode() * (count // len(text) + 1))[:count]
