"""A real vLLM server as a replica of a fleet."""

from __future__ import annotations

import pytest

from tests.vllm.random_llama import trained
from tests.vllm.server import VllmServer
from wsm.fleet.rolling import content_of
from wsm.states.fleet import next_target
from wsm.strategies import AdoptSettings, adopt
from wsm.strategies.trainer.targets import newest_target, set_target

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]
EXTENSION = ("--worker-extension-cls", "wsm.vllm.Worker", "--dtype", "bfloat16")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Versions A and B, in directories and in a store."""
    directory = tmp_path_factory.mktemp("models")
    for seed, name in ((1, "A"), (2, "B")):
        trained(seed).save_pretrained(directory / name)
        adopt(directory / name, AdoptSettings(directory / "store", [directory], durable=False), version=name)
    return directory


@pytest.fixture
def start(models, tmp_path):
    started = []

    def starts():
        place = tmp_path / f"server{len(started)}"
        place.mkdir()
        started.append(VllmServer(place, models / "A", *EXTENSION, WSM_FLEET=str(models / "store")))
        started[-1].await_up()
        return started[-1]

    yield starts
    for server in started:
        server.close()


def test_a_server_serves_nothing_that_the_target_of_its_fleet_does_not_allow(start, models):
    store = models / "store"
    assert set_target(store, next_target(newest_target(store), content_of(store, "B"), strict=True))
    server = start()
    status, answer = server.generate()
    assert (status, answer["error"]["code"]) == (503, "fleet-stale")
    assert server.call("GET", "/wsm/v1/ready")[0] == 503
    status, answer = server.update(models / "A")
    assert (status, answer["error"]["code"]) == (409, "not-the-fleets")
    status, receipt = server.call("POST", "/wsm/v1/update", {"version": "B"})
    assert (status, receipt["outcome"]) == (200, "committed"), receipt
    assert receipt["digest"] == content_of(store, "B").digest
    assert server.versions() == ["B"]
    assert server.call("GET", "/wsm/v1/ready")[0] == 200
