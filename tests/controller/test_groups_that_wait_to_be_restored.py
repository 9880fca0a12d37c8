"""A group in a new epoch that nobody has restored yet: a command to it counts, and says what was before."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from wsm.controller.group_view import GroupView
from wsm.receipt import Outcome
from wsm.states.epochs import next_epoch, restored_version
from wsm.states.vocabulary import WeightState

sys.path.insert(0, str(Path(__file__).parent.parent / "worker"))
from lone_rank import LoneRank


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
    group = GroupView(lone.segment)
    assert group.arguments(group.view().command).before is WeightState.NORMAL
    lone.run(pending)
    assert pending.result().version == "2"
