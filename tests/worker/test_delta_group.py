"""A group whose weights arrive as changes of those that it serves: real ranks, the same guarantees."""

from __future__ import annotations

from pathlib import Path

import pytest
from living_group import shard_of

from wsm import Outcome
from wsm.config import ConfigurationError, config_from_mapping
from wsm.errors import WsmError
from wsm.strategies import publish_delta, publish_snapshot

pytestmark = pytest.mark.processes


@pytest.fixture
def group(make_group, tmp_path):
    directory = str(tmp_path / "policy")
    delta = {"directory": directory, "device_ids": [0, 1]}
    return make_group(config={"strategy": "delta", "delta": delta}, load=0.5)


@pytest.fixture
def publish(group):
    def publish_version(version, base=None):
        directory = group.config["delta"]["directory"]
        states = {rank: shard_of(version, rank) for rank in range(group.ranks)}
        if base is None:
            report = publish_snapshot(directory, version, states, durable=False)
        else:
            report = publish_delta(directory, version, base, states, crossover=2.0, durable=False)
        group.published[version] = report
        return report

    return publish_version


def test_a_group_boots_whole_and_goes_on_by_deltas_in_place_hot_and_after_a_clear(group, publish):
    publish(1)
    group.start()
    with group.controller() as controller:
        controller.update(1)
        group.await_steps()
        for version in range(2, 7):
            publish(version, base=version - 1)
            if version == 4:
                # Nothing is left to put the delta on: it is loaded over the whole version and all since.
                assert controller.clear().outcome is Outcome.CLEARED
            receipt = controller.update(version, hot=version in {3, 5})
            assert receipt.hot == (version in {3, 5})
            assert receipt.manifest_digest == group.published[version].manifest_digest
            assert {r.rank: r.digest for r in receipt.ranks} == group.published[version].digests
            group.await_steps()
    group.stop()
    group.assert_steps_are_pure([1, 2, 3, 4, 5, 6])
    group.assert_journals_are_possible()


def test_a_damaged_delta_changes_nothing_and_the_group_serves_on(group, publish):
    publish(1)
    group.start()
    with group.controller() as controller:
        controller.update(1)
        path = Path(publish(2, base=1).path)
        for rank in range(
            group.ranks
        ):  # a rank whose own delta is whole may touch its weights before it hears
            blocks = path / f"delta.tp{rank}.blocks"
            data = bytearray(blocks.read_bytes())
            data[3] ^= 1
            blocks.write_bytes(data)
        for hot in (False, True):
            with pytest.raises(WsmError, match=r"delta.tp\d.blocks is damaged"):
                controller.update(2, hot=hot)
            group.await_steps()
        publish(3, base=1)
        controller.update(3)
        group.await_steps()
    group.stop()
    group.assert_steps_are_pure([1, 3])
    group.assert_journals_are_possible()


def test_a_delta_against_another_version_is_refused_where_whole_files_are_not_allowed(make_group, tmp_path):
    delta = {"directory": str(tmp_path / "policy"), "device_ids": [0, 1], "fallback": "refuse"}
    group = make_group(config={"strategy": "delta", "delta": delta}, load=0.5)
    states = {
        version: {rank: shard_of(version, rank) for rank in range(group.ranks)} for version in (1, 2, 3)
    }
    for version in (1, 2):
        group.published[version] = publish_snapshot(
            delta["directory"], version, states[version], durable=False
        )
    group.published[3] = publish_delta(delta["directory"], 3, 2, states[3], crossover=2.0, durable=False)
    group.start()
    with group.controller() as controller:
        controller.update(1)
        for hot in (False, True):
            with pytest.raises(WsmError, match=r"delta against version 2, .* this rank holds version 1"):
                controller.update(3, hot=hot)
            group.await_steps()
        controller.update(2)
        controller.update(3, hot=True)  # what serves is the base, although nothing of it is staged
        group.await_steps()
    group.stop()
    group.assert_steps_are_pure([1, 2, 3])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"fallback": "hope"}, "'fallback' is 'hope'; it must be one of full, refuse"),
        ({"max_chain": 0}, "'max_chain' is 0; it must be a whole number from 1"),
        ({"device_ids": [1]}, "1 ids for 2 ranks"),
        ({"base": 3}, "'base' is unknown"),
    ],
)
def test_what_a_configuration_cannot_mean_is_refused(options, says):
    with pytest.raises(ConfigurationError, match=says):
        config_from_mapping({"name": "policy", "ranks": 2, "strategy": "delta", "delta": options})
