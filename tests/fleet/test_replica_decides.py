"""A replica's server reads the target itself, and admits text only to what it allows."""

from __future__ import annotations

import threading
import time
from contextlib import closing

import httpx
import pytest
from commanded_group import COMMANDED_RANK

from wsm import Controller, RefusedError, fleet
from wsm.fleet import member
from wsm.http import Client
from wsm.receipt import Outcome
from wsm.states.epochs import Backoff
from wsm.states.fleet import FleetState, NamedContent, next_target
from wsm.strategies.snapshot.store import content_of
from wsm.strategies.trainer.targets import newest_target, set_address, set_target

pytestmark = pytest.mark.processes


def asked(replica, path: str = "ready") -> httpx.Response:
    return httpx.get(f"{replica.url}/wsm/v1/{path}")


def text(replica) -> httpx.Response:
    return httpx.post(f"{replica.url}/v1/completions", json={"prompt": "a", "model": "m"})


def standing(replica):
    return asked(replica, "status").json()["fleet"]


def allow(store, label: str) -> None:
    """Set a target that allows this content alone."""
    content = content_of(store, label)
    assert content is not None
    assert set_target(store, next_target(newest_target(store), content, strict=True))


@pytest.mark.slow
def test_what_is_held_and_not_allowed_takes_no_text_until_the_fleet_is_brought_to_it(
    make_fleet, store
) -> None:
    (replica,) = make_fleet(1, "--fleet", store)
    assert standing(replica)["state"] == "stale", "nothing is proved without a target"
    replica.group.serve(1)  # past the server
    assert asked(replica).status_code == 503
    assert text(replica).json()["error"]["code"] == "fleet-stale"
    listed = [replica.replica]
    assert fleet.update(store, 1, listed).exit_code == 0
    assert (asked(replica).status_code, text(replica).status_code) == (200, 404), "text passed the gate"
    assert standing(replica)["state"] == FleetState.READY.value
    allow(store, "2")
    assert asked(replica).status_code == 503
    stale = text(replica)
    assert (stale.status_code, stale.json()["error"]["code"]) == (503, "fleet-stale")
    assert standing(replica)["admits"] is False
    # A server that comes back serves nothing stale either, from its first answer on.
    replica.kill_server()
    replica.restart_server()
    assert text(replica).json()["error"]["code"] == "fleet-stale"
    assert fleet.update(store, 2, listed).exit_code == 0
    assert (asked(replica).status_code, text(replica).status_code) == (200, 404)
    with closing(Controller(replica.group.name)) as keeper:  # it loads an old version, past the server
        keeper.update("1", force=True)
        assert text(replica).json()["error"]["code"] == "fleet-stale"


@pytest.mark.slow
def test_a_late_commit_of_what_is_allowed_no_longer_is_refused(make_fleet, store) -> None:
    (replica,) = make_fleet(1, "--fleet", store)
    assert fleet.update(store, 1, [replica.replica]).exit_code == 0
    with Client(replica.url) as client:
        client.command("prepare", "late", version="2", hot=True, lease_s=60.0)
        with pytest.raises(Exception, match="not what target") as refused:
            client.command("commit", "late")
        assert refused.value.code == "not-the-fleets"
        assert asked(replica, "status").json()["version"] == "1"
        client.command("abort", "late")


def refused(client: Client, operation: str, *named: str, **keywords: object) -> str:
    with pytest.raises(RefusedError) as raised:
        client.command(operation, *named, **keywords)
    assert raised.value.code == "not-the-fleets"
    return str(raised.value.context["fleet"])


@pytest.mark.slow
def test_an_update_that_is_not_the_fleets_is_refused_with_its_address_unless_the_replica_is_detached(
    make_fleet, store
) -> None:
    (replica,) = make_fleet(1, "--fleet", store)
    (detached,) = make_fleet(1, "--fleet", store, "--detached")
    assert fleet.update(store, 1, [replica.replica, detached.replica]).exit_code == 0
    with Client(replica.url) as client:
        before = asked(replica, "status").json()["sequence"]
        assert refused(client, "update", version="2") == str(store)
        set_address(store, "http://fleet.example:8400")
        assert refused(client, "update", version="2") == "http://fleet.example:8400"
        trainers = httpx.post(f"{replica.url}/update_weights", json={"update_info": {"version": "2"}})
        assert (trainers.status_code, trainers.json()["error"]["code"]) == (409, "not-the-fleets")
        assert asked(replica, "status").json()["sequence"] == before, "no rank was asked"
        assert client.command("update", version="1", force=True).outcome is Outcome.UPDATED
        assert client.command("clear", tags=["kv_cache"]).outcome is Outcome.CLEARED
        assert client.command("update", tags=["kv_cache"]).outcome is Outcome.UPDATED
    assert (asked(replica).status_code, text(replica).status_code) == (200, 404)
    with Client(detached.url) as client:
        client.command("prepare", "own", version="2", hot=True, lease_s=60.0)
        client.command("commit", "own")
        client.command("update", version="1")
        client.command("update", version="2")
    assert (asked(detached, "status").json()["version"], text(detached).status_code) == ("2", 503)


@pytest.mark.slow
def test_an_update_whose_generation_passes_while_it_loads_is_not_committed(
    make_fleet, store, tmp_path
) -> None:
    finish = tmp_path / "finish"
    finish.touch()
    (replica,) = make_fleet(1, "--fleet", store, engine=(COMMANDED_RANK, finish))
    assert fleet.update(store, 1, [replica.replica]).exit_code == 0
    finish.unlink()
    content = content_of(store, "2")
    assert content is not None
    assert set_target(store, next_target(newest_target(store), content))

    def passes() -> None:
        replica.group.until(lambda status: not status.over)
        allow(store, "1")
        finish.touch()

    passing = threading.Thread(target=passes)
    passing.start()
    with Client(replica.url) as client:
        refused(client, "update", version="2", in_flight="drain", on_failure="restore")
    passing.join()
    replica.group.until(lambda status: status.over and status.serving)
    assert (asked(replica, "status").json()["version"], text(replica).status_code) == ("1", 404)


@pytest.mark.slow
def test_a_store_that_cannot_be_read_stops_no_replica_that_serves_what_is_allowed(make_fleet, store) -> None:
    (replica,) = make_fleet(1, "--fleet", store)
    assert fleet.update(store, 1, [replica.replica]).exit_code == 0
    assert standing(replica)["unread_since"] is None
    (store / "targets").rename(store / "elsewhere")
    said = standing(replica)
    assert said["unread_since"] is not None
    assert (said["state"], text(replica).status_code) == ("ready", 404)
    (store / "elsewhere").rename(store / "targets")
    assert standing(replica)["unread_since"] is None


@pytest.mark.slow
def test_a_replica_that_follows_loads_the_target_by_itself(make_fleet, store) -> None:
    (follower,) = make_fleet(1, "--fleet", store, "--follow")
    (other,) = make_fleet(1, "--fleet", store)
    for label in ("1", "2"):
        allow(store, label)
        until = time.monotonic() + 60
        while asked(follower).status_code != 200:
            assert time.monotonic() < until
            time.sleep(0.1)
        assert asked(follower, "status").json()["version"] == label
    assert (asked(other).status_code, asked(other, "status").json()["version"]) == (503, None)


class FakeCommands:
    """Stands for a group that always loads other content than its target names."""

    def __init__(self) -> None:
        self.loaded: list[str] = []

    def held_digest(self) -> str:
        return "other"

    async def update(self, _origin, label: str, **_keywords: object) -> None:
        self.loaded.append(label)


@pytest.mark.slow
def test_a_label_of_other_content_is_not_loaded_again_and_again_and_a_new_target_is_at_once(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(member, "_AGAIN", Backoff(first_s=3600.0, longest_s=3600.0))
    commands, newest = FakeCommands(), None
    follower = member.FleetMember(tmp_path)
    follower.follow(commands)
    try:
        for label in ("1", "2", "3"):
            newest = next_target(newest, NamedContent(label, "0" * 32))
            assert set_target(tmp_path, newest)
            until = time.monotonic() + 60
            while label not in commands.loaded:
                assert time.monotonic() < until
                time.sleep(0.05)
        assert commands.loaded == ["1", "2", "3"]
    finally:
        follower.close()
