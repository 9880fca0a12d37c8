"""A living group that several tests share: brought back to serving a version after whatever they did."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence

from living_group import LivingGroup, eventually

import wsm
from wsm.config import ENGINE_WORDS, EngineWordsConfig
from wsm.controller import EngineBridge
from wsm.signals.fastdeploy import EngineWord, EngineWordKind


class ServedGroup:
    """The group, its controller, and FastDeploy's words beside it."""

    def __init__(self, group: LivingGroup, controller: wsm.Controller) -> None:
        self.group = group
        self.controller = controller

    @property
    def newest(self) -> int:
        return max(self.group.published)

    def publish(self) -> int:
        """Publish the next version; return its number."""
        version = self.newest + 1
        self.group.publish(version)
        return version

    def bring_to_serve(self) -> None:
        """Let every rank go on, and have them serve the newest version."""
        for order in (self.group.directory / "orders").glob("*"):
            order.unlink()
        for program in self.group.programs.values():
            program.thaw()
        eventually(lambda: self.controller.status().over, "the last command is over")
        if not self.controller.status().serving:
            self.controller.clear(wait_s=30)
        self.controller.update(self.newest, wait_s=30)

    def rank(self, rank: int) -> wsm.controller.RankStatus:
        return self.controller.status().ranks[rank]

    def commands_seen(self, rank: int) -> list[int]:
        """Sequences of the commands that a rank saw, from its journal."""
        return [entry["sequence"] for entry in self.journal(rank, "command_seen")]

    def actions_started(self, rank: int, sequence: int) -> list[str]:
        entries = self.journal(rank, "action_started")
        return [entry["facts"]["name"] for entry in entries if entry["sequence"] == sequence]

    def refuses_to_step(self, rank: int) -> str:
        """Make a rank step whatever poll() says; return the name of the error that stops it."""
        self.group.programs[rank].tell("step")
        return self.group.programs[rank].says("no step")["error"]

    @contextlib.contextmanager
    def engine_words(
        self, parts: Sequence[int] = (1,), kinds: Sequence[EngineWordKind] = (EngineWordKind.WEIGHTS,)
    ) -> Iterator[dict[tuple[EngineWordKind, int], EngineWord]]:
        """The words of an engine of that many data-parallel parts, as it would create them."""
        with contextlib.ExitStack() as undo:
            words = {}
            for kind in kinds:
                for part in parts:
                    word = EngineWord.create(kind, part, 0, directory=self.group.directory)
                    undo.callback(word.close)
                    undo.callback(word.unlink)
                    words[kind, part] = word
            yield words

    def bridge(self, parts: Sequence[int] = (1,), clock: wsm.clock.Clock | None = None) -> EngineBridge:
        """What obeys the words; to be started, or turned by hand."""
        config = EngineWordsConfig(suffixes=tuple(parts), answers=ENGINE_WORDS, deadline_s=60.0)
        return EngineBridge(self.group.controller(), config, clock=clock, directory=self.group.directory)

    def journal(self, rank: int, kind: str) -> list[dict]:
        """Entries of one kind from a rank's journal."""
        path = self.group.directory / "journals" / f"rank{rank}.ndjson"
        entries = [json.loads(line) for line in path.read_text().splitlines()]
        return [entry for entry in entries if entry["kind"] == kind]
