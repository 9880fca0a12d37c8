"""A fleet's hold on a vLLM server, as the fleet's server asks for it; workers and engine stand in."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from tests.raising import raising
from tests.vllm.test_endpoint import played, samples, vllm  # noqa: F401 - of each test here, too
from wsm.fleet import Replica
from wsm.fleet.serving import FleetCommands
from wsm.fleet.watching import FleetWatch
from wsm.http import AsyncClient
from wsm.http.commands import Origin

PAUSE = Origin("sglang", "/pause_generation")


def fleet(at, lease_s=30.0):
    """What asks the server, as one of a fleet that it is alone in."""
    client = AsyncClient("http://vllm", transport=httpx.ASGITransport(at.app))
    listed, terms = [Replica("http://vllm")], {"every_s": 1.0, "connect": lambda _: client}
    watch = FleetWatch(Path("no store"), lambda: listed, **terms)
    return FleetCommands(watch, lease_s=lease_s, at_a_time=1, on_failure="stop")


def refused(answer):
    return answer.status_code, answer.json()["error"]["code"]


def code(caught):
    [row] = caught.value.context["table"]
    return row["code"]


async def updated(at, where):
    return (await at.http.post("/wsm/v1/update", json={"path": str(where)})).json()["outcome"]


async def known(at):
    return (await at.http.get("/wsm/v1/status")).json()


def test_a_hold_is_a_pause_that_its_owner_alone_ends_and_that_an_update_leaves(one, two):
    async def play(at):
        commands = fleet(at)
        await commands.hold(PAUSE)
        assert (at.client.paused, at.client.mode) == (True, "abort")
        for path in ("/resume", "/areal_continue_generation", "/pause"):
            assert refused(await at.http.post(path)) == (409, "held-by-another")
        status = await known(at)
        assert (status["serving"], status["hold"]["owner"]) == (False, "http:fleet-sglang")
        said = samples((await at.http.get("/wsm/v1/metrics")).text)
        assert said['wsm_serving{group="vllm"}'] == 0
        [held] = [name for name in said if name.startswith("wsm_hold_info")]
        assert "http:fleet-sglang" in held
        assert (await commands.status()).hold.owner == "http:fleet-sglang"
        await commands.hold(PAUSE)
        renewed = (await known(at))["hold"]
        assert renewed["id"] == status["hold"]["id"]
        assert renewed["renewed_ns"] > status["hold"]["renewed_ns"]
        assert (await at.http.post("/wsm/v1/update", json={"path": str(two)})).json()[
            "outcome"
        ] == "committed"
        assert at.client.paused
        await commands.release(PAUSE)
        assert not at.client.paused
        status = await known(at)
        assert (status["serving"], status["hold"], status["version"]) == (True, None, "two")
        await commands.release(PAUSE)

    played(one, play)


def test_a_lease_that_is_not_renewed_ends_the_hold(one):
    async def play(at):
        await fleet(at, lease_s=0.05).hold(PAUSE)
        while at.client.paused:  # noqa: ASYNC110 - as who asks over HTTP
            await asyncio.sleep(0.01)
        assert (await known(at))["hold"] is None

    played(one, play)


def test_a_pause_of_the_servers_own_trainer_is_neither_taken_nor_ended(one):
    async def play(at):
        commands = fleet(at)
        assert (await at.http.post("/pause")).status_code == 200
        for command in (commands.hold, commands.release):
            with raising("not-all") as caught:
                await command(PAUSE)
            assert code(caught) == "held-by-another"
        assert at.client.paused
        assert (await at.http.post("/resume")).status_code == 200

    played(one, play)


def test_a_closed_hold_is_opened_by_other_weights_alone(one, two):
    async def play(at):
        commands = fleet(at, lease_s=0.05)
        await commands.hold(PAUSE)
        assert await commands.fail_closed(PAUSE, verb="/update_weights", reason="it failed")
        await asyncio.sleep(0.1)
        with raising("not-all") as caught:
            await commands.release(PAUSE)
        assert code(caught) == "hold-closed"
        assert at.client.paused
        assert await updated(at, one) == "committed"
        assert (await known(at))["hold"]["closed"]["verb"] == "/update_weights"
        assert await updated(at, two) == "committed"
        await commands.release(PAUSE)
        assert not at.client.paused

    played(one, play)


@pytest.mark.parametrize("held_first", [True, False])
def test_where_nothing_serves_a_release_resumes_with_the_update_that_ends_well(one, two, held_first):
    async def play(at):
        commands = fleet(at)
        if held_first:
            await commands.hold(PAUSE)
        at.client.engine.workers[1].fails = [1, 1]
        assert await updated(at, two) == "closed"
        await commands.hold(PAUSE)
        await commands.release(PAUSE)
        assert at.client.paused
        assert (await at.http.post("/wsm/v1/update", json={"path": str(two)})).json()[
            "outcome"
        ] == "committed"
        assert not at.client.paused

    played(one, play)


@pytest.mark.parametrize("what", ["hold", "release"])
def test_a_hold_takes_no_word_that_it_would_not_honour(one, what):
    async def play(at):
        answer = await at.http.post(f"/wsm/v1/{what}", json={"surface": "operator", "mode": "keep"})
        assert refused(answer) == (400, "bad-body")
        said = answer.json()["error"]["message"]
        assert "mode" in said
        assert "surface" in said, "it says what it takes"
        assert not at.client.paused

    played(one, play)


@pytest.mark.parametrize(("said", "stays"), [({}, False), ({"on_lease": "stay"}, True)])
def test_a_hold_says_what_becomes_of_it_at_the_end_of_its_lease(one, said, stays):
    async def play(at):
        answer = await at.http.post("/wsm/v1/hold", json={"lease_s": 0.05, **said})
        hold = answer.json()["receipt"]["hold"]
        assert (hold["owner"], hold["on_lease"] == "stay") == ("http:native", stays)
        await asyncio.sleep(0.1)
        while at.client.paused and not stays:  # noqa: ASYNC110 - as who asks over HTTP
            await asyncio.sleep(0.01)
        assert ((await known(at))["hold"] is not None) is stays
        assert (await at.http.post("/wsm/v1/release", json={})).status_code == 200
        assert not at.client.paused

    played(one, play)


@pytest.mark.parametrize("lease_s", [0, -1])
def test_a_hold_without_time_is_refused(one, lease_s):
    async def play(at):
        answer = await at.http.post("/wsm/v1/hold", json={"lease_s": lease_s})
        assert refused(answer) == (400, "bad-body")
        assert not at.client.paused

    played(one, play)


def test_a_hold_that_what_runs_does_not_end_for_is_refused_at_its_deadline_and_vllm_goes_on(one):
    async def play(at):
        async def drains(**_):
            at.client.paused = True
            await asyncio.Event().wait()

        at.client.pause_generation = drains
        asked = {"in_flight": "drain", "deadline_s": 0.05}
        answer = await at.http.post("/wsm/v1/hold", json=asked)
        assert refused(answer) == (409, "deadline")
        assert "0.05 s" in answer.json()["error"]["message"]
        assert not at.client.paused
        assert (await known(at))["serving"]

    played(one, play)
