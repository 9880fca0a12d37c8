"""A living group that is kept by a :class:`wsm.Keeper`, which starts and ends real rank processes."""

from __future__ import annotations

import signal
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from living_group import PATIENCE_S, LivingGroup, eventually

import wsm
from wsm.config import config_from_mapping
from wsm.group_segment import own_group


class LivingProcesses:
    """The programs of a living group, as a keeper starts and ends them."""

    def __init__(self, group: LivingGroup) -> None:
        self._group = group
        self.gave: list[tuple[int, int]] = []

    def start(self, participant: int, epoch: int) -> None:
        self.gave.append((participant, epoch))
        self._group.launch(participant)

    def ended(self) -> Collection[int]:
        return [rank for rank, program in self._group.programs.items() if program.has_ended()]

    def end(self, participant: int) -> wsm.ProcessEnd:
        program = self._group.programs[participant]
        program.kill()
        code = program.code or 0
        program.close()
        return wsm.ProcessEnd(program.pid, code)

    def wait(self, timeout_s: float) -> None:
        time.sleep(timeout_s)


class KeptGroup:
    """A group of two that serves version 1, and could serve 2; or one of which nothing was started yet."""

    def __init__(
        self, directory: Path, limits: wsm.RecoveryConfig, closing: ExitStack, *, boots: bool
    ) -> None:
        self.group = LivingGroup(directory, load=0.5)
        self.config = config_from_mapping(self.group.config)
        self.segment = own_group(self.config, directory=directory)
        closing.callback(self.segment.close)
        closing.callback(self.segment.unlink)
        self.told: list[str] = []
        self.recoveries_when_told: list[int] = []
        self._closing = closing
        self.processes = LivingProcesses(self.group)
        self.keeper = wsm.Keeper(self.config, self.segment, self.processes, limits=limits, tell=self._tell)
        closing.callback(self.group.close)
        if boots:
            self.controller = self.group.boot()
            self.group.publish(2)
            self.keep()

    def keep(self) -> None:
        """Let the keeper begin."""
        self._closing.enter_context(self.keeper)

    def _tell(self, line: str) -> None:
        self.recoveries_when_told.append(self.keeper.recoveries)
        self.told.append(line)

    def kill(self, *ranks: int) -> None:
        for rank in ranks:
            self.group.programs[rank].signal(signal.SIGKILL)

    def until_told(self, words: str) -> str:
        """The line that says so."""

        def found() -> list[str]:
            self.keeper.check()
            return [line for line in self.told if words in line]

        eventually(found, f"it is told that {words!r}, beside {self.told}")
        return found()[0]

    def until_whole(self) -> None:
        assert self.keeper.wait_until_whole(PATIENCE_S)
        self.keeper.check()

    def damage(self, version: int = 1) -> tuple[Path, bytes]:
        """As that of the group."""
        return self.group.damage(version)


@contextmanager
def kept_group(directory: Path, *, boots: bool = True, **limits: float) -> Iterator[KeptGroup]:
    """A group whose keeper tries again quickly, unless `limits` say otherwise."""
    options = {"delay_s": 0.02, "longest_delay_s": 0.1, **limits}
    with ExitStack() as closing:
        yield KeptGroup(directory, wsm.RecoveryConfig(**options), closing, boots=boots)
