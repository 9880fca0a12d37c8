"""A KV-cache process that hangs or is stopped: who notices, what it is called, and who replaces it."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "controller"))
from living_group import PATIENCE_S, LivingGroup, Program, eventually

import wsm
from wsm.config import config_from_mapping
from wsm.controller.errors import ActionOverdueError
from wsm.errors import GroupError
from wsm.group_segment import own_group
from wsm.journal import entry as kinds
from wsm.journal.entry import read_ndjson
from wsm.signals.segment import Segment, SegmentImage
from wsm.status import explain, read_facts

pytestmark = pytest.mark.processes

CACHE = 2
CACHE_PROGRAM = Path(__file__).parent / "cache_process.py"
CONTROLLER_PROGRAM = Path(__file__).parent.parent / "controller" / "controller_process.py"


class Processes:
    """Two ranks and their KV-cache process, as a keeper starts and ends them."""

    def __init__(self, group: LivingGroup) -> None:
        self._group = group

    def start(self, participant: int, epoch: int) -> None:
        del epoch
        if participant != CACHE:
            self._group.launch(participant)
            return
        settings = {"directory": str(self._group.directory), "config": self._group.config}
        self._group.programs[CACHE] = Program(CACHE_PROGRAM, json.dumps(settings))

    def ended(self) -> list[int]:
        return [number for number, program in self._group.programs.items() if program.has_ended()]

    def end(self, participant: int) -> wsm.ProcessEnd:
        program = self._group.programs[participant]
        program.kill()
        program.close()
        return wsm.ProcessEnd(program.pid, program.code or 0)

    def wait(self, timeout_s: float) -> None:
        time.sleep(timeout_s)


@pytest.fixture
def make(make_group):
    """`make(**config)`: a group that serves version 1, and its controller."""

    def made(**config):
        group = make_group(config={"kv_cache_process": True, **config}, load=0.3)
        group.publish(1)
        for number in range(3):
            Processes(group).start(number, 1)
        for program in group.programs.values():
            program.says("ready")
        controller = group.controller()
        controller.update(1)
        return group, controller

    return made


def reports(group: LivingGroup) -> list[str]:
    """What the KV-cache process wrote down of waits that took too long."""
    with (group.directory / "journals" / f"rank{CACHE}.ndjson").open() as lines:
        return [each.facts["message"] for each in read_ndjson(lines) if each.kind == kinds.WAIT_EXPIRED]


@pytest.mark.slow
def test_an_action_of_it_that_takes_too_long_is_named_by_its_controller_and_by_itself(make) -> None:
    group, controller = make(deadlines={"action_s": {"release_kv_cache": 1.0}})
    group.order(CACHE, "release_kv", "hold")
    with pytest.raises(ActionOverdueError, match="the KV-cache process") as caught:
        controller.clear(settle_s=0.5)
    assert (caught.value.rank, caught.value.action) == (CACHE, "release_kv_cache")
    with contextlib.closing(Segment.attach(group.name, directory=group.directory)) as segment:
        explained = explain(read_facts(group.name, SegmentImage.of(segment), lock_file=segment.lock_file))
    assert "the KV-cache process" in explained.headline
    eventually(lambda: reports(group), "it says so while it is inside")
    assert "release_kv_cache" in reports(group)[0]
    group.revoke(CACHE, "release_kv")
    eventually(lambda: controller.status().over)
    assert controller.clear().sentence()


@pytest.mark.slow
def test_the_deadline_of_a_command_counts_for_it_although_the_controller_is_stopped(make) -> None:
    group, controller = make()
    group.publish(2)
    controller.clear()
    group.order(CACHE, "rebuild", "hold")
    arguments = (group.name, str(group.directory), "update", "2", "never", "1")
    stopped = Program(CONTROLLER_PROGRAM, *arguments)
    try:
        group.await_held(CACHE, "rebuild")
        stopped.freeze()
        eventually(lambda: group.codes()[:2] == ["PREPARED"] * 2, "the ranks are done")
        eventually(lambda: controller.status().ranks[0].since_s > 1.5, "the deadline has passed")
        group.revoke(CACHE, "rebuild")
        eventually(lambda: controller.status().operation == "ABORT", "the group gives it up")
        eventually(lambda: controller.status().over)
        assert {rank.weights for rank in controller.status().ranks[:2]} == {"CLEARED"}
    finally:
        stopped.close()


def test_it_ends_what_a_dead_controller_left_where_no_rank_can(make) -> None:
    group, controller = make()
    group.publish(2)
    controller.clear()
    group.order(CACHE, "rebuild", "hold")
    controlling = Program(CONTROLLER_PROGRAM, group.name, str(group.directory), "update", "2", "never", "60")
    group.await_held(CACHE, "rebuild")
    eventually(lambda: group.codes()[:2] == ["PREPARED"] * 2, "the ranks are done")
    for rank in range(2):
        group.programs[rank].freeze()
    controlling.kill()
    controlling.close()
    group.revoke(CACHE, "rebuild")
    eventually(lambda: controller.status().operation in ("COMMIT", "ABORT"), "it is decided")
    for rank in range(2):
        group.programs[rank].thaw()
    eventually(lambda: controller.status().over)


@pytest.mark.slow_but
@pytest.mark.parametrize("how", ["stopped", "hanging"])
def test_a_keeper_replaces_one_that_keeps_a_decided_command_from_its_end(tmp_path, how) -> None:
    group = LivingGroup(tmp_path, load=0.5, config={"kv_cache_process": True})
    config, processes, told = config_from_mapping(group.config), Processes(group), []
    segment = own_group(config, directory=tmp_path)
    try:
        group.publish(1)
        for number in range(3):
            processes.start(number, 1)
        for program in group.programs.values():
            program.says("ready")
        controller = group.controller()
        controller.update(1)
        limits = wsm.RecoveryConfig(hung_s=0.5)
        with wsm.Keeper(config, segment, processes, limits=limits, tell=told.append) as keeper:
            if how == "stopped":
                group.programs[CACHE].freeze()
            else:
                group.order(CACHE, "release_kv", "hold")
            with pytest.raises(GroupError, match="the KV-cache process"):
                controller.clear(deadline_s=0.5, settle_s=0.1)
            eventually(lambda: any("serves version 1 again" in line for line in told), f"{told}")
            assert any(
                "the KV-cache process (process " in line and "decided command" in line for line in told
            )
            assert keeper.wait_until_whole(PATIENCE_S)
            assert controller.status().serving
    finally:
        group.close()
        segment.unlink()
        segment.close()
