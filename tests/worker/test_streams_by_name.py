"""A stream that brings a rank's own tensors by name, and what one that does not fit costs."""

from __future__ import annotations

import numpy as np
import pytest
from checkpoint_transfer.sender import FakeSender

from tests.raising import raising
from wsm.config import ConfigurationError
from wsm.controller.errors import RankFailedError
from wsm.strategies import TensorSpec, with_manifest
from wsm.strategies.transports._foreign import BATCH_BYTES
from wsm.strategies.transports.by_version import RsyncConfig
from wsm.testing import InMemoryRunner
from wsm.worker import loading

pytestmark = pytest.mark.processes

SPECS = [TensorSpec("weight", "F32", (3, 4)), TensorSpec("bias", "F32", (4,))]
BYTES = sum(spec.nbytes for spec in SPECS)


@pytest.fixture
def sender():
    made = FakeSender()
    yield made
    made.close()


@pytest.fixture
def rank(make_lone, sender):
    def made(**section):
        transfer = {"redis_host": "127.0.0.1", "redis_port": sender.port, **section.pop("rsync_config", {})}
        rsync = RsyncConfig(verify_checksum=False, rsync_config=transfer, **section)
        return make_lone(load=None, strategy="rsync", rsync=rsync, runner=InMemoryRunner(SPECS))

    return made


def state(value, **changes):
    found = {spec.name: np.full(spec.shape, value, np.float32) for spec in SPECS}
    return {name: array for name, array in {**found, **changes}.items() if array is not None}


WRONG = {
    "lacks a tensor": (state(2, bias=None), "1 missing: 'bias'"),
    "has one of another shape": (state(2, bias=np.ones(3, np.float32)), "shape"),
    "has one of another dtype": (state(2, bias=np.ones(4, np.float16)), "dtype"),
    "has one more": (state(2, more=np.ones(4, np.float32)), "1 unknown: 'more'"),
}


@pytest.mark.slow_but
@pytest.mark.parametrize("wrong", WRONG)
def test_a_stream_that_does_not_fit_leaves_the_version_before_serving(rank, sender, wrong):
    lone = rank()
    sender.send(state(1), step_id="1")
    lone.update(1)
    tensors, why = WRONG[wrong]
    sender.send(tensors, step_id="2")
    with pytest.raises(RankFailedError, match=why):
        lone.update(2)
    assert lone.worker.version == "1"
    assert bytes(lone.runner.weights.readable("weight")) == state(1)["weight"].tobytes()
    sender.send(state(3), step_id="3")
    receipt = lone.update(3)
    assert (receipt.serving, receipt.verified) == (True, False)
    assert receipt.ranks[0].facts["peak_extra_bytes"] > BYTES


@pytest.mark.parametrize("section", [{"check": "as_it_comes"}, {"rsync_config": {"check": "as_it_comes"}}])
def test_where_tensors_are_applied_as_they_come_it_costs_the_weights(rank, sender, section):
    lone = rank(**section)
    sender.send(state(1), step_id="1")
    lone.update(1)
    sender.send(state(2, bias=None), step_id="2")
    with pytest.raises(RankFailedError, match="1 missing: 'bias'"):
        lone.update(2)
    assert lone.worker.version is None


def test_what_is_loaded_behind_a_clear_or_beside_what_serves_is_not_collected(rank, sender):
    lone = rank()

    def peak(version, **options):
        sent = with_manifest(state(version), version=version, rank=0, world_size=1, publication="p")
        sender.send(sent, step_id=str(version))
        return lone.update(version, **options).ranks[0].facts["peak_extra_bytes"]

    of_the_package = BYTES + BATCH_BYTES
    assert peak(1) == of_the_package
    assert peak(2) == of_the_package + BYTES
    assert peak(3, hot=True) == of_the_package
    lone.clear()
    assert peak(4) == of_the_package


def test_a_start_refuses_to_collect_what_does_not_fit_the_host_and_names_the_other_way(rank, monkeypatch):
    monkeypatch.setattr(loading, "available_bytes", lambda: BYTES - 1)
    with raising("check-needs-memory", match="check: as_it_comes") as caught:
        rank()
    assert (caught.value.needed, caught.value.available) == (BYTES, BYTES - 1)
    rank(check="as_it_comes").close()
    monkeypatch.setattr(loading, "available_bytes", lambda: BYTES)
    rank().close()


def test_another_word_for_the_check_is_refused_by_name(rank):
    with pytest.raises(ConfigurationError, match=r"check: is 'wholly'; use one of whole, as_it_comes"):
        rank(check="wholly")
    with raising("bad-transport-option", match="'check' is 'wholly'"):
        rank(rsync_config={"check": "wholly"})
