"""A partial update: only when it is asked for, only over weights that serve, and the receipt says so."""

from __future__ import annotations

import pytest

from tests.raising import raising
from wsm.command import CommandArguments, partial_update_refused
from wsm.controller.errors import RankFailedError
from wsm.states.vocabulary import Tag
from wsm.strategies import publish_snapshot
from wsm.strategies.snapshot.source import SnapshotConfig

WHOLE = {"weight": b"\x01" * 256, "bias": b"\x01" * 32}
PART = {"bias": b"\x02" * 32}


@pytest.fixture
def lone(make_lone, tmp_path):
    return make_lone(load=None, snapshot=SnapshotConfig(directory=str(tmp_path / "policy"), device_ids=(0,)))


@pytest.fixture
def publish(lone, tmp_path):
    def published(version, content):
        specs = lone.runner.weights.specs()
        shard = {name: (specs[name], data) for name, data in content.items()}
        publish_snapshot(tmp_path / "policy", version, {0: shard}, durable=False)

    return published


def held(lone):
    return {name: bytes(lone.runner.weights.readable(name)) for name in lone.runner.weights.specs()}


def test_a_partial_update_keeps_the_rest_and_the_receipt_says_so(lone, publish):
    publish(1, WHOLE)
    assert not lone.update(1).partial
    publish(2, PART)
    receipt = lone.update(2, partial=True)
    assert held(lone) == {**WHOLE, **PART}
    assert receipt.partial
    assert receipt.version == "2"
    assert receipt.ranks[0].facts["not_loaded"] == ["weight"]
    assert "1 tensors kept as they were" in receipt.sentence()
    assert receipt.to_mapping()["partial"] is True


def test_a_version_that_lacks_tensors_is_refused_where_nobody_asked_for_a_part(lone, publish):
    publish(1, WHOLE)
    lone.update(1)
    publish(2, PART)
    with pytest.raises(RankFailedError, match="1 missing: 'weight'"):
        lone.update(2)
    assert held(lone) == WHOLE
    assert lone.worker.version == "1"


def test_weights_that_were_given_back_come_back_whole_or_not_at_all(lone, publish):
    publish(1, WHOLE)
    lone.update(1)
    lone.clear()
    publish(2, PART)
    before = lone.controller.status().sequence
    with raising(partial_update_refused, match="CLEARED"):
        lone.controller.begin_update(2, partial=True).result()
    assert lone.controller.status().sequence == before
    assert lone.update(1).version == "1"
    assert held(lone) == WHOLE


def test_a_partial_update_is_neither_hot_nor_without_weights(lone):
    with raising(partial_update_refused, match="hot"):
        lone.controller.begin_update(2, partial=True, hot=True)
    with raising("tags-contradict", match="partial"):
        lone.controller.begin_update(tags=[Tag.KV_CACHE], partial=True)


def test_the_wish_travels_with_the_command():
    arguments = CommandArguments("x", "2", partial=True)
    assert CommandArguments.from_bytes(arguments.to_bytes()) == arguments
