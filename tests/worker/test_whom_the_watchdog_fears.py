"""Which deaths break the communicators of a rank: those of its peers, and of nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest
from living_group import eventually

from tests.forkserver import WITHOUT_PADDLE, Forked
from tests.leftovers import group_name
from wsm.actions.options import PlanOptions
from wsm.actions.plan import derive_plans
from wsm.actions.surfaces import GroupKind
from wsm.clock import SystemClock
from wsm.command import AT_HAND_KIND, AtHand
from wsm.controller.abandoned_commands import AbandonedCommands
from wsm.journal import entry as kinds
from wsm.signals.presence import read_presence
from wsm.signals.segment import Segment
from wsm.states.phases import RankState
from wsm.states.plan_key import CLEAR
from wsm.testing import InMemoryRunner
from wsm.worker._group_words import GroupWords
from wsm.worker._watchdog import ActionWatch, Watchdog
from wsm.worker.recording import Recorder

pytestmark = pytest.mark.processes

STAND = """
import sys, time
from wsm.signals.liveness import register
from wsm.signals.segment import Segment
segment = Segment.attach(sys.argv[1], directory=sys.argv[2])
registration = register(segment, int(sys.argv[3]))
print("standing", flush=True)
time.sleep(600)
"""


class CountingGroups:
    """Communicators that can be interrupted, and count how often they were."""

    def __init__(self) -> None:
        self.interrupted = 0

    def kinds(self) -> list[GroupKind]:
        return []

    def barrier(self, kind: GroupKind) -> None: ...

    def shut_down(self, kind: GroupKind) -> None: ...

    def restart(self, kind: GroupKind, *, incarnation: str) -> None: ...

    def alive(self, kind: GroupKind) -> bool:
        return not self.interrupted

    def interrupt(self) -> bool:
        self.interrupted += 1
        return self.interrupted == 1


@pytest.fixture
def segment(tmp_path):
    with Segment.create_or_adopt(
        group_name(),
        world_size=2,
        helpers=1,
        run_id="",
        configuration_digest=0,
        directory=tmp_path,
    ) as made:
        yield made
        made.unlink()


def stand(segment: Segment, directory: Path, participant: int) -> Forked:
    program = WITHOUT_PADDLE.start("-c", STAND, segment.name, directory, participant, stderr=None)
    assert program.stdout.readline() == b"standing\n"
    return program


def test_what_a_predecessor_died_inside_of_is_forgotten_as_its_place_is_taken(segment):
    words = GroupWords(segment, 0)
    words.presence.inside(7)
    plans = derive_plans(PlanOptions.from_runner(InMemoryRunner([])))
    ActionWatch(0, segment.at_hand[0], words.presence, plans, SystemClock()).joins(2)
    assert read_presence(segment.words, segment.layout.heartbeat[0]).since_ns == 0
    assert AtHand.from_bytes(segment.at_hand[0].read(2, 0, AT_HAND_KIND)).action is None


def test_a_dead_peer_breaks_them_and_a_dead_helper_does_not(segment, tmp_path):
    helper, peer = (stand(segment, tmp_path, participant) for participant in (2, 1))
    plans = derive_plans(PlanOptions.from_runner(InMemoryRunner([])))
    words, groups = GroupWords(segment, 0), CountingGroups()
    watch = ActionWatch(0, segment.at_hand[0], words.presence, plans, SystemClock())
    recorder = Recorder(rank=0, clock=SystemClock())
    abandoned = AbandonedCommands(segment, who="rank 0")
    state = RankState(rank=0, epoch=1)
    watchdog = Watchdog(words, watch, groups, recorder, lambda: state, abandoned=abandoned)
    helper.close()
    watch.joins(1)
    watch.takes_up(plans.named(CLEAR))  # it looks around whenever a command begins
    peer.close()
    eventually(lambda: groups.interrupted)
    watchdog.close()
    told = [one.facts["message"] for one in recorder.journal if one.kind == kinds.INTERRUPTED]
    assert told == ["the process of rank 1 is gone"]
