"""A group could not be restored: it is tried again, until it works, somebody else commands, or never."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from wsm import Outcome
from wsm.controller.recovery import Recovery
from wsm.rollout.config import RecoveryConfig, RolloutConfig
from wsm.rollout.restoring import Restoration

sys.path.insert(0, str(Path(__file__).parent.parent / "worker"))
from living_group import LivingGroup, eventually
from recovered_group import recovered

pytestmark = pytest.mark.processes

LIMITS = RecoveryConfig(restore_attempts=3, delay_s=0.01, restore_s=60.0)


@pytest.fixture
def kept(tmp_path):
    """A group of two that serves version 1, could serve 2, and is owned by the test."""
    with recovered(LivingGroup(tmp_path)) as kept:
        kept.group.boot()
        kept.group.publish(2)
        yield kept


@pytest.fixture
def told():
    return []


def lose(kept, told) -> Restoration:
    """Lose rank 1 and replace it; nothing is restored yet."""
    kept.kill(1)
    kept.begin(1)
    kept.replace(1)
    return Restoration(
        RolloutConfig(kept.config, recovery=LIMITS),
        kept.recovery,
        tell=told.append,
        cancelled=lambda: False,
        since_s=time.monotonic(),
    )


def damage(kept, version: int = 1) -> tuple[Path, bytes]:
    """Flip a bit in the middle of what rank 1 loads; return the file, and what was in it."""
    path = max(kept.group.shard_files(version, 1), key=lambda file: file.stat().st_size)
    whole = path.read_bytes()
    path.write_bytes(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])
    return path, whole


def commander(kept):
    return kept.group._controllers[0]


def test_a_damaged_file_that_is_mended_in_time_is_loaded_after_all(kept, told):
    path, whole = damage(kept)
    restoration = lose(kept, told)
    restoration.attempt()
    assert not restoration.over
    assert "is not restored yet, attempt 2 of 3" in told[-1]
    assert "rank 1" in told[-1]
    assert commander(kept).status().state == "CLEARED"
    path.write_bytes(whole)
    restoration.attempt()
    assert restoration.over
    assert "serves version 1 again" in told[-1]
    assert commander(kept).update(1).outcome is Outcome.ALREADY_SERVED


def test_it_is_given_up_visibly_and_the_group_takes_other_commands_then(kept, told):
    damage(kept)
    restoration = lose(kept, told)
    due = []
    while not restoration.over:
        due.append(restoration.due_s)
        restoration.attempt()
    assert len(told) == LIMITS.restore_attempts
    assert "is not restored after 3 attempts and stays CLEARED until it is updated" in told[-1]
    assert due == sorted(due)
    assert commander(kept).status().controller_pid is None
    assert commander(kept).update(2).version == 2


def test_the_group_is_free_for_other_commands_between_two_attempts_and_they_end_it(kept, told):
    damage(kept)
    restoration = lose(kept, told)
    restoration.attempt()
    assert commander(kept).update(2).version == 2
    restoration.attempt()
    assert restoration.over
    assert "was given another command" in told[-1]
    status = commander(kept).status()
    assert (status.version, status.serving, status.controller_pid) == (2, True, None)


def test_a_clear_between_two_attempts_means_that_nothing_is_loaded_any_more(kept, told):
    path, whole = damage(kept)
    restoration = lose(kept, told)
    restoration.attempt()
    assert commander(kept).clear().outcome is Outcome.CLEARED
    path.write_bytes(whole)
    restoration.attempt()
    assert restoration.over
    assert commander(kept).status().state == "CLEARED"


def test_another_controller_that_commands_at_the_moment_is_given_way(kept, told):
    damage(kept)
    restoration = lose(kept, told)
    restoration.attempt()
    kept.group.order(0, "write", "hold")
    pending = commander(kept).begin_update(2)
    kept.group.await_held(0, "write")
    before = len(told)
    restoration.attempt()
    assert (restoration.over, len(told)) == (False, before)
    kept.group.revoke(0, "write")
    assert pending.result(60).version == 2
    eventually(lambda: commander(kept).status().controller_pid is None)
    restoration.attempt()
    assert restoration.over


def test_a_cleared_group_is_owed_nothing(kept, told):
    commander(kept).clear()
    restoration = lose(kept, told)
    restoration.attempt()
    assert restoration.over
    assert "is CLEARED, as it was before" in told[-1]
    assert isinstance(kept.recovery, Recovery)
    assert kept.recovery.owed() is None
