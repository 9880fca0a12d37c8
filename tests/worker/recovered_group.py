"""A living group whose owner is the test: ranks are killed, replaced, recovered as a supervisor does it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from living_group import LivingGroup, eventually

from wsm.config import config_from_mapping
from wsm.controller.recovery import Recovery, RecoveryConfig
from wsm.group_segment import own_group
from wsm.receipt import Receipt
from wsm.states import epochs
from wsm.states.group import GroupTodo


class RecoveredGroup:
    """Takes the supervisor's part in a group; not started yet."""

    def __init__(self, group: LivingGroup) -> None:
        self.group = group
        self.config = config_from_mapping(group.config)
        self.segment = own_group(self.config, directory=group.directory)
        self.begin_anew()

    def begin_anew(self) -> None:
        """Let another process take the supervisor's part."""
        limits = RecoveryConfig(delay_s=0.01, longest_delay_s=0.05)
        self.recovery = Recovery(self.segment, limits=limits)

    @property
    def is_owed(self) -> bool:
        """Whether the group is to serve its committed version again, and does not."""
        return epochs.unrestored(self.recovery.group.view())

    def kill(self, *ranks: int) -> None:
        """SIGKILL, and reap: after this nobody writes the words of these ranks."""
        for rank in ranks:
            os.kill(self.group.programs[rank].pid, signal.SIGKILL)
        for rank in ranks:
            self.group.programs[rank].close()

    def begin(self, *gone: int) -> int:
        """Raise the epoch, once whoever has the controller role has let it go; return its number."""
        self.recovery.dead |= set(gone)
        eventually(lambda: self.recovery.turn() is GroupTodo.START, "a new epoch begins")
        return self.recovery.group.view().command.epoch

    def replace(self, *ranks: int) -> None:
        for rank in ranks:
            self.group.launch(rank)
            self.recovery.dead.remove(rank)
        view = self.recovery.group.view
        eventually(
            lambda: {one.epoch for one in view().statuses} == {view().command.epoch}, "all have joined"
        )

    def restore(self) -> Receipt | None:
        """Give the group again what it is owed; None: nothing."""
        recovery = self.recovery

        def is_over() -> bool:
            recovery.turn()
            if recovery.own is not None:
                recovery.drive.wait(recovery)
            return bool(recovery.ends) or not (recovery.own or self.is_owed)

        eventually(is_over, "the group is restored")
        if not recovery.ends:
            return None
        end = recovery.ends.pop()
        if end.error is not None:
            raise end.error
        return end.receipt

    def recover(self, *ranks: int) -> Receipt | None:
        """Everything that follows a death, to its end."""
        self.begin(*ranks)
        self.replace(*ranks)
        return self.restore()

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
