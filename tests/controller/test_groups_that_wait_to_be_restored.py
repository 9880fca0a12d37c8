"""A group in a new epoch that nobody has restored yet: a command to it counts, and says what was before."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from tests.segment_bytes import damage_arguments_slot
from wsm.controller.group_view import GroupView
from wsm.controller.recovery import Recovery, RecoveryConfig
from wsm.errors import WsmError
from wsm.receipt import Outcome
from wsm.states.epochs import next_epoch, restored_version, unrestored
from wsm.states.group import GroupState, goal_of
from wsm.states.vocabulary import WeightState

sys.path.insert(0, str(Path(__file__).parent.parent / "worker"))
from living_group import eventually
from lone_rank import LoneRank, load


@pytest.fixture
def lone(tmp_path):
    """A rank that served version 1, in an epoch whose owner died before it restored that."""
    rank = LoneRank(tmp_path)
    rank.update(1)
    group = GroupView(rank.segment)
    group.write_command(next_epoch(group.view()))
    group.close()
    while rank.controller.status().ranks[0].code != "ATTACHED":
        rank.worker.poll()
    yield rank
    rank.close()


def test_a_clear_is_no_command_without_work_but_the_one_that_counts(lone):
    """Answered as "already cleared", the next recovery would load what its memory was taken from."""
    assert lone.clear().outcome is Outcome.CLEARED
    view = GroupView(lone.segment).view()
    assert restored_version(view, asked=None, committed=1, served=None) is None
    assert lone.clear().outcome is Outcome.ALREADY_CLEARED


def test_a_command_remembers_what_the_group_is_owed(lone):
    pending = lone.controller.begin_update(2)
    pending.written(10)
    group = GroupView(lone.segment)
    assert group.arguments(group.view().command).before is WeightState.NORMAL
    lone.run(pending)
    assert pending.result().version == "2"


def fails(_context, _target):
    raise OSError("the disk is gone")


def damage_arguments(lone) -> None:
    """Let nothing be read any more of what the last command says besides its word."""
    group = GroupView(lone.segment)
    word = group.view().command
    damage_arguments_slot(lone.segment, word.sequence)
    assert group.arguments(word) is None
    group.close()


@pytest.mark.slow_but("hold-behind the decision")
@pytest.mark.parametrize("damaged", ["before they are read", "behind the decision"])
@pytest.mark.parametrize("command", ["hold", "restore"])
def test_no_debt_is_lost_where_arguments_are_damaged(lone, command, damaged):
    group, recovery = GroupView(lone.segment), Recovery(lone.segment, limits=RecoveryConfig(restore_s=1))
    committed = (command, damaged) == ("hold", "behind the decision")
    assert unrestored(group.view())
    pending, ends = None, recovery.ends
    if command == "hold":
        pending = lone.controller.begin_hold(owner="trainer", deadline_s=60 if committed else 1)
        pending.written(10)
    else:
        lone.worker._loop.reader._work = replace(lone.worker._loop.reader._work, load=fails)
        recovery.turn()
    if damaged == "before they are read":
        damage_arguments(lone)
    if pending is None:
        eventually(lambda: lone.worker.poll() and recovery.turn() and ends)
        assert ends.pop().error is not None
    else:
        lone.run(pending)
        with nullcontext() if committed else pytest.raises(WsmError):
            pending.result()
    damage_arguments(lone)
    assert unrestored(group.view())
    lone.worker._loop.reader._work = replace(lone.worker._loop.reader._work, load=load)
    # What the next epoch restores is the same, and so is what this one does.
    recovery.dead.add(0)
    known = recovery.known(group.look(), GroupState.of(group.view()), own=True)
    recovery.dead.clear()
    assert goal_of(group.view(), known) == "1"
    eventually(lambda: lone.worker.poll() and recovery.turn() and ends)
    assert (lone.worker.version, lone.controller.status().hold is not None) == ("1", committed)
    assert not unrestored(group.view())
    group.close()
    recovery.close()
