"""NaN in a version that was promised finite: the rank's weights are given back, or never exchanged."""

from __future__ import annotations

import numpy as np
import pytest

from wsm.controller.errors import RankFailedError
from wsm.states.vocabulary import WeightState
from wsm.strategies import finite, publish_snapshot
from wsm.strategies.snapshot.source import SnapshotConfig


@pytest.fixture
def lone(make_lone, tmp_path):
    return make_lone(load=None, snapshot=SnapshotConfig(directory=str(tmp_path / "policy"), device_ids=(0,)))


@pytest.fixture
def publish(lone, tmp_path, monkeypatch):
    # A trainer that does not look at what it promises; what ranks look at is untouched by this.
    monkeypatch.setattr(finite, "first_not_finite", lambda *_: None)

    def published(version, last):
        content = {}
        for name, spec in lone.runner.weights.specs().items():
            array = np.full(spec.shape, version, np.float32)
            array.flat[-1] = last
            content[name] = array
        publish_snapshot(tmp_path / "policy", version, {0: content}, durable=False, finite=True)
        return {name: array.tobytes() for name, array in content.items()}

    return published


def held(lone):
    return {name: bytes(lone.runner.weights.readable(name)) for name in lone.runner.weights.held()}


@pytest.mark.parametrize("hot", [False, True])
def test_nan_where_it_is_forbidden_never_serves_and_a_good_version_does(lone, publish, hot):
    good = publish(1, 1.0)
    lone.update(1)
    publish(2, np.nan)
    with pytest.raises(RankFailedError, match=r"'weight' .* is not finite from element 63 on") as caught:
        lone.update(2, hot=hot)
    assert caught.value.context["error"] == "not-finite"
    if hot:
        assert held(lone) == good
        assert lone.worker.version == "1"
    else:
        assert held(lone) == {}
        assert lone.worker.weights is WeightState.CLEARED
    better = publish(3, 3.0)
    assert lone.update(3, hot=hot).version == "3"
    assert held(lone) == better
