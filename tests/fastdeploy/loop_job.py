"""A FastDeploy job of several ranks for a test: its words, its model directory, its processes."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

import loop_rank
from living_group import Program, eventually

import wsm
from tests.forkserver import WITHOUT_PADDLE
from wsm.signals.fastdeploy import EngineWord, EngineWordKind
from wsm.strategies import publish_snapshot

PROGRAM = Path(loop_rank.__file__)
NORMAL, UPDATING, CLEARING, CLEARED = 0, 1, -1, -2


class LoopJob:
    """Ranks in one directory; `parts` data-parallel parts of `part` ranks each."""

    def __init__(
        self,
        directory: Path,
        generation: str,
        *,
        parts: int = 1,
        part: int = 2,
        block: bool = False,
        **more: Any,
    ) -> None:
        self.directory, self.ranks = directory, parts * part
        self.model = directory / "model"
        self.published: dict[int, list[str]] = {}
        base = secrets.randbelow(1 << 30) + 10_000
        self.ports = [base + number for number in range(parts)]
        self.words = [
            EngineWord.create(EngineWordKind.WEIGHTS, port, NORMAL, directory=directory)
            for port in self.ports
        ]
        self.settings = {
            "directory": str(directory),
            "generation": generation,
            "model": str(self.model),
            "ports": self.ports,
            "ranks": self.ranks,
            "part": part,
            "block": block,
            "whole": False,
            **more,
        }
        self.programs: list[Program] = []
        self._controls = 0
        self.controllers: list[wsm.Controller] = []
        self.publish(1)

    def start(self) -> None:
        self.launch()
        for program in self.programs:
            assert program.says("ready")["version"] == "1"

    def launch(self) -> None:
        for rank in range(self.ranks):
            self.programs.append(
                Program(PROGRAM, json.dumps(self.settings), str(rank), server=WITHOUT_PADDLE)
            )

    def publish(self, version: int) -> None:
        shards = {}
        for rank in range(self.ranks):
            shards[rank] = {
                spec.name: (spec, bytes([version * 16 + rank]) * spec.nbytes)
                for spec in (loop_rank.TRAINED_SPECS if self.settings.get("trained") else loop_rank.SPECS)
            }
        publish_snapshot(self.model, version, shards, durable=False)

    def controller(self) -> wsm.Controller:
        controller = wsm.Controller(
            f"fastdeploy-{self.ports[0]}", directory=self.settings.get("shared", self.directory)
        )
        self.controllers.append(controller)
        return controller

    def asks(self, value: int, part: int = 0) -> None:
        self.words[part].store(value)

    def reads(self) -> list[int]:
        return [word.read() for word in self.words]

    def answers(self, *values: int) -> None:
        eventually(lambda: self.reads() == list(values), f"the words to say {values}, not {self.reads()}")

    def order(self, rank: int, what: str) -> Path:
        path = self.directory / f"{rank}.{what}"
        path.touch()
        return path

    def control(self, method: str, **args: Any) -> None:
        """Ask what FastDeploy's engine asks every worker by its task queue."""
        path = self.directory / f"control.{self._controls}"
        self._controls += 1
        (new := self.directory / "control.new").write_text(json.dumps({"method": method, "args": args}))
        new.rename(path)

    def controls(self, method: str, **args: Any) -> list[dict[str, Any]]:
        self.control(method, **args)
        return self.each_says("controlled")

    def each_says(self, event: str) -> list[dict[str, Any]]:
        return [program.says(event) for program in self.programs]

    def steps_on(self, version: int) -> None:
        """Wait until each rank has made steps with the version; it may have said some of others before."""
        for program in self.programs:
            while program.says("stepped")["version"] != str(version):
                pass

    def end(self) -> list[dict[str, Any]]:
        """Let every rank leave its loop; returns what they say last."""
        (self.directory / "end").touch()
        return self.each_says("ended")

    def close(self) -> None:
        for controller in self.controllers:
            controller.close()
        for program in self.programs:
            program.close()
        for word in self.words:
            word.unlink()
            word.close()
