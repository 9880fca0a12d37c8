"""A process that has the controller role and does not go on is ended; one that has just taken it is not."""

from __future__ import annotations

import pytest
from living_group import eventually

from tests.forkserver import WITHOUT_PADDLE
from wsm.clock import SystemClock
from wsm.command import CommandArguments
from wsm.controller._drive import Drive
from wsm.controller._transaction import Transaction
from wsm.controller.abandoned_commands import AbandonedCommands
from wsm.controller.group_view import GroupView
from wsm.signals.liveness import ControllerRole
from wsm.signals.segment import Segment
from wsm.states.decide import all_prepared
from wsm.states.group import Opens
from wsm.states.vocabulary import WeightState
from wsm.states.words import Operation
from wsm.status import reading
from wsm.testing import InMemoryRunner, LocalGroup

pytestmark = pytest.mark.processes

HOLDER = """
import sys
from wsm.signals.liveness import ControllerRole
from wsm.signals.segment import Segment
segment = Segment.attach(sys.argv[1], directory=sys.argv[2])
role = ControllerRole(segment)
print("waits", flush=True)
hold = role.acquire(60)
print("has it", flush=True)
for line in sys.stdin:
    print("has it", flush=True)
"""


class Holder:
    """A process that takes the controller role once it is free, and says so whenever it is asked."""

    def __init__(self, group: str, directory: str) -> None:
        self.process = WITHOUT_PADDLE.start("-c", HOLDER, group, directory, stderr=None)
        assert self.process.stdout.readline() == b"waits\n"

    def says(self) -> bytes:
        return self.process.stdout.readline()

    def lives(self) -> bool:
        self.process.stdin.write(b"\n")
        return self.says() == b"has it\n"

    def close(self) -> None:
        self.process.close()


@pytest.mark.slow
def test_a_process_that_takes_the_role_of_one_that_was_ended_has_its_own_time(tmp_path, monkeypatch):
    look = AbandonedCommands.look
    monkeypatch.setattr(AbandonedCommands, "look", lambda _: None)  # of the ranks
    monkeypatch.setattr(reading, "CONTROLLER_GRACE_S", 0.0)
    ended, end_holder = [], ControllerRole.end_holder
    monkeypatch.setattr(
        ControllerRole, "end_holder", lambda role, pid: ended.append(pid) or end_holder(role, pid)
    )
    with (
        LocalGroup(lambda _: InMemoryRunner([]), tmp_path) as group,
        Segment.attach("tested", directory=tmp_path) as segment,
    ):
        group.update("1")
        view = GroupView(segment)
        drive = Drive(view)
        drive.take_role(0)
        opens = Opens(Operation.HOT_UPDATE, before=WeightState.NORMAL)
        drive.turn(
            Transaction(view, CommandArguments("r", "2", deadline_s=600), SystemClock(), 60, opens=opens)
        )
        while not all_prepared(view.view()):
            for worker in group.workers:
                worker.poll()
        hung, next_one = (Holder("tested", str(tmp_path)) for _ in range(2))
        try:
            drive.release()
            eventually(lambda: view.facts().controller_pid in (hung.process.pid, next_one.process.pid))
            if view.facts().controller_pid == next_one.process.pid:
                hung, next_one = next_one, hung
            keeper = AbandonedCommands(segment, who="the keeper", end_hung_controller_s=1)
            assert hung.says() == b"has it\n"
            # Not one look more: before the next one has the role, the keeper would take it.
            eventually(lambda: look(keeper) is None and ended)
            assert ended == [hung.process.pid]
            assert next_one.says() == b"has it\n"
            look(keeper)
            assert next_one.lives()
            eventually(lambda: look(keeper) is None and len(ended) > 1)
            assert ended[1] == next_one.process.pid
        finally:
            hung.close()
            next_one.close()
        look(keeper)
        while not view.facts().over:
            for worker in group.workers:
                worker.poll()
        assert group.controller.status().version == "2"
        keeper.close()
        view.close()
