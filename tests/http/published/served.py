"""What published clients drive: a group of ``examples.rollout --http``, a server before it, the wire."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import httpx
import numpy as np
import yaml
from safetensors.numpy import save_file

import wsm
from examples.rollout.config import rollout_config_from_mapping
from examples.rollout.model.sharding import initial_state

MODEL = {"vocabulary": 64, "width": 32, "heads": 4, "hidden": 64, "context": 2048}
PATIENCE_S = 150.0

_VERB = re.compile(rb"^(?:GET|POST) (/\S*) HTTP/1")
_WHERE = re.compile(r"is commanded at (http://\S+?);? ?(?:\s|$|;)")


class Lines:
    """The lines that a process writes, as they come."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._stream:
            with self._news:
                self._lines.append(line)
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def next(self, timeout_s: float) -> str | None:
        """Return the next line; None once there is none any more."""
        with self._news:
            if not self._news.wait_for(lambda: self._lines or self._ended, timeout_s):
                raise TimeoutError(f"no line in {timeout_s} s")
            return self._lines.pop(0) if self._lines else None


class Program:
    """A process that serves HTTP: of ``wsm``, or of the examples."""

    def __init__(self, arguments: Sequence[str], log: Path, program: str = "wsm_entry") -> None:
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", program, *arguments],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        assert self.process.stdout is not None
        self.lines = Lines(self.process.stdout)
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                line = self.lines.next(max(until - time.monotonic(), 0))
            except TimeoutError:
                self.end()
                raise
            assert line is not None, f"wsm {' '.join(arguments)} ended; see {log}"
            if found := _WHERE.search(line):
                self.url = found[1]
                return

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()


class Wire:
    """An address that forwards to a server, and tells the path of each request before the server has it."""

    def __init__(self, to: str, watch: Callable[[str], object] = lambda _: None) -> None:
        self.to = to
        self.watch = watch
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        host, _, port = self.to.removeprefix("http://").partition(":")
        with client:
            try:
                server = socket.create_connection((host, int(port)))
            except OSError:
                return
            with server:
                try:
                    self._copy(client, server)
                except OSError:
                    return

    def _copy(self, client: socket.socket, server: socket.socket) -> None:
        while True:
            readable, _, _ = select.select([client, server], [], [])
            for end, other in ((client, server), (server, client)):
                if end not in readable:
                    continue
                data = end.recv(1 << 16)
                if not data:
                    return
                other.sendall(data)
                if end is client and (verb := _VERB.match(data)):
                    self.watch(verb[1].decode().partition("?")[0])

    def close(self) -> None:
        self._listening.close()


class ServedGroup:
    """A reference group of two ranks behind HTTP, with a directory into which trainers write."""

    def __init__(self, directory: Path, surface: str, *, adopt: str, apart: bool) -> None:
        self.directory = directory
        self.name = f"published-{os.getpid()}-{surface}"
        self.exchange = directory / "exchange"
        self.exchange.mkdir(parents=True)
        self._log = directory / "log"
        self._surface = surface
        group = {
            "name": self.name,
            "ranks": 2,
            "snapshot": {"directory": str(directory / "models")},
            "journal_directory": str(directory / "journals"),
        }
        content = {"group": group, "model": MODEL, "recovery": {"restarts": 1000}}
        config = directory / "rollout.yaml"
        config.write_text(yaml.safe_dump(content))
        self.base = directory / "base.safetensors"
        shape = rollout_config_from_mapping(content).engine.shape
        save_file(
            {name: np.ascontiguousarray(array) for name, array in initial_state(shape, 1).items()}, self.base
        )
        self._adopting = ("--surface", surface, "--adopt-root", str(self.exchange), "--adopt", adopt)
        named = ("--served-model-name", "policy")
        self.group = Program(
            ("rollout", "--config", str(config), "--http", "0", *self._adopting, *named),
            self._log,
            "examples",
        )
        self._front: Program | None = None
        receipts = ("--receipts", str(directory / "front.sqlite"))
        upstream = ("--upstream", self.group.url)
        self._before = ("serve", self.name, "--http", "0", *upstream, *receipts, *self._adopting, *named)
        if apart:
            self._front = Program(self._before, self._log)
        self.wire = Wire(self.url)
        self.controller = wsm.Controller(self.name)

    @property
    def url(self) -> str:
        return (self._front or self.group).url

    def kill_rank(self) -> None:
        pid = self.controller.status().ranks[1].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    def kill_server(self) -> None:
        """Kill the server before the group, and start another, as a supervisor does."""
        assert self._front is not None
        self._front.kill()
        self._front = Program(self._before, self._log)
        self.wire.to = self._front.url

    def known(self) -> tuple[str | None, bool]:
        """The version that the group has, None for nothing, and whether it is held."""
        status = self.controller.status()
        return (None if status.state == "CLEARED" else status.version), status.hold is not None

    def until_quiet(self) -> None:
        """Wait until no command runs, no rank is missing, and it stays so."""
        until, quiet = time.monotonic() + PATIENCE_S, 0
        while quiet < 10:
            status = self.controller.status()
            alive = all(rank.life == "alive" for rank in status.ranks)
            quiet = quiet + 1 if status.over and alive and (status.serving or status.hold is not None) else 0
            assert time.monotonic() < until, status.headline
            time.sleep(0.05)

    def answer(self, path: str) -> Mapping[str, Any]:
        """What the server answers an operator."""
        return dict(httpx.get(self.url + path, timeout=30).json())

    def close(self) -> None:
        self.wire.close()
        self.controller.close()
        if self._front is not None:
            self._front.end()
        self.group.end()


class Trainer:
    """The process that imported a client, and the life of a trainer in it."""

    def __init__(self, python: str, client: str, source: Path, group: ServedGroup) -> None:
        program = Path(__file__).with_name("trainer.py")
        arguments = (client, str(source), group.wire.address, str(group.exchange), str(group.base), "policy")
        with (group.directory / f"{client}.log").open("ab") as errors:
            self.process = subprocess.Popen(
                [python, str(program), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        assert self.process.stdout is not None
        self.lines = Lines(self.process.stdout)
        self.pid: int | None = None
        self.stood_in: Sequence[str] = self.said(600)["ready"]

    def said(self, timeout_s: float) -> dict[str, Any]:
        """Return what the trainer says next; a line of a library's is none."""
        while True:
            line = self.lines.next(timeout_s)
            assert line is not None, "the trainer's program ended"
            if line.startswith("{"):
                told: dict[str, Any] = json.loads(line)
                return told

    def live(self, *, first: int, steps: int, asks: bool = False, timeout_s: float = 180.0) -> dict[str, Any]:
        """Live one trainer's life; return all that it said."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"first": first, "steps": steps, "asks": asks}) + "\n")
        self.process.stdin.flush()
        all_said: dict[str, Any] = {}
        while "ended" not in all_said:
            all_said |= (told := self.said(timeout_s))
            self.pid = told.get("pid", self.pid)
        self.pid = None
        return all_said

    def kill_life(self) -> None:
        if self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        self.kill_life()
        self.process.kill()
        self.process.wait()
