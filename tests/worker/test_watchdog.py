"""A rank that is blocked beside a dead or stopped peer is called out of it, on real Gloo, and says why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from living_group import Program, eventually

import wsm
from tests.forkserver import WITH_PADDLE
from tests.leftovers import group_name
from wsm.controller.errors import ActionOverdueError, RankLostError
from wsm.journal import entry as kinds
from wsm.journal.entry import read_ndjson

pytestmark = [pytest.mark.paddle, pytest.mark.processes]

PROGRAM = Path(__file__).with_name("gloo_rank.py")
RANKS = 3


class GlooGroup:
    def __init__(self, directory: Path, **deadlines: float) -> None:
        self.directory = directory
        self.config = {
            "name": group_name(),
            "ranks": RANKS,
            "shut_down_groups": True,
            "journal_directory": str(directory / "journals"),
            "deadlines": {"action_s": deadlines},
        }
        settings = json.dumps({"directory": str(directory), "config": self.config})
        self.programs = [Program(PROGRAM, settings, str(rank), server=WITH_PADDLE) for rank in range(RANKS)]
        for program in self.programs:
            program.says("ready")
        self.controller = wsm.Controller(self.config["name"], directory=directory)

    def interruptions(self, rank: int) -> list[str]:
        with (self.directory / "journals" / f"rank{rank}.ndjson").open() as lines:
            return [one.facts["message"] for one in read_ndjson(lines) if one.kind == kinds.INTERRUPTED]

    def close(self) -> None:
        self.controller.close()
        for program in self.programs:
            program.close()


@pytest.fixture
def make_group(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("GLOG_minloglevel", "2")
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    groups: list[GlooGroup] = []

    def make(**deadlines: float) -> GlooGroup:
        groups.append(GlooGroup(tmp_path, **deadlines))
        return groups[-1]

    yield make
    for group in groups:
        group.close()


def test_steps_end_when_a_peer_is_killed_and_both_the_journal_and_the_caller_name_it(make_group):
    group = make_group()
    group.controller.update(1)
    (group.directory / "work").touch()
    for program in group.programs:
        program.says("stepping")
    group.programs[2].kill()
    for rank in (0, 1):
        group.programs[rank].says("step raised")
    eventually(
        lambda: [rank.step_kind for rank in group.controller.status().ranks][:2] == ["broken", "broken"]
    )
    # Whichever they learned first: that rank 2 died, or that its connection did. The word comes first.
    for rank in (0, 1):
        eventually(
            lambda rank=rank: any(
                "rank 2 is gone" in message or "raised here" in message
                for message in group.interruptions(rank)
            )
        )
    with pytest.raises(RankLostError, match="rank 2 is gone"):
        group.controller.clear()


@pytest.mark.slow
def test_a_collective_beside_a_stopped_rank_ends_at_its_deadline_and_the_stopped_one_is_named(make_group):
    group = make_group(shut_down_tp_group=1.0)
    group.controller.update(1)
    hold = group.directory / "hold1"
    hold.touch()
    pending = group.controller.begin_clear(deadline_s=600, settle_s=600)
    pending.written(10)
    eventually(hold.with_suffix(".reached").exists)
    group.programs[1].freeze()
    with pytest.raises(ActionOverdueError, match="its process is stopped") as caught:
        pending.result(60)
    error = caught.value
    assert (error.rank, error.action, error.deadline_s) == (1, "shut_down_tp_group", 1.0)
    assert set(error.waiting) <= {0, 2}
    eventually(lambda: all(group.interruptions(rank) for rank in (0, 2)))
    status = group.controller.status()
    assert {status.ranks[rank].code for rank in (0, 2)} == {"STOPPED_TOUCHED"}
    hold.unlink()
    group.programs[1].thaw()
    eventually(lambda: group.controller.status().over)
    assert group.controller.status().state == "CLEARED"


def test_a_rank_that_dies_inside_a_collective_action_lets_the_others_out(make_group):
    group = make_group()
    hold = group.directory / "hold2"
    hold.touch()
    pending = group.controller.begin_update(1, deadline_s=600, settle_s=600)
    pending.written(10)
    eventually(hold.with_suffix(".reached").exists)
    group.programs[2].kill()
    with pytest.raises(RankLostError, match="rank 2 is gone"):
        pending.result(60)
    codes = [rank.code for rank in group.controller.status().ranks][:2]
    assert set(codes) <= {"STOPPED_UNTOUCHED", "STOPPED_TOUCHED"}
