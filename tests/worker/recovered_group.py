"""A living group whose owner is the test: ranks are killed, replaced, recovered as a supervisor does it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from living_group import LivingGroup, eventually

from wsm.config import config_from_mapping
from wsm.controller.recovery import NewEpoch, Recovery
from wsm.group_segment import own_group
from wsm.receipt import Receipt


class RecoveredGroup:
    """Takes the supervisor's part in a group; not started yet."""

    def __init__(self, group: LivingGroup) -> None:
        self.group = group
        self.config = config_from_mapping(group.config)
        self.segment = own_group(self.config, directory=group.directory)
        self.recovery = Recovery(self.segment)

    def kill(self, *ranks: int) -> None:
        """SIGKILL, and reap: after this nobody writes the words of these ranks."""
        for rank in ranks:
            os.kill(self.group.programs[rank].pid, signal.SIGKILL)
        for rank in ranks:
            self.group.programs[rank].close()

    def begin(self, *gone: int) -> NewEpoch | None:
        """Raise the epoch, once whoever has the controller role has let it go."""
        eventually(lambda: self.recovery.take_role(0.0), "the controller role is free")
        return self.recovery.begin(gone)

    def replace(self, *ranks: int) -> None:
        for rank in ranks:
            self.group.launch(rank)
        eventually(lambda: not self.recovery.missing(), "all have joined the epoch")

    def recover(self, *ranks: int) -> Receipt | None:
        """Everything that follows a death, to its end."""
        self.begin(*ranks)
        self.replace(*ranks)
        pending = self.recovery.restore()
        return None if pending is None else pending.result(60)

    def close(self) -> None:
        self.recovery.close()
        self.group.close()
        self.segment.unlink()
        self.segment.close()


@contextmanager
def recovered(group: LivingGroup) -> Iterator[RecoveredGroup]:
    kept = RecoveredGroup(group)
    try:
        yield kept
    finally:
        kept.close()
