"""A group's ordinary life on real processes: boot, clear, update, update in place, many times, under load."""

from __future__ import annotations

import pytest
from living_group import eventually

pytestmark = pytest.mark.processes

CYCLES = 100


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


def test_a_rank_without_work_follows_one_that_has_it(group):
    with group.boot():
        group.programs[1].tell("submit 200")
        eventually(lambda: [len(group.steps_of(rank)) for rank in range(2)] == [200, 200])
    assert [end["steps"] for end in group.stop()] == [200, 200]
