"""A group whose weights arrive as changes of those that it serves: real ranks, the same guarantees."""

from __future__ import annotations

import pytest
from living_group import shard_of

from wsm import Outcome
from wsm.config import ConfigurationError, config_from_mapping
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
