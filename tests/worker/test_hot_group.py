"""Hot updates of real processes on real files: no step is mixed, and a bad file changes nothing."""

from __future__ import annotations

import pytest
from living_group import eventually

from wsm.controller.errors import RankFailedError
from wsm.errors import WsmError

pytestmark = pytest.mark.processes

CYCLES = 60


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "config", "settings"),
    [
        (2, {}, {"load": 0.7}),
        (3, {}, {"load": 0.4}),
        (2, {}, {"load": 0.3, "block": True}),
        (2, {}, {"load": 0.3, "idle": "selector"}),
        (2, {"follow": False}, {"load": 0}),
    ],
    ids=["two ranks", "three ranks", "block", "selector", "idle"],
)
def test_no_step_is_mixed_in_many_hot_updates_under_load(make_group, ranks, config, settings):
    group = make_group(ranks, config=config, **settings)
    group.publish(2)
    with group.boot() as controller:
        for cycle in range(CYCLES):
            version = 2 if cycle % 2 == 0 else 1
            receipt = controller.update(version, hot=cycle % 7 != 6)
            assert {r.rank: r.digest for r in receipt.ranks} == group.published[version].digests
        if settings["load"]:
            group.await_steps()
    ended = group.stop()
    assert {(end["version"], end["admitting"]) for end in ended} == {("1", True)}
    group.assert_steps_are_pure([1] if settings["load"] else [])
    group.assert_journals_are_possible()


@pytest.fixture
def serving(make_group):
    """Two ranks under load that serve version 1, and their controller."""
    group = make_group(load=0.5)
    with group.boot() as controller:
        yield group, controller
        group.await_steps()
        group.stop()
        group.assert_steps_are_pure()
        group.assert_journals_are_possible()


def test_a_bit_that_flipped_in_a_published_file_is_found_while_the_old_version_serves(serving):
    group, controller = serving
    group.publish(2)
    damaged = group.shard_files(2, 1)[-1]
    content = bytearray(damaged.read_bytes())
    content[-3] ^= 0x10
    damaged.write_bytes(content)
    with pytest.raises(RankFailedError, match="rank 1 in stage_weights") as caught:
        controller.update(2, hot=True)
    assert caught.value.error == "digest-mismatch"
    group.await_steps()
    assert {version for _, version, _ in group.steps_of(1)} == {1}
    group.publish(2, seed="written again")
    assert controller.update(2, hot=True).version == "2"


def test_a_flip_that_breaks_on_one_rank_stops_every_rank(make_group):
    group = make_group(load=0.5)
    group.publish(2)
    with group.boot() as controller:
        group.await_steps()
        group.order(1, "flip", "raise")
        with pytest.raises(WsmError):
            controller.update(2, hot=True, settle_s=1.0)
        assert group.programs[1].says("died")["error"] == "FlipFailedError"
        eventually(lambda: controller.status().ranks[1].step_kind == "broken")
        assert not controller.status().serving
        before = len(group.steps_of(0))
        group.programs[0].tell("say")
        group.programs[0].says("state")
        assert len(group.steps_of(0)) == before
    group.assert_steps_are_pure([1])
    group.assert_journals_are_possible()
