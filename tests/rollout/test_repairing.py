"""A rank lives and its teardown failed: all are cleared again; where that does not help, it is replaced."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from wsm.controller.errors import RankFailedError
from wsm.rollout.config import RecoveryConfig, RolloutConfig
from wsm.rollout.repairing import Repairs
from wsm.rollout.restoring import Restoration
from wsm.signals.image import SegmentImage
from wsm.status import explain, read_facts

sys.path.insert(0, str(Path(__file__).parent.parent / "worker"))
from living_group import LivingGroup, eventually
from recovered_group import RecoveredGroup, recovered

pytestmark = pytest.mark.processes

LIMITS = RecoveryConfig(repair_attempts=2, delay_s=0.01)


class Repaired:
    """A group of two that serves version 1, is owned by the test, and repaired as a supervisor does it."""

    def __init__(self, kept: RecoveredGroup) -> None:
        self.kept = kept
        self.group = kept.group
        self.told: list[str] = []
        self.config = RolloutConfig(kept.config, recovery=LIMITS)
        self.repairs = Repairs(self.config, kept.recovery, tell=self.told.append, cancelled=lambda: False)
        self.controller = self.group.boot()
        self.group.publish(2)

    def fail_to_clear(self, rank: int = 0) -> None:
        with pytest.raises(RankFailedError, match="release"):
            self.controller.clear()
        assert self.controller.status().ranks[rank].weights == "FAULTED"

    def until_repaired(self) -> None:
        def look() -> bool:
            assert self.repairs.look() == {}
            return not self.repairs.pending

        eventually(look, "the group is repaired")
        assert self.controller.status().state == "CLEARED"


@pytest.fixture
def repaired(tmp_path) -> Iterator[Repaired]:
    with recovered(LivingGroup(tmp_path)) as kept:
        yield Repaired(kept)


def test_a_cause_that_passes_is_repaired_by_another_clear(repaired):
    assert repaired.repairs.look() == {}
    assert not repaired.repairs.pending
    repaired.group.order(0, "release", "raise")
    repaired.fail_to_clear()
    assert repaired.repairs.look() == {}
    assert (
        "is FAULTED, a teardown failed on rank 0; all ranks are cleared again in 0.01 s" in repaired.told[0]
    )
    repaired.group.revoke(0, "release")
    repaired.until_repaired()
    assert "is CLEARED" in repaired.told[-1]
    assert repaired.controller.status().controller_pid is None
    assert repaired.controller.update(2).version == 2


def test_a_cause_that_stays_ends_the_process_after_as_many_attempts_as_are_allowed(repaired):
    repaired.group.order(0, "release", "raise")
    repaired.fail_to_clear()
    found: list[dict[int, str]] = []

    def look() -> bool:
        found.append(repaired.repairs.look())
        return bool(found[-1])

    eventually(look, "the rank is given up")
    assert found[-1] == {0: "its teardown failed, and 2 times more when it was cleared"}
    assert sum("clearing it again failed" in said for said in repaired.told) == 2
    repaired.group.revoke(0, "release")
    repaired.kept.kill(0)
    assert repaired.kept.recover(0) is None  # what failed was a clear: nothing is owed
    repaired.until_repaired()
    assert repaired.controller.update(2).version == 2


def test_who_commands_first_is_given_way(repaired):
    repaired.group.order(0, "release", "raise")
    repaired.fail_to_clear()
    repaired.repairs.look()
    repaired.group.revoke(0, "release")
    repaired.controller.clear()
    repaired.until_repaired()
    assert len(repaired.told) == 1


def test_a_group_that_waits_to_be_restored_is_restored_after_it_was_repaired(repaired):
    kept, group = repaired.kept, repaired.group
    kept.kill(1)
    kept.begin(1)
    kept.replace(1)
    group.order(0, "write", "raise once")
    group.order(0, "release", "raise")
    restoration = Restoration(
        repaired.config,
        kept.recovery,
        tell=repaired.told.append,
        cancelled=lambda: False,
        since_s=time.monotonic(),
    )
    restoration.attempt()
    assert not restoration.over
    assert repaired.controller.status().ranks[0].weights == "FAULTED"
    group.revoke(0, "release")
    repaired.until_repaired()
    restoration.attempt()
    assert restoration.over
    assert "serves version 1 again" in repaired.told[-1]


def test_who_asks_why_is_told_that_it_is_repaired(repaired):
    repaired.group.order(0, "release", "raise")
    repaired.fail_to_clear()
    segment = repaired.kept.segment
    assert "by itself" in explain(read_facts(segment.name, SegmentImage.of(segment))).text()
