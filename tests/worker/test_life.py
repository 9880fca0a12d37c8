"""A group's ordinary life on real processes: boot, clear, update, update in place, many times, under load."""

from __future__ import annotations

import pytest
from living_group import eventually

from wsm import Outcome

pytestmark = pytest.mark.processes

CYCLES = 100


def test_a_group_boots_serves_clears_and_serves_again(make_group):
    group = make_group(load=0.5)
    with group.boot() as controller:
        group.await_steps()
        assert controller.clear().outcome is Outcome.CLEARED
        assert controller.status().state == "CLEARED"
        group.publish(2)
        assert controller.update(2).outcome is Outcome.UPDATED
        group.await_steps()
        group.publish(3)
        assert controller.update(3).version == "3"  # from NORMAL: in place
        group.await_steps()
    ended = group.stop()
    assert {(end["version"], end["weights"], end["kv"]) for end in ended} == {("3", "NORMAL", "NORMAL")}
    group.assert_steps_are_pure([1, 2, 3])
    group.assert_journals_are_possible()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "config", "settings"),
    [
        (2, {}, {"load": 0.7}),
        (3, {"shut_down_groups": True}, {"load": 0.5}),
        (2, {}, {"load": 0.3, "block": True}),
        (2, {}, {"load": 0.3, "idle": "selector"}),
        (2, {"follow": False}, {"load": 0}),
    ],
    ids=["two ranks", "three ranks with collective actions", "block", "selector", "idle"],
)
def test_no_step_is_mixed_in_a_hundred_cycles_under_load(make_group, ranks, config, settings):
    group = make_group(ranks, config=config, **settings)
    with group.boot() as controller:
        for version in range(2, CYCLES + 2):
            group.publish(version)
            if version % 3:
                controller.clear()
            receipt = controller.update(version)
            assert receipt.previous_version == str(version - 1)
            assert {r.rank: r.digest for r in receipt.ranks} == group.published[version].digests
        if settings["load"]:
            group.await_steps()
    ended = group.stop()
    assert {end["version"] for end in ended} == {str(CYCLES + 1)}
    group.assert_steps_are_pure([CYCLES + 1] if settings["load"] else [])
    group.assert_journals_are_possible()


def test_a_cleared_group_holds_no_byte(group):
    with group.boot() as controller:
        controller.clear()
        assert controller.status().serving is False
    assert [(end["held"], end["weights"], end["kv"]) for end in group.stop()] == [
        ([], "CLEARED", "CLEARED")
    ] * 2


def test_a_rank_without_work_follows_one_that_has_it(group):
    with group.boot():
        group.programs[1].tell("submit 200")
        eventually(lambda: [len(group.steps_of(rank)) for rank in range(2)] == [200, 200])
    assert [end["steps"] for end in group.stop()] == [200, 200]


def test_a_selector_rings_once_for_a_command_and_is_quiet_again(make_group):
    group = make_group(idle="selector")
    with group.boot() as controller:
        for version in (2, 3, 4):
            group.publish(version)
            controller.update(version)
        rank = group.programs[0]
        rank.tell("say")
        rings = rank.says("state")["rings"]
        for _ in range(3):  # many selects later nothing has rung any more
            rank.tell("say")
            assert rank.says("state")["rings"] <= rings + 1
    group.stop()
